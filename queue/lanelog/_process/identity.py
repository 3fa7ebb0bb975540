"""Who acts on the log, as far as the library knows it: events of deletions and the audit say it."""

from __future__ import annotations

import os
import socket

from attrs import field, frozen


@frozen
class ProcessIdentity:
    """A process, and the account with which it acts at the server."""

    account: str
    host: str = field(factory=socket.gethostname)
    pid: int = field(factory=os.getpid)
