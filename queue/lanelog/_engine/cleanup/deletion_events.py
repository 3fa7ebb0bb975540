"""The log events of deletions: their common fields, and the event of retention.

Owns these words, and deletes nothing. The events come after the commits.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from lanelog._telemetry import get_logger

if TYPE_CHECKING:
    from lanelog._engine.cleanup.collection import Collected

log = get_logger("janitor")


def who(account: str) -> dict[str, object]:
    """The actor, as far as the library knows it: the account at the server, the machine and the process."""
    return {"account": account, "host": socket.gethostname(), "pid": os.getpid()}


def tell_aged(account: str, topic: str, released: Collected) -> None:
    """Log how many dead letters retention has released, if there were any."""
    if released.aged:
        why = "dead_letter_retention"
        log.info("dead_letters.deleted", topic=topic, messages=released.aged, why=why, **who(account))
