"""The fetcher's side of a member: it names the lanes that want rows, and takes the rows that come in.

Owns what is to be read. `FetchQueue` has the order of the lanes. Never reads from the database.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.member.state import Side, step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from lanelog._engine.lane.lane import Lane
    from lanelog._stores.log.fetches import Fetched


BUSY_LANES = 16
"""The most lanes that are remembered as busy last. To read all their tails costs hardly more than one."""


@define(eq=False, repr=False)
class FetchingSide(Side):
    """What the fetcher may do with a member. Every method takes the lock itself."""

    busy_last: dict[str, None] = field(factory=dict, init=False)
    """Keys of the lanes that last received rows, oldest first. Only the fetcher's thread reads and changes it."""
    _head_above_poll: list[Lane] = field(factory=list)  # lanes whose head in memory is higher than the last poll found
    _poll_wanted: bool = True
    hints: int = 0  # that came from other processes
    _hinted: bool = False

    def wanted(self, now: float) -> bool:
        """Whether there is a lane to read for, and rows may be handed out."""
        return not self.state.stopping and bool(self.state.lanes) and self.state.has_authority(now)

    @step
    def take_unsure(self) -> set[str]:
        """Take the keys of the lanes that were opened, or whose head was lowered, since the last call.

        No digest from before shows whether such a lane has risen.
        """
        unsure, self.state.unsure = self.state.unsure, set()
        return unsure & self.state.lanes.keys()

    @step
    def keys(self) -> list[str]:
        """The keys of the held lanes."""
        return list(self.state.lanes)

    @step
    def heads(self, heads: Iterable[tuple[str, int]]) -> bool:
        """Take the result of a poll: heads of lanes, at least of those whose head rose. True when one rose."""
        news = False
        for key, head in heads:
            lane = self.state.lanes.get(key)
            if lane is None:
                continue
            if head > lane.state.head:
                lane.raise_head(head)
                news = True
            elif head < lane.state.head:
                self._head_above_poll.append(lane)
            self.state.needs_fetch.add(lane)
        return news

    @step
    def all_at_head(self, most: int) -> list[Lane]:
        """Return all lanes, if there are at most `most`, and all have handed out all they know of. Otherwise none."""
        if len(self.state.lanes) > most:
            return []
        lanes = list(self.state.lanes.values())
        return lanes if all(lane.at_head for lane in lanes) else []

    @step
    def at_head(self, keys: Collection[str], most: int) -> list[Lane]:
        """Return the lanes of `keys` that have handed out all they know of; none if there are more than `most`."""
        lanes = [lane for key in keys if (lane := self.state.lanes.get(key)) is not None and lane.at_head]
        return lanes if len(lanes) <= most else []

    @step
    def take_ahead(self) -> list[Lane]:
        """Take the lanes whose head in memory is higher than the last poll found.

        Such a lane was loaded after the poll, or the tables were set back.
        """
        ahead, self._head_above_poll = self._head_above_poll, []
        return [lane for lane in dict.fromkeys(ahead) if not lane.state.lost]  # a poll may name one once more

    @step
    def still_ahead(self, lanes: Iterable[Lane]) -> None:
        """These lanes could not be checked now. Take them again with the next poll."""
        self._head_above_poll.extend(lanes)

    @step
    def lower_head(self, lane: Lane, head: int) -> None:
        """The database has a lower head than memory: believe the database."""
        self.state.unsure.add(lane.key)  # if the head rises to its old value, an old digest does not show it
        lane.lower_head(head)

    def poll_soon(self) -> None:
        """A message was published: poll now, not at the next planned time."""
        self._poll_wanted = True
        self.state.signals.wake_fetcher()

    def take_poll_request(self) -> bool:
        """Whether `poll_soon` was called since the last call."""
        # A request between the test and the reset is not lost: the poll that follows answers it, or it stays.
        if not self._poll_wanted:
            return False
        self._poll_wanted = False
        return True

    def hinted(self) -> None:
        """A hint says that a message was published: poll as soon as the share of polls allows."""
        self.hints += 1
        self._hinted = True
        self.state.signals.wake_fetcher()

    def take_hint(self) -> bool:
        """Whether `hinted` was called since the last call."""
        if not self._hinted:
            return False
        self._hinted = False
        return True

    @step
    def take_needing_fetch(self, limit: int, room: int) -> list[Lane]:
        """Take up to `limit` lanes that want rows, least recently fetched first: not many more than `room` rows.

        Lanes that can hand rows out at once come alone: rows that are read ahead for the others must not take the room.
        """
        return self.state.needs_fetch.take(limit, room)

    @step
    def wants_room(self) -> bool:
        """Whether some lane could hand out at once rows that are not in memory. Only such a lane justifies `evict`."""
        revivable = any(not lane.dispatch.full for lane in self.state.needs_payload)
        return revivable or self.state.needs_fetch.any_for_now()

    @step
    def still_needs_fetch(self, lane: Lane) -> None:
        """The lane could not be served now."""
        self.state.needs_fetch.add(lane)

    @step
    def still_needs_payload(self, lanes: Iterable[Lane]) -> None:
        """The bodies of these lanes' due messages could not be read now."""
        for lane in lanes:
            if not lane.state.lost:
                self.state.needs_payload[lane] = None

    @step
    def all_fed(self) -> bool:
        """Whether every lane has known messages that are not handed out yet. Then a poll would find nothing of use."""
        return bool(self.state.lanes) and all(lane.fed for lane in self.state.lanes.values())

    @step
    def take_needing_payload(self, now: float, limit: int, room: int) -> list[tuple[Lane, list[int]]]:
        """Take lanes with due messages whose bodies must be read again: at most `room` messages in all."""
        while self.state.dues and self.state.dues[0][0] <= now:
            _, _, lane = heapq.heappop(self.state.dues)
            if lane.state.lost:
                continue
            self.state.needs_payload[lane] = None
            if self.state.rules.batch is not None:
                self.state.changed_locked(lane, now, fetching=True)  # a batch that has waited needs no room
        wanted = []
        for lane in list(self.state.needs_payload)[:limit]:
            if room <= 0:
                break
            del self.state.needs_payload[lane]
            offsets = lane.due(now, min(room, self.state.rules.batch_size))
            if offsets:
                room -= len(offsets)
                wanted.append((lane, offsets))
            else:
                self.state.changed_locked(lane, fetching=True)
        return wanted

    @step
    def next_due(self) -> float | None:
        """When (monotonic) the next waiting message is due, or the next batch has waited."""
        return self.state.dues[0][0] if self.state.dues else None

    @step
    def fetched(self, lane: Lane, cursor: int, rows: Sequence[Fetched]) -> None:
        """Take rows that were read after `cursor`."""
        now = time.monotonic()
        if rows:
            self.busy_last.pop(lane.key, None)
            self.busy_last[lane.key] = None
            if len(self.busy_last) > BUSY_LANES:
                del self.busy_last[next(iter(self.busy_last))]
        lane.fetched(cursor, rows, now)
        self.state.changed_locked(lane, now, fetching=True)

    @step
    def revived(self, lane: Lane, rows: Iterable[Fetched], gone: Iterable[int]) -> None:
        """Take the bodies of waiting messages, and skip the offsets that have no body any more."""
        if not lane.state.lost:
            for row in rows:
                lane.revived(row)
            for offset in gone:
                lane.skip(offset)
        self.state.changed_locked(lane, fetching=True)

    @step
    def skip_holes(self, lane: Lane, first: int, last: int) -> None:
        """Count these offsets as settled: the log does not have them."""
        lane.skip_holes(first, last)
        self.state.changed_locked(lane, fetching=True)

    @step
    def evict(self) -> None:
        """Drop the rows and bodies of lanes that cannot go on now, because other lanes could use the room.

        No run waits for a worker, so all that could go out is out. The lanes with rows left are busy, paused or
        closing, or a message that waits for another attempt holds them back.
        """
        now = time.monotonic()
        for lane in list(self.state.holding):
            if not (lane.state.ready or lane.state.waiting):
                del self.state.holding[lane]
                continue
            if not lane.evict(now):
                if self.state.rules.batch is not None:
                    self.state.changed_locked(lane, now, fetching=True)
                continue
            self.state.needs_fetch.add(lane)
            if not lane.state.running and lane.due(now, 1):
                self.state.needs_payload[lane] = None
