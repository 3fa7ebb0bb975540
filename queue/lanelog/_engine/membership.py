"""What the loops of one client share about one (subscription, topic): the leased lanes, and what they need.

Owns the lock under which lanes change; never does I/O under it, and never runs a handler. The fetcher brings rows,
workers bring outcomes, the settler takes writes and brings commits, the keeper opens and closes lanes.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine import policy
from lanelog._engine.lane import Budget, Burial, Lane, LaneWrite
from lanelog._engine.policy import Outcome, Verb
from lanelog._engine.run import Attempt, Run, State
from lanelog._engine.ticket import Ticket
from lanelog._telemetry import get_logger
from lanelog.config import AckPolicy, Order
from lanelog.errors import AlreadySettled, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lanelog._stores.fetches import Fetched
    from lanelog.config import SubscriptionConfig

RUN_SECONDS = 0.02
"""A run is about this much work: what a crash can make others repeat, and what one flush is worth."""

PLANS_A_TURN = 32
"""Runs of one lane that one pump may send out; more follow with the next."""

log = get_logger()


@define(eq=False)
class SubscriptionRules:
    """The `Rules` of a subscription's lanes, with the measured length of its handler."""

    group: str
    config: SubscriptionConfig
    singly: bool  # every message by itself: pulled, settled by hand, or acked first
    seconds: float | None = None  # a message, smoothed
    strict: bool = field(init=False)
    concurrency: int = field(init=False)
    batch_size: int = field(init=False)
    max_deliveries: int | None = field(init=False)
    ack_first: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.strict = config.order is Order.STRICT
        self.concurrency = config.lane_concurrency if config.order is Order.CONCURRENT else 1
        # So many that every worker can have a lane: a few long handlers must not sit on all that may be prefetched.
        self.batch_size = max(1, min(config.batch_size, config.prefetch // config.workers))
        self.max_deliveries = config.max_deliveries
        self.ack_first = config.ack_policy is AckPolicy.ACK_FIRST
        # A first attempt that is the last is dead-lettered by a crash: its neighbours must not be under the same mark.
        self.singly = self.singly or self.ack_first or policy.exhausted(config, 1, 0.0)

    def run_size(self) -> int:
        """How many messages are about 20 ms of work; one until it was measured."""
        if self.singly or self.seconds is None:
            return 1
        return max(1, min(self.batch_size, int(RUN_SECONDS / max(self.seconds, 1e-7))))

    def exhausted(self, attempts: int, since_first: float) -> bool:
        """Whether no attempt may follow after this many."""
        return policy.exhausted(self.config, attempts, since_first)

    def measured(self, messages: int, seconds: float) -> None:
        """Learn from a finished run; a slow one counts at once, a fast one slowly."""
        if messages:
            each = seconds / messages
            self.seconds = each if self.seconds is None or each > self.seconds else self.seconds * 0.7 + each * 0.3


@define(eq=False)
class Signals:
    """How a membership wakes the client's loops."""

    wake_fetcher: Callable[[], None]
    wake_settler: Callable[[], None]
    wake_keeper: Callable[[], None]


@define(eq=False)
class Counters:
    """What `subscription.stats()` reports; changed under the membership's lock."""

    handled: int = 0
    acked: int = 0
    retried: int = 0
    postponed: int = 0
    dead_lettered: int = 0
    timed_out: int = 0
    refused: int = 0


@define(eq=False)
class Membership:
    """One owner's part in one group and topic. Every method takes the lock itself unless its name ends in `_locked`."""

    group: str
    topic: str
    owner: str
    config: SubscriptionConfig
    rules: SubscriptionRules
    budget: Budget
    lock: threading.Lock
    signals: Signals
    runs: queue.SimpleQueue[tuple[Membership, Run] | Callable[[], object] | None]
    failed: Callable[[BaseException], None]  # tells the subscription; called once
    detached: dict[Attempt, None] = field(factory=dict)  # handed to the user: pulled, or settled by hand
    lanes: dict[str, Lane] = field(factory=dict)
    counters: Counters = field(factory=Counters)
    burials: deque[Burial] = field(factory=deque)
    authority_until: float = 0.0  # monotonic; no handler starts later than this
    paused: bool = False  # by subscription.pause()
    group_paused: bool = False  # by an operator
    stopping: bool = False
    registered_at: int = 0
    failure: BaseException | None = None
    ended: threading.Event = field(factory=threading.Event)  # nothing is held any more, nor registered
    _look_wanted: bool = True
    _dirty: dict[Lane, None] = field(factory=dict)
    _thirsty: dict[Lane, None] = field(factory=dict)
    _hungry: dict[Lane, None] = field(factory=dict)
    _dues: list[tuple[float, int, Lane]] = field(factory=list)
    _sequence: int = 0

    def __repr__(self) -> str:
        return f"Membership({self.group!r}, {self.topic!r}, lanes={len(self.lanes)})"

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

    def set_paused(self, lane: Lane, *, paused: bool) -> None:
        """Stop or resume handing out; the lane stays leased."""
        with self.lock:
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
        self._hungry.pop(lane, None)
        self._dirty[lane] = None

    def lose_lane(self, lane: Lane, why: str) -> None:
        """The lane is somebody else's: nothing of it may be written any more."""
        with self.lock:
            if lane.lost:
                return
            self._forget_locked(lane)
            lane.recall()
            lane.drop_ready()
            lane.lost = True
            for attempt in lane.running.values():
                attempt.state = State.SUPERSEDED
                self.budget.give(attempt.row)
            for wait in lane.waiting.values():
                if wait.body is not None:
                    self.budget.give(wait.body)
            tickets = lane.tickets + (lane.writing.tickets if lane.writing is not None else [])
            tickets += [ticket for burial in lane.burials.values() for ticket in burial.tickets]
            lane.tickets = []
        error = LeaseLost(f"the lease of {self.group}/{self.topic}/{lane.key} was lost: {why}")
        for ticket in tickets:
            ticket.resolve(error)
        if lane.running or tickets:
            log.warning(
                "lane.lost", topic=self.topic, key=lane.key, group=self.group, running=len(lane.running), why=why
            )

    def forget_lane(self, lane: Lane) -> None:
        """The lane was released in good order."""
        with self.lock:
            self._forget_locked(lane)
            for wait in lane.waiting.values():
                if wait.body is not None:
                    self.budget.give(wait.body)
                    wait.body = None
            lane.lost = True

    def _forget_locked(self, lane: Lane) -> None:
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
        self._dirty.pop(lane, None)
        self._hungry.pop(lane, None)
        self._thirsty.pop(lane, None)

    def replace_lane(self, old: Lane, fresh: Lane, ids: dict[int, str]) -> None:
        """After a server restart: put a freshly loaded lane in the place of what memory believed."""
        with self.lock:
            if self.lanes.get(old.key) is not old:
                return
            fresh.carry_over(old, ids)
            for pending in (self._dirty, self._hungry, self._thirsty):
                pending.pop(old, None)
        self.open_lane(fresh)

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
                if lane.hungry:
                    self._hungry[lane] = None
        return news

    def lower_head(self, lane: Lane, head: int) -> None:
        """The database knows less of this lane than memory: believe the database."""
        with self.lock:
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

    def take_hungry(self, limit: int) -> list[Lane]:
        """Up to `limit` lanes that fetching would help, least recently fetched first."""
        with self.lock:
            chosen: list[Lane] = []
            for lane in list(self._hungry):
                if len(chosen) >= limit:
                    break
                del self._hungry[lane]
                if lane.hungry:
                    chosen.append(lane)
            return chosen

    def still_hungry(self, lane: Lane) -> None:
        """The lane could not be served now."""
        with self.lock:
            if lane.hungry:
                self._hungry[lane] = None

    @property
    def has_hungry(self) -> bool:
        """Whether some lane waits for the fetcher."""
        return bool(self._hungry or self._thirsty)

    def all_fed(self) -> bool:
        """Whether memory holds unread work for every lane, so that looking would tell nothing of use."""
        with self.lock:
            return bool(self.lanes) and all(lane.ready or lane.cursor < lane.head for lane in self.lanes.values())

    def take_thirsty(self, now: float, limit: int) -> list[tuple[Lane, list[int]]]:
        """Lanes with due messages whose bodies have to be read again."""
        with self.lock:
            while self._dues and self._dues[0][0] <= now:
                _, _, lane = heapq.heappop(self._dues)
                if not lane.lost:
                    self._thirsty[lane] = None
            wanted = []
            for lane in list(self._thirsty)[:limit]:
                del self._thirsty[lane]
                offsets = lane.due(now, lane.rules.batch_size)
                if offsets:
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

    def skip_hole(self, lane: Lane, offset: int) -> None:
        """An offset that the log does not hold counts as settled."""
        with self.lock:
            if not lane.lost and lane.cursor == offset - 1:
                lane.skip_hole(offset)
            self._after_change_locked(lane, time.monotonic(), fetching=True)

    def evict(self) -> None:
        """Give up what is prefetched for lanes that are busy, when others could use the room."""
        with self.lock:
            for lane in self.lanes.values():
                if lane.running and lane.ready:
                    lane.drop_ready()
                    self._hungry[lane] = None

    # -- work goes out (workers) -----------------------------------------------------------------------------------

    def may_start(self, lane: Lane, now: float) -> bool:
        """Whether a handler may start on this lane: it is ours, by a read-back that is not too old."""
        return now < self.authority_until and not (lane.lost or lane.closing or lane.paused)

    def finish(self, run: Run, *, seconds: float | None = None, complete: bool = True) -> None:
        """Take a run's outcomes over; `complete`: the worker is done with it, the rest goes back."""
        now = time.monotonic()
        refused: list[Attempt] = []
        with self.lock:
            lane = run.lane
            outcomes = run.take_outcomes()
            if seconds is not None:
                self.rules.measured(len(outcomes), seconds)
            if complete:
                lane.take_back([run])
                lane.finished(run)
            for attempt, outcome in outcomes:
                if attempt.state is State.RUNNING:
                    self._apply_locked(attempt, outcome, now)
                elif attempt.state is State.SUPERSEDED:
                    self.counters.refused += 1
                    refused.append(attempt)
            self._after_change_locked(lane, now)
        self.signals.wake_settler()
        for attempt in refused:
            log.warning("settlement.refused", **self.context(attempt), why="the delivery was given up or the lane lost")

    def relieve(self, run: Run) -> None:
        """A run takes long: settle what it has done, and let others have what a slow handler keeps waiting."""
        with self.lock:
            if run.lane.rules.concurrency > 1:
                run.lane.take_back([run])
        self.finish(run, complete=False)

    def settle(self, attempt: Attempt, outcome: Outcome) -> Ticket:
        """An explicit settlement; the ticket resolves when it is committed. Raises LeaseLost, AlreadySettled."""
        with self.lock:
            self._check_locked(attempt)
            ticket = Ticket()
            lane = attempt.lane
            self._harvest_locked(attempt)
            self._apply_locked(attempt, outcome, time.monotonic())
            burial = lane.burials.get(attempt.offset)
            (lane.tickets if burial is None else burial.tickets).append(ticket)
            self._finish_detached_locked(attempt)
            self._after_change_locked(lane, time.monotonic())
        self.signals.wake_settler()
        return ticket

    def detach(self, attempt: Attempt, leave: Callable[[], None]) -> bool:
        """The message is the user's now: its run ends when it is settled. False when that has happened already."""
        with self.lock:
            if attempt.state is not State.RUNNING:
                return False
            attempt.on_release = leave
            self.detached[attempt] = None
            return True

    def _finish_detached_locked(self, attempt: Attempt) -> bool:
        if attempt not in self.detached:
            return False
        del self.detached[attempt]
        if attempt.run is not None:
            attempt.lane.finished(attempt.run)
        attempt.release()
        return True

    def hand_back(self) -> None:
        """What the user was handed and has not settled goes back, as if never delivered."""
        now = time.monotonic()
        with self.lock:
            for attempt in list(self.detached):
                if attempt.state is State.RUNNING:
                    attempt.lane.returned(attempt, now)
                    attempt.state = State.SUPERSEDED
                    self._finish_detached_locked(attempt)
                    self._after_change_locked(attempt.lane, now)
        self.signals.wake_settler()

    def give_up(self, attempt: Attempt, outcome: Outcome) -> bool:
        """The delivery timed out: fence the attempt and go on without it. False when it was settled just now."""
        with self.lock:
            if attempt.state is not State.RUNNING:
                return False
            lane, run = attempt.lane, attempt.run
            if run is not None:
                lane.take_back([run])
                lane.finished(run)
                self._harvest_locked(attempt)
            attempt.state = State.SUPERSEDED
            self.counters.timed_out += 1
            self._apply_locked(attempt, outcome, time.monotonic())
            self._finish_detached_locked(attempt)
            self._after_change_locked(lane, time.monotonic())
        self.signals.wake_settler()
        return True

    def _harvest_locked(self, attempt: Attempt) -> None:
        """Take over what the same run has decided before: the watermark then passes it without a row of its own."""
        if attempt.run is None:
            return
        for other, decided in attempt.run.take_outcomes():
            if other.state is State.RUNNING and other is not attempt:
                self._apply_locked(other, decided, time.monotonic())

    def check(self, attempt: Attempt) -> None:
        """Raise LeaseLost or AlreadySettled unless the attempt is still the handler's to settle."""
        with self.lock:
            self._check_locked(attempt)

    def claim(self, attempt: Attempt) -> None:
        """Reserve the settlement for a transaction that is about to commit it. Raises LeaseLost, AlreadySettled."""
        with self.lock:
            self._check_locked(attempt)
            attempt.state = State.CLAIMED

    def unclaim(self, attempt: Attempt) -> None:
        """That transaction did not commit."""
        with self.lock:
            if attempt.state is State.CLAIMED:
                attempt.state = State.RUNNING

    def claimed(self, attempt: Attempt) -> None:
        """That transaction did commit."""
        with self.lock:
            self._harvest_locked(attempt)
            attempt.lane.succeeded(attempt, stored=True)
            self.counters.handled += 1
            self.counters.acked += 1
            self._finish_detached_locked(attempt)
            self._after_change_locked(attempt.lane, time.monotonic())
        self.signals.wake_settler()

    def _check_locked(self, attempt: Attempt) -> None:
        if attempt.state is State.SUPERSEDED or attempt.lane.lost:
            self.counters.refused += 1
            raise LeaseLost(
                f"attempt {attempt.number} at {self.topic}/{attempt.lane.key}/{attempt.offset} is not group "
                f"{self.group!r}'s any more: it timed out or its lane was lost; another attempt has taken its place"
            )
        if attempt.state is not State.RUNNING:
            raise AlreadySettled(
                f"attempt {attempt.number} at {self.topic}/{attempt.lane.key}/{attempt.offset} is settled already"
            )

    def _apply_locked(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        lane, state = attempt.lane, attempt.state
        if outcome.verb is not Verb.ACK and lane.rules.strict and attempt.run is not None:
            lane.take_back([attempt.run])  # nothing of the key may start before this is through
        settled = State.SUPERSEDED if state is State.SUPERSEDED else State.SETTLED
        self.counters.handled += 1
        if outcome.verb is Verb.ACK:
            lane.succeeded(attempt)
            self.counters.acked += 1
        elif outcome.verb is Verb.BURY and self.config.dead_letter_suffix is None:
            lane.succeeded(attempt)
            log.error("message.dropped", **self.context(attempt), error=outcome.error)
        elif outcome.verb is Verb.BURY:
            buried = State.SUPERSEDED if state is State.SUPERSEDED else State.BURYING
            self.burials.append(lane.bury(attempt, attempt.number, outcome.error or "", buried))
        else:
            postponed = outcome.verb is Verb.POSTPONE
            lane.failed(attempt, due=now + outcome.wait, error=outcome.error, state=settled, postponed=postponed)
            self._note_due_locked(now + outcome.wait, lane)
            if postponed:
                self.counters.postponed += 1
            else:
                self.counters.retried += 1

    def context(self, attempt: Attempt) -> dict[str, object]:
        """What an event about an attempt says."""
        return {
            "topic": self.topic,
            "key": attempt.lane.key,
            "group": self.group,
            "offset": attempt.offset,
            "attempt": attempt.number,
        }

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
        tickets: list[Ticket] = []
        with self.lock:
            for write in writes:
                lane = write.lane
                if lane.writing is not write:
                    continue  # replaced after a server restart
                for run in lane.written(write):
                    self.runs.put((self, run))
                tickets += write.tickets
                self._after_change_locked(lane, now)
        for ticket in tickets:
            ticket.resolve()
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

    def buried(self, burial: Burial) -> None:
        """A dead letter is committed, together with its settlement."""
        with self.lock:
            lane = burial.lane
            attempt = lane.running.get(burial.offset)
            if not lane.lost and attempt is not None:
                lane.succeeded(attempt, stored=True)
                self.counters.dead_lettered += 1
                self._after_change_locked(lane, time.monotonic())
        for ticket in burial.tickets:
            ticket.resolve()
        self.signals.wake_settler()

    def later(self, hook: Callable[[], object]) -> None:
        """Let a worker call a user's hook: no loop runs user code."""
        self.runs.put(hook)

    def fail(self, error: BaseException) -> None:
        """This membership cannot go on: stop handing out, and say so once."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
        log.error("membership.failed", topic=self.topic, group=self.group, exc_info=error)
        self.failed(error)

    # -- common ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Look at every lane again, for example after authority came back."""
        now = time.monotonic()
        with self.lock:
            for lane in list(self.lanes.values()):
                self._after_change_locked(lane, now)
        self.signals.wake_settler()

    def _after_change_locked(self, lane: Lane, now: float, *, fetching: bool = False) -> None:
        """Whatever happened to a lane: send out what may go, and note what it needs from whom.

        `fetching`: the fetcher itself is here and need not be woken.
        """
        if lane.lost:
            return
        if now < self.authority_until:
            for _ in range(PLANS_A_TURN):
                planned = lane.plan(now)
                if planned is None:
                    break
                if isinstance(planned, Burial):
                    self._bury_planned_locked(planned)
        if lane.thirsty:
            self._thirsty[lane] = None
        if lane.hungry:
            self._hungry[lane] = None
        if self.has_hungry and not fetching:
            self.signals.wake_fetcher()
        if lane.needs_write:
            self._dirty[lane] = None
            if fetching:
                self.signals.wake_settler()

    def _bury_planned_locked(self, burial: Burial) -> None:
        if self.config.dead_letter_suffix is None and burial.attempt is not None:
            burial.lane.succeeded(burial.attempt)
            log.error("message.dropped", **self.context(burial.attempt), error=burial.error)
        else:
            self.burials.append(burial)
            self.signals.wake_settler()

    def _note_due_locked(self, due: float, lane: Lane) -> None:
        self._sequence += 1
        heapq.heappush(self._dues, (due, self._sequence, lane))
        self.signals.wake_fetcher()

    def resolve_all(self, error: Exception) -> None:
        """The engine ends: nobody may wait for it any longer."""
        with self.lock:
            lanes = list(self.lanes.values())
            tickets = [ticket for lane in lanes for ticket in lane.tickets]
            tickets += [ticket for lane in lanes for burial in lane.burials.values() for ticket in burial.tickets]
            tickets += [ticket for lane in lanes if lane.writing is not None for ticket in lane.writing.tickets]
        for ticket in tickets:
            ticket.resolve(error)
