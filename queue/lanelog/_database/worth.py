"""Who gets a connection when the server has too few of them: the loops of a client in the order of their worth.

It never opens a connection, and asks no server. Sessions ask it before they connect and between their statements, and
tell it when they were refused; the pool asks it when a connection comes back.

Without the keeper nothing is ours, without the settler nothing is ever done, without the fetcher nothing is handled:
the others close theirs until these have one. Nobody waits here: a loop that gives way fails its turn and tries again
with its back-off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from lanelog._database import codes, fork
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError, LanelogError

ORDER: Final = ("keeper", "settler", "fetcher", "publishing", "janitor", "scheduler")
"""By worth, the highest first. What has another purpose is publishing's."""

RECENT: Final = 5.0
"""Seconds for which a refusal counts: a loop tries again within two, and one that has ended needs nothing any more."""

SETTLED: Final = 2.5
"""Seconds for which the same loops went without before a word is said: by then those who give way have done so."""

LONGEST: Final = 10.0
"""Seconds after which it is said although they take turns."""

log = get_logger("database")


@define(eq=False)
class Worth:
    """What one client's sessions lack; for any thread."""

    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _refused: dict[str, float] = field(factory=dict, init=False)
    _gone: dict[str, float] = field(factory=dict, init=False)  # who gave way
    _since: float | None = field(default=None, init=False)  # the first refusal of a shortage
    _without: tuple[str, ...] = field(default=(), init=False)  # who lacked one at the last refusal
    _without_since: float = field(default=0.0, init=False)
    _said: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        fork.register_shared(self)

    def abandon(self) -> None:
        """In a forked child nobody has been refused yet."""
        self._lock = threading.Lock()
        self._refused, self._gone, self._since, self._said, self._without = {}, {}, None, False, ()

    def lacking(self, purpose: str) -> Sequence[str]:
        """Who is worth more than `purpose` and was refused a connection just now. Takes no lock when nobody was."""
        if not self._refused:
            return ()
        rank = _rank(purpose)
        with self._lock:
            self._forget_old(time.monotonic())
            return [other for other in self._refused if _rank(other) < rank]

    def short(self) -> bool:
        """Whether anybody was refused a connection just now."""
        with self._lock:
            self._forget_old(time.monotonic())
            return bool(self._refused)

    def gave_way(self, purpose: str, others: Sequence[str]) -> DatabaseError:
        """Note that `purpose` goes without; return the error for its turn."""
        with self._lock:
            self._gone[_name(purpose)] = time.monotonic()
        return DatabaseError(
            f"the server has too few connections: {', '.join(others)} comes first",
            code=codes.NO_CONNECTION_LEFT,
            retriable=True,
        )

    def refused(self, purpose: str, error: LanelogError) -> None:
        """Note that the server had none for `purpose`; the shortage is said once, when it is clear how large it is."""
        if getattr(error, "code", None) not in codes.TOO_MANY:
            return
        now = time.monotonic()
        with self._lock:
            self._forget_old(now)
            if self._since is None:
                self._since = now
            self._refused[_name(purpose)] = now
            missing = sorted({*self._refused, *self._gone}, key=ORDER.index)
            if self._without != (without := tuple(missing)):
                self._without, self._without_since = without, now
            if self._said or (now - self._without_since < SETTLED and now - self._since < LONGEST):
                return
            self._said = True
        log.error(
            "connections.missing",
            missing=len(missing),
            of=len(ORDER),
            without=missing,
            error=str(error),
            remedy="raise the server's max_connections, or the account's limit, or run fewer clients with a smaller "
            "pool_size; each of these needs one connection at least, publishing up to pool_size + 2",
        )

    def connected(self, purpose: str) -> None:
        """Note that `purpose` has one."""
        if not self._refused and not self._gone:
            return
        with self._lock:
            self._refused.pop(_name(purpose), None)
            self._gone.pop(_name(purpose), None)
            self._forget_old(time.monotonic())

    def _forget_old(self, now: float) -> None:
        for noted in (self._refused, self._gone):
            for purpose in [purpose for purpose, at in noted.items() if now - at > RECENT]:
                del noted[purpose]
        if not self._refused:
            self._since, self._said, self._without = None, self._said and bool(self._gone), ()


def _name(purpose: str) -> str:
    return purpose if purpose in ORDER else "publishing"


def _rank(purpose: str) -> int:
    return ORDER.index(_name(purpose))
