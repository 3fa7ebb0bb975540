"""The text of the error when a publish gives up: which lanes were locked, and which connection holds them.

Never raises, and asks the server only after a failure.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from copy import copy
from typing import Final

from attrs import define, field

from lanelog._database import Database, codes
from lanelog._database.fork import register_shared
from lanelog._database.locking import taking
from lanelog._stores import partitions
from lanelog.errors import DatabaseError

_NAMED: Final = 3
_ASKED_FOR: Final = 2.0
"""Seconds that an error may be late for the sake of its text."""


@define(eq=False)
class Locked:
    """Describes locked lanes. Thread-safe. One thread at a time asks the server; the others do without an answer."""

    _database: Database
    _asking: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """Forget the lock in a forked child: it has none of the threads."""
        self._asking = threading.Lock()

    def explained(self, error: DatabaseError, topic: str, keys: Collection[str], *, ask: bool = True) -> DatabaseError:
        """Return `error`. For a lock time-out, return a copy that names the locked lanes and, if `ask`, the holder."""
        if error.code != codes.LOCK_WAIT_TIMEOUT:
            return error
        explained = copy(error)
        by = self.holder(topic, keys) if ask else ""
        explained.args = (f"{lanes(topic, keys)} locked by another transaction{by}: {error}",)
        return explained

    def holder(self, topic: str, keys: Collection[str]) -> str:
        """Return ` (now held by connection 17 (app@10.0.0.3:5123))`, or nothing if the server does not tell soon."""
        with taking(self._asking) as mine:
            if not mine:
                return ""
            found = self._database.holder(
                lambda cx: partitions.lock_heads(cx, topic, keys, wait=True), seconds=_ASKED_FOR
            )
        return f" (now held {found})" if found is not None else ""


def lanes(topic: str, keys: Collection[str]) -> str:
    """Return `the lane of key 'k' of topic 't' was`, or the same for several."""
    named = ", ".join(repr(key) for key in sorted(keys)[:_NAMED])
    if len(keys) == 1:
        return f"the lane of key {named} of topic {topic!r} was"
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"one of the lanes of keys {named}{more} of topic {topic!r} was"
