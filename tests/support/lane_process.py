"""A process that owns one lane, as a model sees it: which handlers run, and what they decided.

It does what workers, `Member` and the settler do with a lane, and counts what really happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.run import State
from lanelog._stores.consumers.history import Ended

if TYPE_CHECKING:
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.lane.values import Term
    from lanelog._engine.lane.writes import DeadLetterWrite, LaneWrite
    from support.lanes import World


class Process:
    """What handlers have seen (`starts`), what they decided (`done`), and how often the process died (`deaths`)."""

    def begin_with(self, world: World) -> None:
        self.world = world
        self.writing: LaneWrite | None = None
        self.landed = False  # it is committed, and its lane was loaded again before the settler heard of it
        self.moved = False  # the same of a dead letter
        self.burying: tuple[DeadLetterWrite, Term] | None = (
            None  # a dead letter on its way, and the term it was taken in
        )
        self.open: dict[Attempt, Run] = {}  # handlers that are running
        self.entering: dict[Run, FlushWaiter] = {}  # late runs that workers have taken, until they are marked
        self.decided: list[tuple[Run, Attempt, str]] = []  # returned, and not yet taken over by the lane
        self.done: set[int] = set()
        self.starts: dict[int, int] = {}
        self.top = 0  # the highest offset that was ever started
        self.died: dict[int, bool] = {}  # whether the last death of this offset was alone
        self.deaths = 0
        self.restarted = False

    def answer_flush(self, outcome: str) -> None:
        write, self.writing = self.writing, None
        landed, self.landed = self.landed, False
        if outcome == "committed":
            (self.world.written if landed else self.world.commit)(write)
        else:
            if outcome == "unknown" and not landed:
                self.world.rows.commit(write, self.world.now)
            self.world.unwritten(write)

    def land(self) -> None:
        """What is on its way commits; the settler does not know of it yet."""
        if self.writing is not None and not self.landed:
            self.world.rows.commit(self.writing, self.world.now)
            self.world.commits.append(self.world.rows.copy())
            self.landed = True
        if self.burying is not None and not self.moved:
            self.world.move(self.burying[0])
            self.done.add(self.burying[0].offset)
            self.moved = True

    def end_burial(self, *, committed: bool) -> None:
        """The settler learns of the dead letter that is on its way."""
        assert self.burying is not None
        (dead_letter, term), self.burying = self.burying, None
        moved, self.moved = self.moved, False
        if committed:
            if not moved:
                self.world.move(dead_letter)
                self.done.add(dead_letter.offset)
            self.world.buried(dead_letter, term)
        elif dead_letter.term == self.world.lane.term:
            self.world.dead_letters.append(dead_letter)

    def end_one(self, pick: int, outcome: str, *, last: bool) -> None:
        """A handler returns or raises: the lane gets it when the run is finished or relieved."""
        attempt, run = list(self.open.items())[pick % len(self.open)]
        del self.open[attempt]
        if attempt.state is State.RUNNING:
            self.decided.append((run, attempt, outcome))
            if outcome == "ack":
                self.done.add(attempt.offset)
        if last or (outcome != "ack" and self.world.rules.strict) or attempt.state is State.SUPERSEDED:
            self.finish(run)

    def bury_all(self) -> None:
        if self.burying is not None:
            self.end_burial(committed=True)
        buried = {dead_letter.offset for dead_letter in self.world.dead_letters}
        for dead_letter in self.world.dead_letters:
            if dead_letter.ended is Ended.LOCK_EXPIRED:  # for a crash, and not because its deliveries are at their cap
                assert self.died.get(dead_letter.offset) or self.world.rules.attempts == 1
            assert not self.world.log[dead_letter.offset].original_topic or dead_letter.error == "bad"
        self.world.bury()
        self.done |= buried

    def take(self, run: Run) -> None:
        """A worker takes a late run and has it marked; a suspect waits until nobody else has anything."""
        if run.alone and (self.open or self.entering):
            return
        waiter = FlushWaiter()
        if self.world.lane.dispatch.mark(run, waiter):
            self.entering[run] = waiter
        else:
            self.finish(run)

    def apply(self, attempt: Attempt, outcome: str) -> None:
        world = self.world
        if outcome == "reject" and attempt.row.original_topic:
            outcome = "nack"  # as the policy has it: a dead letter has nowhere to go
        if outcome in ("ack", "transaction"):
            self.done.add(attempt.offset)
            (world.ack if outcome == "ack" else world.commit_with_handler)(attempt)
        elif outcome == "reject":
            world.reject(attempt)
        else:
            world.nack(attempt, 2.0, postponed=outcome == "postpone")
            if outcome == "postpone":
                self.starts[attempt.offset] = 0

    def take_over_decided(self, run: Run) -> None:
        mine = [(attempt, outcome) for of, attempt, outcome in self.decided if of is run]
        self.decided = [entry for entry in self.decided if entry[0] is not run]
        if self.acked_together(mine):
            return
        for attempt, outcome in mine:
            if attempt.state is State.RUNNING:
                self.apply(attempt, outcome)

    def acked_together(self, decided: list[tuple[Attempt, str]]) -> bool:
        """Acks that follow each other are taken over at once, as `Attempts.finish` does."""
        attempts = [attempt for attempt, outcome in decided if outcome == "ack" and attempt.state is State.RUNNING]
        if not attempts or len(attempts) < len(decided) or not self.world.lane.dispatch.succeeded_in_order(attempts):
            return False
        self.done.update(attempt.offset for attempt in attempts)
        return True

    def finish(self, run: Run) -> None:
        self.world.finish(run)
        self.take_over_decided(run)

    def end_all(self, outcome: str) -> None:
        """Every handler that runs comes to its end."""
        while self.open:
            self.end_one(0, outcome, last=True)
        for run in list(self.world.at_workers):
            if any(of is run for of, _, _ in self.decided):
                self.finish(run)
        if self.writing is not None:
            self.answer_flush("committed")
        self.bury_all()

    def new_owner(self) -> None:
        self.writing = self.burying = None
        self.landed = self.moved = False
        self.entering.clear()
        self.decided.clear()
        lane = self.world.take_over()
        self.skip_what_is_not_ours()
        assert lane.state.watermark == (self.world.rows.acked or 0) or lane.state.watermark in self.done

    def skip_what_is_not_ours(self) -> None:
        log = self.world.log
        skipped = {offset for offset in range(1, self.world.head + 1) if offset not in log or log[offset].target_group}
        self.done = self.world.rows.settled() | skipped
