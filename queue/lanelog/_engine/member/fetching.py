"""The fetcher's side of a member: which lanes want rows, and rows that come in.

Owns the choice of lanes that are served next. Never reads from the database.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.member.state import MemberState
    from lanelog._stores.fetches import Fetched


@define(eq=False, repr=False)
class FetchingSide:
    """What the fetcher may do with a member. Every method takes the lock itself."""

    state: MemberState
    _ahead: list[Lane] = field(factory=list)  # memory has seen a higher head than the last look
    _look_wanted: bool = True

    def wanted(self, now: float) -> bool:
        """Whether there is a lane to read for, and what is read may be handed out."""
        return not self.state.stopping and bool(self.state.lanes) and self.state.has_authority(now)

    def heads(self, heads: Iterable[tuple[str, int]]) -> bool:
        """What a look found: owned lanes with something beyond what was acked. True when some head is news."""
        news = False
        with self.state.lock:
            for key, head in heads:
                lane = self.state.lanes.get(key)
                if lane is None:
                    continue
                if head > lane.state.head:
                    lane.state.head = head
                    news = True
                elif head < lane.state.head:
                    self._ahead.append(lane)
                self.state.needs_fetch.add(lane)
        return news

    def take_ahead(self) -> list[Lane]:
        """Lanes of which memory has seen a higher head than the last look: loaded since, or tables were set back."""
        with self.state.lock:
            ahead, self._ahead = self._ahead, []
            return [lane for lane in ahead if not lane.state.lost]

    def lower_head(self, lane: Lane, head: int) -> None:
        """The database knows less of this lane than memory: believe the database."""
        with self.state.lock:
            lane.state.drop_ready()
            lane.state.head = head
            lane.state.cursor = min(lane.state.cursor, max(head, lane.state.watermark))

    def look_soon(self) -> None:
        """Somebody published: do not wait for the next look."""
        self._look_wanted = True
        self.state.signals.wake_fetcher()

    def take_look_request(self) -> bool:
        """Whether `look_soon` was called since the last time."""
        wanted, self._look_wanted = self._look_wanted, False
        return wanted

    def take_needing_fetch(self, limit: int) -> list[Lane]:
        """Up to `limit` lanes that fetching would help, least recently fetched first.

        Those that can hand it out at once go first, alone: what is read ahead for the others must not take their room.
        """
        with self.state.lock:
            return self.state.needs_fetch.take(limit)

    def wants_room(self) -> bool:
        """Whether some lane could hand out at once what is not in memory; reading ahead alone evicts nothing."""
        with self.state.lock:
            revivable = any(not lane.dispatch.full for lane in self.state.needs_payload)
            return revivable or self.state.needs_fetch.any_for_now()

    def still_needs_fetch(self, lane: Lane) -> None:
        """The lane could not be served now."""
        with self.state.lock:
            self.state.needs_fetch.add(lane)

    def still_needs_payload(self, lanes: Iterable[Lane]) -> None:
        """The bodies of these lanes' due messages could not be read now."""
        with self.state.lock:
            for lane in lanes:
                if not lane.state.lost:
                    self.state.needs_payload[lane] = None

    def all_fed(self) -> bool:
        """Whether memory holds unread work for every lane, so that looking would tell nothing of use."""
        with self.state.lock:
            return bool(self.state.lanes) and all(
                lane.state.ready or lane.state.cursor < lane.state.head for lane in self.state.lanes.values()
            )

    def take_needing_payload(self, now: float, limit: int, room: int) -> list[tuple[Lane, list[int]]]:
        """Lanes with due messages whose bodies have to be read again, at most `room` messages in all."""
        with self.state.lock:
            while self.state.dues and self.state.dues[0][0] <= now:
                _, _, lane = heapq.heappop(self.state.dues)
                if not lane.state.lost:
                    self.state.needs_payload[lane] = None
            wanted = []
            for lane in list(self.state.needs_payload)[:limit]:
                if room <= 0:
                    break
                del self.state.needs_payload[lane]
                offsets = lane.due(now, min(room, lane.state.rules.batch_size))
                if offsets:
                    room -= len(offsets)
                    wanted.append((lane, offsets))
                else:
                    self.state.after_change_locked(lane, now, fetching=True)
            return wanted

    def next_due(self) -> float | None:
        """When (monotonic) the next waiting message is due."""
        with self.state.lock:
            return self.state.dues[0][0] if self.state.dues else None

    def fetched(self, lane: Lane, cursor: int, rows: Iterable[Fetched]) -> None:
        """Rows read behind `cursor`; dropped when the lane has moved on meanwhile."""
        now = time.monotonic()
        with self.state.lock:
            if not lane.state.lost and lane.state.cursor == cursor:
                lane.fetched(rows, now)
            self.state.after_change_locked(lane, now, fetching=True)

    def revived(self, lane: Lane, rows: Iterable[Fetched], gone: Iterable[int]) -> None:
        """Bodies of waiting messages, and offsets at which there is none any more."""
        with self.state.lock:
            if not lane.state.lost:
                for row in rows:
                    lane.revived(row)
                for offset in gone:
                    lane.skip(offset)
            self.state.after_change_locked(lane, time.monotonic(), fetching=True)

    def skip_holes(self, lane: Lane, first: int, last: int) -> None:
        """Offsets that the log does not hold count as settled."""
        with self.state.lock:
            if not lane.state.lost and lane.state.cursor == first - 1:
                for offset in range(first, last + 1):
                    lane.skip_hole(offset)
            self.state.after_change_locked(lane, time.monotonic(), fetching=True)

    def evict(self) -> None:
        """Give up what is in memory for lanes that cannot go on now, when others could use the room.

        No run waits for a worker, so whatever could go out has gone: they are busy, or paused, or what waits in them
        for another attempt holds them back.
        """
        now = time.monotonic()
        with self.state.lock:
            for lane in self.state.lanes.values():
                if not (lane.state.running or lane.state.waiting or lane.state.paused or lane.state.closing):
                    continue
                lane.state.drop_ready()
                lane.state.drop_bodies()
                self.state.needs_fetch.add(lane)
                if not lane.state.running and lane.due(now, 1):
                    self.state.needs_payload[lane] = None
