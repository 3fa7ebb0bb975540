"""The order in which the loops of a client get connections when the server has too few.

Never opens a connection, and asks no server. It is told of refusals, and answers whether a purpose must give way.

Without the keeper the process holds no lane, without the settler no outcome is written, and without the fetcher no
message is handled. The others close their connections until these have one. No call waits: a loop that gives way fails
its turn and tries again with its back-off.
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
"""By worth, the highest first. Any other purpose counts as publishing."""

RECENT: Final = 5.0
"""Seconds for which a refusal counts. A loop tries again within two, so after this time it has ended."""

SETTLED: Final = 2.5
"""Seconds for which the same loops lack a connection before the shortage is logged: by then others gave way."""

LONGEST: Final = 10.0
"""Seconds after which the shortage is logged in any case, also if the loops take turns."""

log = get_logger("database")


@define(eq=False)
class Worth:
    """The connections that one client lacks. Thread-safe."""

    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _refused: dict[str, float] = field(factory=dict, init=False)
    _gone: dict[str, float] = field(factory=dict, init=False)  # purposes that gave way
    _since: float | None = field(default=None, init=False)  # the first refusal of a shortage
    _without: tuple[str, ...] = field(default=(), init=False)  # purposes without connection at the last refusal
    _without_since: float = field(default=0.0, init=False)
    _said: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        fork.register_shared(self)

    def abandon(self) -> None:
        """In a forked child: forget all refusals."""
        self._lock = threading.Lock()
        self._refused, self._gone, self._since, self._said, self._without = {}, {}, None, False, ()

    def lacking(self, purpose: str) -> Sequence[str]:
        """Return the purposes above `purpose` that were refused lately. Takes no lock if there are no refusals."""
        if not self._refused:
            return ()
        rank = _rank(purpose)
        with self._lock:
            self._forget_old(time.monotonic())
            return [other for other in self._refused if _rank(other) < rank]

    def short(self) -> bool:
        """Whether any purpose was refused a connection lately."""
        with self._lock:
            self._forget_old(time.monotonic())
            return bool(self._refused)

    def gave_way(self, purpose: str, others: Sequence[str]) -> DatabaseError:
        """Note that `purpose` gave its connection up. Return the error for its turn."""
        with self._lock:
            self._gone[_name(purpose)] = time.monotonic()
        return DatabaseError(
            f"the server has too few connections: {', '.join(others)} comes first",
            code=codes.NO_CONNECTION_LEFT,
            retriable=True,
        )

    def refused(self, purpose: str, error: LanelogError) -> None:
        """Note that the server had none for `purpose`. A shortage is logged once, when its extent is clear."""
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
        """Note that `purpose` has a connection."""
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
