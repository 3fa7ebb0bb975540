"""Whether a client can handle messages: the connections it needs for that, and for how long it has lacked one.

Owns this judgement. Opens no connection. A client that has lacked one for `lasts_seconds` stands aside. It takes no
lanes, gives idle ones back, and writes heartbeats by which other members do not count it. It comes back when it has all
connections at once. Until then only the fetcher asks for one, and the settler when the fetcher has it: processes that
each held a part of what they need would keep each other from work.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog.health import ConnectionHealth

if TYPE_CHECKING:
    from lanelog._database import Session


@define(eq=False)
class Shortage:
    """What one client lacks. Any thread may ask; only the keeper judges."""

    lasts_seconds: float = 5.0
    """A client that lacks a connection for longer stands aside. A server that restarts is back sooner, or away."""
    aside: bool = False
    """Whether the client stands aside."""
    _needed: list[Session] = field(factory=list)
    _since: float = 0.0  # when (monotonic) it began to stand aside

    def need(self, session: Session) -> None:
        """Note that nothing is handled without a session."""
        self._needed.append(session)

    def judge(self, now: float, keeper: Session) -> bool:
        """Judge anew. True when the answer has changed.

        Without the keeper's session it does not begin to stand aside: if no server answers, nobody can do better.
        """
        if self.aside:
            lacks = not all(session.connected for session in self._needed)
        else:
            refused = [since for session in self._needed if (since := session.refused_since) is not None]
            self._since = max(min(refused, default=now), keeper.connected_at)
            lacks = keeper.connected and bool(refused) and now - self._since >= self.lasts_seconds
        changed, self.aside = lacks is not self.aside, lacks
        return changed

    def can_wait(self, session: Session) -> bool:
        """Whether the client stands aside and lacks another session than this one."""
        return self.aside and not all(each.connected for each in self._needed if each is not session)

    def lacking(self) -> tuple[ConnectionHealth, ...]:
        """The connections that a client lacks which stands aside."""
        if not self.aside:
            return ()
        now = time.monotonic()
        return tuple(
            ConnectionHealth(purpose=each.purpose, seconds=now - (each.refused_since or self._since), why=each.refusal)
            for each in self._needed
            if not each.connected
        )
