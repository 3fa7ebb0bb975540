"""The lanes that want rows. Lanes that can hand rows out at once come first.

Owns the order. Never decides whether a lane wants rows: `Lane.needs_fetch` does. Pure. `add` queues a lane after every
change of it. `take` checks each lane again, because it may have changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from lanelog._engine.lane.lane import Lane


@define(eq=False)
class FetchQueue:
    """Lanes, least recently fetched first. No call visits more lanes than it takes or drops."""

    _now: dict[Lane, None] = field(factory=dict)  # lanes that can hand out rows at once
    _read_ahead: dict[Lane, None] = field(factory=dict)  # lanes that are full: rows for them are read ahead

    def __bool__(self) -> bool:
        return bool(self._now or self._read_ahead)

    def add(self, lane: Lane) -> None:
        """Put a lane into the queue, or move it to the right one of both, if it wants rows."""
        if not lane.needs_fetch:
            return
        if lane.dispatch.full:
            self._now.pop(lane, None)
            self._read_ahead[lane] = None
        else:
            self._read_ahead.pop(lane, None)
            self._now[lane] = None

    def discard(self, lane: Lane) -> None:
        """Remove a lane."""
        self._now.pop(lane, None)
        self._read_ahead.pop(lane, None)

    def take(self, limit: int, room: int) -> list[Lane]:
        """Take up to `limit` lanes that want rows: as many as have unread rows for `room`, but at least one.

        Lanes that can hand rows out at once come alone: rows that are read ahead for the others must not take the room.
        """
        chosen = self._take(self._now, limit, room)
        return chosen or self._take(self._read_ahead, limit, room)

    def any_for_now(self) -> bool:
        """Whether some lane could hand out at once rows that are not in memory."""
        while self._now:
            lane = next(iter(self._now))
            if lane.needs_fetch and not lane.dispatch.full:
                return True
            del self._now[lane]
            self.add(lane)
        return False

    def _take(self, lanes: dict[Lane, None], limit: int, room: int) -> list[Lane]:
        chosen: list[Lane] = []
        while lanes and len(chosen) < limit and (room > 0 or not chosen):
            lane = next(iter(lanes))
            del lanes[lane]
            if not lane.needs_fetch:
                continue
            if lanes is self._now and lane.dispatch.full:
                self._read_ahead[lane] = None
            else:
                chosen.append(lane)
                room -= lane.unread
        return chosen
