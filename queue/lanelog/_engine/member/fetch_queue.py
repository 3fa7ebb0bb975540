"""Which lanes want rows, those first that can hand them out at once.

Owns the order; never decides whether a lane wants rows (`Lane.needs_fetch`). Pure. Every change of a lane is followed
by `add`, so that a lane stands where it belongs; what has changed since is sorted out when it is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from lanelog._engine.lane.lane import Lane


@define(eq=False)
class FetchQueue:
    """Lanes, least recently fetched first. No call looks at more lanes than it takes or drops."""

    _now: dict[Lane, None] = field(factory=dict)  # what is read for it can go out
    _ahead: dict[Lane, None] = field(factory=dict)  # as much of it is out as may be

    def __bool__(self) -> bool:
        return bool(self._now or self._ahead)

    def add(self, lane: Lane) -> None:
        """Let a lane wait for rows, if it wants any, or change its place."""
        if not lane.needs_fetch:
            return
        if lane.dispatch.full:
            self._now.pop(lane, None)
            self._ahead[lane] = None
        else:
            self._ahead.pop(lane, None)
            self._now[lane] = None

    def discard(self, lane: Lane) -> None:
        """The lane wants nothing any more."""
        self._now.pop(lane, None)
        self._ahead.pop(lane, None)

    def take(self, limit: int) -> list[Lane]:
        """Up to `limit` lanes that want rows.

        Those that can hand them out at once come alone: what is read ahead for the others must not take their room.
        """
        chosen = self._take(self._now, limit)
        return chosen or self._take(self._ahead, limit)

    def any_for_now(self) -> bool:
        """Whether some lane could hand out at once what is not in memory."""
        while self._now:
            lane = next(iter(self._now))
            if lane.needs_fetch and not lane.dispatch.full:
                return True
            del self._now[lane]
            self.add(lane)
        return False

    def _take(self, lanes: dict[Lane, None], limit: int) -> list[Lane]:
        chosen: list[Lane] = []
        while lanes and len(chosen) < limit:
            lane = next(iter(lanes))
            del lanes[lane]
            if not lane.needs_fetch:
                continue
            if lanes is self._now and lane.dispatch.full:
                self._ahead[lane] = None
            else:
                chosen.append(lane)
        return chosen
