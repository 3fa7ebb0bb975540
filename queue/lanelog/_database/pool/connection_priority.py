"""The order in which the loops of a client get connections when the server has too few.

Never opens a connection, and asks no server. Its callers report refusals. It answers whether a purpose must give way,
or wait before it asks again.

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

from lanelog._base.backoff import Backoff
from lanelog._database import codes, fork
from lanelog._facts import database as facts
from lanelog.errors import DatabaseError, LanelogError

ORDER: Final = ("keeper", "settler", "fetcher", "publishing", "janitor", "scheduler")
"""By priority, the highest first. Any other purpose counts as publishing."""

_PATIENT: Final = frozenset(ORDER[ORDER.index("settler") + 1 :]) - {"publishing"}
"""Loops that nothing waits for: leases and outcomes do not depend on them."""

RECENT: Final = 5.0
"""Seconds for which a refusal counts. A loop tries again within two, so after this time it has ended."""

SETTLED: Final = 2.5
"""Seconds for which the same loops lack a connection before the shortage is logged: by then others gave way."""

LONGEST: Final = 10.0
"""Seconds after which the shortage is logged in any case, also if the loops alternate."""

SELDOM: Final = Backoff(least=0.05, first=0.2, most=4.0)
"""Between two tries of a loop with a lower priority than the settler. Others, who lack connections too, try
meanwhile."""

_REMEDIES: Final = {
    codes.NO_CONNECTION_LEFT: "raise the server's max_connections, or run fewer clients with a smaller pool_size",
    codes.USER_HAS_TOO_MANY: "raise the server's max_user_connections, which bounds each account, or run fewer clients "
    "of this account with a smaller pool_size",
    codes.ACCOUNT_HAS_TOO_MANY: "raise this account's own limit, which the error names (ALTER USER … WITH "
    "MAX_USER_CONNECTIONS …), or run fewer clients of this account with a smaller pool_size; the server itself has "
    "connections left",
}


@define
class _Refusal:
    """The refusal that a purpose got when it asked for a connection."""

    error: DatabaseError
    at: float
    """When (monotonic) it was last refused."""
    times: int
    again_at: float
    """When (monotonic) it may ask the server again."""


@define(eq=False)
class ConnectionPriority:
    """The connections that one client lacks. Thread-safe."""

    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _refused: dict[str, _Refusal] = field(factory=dict, init=False)
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
        """Note that `purpose` gave its connection up. Return the error to raise."""
        with self._lock:
            self._gone[_name(purpose)] = time.monotonic()
            first = next((self._refused[each].error for each in others if each in self._refused), None)
        return DatabaseError(
            f"the server has too few connections: {', '.join(others)} comes first{f' ({first})' if first else ''}",
            code=codes.NO_CONNECTION_LEFT if first is None else first.code,
            retriable=True,
        )

    def too_soon(self, purpose: str) -> DatabaseError | None:
        """Return the last refusal if it is too soon to ask the server again, else None."""
        if not self._refused:
            return None
        now = time.monotonic()
        with self._lock:
            refusal = self._refused.get(purpose)
            if refusal is None or now >= refusal.again_at:
                return None
            refusal.at = now  # it still lacks one: a lower priority must not take it meanwhile
            return DatabaseError(str(refusal.error), code=refusal.error.code, retriable=True)

    def refused(self, purpose: str, error: LanelogError) -> None:
        """Note that the server had none for `purpose`. A shortage is logged once, when its extent is clear."""
        if not isinstance(error, DatabaseError) or error.code not in codes.TOO_MANY:
            return
        now = time.monotonic()
        with self._lock:
            self._forget_old(now)
            if self._since is None:
                self._since = now
            before = self._refused.get(name := _name(purpose))
            times = 1 if before is None else before.times + 1
            # The first time, an idle connection of this client is closed for it.
            wait = SELDOM.after(times - 1) if times > 1 and name in _PATIENT else 0.0
            self._refused[name] = _Refusal(error, now, times, now + wait)
            missing = sorted({*self._refused, *self._gone}, key=ORDER.index)
            if self._without != (without := tuple(missing)):
                self._without, self._without_since = without, now
            if self._said or (now - self._without_since < SETTLED and now - self._since < LONGEST):
                return
            self._said = True
        facts.connections_missing(
            missing=len(missing),
            of=len(ORDER),
            without=missing,
            error=str(error),
            remedy=f"{_REMEDIES[error.code or codes.NO_CONNECTION_LEFT]}; each of these needs one connection at least, "
            "publishing up to pool_size + 2",
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
        self._refused = {each: refusal for each, refusal in self._refused.items() if now - refusal.at <= RECENT}
        self._gone = {each: at for each, at in self._gone.items() if now - at <= RECENT}
        if not self._refused and not self._gone:
            self._since, self._said, self._without = None, False, ()


def _name(purpose: str) -> str:
    return purpose if purpose in ORDER else "publishing"


def _rank(purpose: str) -> int:
    return ORDER.index(_name(purpose))
