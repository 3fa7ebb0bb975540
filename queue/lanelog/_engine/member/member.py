"""What the loops of one client share about one (subscription, topic): the leased lanes, and what they need.

Owns the lock under which lanes change; never does I/O under it, and never runs a handler. The fetcher brings rows,
workers bring outcomes, the settler takes writes and brings commits, the keeper opens and closes lanes.
"""

from __future__ import annotations

import heapq
import itertools
import time
from typing import TYPE_CHECKING

from lanelog._engine.lane.run import State
from lanelog._engine.member.attempts import Settlements
from lanelog._telemetry import get_logger
from lanelog.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lanelog._engine.lane.flush_waiter import FlushWaiter
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.lane.values import Burial, LaneWrite
    from lanelog._stores.fetches import Fetched

log = get_logger("subscription")


class Member(Settlements):
    """One owner's part in one group and topic. Methods take the lock themselves unless their name ends in `_locked`."""

    # -- lanes come and go (keeper) --------------------------------------------------------------------------------

    def open_lane(self, lane: Lane) -> None:
        """A lane is ours and loaded."""
        now = time.monotonic()
        with self.lock:
            lane.paused = lane.paused or self.paused or self.group_paused
            lane.closing = lane.closing or self.stopping
            self.lanes[lane.key] = lane
            for wait in lane.waiting.values():
                self._note_due_locked(wait.due, lane)
            self._after_change_locked(lane, now)
        self.signals.wake_settler()
        self.signals.wake_fetcher()

    def close_lane(self, lane: Lane) -> None:
        """Hand out nothing more; running handlers finish and settle."""
        with self.lock:
            lane.closing = True
            self._quiet_locked(lane)
        self.signals.wake_settler()

    def pause(self) -> None:
        """Hand out nothing more, of any lane there is or comes, until `paused` is taken back."""
        with self.lock:
            self.paused = True
            for lane in self.lanes.values():
                lane.paused = True
                self._quiet_locked(lane)
        self.signals.wake_settler()

    def set_paused(self, lane: Lane, *, paused: bool) -> None:
        """Stop or resume handing out; the lane stays leased."""
        with self.lock:
            paused = paused or self.paused or self.group_paused  # decided here: `pause` may have come between
            if lane.paused == paused:
                return
            lane.paused = paused
            if paused:
                self._quiet_locked(lane)
            else:
                self._after_change_locked(lane, time.monotonic())
        self.signals.wake_settler()
        self.signals.wake_fetcher()

    def _quiet_locked(self, lane: Lane) -> None:
        lane.recall()
        lane.drop_ready()
        self._needs_fetch.pop(lane, None)
        self._dirty[lane] = None

    def lose_lane(self, lane: Lane, why: str) -> None:
        """The lane is somebody else's: nothing of it may be written any more."""
        with self.lock:
            if lane.lost:
                return
            self._forget_locked(lane)
            lane.recall()
            running = list(lane.running.values())
            refused = lane.unwritten_settlements
            self.counters.refused += len(refused)
            waiters = lane.waiters + (lane.writing.waiters if lane.writing is not None else [])
            waiters += [waiter for burial in lane.burials.values() for waiter in burial.waiters]
            self._supersede_locked(running)
            lane.abandon()
        error = LeaseLost(f"the lease of {self.group}/{self.topic}/{lane.key} was lost: {why}")
        for waiter in waiters:
            waiter.resolve(error)
        context = {"topic": self.topic, "key": lane.key, "group": self.group}
        if refused:  # their handlers have returned and will never hear of it
            log.warning("settlement.refused", **context, offset=refused[0], messages=len(refused), why=why)
        if running or waiters:
            log.warning("lane.lost", **context, running=len(running), why=why)

    def disown_lane(self, lane: Lane, why: str) -> None:
        """Lose a lane that is still ours; the keeper releases it.

        It must not be loaded again under its epoch: an attempt of it may be about to commit, which only another epoch
        can refuse.
        """
        self.disowned.add((lane.key, lane.epoch))  # first: the keeper looks for leases that memory lacks
        self.lose_lane(lane, why)
        self.signals.wake_keeper()

    def _supersede_locked(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            attempt.state = State.SUPERSEDED
            self._finish_detached_locked(attempt)

    def forget_lane(self, lane: Lane) -> None:
        """The lane was released in good order."""
        with self.lock:
            self._forget_locked(lane)
            waiters = lane.waiters  # of who began to wait when there was nothing left to write
            lane.abandon()
        for waiter in waiters:
            waiter.resolve()

    def _forget_locked(self, lane: Lane) -> None:
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
        self._dirty.pop(lane, None)
        self._needs_fetch.pop(lane, None)
        self._needs_payload.pop(lane, None)

    def replace_lane(self, old: Lane, fresh: Lane, ids: dict[int, str], asked: Mapping[int, bool]) -> set[int]:
        """On a new connection: put a freshly loaded lane in the place of what memory believed.

        `asked`: what the server said of messages that a transaction of its own had settled. Returns those that it has
        to be asked about first; then nothing is changed.
        """
        with self.lock:
            if self.lanes.get(old.key) is not old:
                return set()
            unproven = fresh.unproven(old) - asked.keys()
            if unproven:
                return unproven
            before = list(old.running.values())
            fresh.carry_over(old, ids, {offset for offset, settled in asked.items() if settled})
            self._supersede_locked(attempt for attempt in before if attempt.state is State.SUPERSEDED)
            for pending in (self._dirty, self._needs_fetch, self._needs_payload):
                pending.pop(old, None)
            forgotten = [burial for burial in old.burials.values() if burial.lane is old]
        error = LeaseLost(f"{self.group}/{self.topic}/{old.key}: the server has another message there by now")
        for burial in forgotten:
            for waiter in burial.waiters:
                waiter.resolve(error)
        self.open_lane(fresh)
        return set()

    # -- rows come in (fetcher) ------------------------------------------------------------------------------------

    def heads(self, heads: Iterable[tuple[str, int]]) -> bool:
        """What a look found: owned lanes with something beyond what was acked. True when some head is news."""
        news = False
        with self.lock:
            for key, head in heads:
                lane = self.lanes.get(key)
                if lane is None:
                    continue
                if head > lane.head:
                    lane.head = head
                    news = True
                elif head < lane.head:
                    self._ahead.append(lane)
                if lane.needs_fetch:
                    self._needs_fetch[lane] = None
        return news

    def take_ahead(self) -> list[Lane]:
        """Lanes of which memory has seen a higher head than the last look: loaded since, or tables were set back."""
        with self.lock:
            ahead, self._ahead = self._ahead, []
            return [lane for lane in ahead if not lane.lost]

    def lower_head(self, lane: Lane, head: int) -> None:
        """The database knows less of this lane than memory: believe the database."""
        with self.lock:
            lane.drop_ready()
            lane.head = head
            lane.cursor = min(lane.cursor, max(head, lane.watermark))

    def look_soon(self) -> None:
        """Somebody published: do not wait for the next look."""
        self._look_wanted = True
        self.signals.wake_fetcher()

    def take_look_request(self) -> bool:
        """Whether `look_soon` was called since the last time."""
        wanted, self._look_wanted = self._look_wanted, False
        return wanted

    def take_needing_fetch(self, limit: int) -> list[Lane]:
        """Up to `limit` lanes that fetching would help, least recently fetched first.

        Those that can hand it out at once go first, alone: what is read ahead for the others must not take their room.
        """
        with self.lock:
            for lane in [lane for lane in self._needs_fetch if not lane.needs_fetch]:
                del self._needs_fetch[lane]
            chosen = list(itertools.islice((lane for lane in self._needs_fetch if not lane.full), limit))
            chosen = chosen or list(itertools.islice(self._needs_fetch, limit))
            for lane in chosen:
                del self._needs_fetch[lane]
            return chosen

    def wants_room(self) -> bool:
        """Whether some lane could hand out at once what is not in memory; reading ahead alone evicts nothing."""
        with self.lock:
            needs_fetch = (lane for lane in self._needs_fetch if lane.needs_fetch)
            return any(not lane.full for lane in (*self._needs_payload, *needs_fetch))

    def still_needs_fetch(self, lane: Lane) -> None:
        """The lane could not be served now."""
        with self.lock:
            if lane.needs_fetch:
                self._needs_fetch[lane] = None

    def still_needs_payload(self, lanes: Iterable[Lane]) -> None:
        """The bodies of these lanes' due messages could not be read now."""
        with self.lock:
            for lane in lanes:
                if not lane.lost:
                    self._needs_payload[lane] = None

    def all_fed(self) -> bool:
        """Whether memory holds unread work for every lane, so that looking would tell nothing of use."""
        with self.lock:
            return bool(self.lanes) and all(lane.ready or lane.cursor < lane.head for lane in self.lanes.values())

    def take_needing_payload(self, now: float, limit: int, room: int) -> list[tuple[Lane, list[int]]]:
        """Lanes with due messages whose bodies have to be read again, at most `room` messages in all."""
        with self.lock:
            while self._dues and self._dues[0][0] <= now:
                _, _, lane = heapq.heappop(self._dues)
                if not lane.lost:
                    self._needs_payload[lane] = None
            wanted = []
            for lane in list(self._needs_payload)[:limit]:
                if room <= 0:
                    break
                del self._needs_payload[lane]
                offsets = lane.due(now, min(room, lane.rules.batch_size))
                if offsets:
                    room -= len(offsets)
                    wanted.append((lane, offsets))
                else:
                    self._after_change_locked(lane, now, fetching=True)
            return wanted

    def next_due(self) -> float | None:
        """When (monotonic) the next waiting message is due."""
        with self.lock:
            return self._dues[0][0] if self._dues else None

    def fetched(self, lane: Lane, cursor: int, rows: Iterable[Fetched]) -> None:
        """Rows read behind `cursor`; dropped when the lane has moved on meanwhile."""
        now = time.monotonic()
        with self.lock:
            if not lane.lost and lane.cursor == cursor:
                lane.fetched(rows, now)
            self._after_change_locked(lane, now, fetching=True)

    def revived(self, lane: Lane, rows: Iterable[Fetched], gone: Iterable[int]) -> None:
        """Bodies of waiting messages, and offsets at which there is none any more."""
        with self.lock:
            if not lane.lost:
                for row in rows:
                    lane.revived(row)
                for offset in gone:
                    lane.skip(offset)
            self._after_change_locked(lane, time.monotonic(), fetching=True)

    def skip_holes(self, lane: Lane, first: int, last: int) -> None:
        """Offsets that the log does not hold count as settled."""
        with self.lock:
            if not lane.lost and lane.cursor == first - 1:
                for offset in range(first, last + 1):
                    lane.skip_hole(offset)
            self._after_change_locked(lane, time.monotonic(), fetching=True)

    def evict(self) -> None:
        """Give up what is in memory for lanes that cannot go on now, when others could use the room.

        No run waits for a worker, so whatever could go out has gone: they are busy, or paused, or what waits in them
        for another attempt holds them back.
        """
        now = time.monotonic()
        with self.lock:
            for lane in self.lanes.values():
                if not (lane.running or lane.waiting or lane.paused or lane.closing):
                    continue
                lane.drop_ready()
                lane.drop_bodies()
                if lane.needs_fetch:
                    self._needs_fetch[lane] = None
                if not lane.running and lane.due(now, 1):
                    self._needs_payload[lane] = None

    # -- writes go out, commits come in (settler) ------------------------------------------------------------------

    def collect(self, limit: int) -> list[LaneWrite]:
        """What one flush should write: at most `limit` lanes, those that changed first."""
        now = time.monotonic()
        writes: list[LaneWrite] = []
        with self.lock:
            for lane in list(self._dirty)[: limit * 2]:
                if len(writes) >= limit:
                    break
                if lane.writing is not None:
                    continue
                del self._dirty[lane]
                write = lane.write(now)
                if write is not None:
                    writes.append(write)
        return writes

    @property
    def has_writes(self) -> bool:
        """Whether something waits for the settler."""
        return bool(self._dirty or self.burials)

    def committed(self, writes: Sequence[LaneWrite]) -> None:
        """The flush is durable: let workers have its runs and explicit settlers their answers."""
        now = time.monotonic()
        waiters: list[FlushWaiter] = []
        with self.lock:
            for write in writes:
                lane = write.lane
                if lane.writing is not write:
                    continue  # replaced on a new connection
                for run in lane.written(write):
                    self.runs.put((self, run))
                waiters += write.waiters
                self._after_change_locked(lane, now)
        for waiter in waiters:
            waiter.resolve()
        if any(write.lane.closing for write in writes):
            self.signals.wake_keeper()  # it may be idle now, and be released

    def uncommitted(self, writes: Iterable[LaneWrite]) -> None:
        """The flush did not happen, or nobody knows: everything is to be written again."""
        with self.lock:
            for write in writes:
                if write.lane.writing is write:
                    write.lane.unwritten(write)
                    if not write.lane.lost:
                        self._dirty[write.lane] = None

    def flushed_watermarks(self) -> list[tuple[str, int]]:
        """(key, watermark in the database) of every lane, for the janitor."""
        with self.lock:
            return [(lane.key, lane.flushed) for lane in self.lanes.values()]

    def buried(self, burial: Burial, lane: Lane) -> bool:
        """A dead letter is committed, together with its settlement, while `lane` was the message's.

        False: the lane was loaded again meanwhile, perhaps from a server that lacks that commit. The move is to be
        repeated: it finds its own copy, if there is one.
        """
        with self.lock:
            if burial.lane is not lane:
                return False
            attempt = lane.running.get(burial.offset)
            if not lane.lost and attempt is not None:
                lane.succeeded(attempt, time.monotonic(), stored=True)
                self.counters.dead_lettered += 1
                self._after_change_locked(lane, time.monotonic())
        for waiter in burial.waiters:
            waiter.resolve()
        self.signals.wake_settler()
        return True
