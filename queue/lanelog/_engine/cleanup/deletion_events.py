"""The log events of deletions: their common fields, and the event of retention.

Owns these words, and deletes nothing. The events come after the commits.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, TypedDict

from lanelog._facts.engine import janitor as facts

if TYPE_CHECKING:
    from lanelog._engine.cleanup.collection import Collected


class ActingProcess(TypedDict):
    """The fields that name the actor."""

    account: str
    host: str
    pid: int


def who(account: str) -> ActingProcess:
    """The actor, as far as the library knows it: the account at the server, the machine and the process."""
    return {"account": account, "host": socket.gethostname(), "pid": os.getpid()}


def tell_aged(account: str, topic: str, released: Collected) -> None:
    """Log how many dead letters retention has released, if there were any."""
    if released.aged:
        why = "dead_letter_retention"
        facts.dead_letters_deleted(topic=topic, messages=released.aged, why=why, **who(account))
