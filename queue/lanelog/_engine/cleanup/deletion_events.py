"""Who deletes: the words in which deletions are told, by administration and by retention.

Owns the event of retention and nothing that is deleted. Called by the janitor and by `maintain`, after their commits.
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
    """Who acts, as far as the library knows: the account at the server, the machine and the process."""
    return {"account": account, "host": socket.gethostname(), "pid": os.getpid()}


def tell_aged(account: str, topic: str, released: Collected) -> None:
    """Tell that retention released dead letters that nobody had redriven or deleted, if it did."""
    if released.aged:
        why = "dead_letter_retention"
        log.info("dead_letters.deleted", topic=topic, messages=released.aged, why=why, **who(account))
