"""A lane in a world of its own: a log, the rows that its writes leave, and handlers that are called by hand."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from lanelog._engine.lane import reload
from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import Budget, Gather, LaneSnapshot, Term
from lanelog._engine.lane.writes import DeadLetterWrite, LaneWrite
from lanelog._stores.consumers.deliveries import DeliveryRow
from lanelog._stores.consumers.history import Ended
from lanelog._stores.log.fetches import Fetched, Special

if TYPE_CHECKING:
    from collections.abc import Collection

    from lanelog._engine.lane.run import Attempt, Run

GROUP = "builders"


@attrs.define(kw_only=True)
class Rules:
    """What a lane asks its subscription, in numbers."""

    strict: bool = True
    concurrency: int = 1
    batch_size: int = 100
    max_waiting: int = 1000
    max_deliveries: int | None = None
    ack_first: bool = False
    history: bool = False
    run: int = 10
    late: bool = False
    attempts: int = 5
    group: str = GROUP
    batch: Gather | None = None

    def run_size(self) -> int:
        return self.run

    def marks_late(self) -> bool:
        return self.late

    def exhausted(self, attempts: int, since_first: float) -> bool:
        del since_first
        return attempts >= self.attempts or (self.max_deliveries is not None and attempts >= self.max_deliveries)


@attrs.define
class Row:
    """A delivery row; times are absolute."""

    through: int
    acked: bool
    due: float = 0.0
    retry_count: int = 0
    postponed: int = 0
    crashed: bool = False
    alone: bool = False
    lease_epoch: int = 0
    first_at: float | None = None
    last_error: str | None = None
    released: bool = False


@attrs.define
class Rows:
    """What the stores' statements leave of one lane: `flushes.FLUSH`, `deliveries.UPSERT`, `DELETE`, `SETTLE`."""

    acked: int | None = None
    mark: int = 0
    mark_epoch: int = 0
    marked_at: float = 0.0
    rows: dict[int, Row] = attrs.field(factory=dict)

    def copy(self) -> Rows:
        return attrs.evolve(self, rows={offset: attrs.evolve(row) for offset, row in self.rows.items()})

    def commit(self, write: LaneWrite, now: float) -> None:
        """One lane's part of a flush: rows, then deletes, then the offsets row."""
        for new in write.upserts:
            old = self.rows.get(new.offset)
            self.rows[new.offset] = Row(
                through=new.through,
                acked=new.acked or (old is not None and old.acked),
                due=now + new.delay,
                retry_count=new.retry_count,
                postponed=new.postponed,
                crashed=new.crashed,
                alone=new.alone,
                lease_epoch=new.lease_epoch,
                first_at=None if new.first_age is None else now - new.first_age,
                last_error=new.last_error,
                released=new.released,
            )
        for offset in write.deletes:
            self.rows.pop(offset, None)
        self.acked = max(self.acked or 0, write.watermark)
        if (self.mark, self.mark_epoch) != (write.mark, write.term.epoch):
            self.marked_at = now
        self.mark, self.mark_epoch = write.mark, write.term.epoch

    def settle(self, offset: int) -> None:
        """What a dead letter or a transaction of the handler writes."""
        row = self.rows.setdefault(offset, Row(offset, acked=True))
        row.acked, row.lease_epoch, row.due = True, 0, 0.0

    def settled(self) -> set[int]:
        """Every offset that is known to be done."""
        done = set(range(1, (self.acked or 0) + 1))
        for offset, row in self.rows.items():
            if row.acked:
                done.update(range(offset, row.through + 1))
        return done

    def counted(self, offset: int) -> int:
        """How many attempts a new owner would know of, if the process died now."""
        row = self.rows.get(offset)
        if row is not None:
            return row.retry_count
        return int((self.acked or 0) < offset <= self.mark)


class World:
    """One lane with everything around it; `now` is moved by hand.

    What workers do with a run (`start`, `ack`, `nack`, …, `finish`) is what `Member` lets them do: an outcome is
    taken over when the run is finished or relieved, an explicit settlement at once.
    """

    def __init__(self, count: int = 0, *, behind: int = 0, **rules: object) -> None:
        """`count` messages come after the group's first owner, `behind` before it."""
        self.rules = Rules(**rules)  # type: ignore[arg-type]
        self.budget = Budget()
        self.log: dict[int, Fetched] = {}
        self.head = 0
        self.rows = Rows()
        self.commits: list[Rows] = []  # what the server had after each commit since the lane was taken over
        self.now = 1000.0
        self.epoch = 0
        self.generation = 0
        self.at_workers: deque[Run] = deque()
        self.dead_letters: deque[DeadLetterWrite] = deque()
        self.publish(behind)
        self.lane = self.take_over()
        self.flush()  # the offsets row of the group's first owner, if there was nothing to read
        self.publish(count)

    # -- the database --------------------------------------------------------------------------------------------------

    def publish(self, count: int = 1, *, target: str = "", original: str = "", hole: bool = False) -> None:
        for _ in range(count):
            self.head += 1
            if not hole:
                self.log[self.head] = row(self.head, target=target, original=original)

    def snapshot(self) -> LaneSnapshot:
        self.generation += 1
        loaded = []
        for offset, r in self.rows.rows.items():
            age = None if r.first_at is None else self.now - r.first_at
            told = attrs.evolve(r, due=r.due - self.now, first_at=age)  # all that a DeliveryRow has, in its order
            loaded.append(DeliveryRow(offset, *attrs.astuple(told)))
        return LaneSnapshot(
            key="key",
            epoch=self.epoch,
            generation=self.generation,
            head=self.head,
            floor=0,
            offset_acked=self.rows.acked,
            marked_through=self.rows.mark,
            marked_epoch=self.rows.mark_epoch,
            marked_age=self.now - self.rows.marked_at,
            rows=loaded,
        )

    def take_over(self) -> Lane:
        """A new owner, who knows what the rows say: the process before may have died or left."""
        self.epoch += 1
        self.budget = Budget()
        self.at_workers.clear()
        self.dead_letters.clear()
        self.commits = [self.rows.copy()]
        self.lane = Lane.load(self.snapshot(), self.rules, self.budget, self.now)
        return self.lane

    def restart(self, *, changed: Collection[int] = ()) -> Lane:
        """The server comes back with `rows`; at `changed` offsets the log holds other messages now."""
        old = self.lane
        ids = {offset: message_id for offset, message_id in reload.vouched(old).items() if offset not in changed}
        for offset in changed:
            self.log[offset] = row(offset, message_id="another one")
        self.lane = Lane.load(self.snapshot(), self.rules, self.budget, self.now)
        reload.carry_over(self.lane, old, ids)
        self.at_workers = deque(run for run in self.at_workers if run.term == self.lane.term)
        self.dead_letters = deque(
            dead_letter for dead_letter in self.dead_letters if dead_letter.term == self.lane.term
        )
        return self.lane

    # -- fetcher and settler -------------------------------------------------------------------------------------------

    def fetch(self, limit: int | None = None) -> None:
        """One turn of the fetcher: what is behind the cursor, and the bodies of what is due."""
        lane = self.lane
        lane.state.head = max(lane.state.head, self.head)
        if lane.needs_fetch:
            found = []
            for offset in range(lane.state.cursor + 1, self.head + 1)[: limit or self.rules.batch_size]:
                if offset not in self.log:
                    break
                found.append(self.log[offset])
            if found:
                lane.fetched(lane.state.cursor, found, self.now)
            else:
                lane.skip_holes(lane.state.cursor + 1, lane.state.cursor + 1)
        for offset in lane.due(self.now, self.rules.batch_size):
            if offset in self.log:
                lane.revived(self.log[offset])
            else:
                lane.skip(offset)

    def plan(self) -> list[Run]:
        """Everything that may be sent out now; it waits for its mark, or for a worker who has it marked."""
        planned = []
        while (out := self.lane.dispatch.plan(self.now)) is not None:
            if isinstance(out, DeadLetterWrite):
                self.dead_letters.append(out)
            elif out.late:
                self.at_workers.append(out)
            else:
                planned.append(out)
        return planned

    def write(self) -> LaneWrite | None:
        return self.lane.progress.write(self.now)

    def writing(self) -> LaneWrite:
        """The write that there must be."""
        write = self.write()
        assert write is not None
        return write

    def planned(self) -> LaneWrite:
        """Fetch and plan all there is: the write that marks it."""
        self.fetch()
        self.plan()
        return self.writing()

    def unanswered(self, write: LaneWrite) -> None:
        """A flush that was committed, and whose answer was lost."""
        self.rows.commit(write, self.now)
        self.lane.progress.unwritten(write)

    def recall(self) -> None:
        """The lane is to stop, or paused: what no handler has seen goes back."""
        self.lane.quiet()

    def commit(self, write: LaneWrite) -> None:
        self.rows.commit(write, self.now)
        self.commits.append(self.rows.copy())
        self.written(write)

    def written(self, write: LaneWrite) -> None:
        """The settler learns that a flush is durable: of a lane that was loaded again meanwhile it says nothing."""
        if write.term == self.lane.term:
            self.at_workers.extend(self.lane.progress.written(write))
        for waiter in write.waiters:
            waiter.resolve()

    def unwritten(self, write: LaneWrite) -> None:
        """The settler learns that a flush failed, or does not know: of a lane that was loaded again it says nothing."""
        if write.term == self.lane.term:
            self.lane.progress.unwritten(write)

    def flush(self) -> None:
        """Write until nothing is left to be written."""
        while (write := self.write()) is not None:
            self.commit(write)

    def bury(self) -> None:
        """The dead letters that wait are moved."""
        while self.dead_letters:
            dead_letter = self.dead_letters.popleft()
            self.move(dead_letter)
            self.buried(dead_letter, dead_letter.term)

    def move(self, dead_letter: DeadLetterWrite) -> None:
        """The transaction of a dead letter commits."""
        self.rows.settle(dead_letter.offset)
        self.commits.append(self.rows.copy())

    def buried(self, dead_letter: DeadLetterWrite, term: Term) -> None:
        """The settler learns of that commit; if the lane was loaded again meanwhile, the move is repeated.

        It is not repeated where a later load has dropped its message: the settler's next turn finds it gone.
        """
        if dead_letter.term != term:
            if dead_letter.term == self.lane.term:
                self.dead_letters.append(dead_letter)
        elif term == self.lane.term:
            self.lane.dispatch.succeeded(self.lane.state.running[dead_letter.offset], self.now, stored=True)

    def go(self) -> list[Run]:
        """Until nothing more comes to the workers: fetch, plan, flush; returns what they have not begun."""
        before = None
        while before != (
            before := (repr(self.lane), self.lane.state.adopting, len(self.at_workers), len(self.dead_letters))
        ):
            self.fetch()
            self.plan()
            self.flush()
        return list(self.at_workers)

    # -- workers -------------------------------------------------------------------------------------------------------

    def begin(self, run: Run) -> Attempt | None:
        """The worker's next step: a late run is marked first, a suspect has the process to itself by then."""
        if not run.marked and self.lane.dispatch.mark(run, FlushWaiter()):
            self.flush()
        return run.start_next(self.now, 60.0)

    def start(self, run: Run) -> Attempt:
        attempt = self.begin(run)
        assert attempt is not None
        return attempt

    def ack(self, *attempts: Attempt) -> None:
        for attempt in attempts:
            self.lane.dispatch.succeeded(attempt, self.now)

    def nack(self, attempt: Attempt, wait: float = 10.0, *, postponed: bool = False) -> None:
        self._hold_back(attempt)
        due = self.now + wait
        last = attempt.crashed and self.rules.exhausted(attempt.number + 1, 0.0)
        self.lane.dispatch.failed(attempt, due=due, error="ValueError: no", postponed=postponed, next_is_last=last)

    def postpone(self, attempt: Attempt) -> None:
        self.nack(attempt, postponed=True)

    def reject(self, attempt: Attempt) -> None:
        self._hold_back(attempt)
        self.dead_letters.append(self.lane.dispatch.bury(attempt, attempt.number, "bad", Ended.REJECTED))

    def commit_with_handler(self, attempt: Attempt) -> None:
        """`message.transaction()`: its own commit writes the acked row."""
        attempt.move(State.CLAIMED)
        self.rows.settle(attempt.offset)
        self.commits.append(self.rows.copy())
        self.lane.dispatch.succeeded(attempt, self.now, stored=True)

    def finish(self, run: Run) -> None:
        """The worker lets go of a run."""
        self.lane.dispatch.take_back([run])
        self.lane.dispatch.finished(run)
        if run in self.at_workers:
            self.at_workers.remove(run)

    def handle(self, run: Run, *outcomes: str) -> None:
        """A worker gets so far with a run, and lets go of it."""
        for outcome in outcomes:
            getattr(self, outcome)(self.start(run))
        self.finish(run)

    def work(self, *outcomes: str) -> list[tuple[int, int]]:
        """Handle what comes, all acked but the first ones; (offset, attempt) as the handler saw them."""
        wanted, seen = deque(outcomes), []
        while self.go() or self.dead_letters:
            self.bury()
            if not self.at_workers:
                continue
            run = self.at_workers[0]
            while (attempt := self.begin(run)) is not None:
                seen.append((attempt.offset, attempt.number))
                getattr(self, wanted.popleft() if wanted else "ack")(attempt)
            self.finish(run)
        return seen

    def _hold_back(self, attempt: Attempt) -> None:
        if self.rules.strict and attempt.run is not None:
            self.lane.dispatch.take_back([attempt.run])

    def stop(self) -> None:
        """A graceful stop, when no handler runs any more."""
        self.lane.close()
        self.recall()
        for run in list(self.lane.state.runs):
            self.finish(run)
        self.flush()
        assert self.lane.idle


def serial(count: int = 0) -> World:
    """One at a time, and what fails steps aside."""
    return World(count, strict=False)


def concurrent(count: int = 0, limit: int = 3) -> World:
    """So many at once, each a run of its own."""
    return World(count, strict=False, concurrency=limit, run=1)


def row(offset: int, *, target: str = "", original: str = "", message_id: str = "") -> Fetched:
    """A row of the log."""
    payload = b"x" * (offset % 7)
    special = Special(target_group=target, original_topic=original) if target or original else None
    return Fetched("key", offset, message_id or f"m{offset}", payload, len(payload), None, 0, special=special)
