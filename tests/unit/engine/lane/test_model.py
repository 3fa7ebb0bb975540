"""A lane under every interleaving that Hypothesis can think of, against what was really handed out and committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import Gather
from support.lane_process import Process
from support.lanes import World

if TYPE_CHECKING:
    from lanelog._engine.lane.run import Attempt, Run

ORDERS: dict[str, dict[str, Any]] = {
    "strict": {"strict": True, "concurrency": 1},
    "serial": {"strict": False, "concurrency": 1},
    "concurrent": {"strict": False, "concurrency": 3},
}
KINDS: dict[str, dict[str, Any]] = {
    "mine": {},
    "foreign": {"target": "somebody else"},
    "dead letter": {"original": "merge"},
    "hole": {"hole": True},
}
OUTCOMES = ["ack", "ack", "ack", "ack", "nack", "postpone", "reject"]
PICK = st.integers(0, 7)


class LaneMachine(Process, RuleBasedStateMachine):
    """What may happen, and what must be true; the model is in `Process`."""

    def __init__(self, rules: dict[str, Any]) -> None:
        super().__init__()
        self.new_rules = rules

    @initialize(
        run=st.sampled_from([1, 2, 5]),
        late=st.booleans(),
        attempts=st.sampled_from([1, 3, 5]),
        limit=st.sampled_from([None, 2]),
        behind=st.sampled_from([0, 3]),
    )
    def begin(self, run: int, late: bool, attempts: int, limit: int | None, behind: int) -> None:
        run = 1 if attempts == 1 or limit == 1 else run  # as SubscriptionRules has it
        rules = {"run": run, "late": late, "attempts": attempts, "max_deliveries": limit, "batch_size": 4}
        world = World(behind=behind, **rules, **self.new_rules)
        self.begin_with(world)

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from([*["mine"] * 4, *KINDS]), count=st.integers(1, 4))
    def publish(self, kind: str, count: int) -> None:
        if kind in ("foreign", "hole"):
            self.done.update(range(self.world.head + 1, self.world.head + count + 1))
        if self.world.head < 40:
            self.world.publish(count, **KINDS.get(kind, {}))

    @rule(limit=st.integers(1, 4))
    def fetch(self, limit: int) -> None:
        self.world.fetch(limit)

    @rule()
    def plan(self) -> None:
        self.world.plan()

    @rule()
    def fetch_and_plan(self) -> None:
        self.world.fetch()
        self.world.plan()

    @rule()
    def go(self) -> None:
        """The loops run for a while."""
        if self.writing is not None:
            self.answer_flush("committed")
        if self.burying is not None:
            self.end_burial(committed=True)
        self.world.go()

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def write(self) -> None:
        if self.writing is None and self.burying is None:
            self.writing = self.world.write()

    @precondition(lambda self: self.writing is not None)
    @rule(outcome=st.sampled_from(["committed", "committed", "committed", "rolled back", "unknown"]))
    def end_flush(self, outcome: str) -> None:
        self.answer_flush(outcome)

    @rule(pick=PICK, outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=5))
    def work(self, pick: int, outcomes: list[str]) -> None:
        """A worker takes a run and comes a few messages far."""
        self.go()
        for outcome in outcomes:
            before = len(self.open)
            self.start(pick)
            if self.entering:
                self.go()  # its mark is written
                self.start(pick)
            if len(self.open) > before:
                self.end_one(before, outcome, last=False)

    @precondition(lambda self: self.world.at_workers)
    @rule(pick=PICK)
    def start(self, pick: int) -> None:
        busy = set(self.open.values())
        runs = [run for run in self.world.at_workers if run not in busy]
        self.entering = {run: waiter for run, waiter in self.entering.items() if run in runs}
        alone = [run for run in (*busy, *self.entering) if run.alone]
        runs = [run for run in runs if run in alone or not alone]
        if not runs:
            return
        run = runs[pick % len(runs)]
        if not run.marked:
            self.take(run)
            return
        if run in self.entering and not self.entering[run].wait(0):
            return
        self.entering.pop(run, None)
        if not self.start_next(run):
            self.finish(run)

    def start_next(self, run: Run) -> bool:
        """A handler gets the next message of a run, if there is one."""
        attempt = run.start_next(self.world.now, 60.0)
        if attempt is None:
            return False
        self.check_start(attempt)
        self.open[attempt] = run
        self.starts[attempt.offset] = self.starts.get(attempt.offset, 0) + 1
        return True

    @precondition(lambda self: self.open)
    @rule(pick=PICK, outcome=st.sampled_from(OUTCOMES), last=st.booleans())
    def handler_ends(self, pick: int, outcome: str, last: bool) -> None:
        """A handler returns or raises: the lane gets it when the run is finished or relieved."""
        self.end_one(pick, outcome, last=last)

    @precondition(lambda self: self.open)
    @rule(pick=PICK, outcome=st.sampled_from(["ack", "nack", "postpone", "reject", "transaction"]))
    def settle(self, pick: int, outcome: str) -> None:
        """A handler settles explicitly and goes on."""
        attempt = list(self.open)[pick % len(self.open)]
        if attempt.state is State.RUNNING:
            self.apply(attempt, outcome)

    @precondition(lambda self: self.open)
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        """A delivery times out, and its handler goes on as a zombie."""
        attempt, run = list(self.open.items())[pick % len(self.open)]
        if attempt.state is not State.RUNNING:
            return
        world = self.world
        world.lane.dispatch.take_back([run])
        world.lane.dispatch.finished(run)
        world.at_workers.remove(run)
        self.take_over_decided(run)
        attempt.move(State.SUPERSEDED)
        last = attempt.crashed and world.rules.exhausted(attempt.number + 1, 0.0)
        due = world.now + 1
        world.lane.dispatch.failed(attempt, due=due, error="timed out", next_is_last=last)
        del self.open[attempt]

    @precondition(lambda self: self.open)
    @rule(pick=PICK)
    def relieve(self, pick: int) -> None:
        """A run takes long: what it has done is taken over, and its rest goes back."""
        run = list(self.open.values())[pick % len(self.open)]
        self.world.lane.dispatch.take_back([run])
        self.take_over_decided(run)

    @precondition(lambda self: self.world.at_workers)
    @rule(pick=PICK)
    def hand_back(self, pick: int) -> None:
        """A worker has taken a run and may not start it: the authority to do so has run out."""
        runs = [run for run in self.world.at_workers if not run.started]
        if runs:
            run = runs[pick % len(runs)]
            self.entering.pop(run, None)
            self.world.finish(run)

    @rule()
    def bury(self) -> None:
        """The dead letters that wait are moved."""
        self.bury_all()

    @precondition(lambda self: self.world.dead_letters and self.writing is None and self.burying is None)
    @rule()
    def begin_burial(self) -> None:
        """The transaction of one dead letter is on its way; flushes wait for it, in the same loop."""
        dead_letter = self.world.dead_letters.popleft()
        self.burying = dead_letter, dead_letter.term

    @precondition(lambda self: self.burying is not None)
    @rule(committed=st.booleans())
    def hear_of_burial(self, committed: bool) -> None:
        self.end_burial(committed=committed)

    def send(self) -> None:
        """The settler has sent something, if there is anything: the oldest dead letter, or else a flush."""
        if self.writing is None and self.burying is None:
            if self.world.dead_letters:
                self.begin_burial()
            else:
                self.write()

    @rule(sent=st.booleans(), landed=st.booleans())
    def reload(self, sent: bool, landed: bool) -> None:
        """The keeper's connection is lost: the lane is loaded again, under its epoch, and nothing else has ended.

        A flush and a dead letter that are on their way may commit before the rows are read (`landed`) or after it.
        Their answers come later, and speak of a lane that is no more. Runs stay with the workers that have them.
        """
        if sent:
            self.send()
        if landed:
            self.land()
        old, at_workers, waiting = self.world.lane, set(self.world.at_workers), set(self.world.dead_letters)
        # A restart has ended some. A rejected one whose dead letter has landed is no attempt any more.
        valid = [each for each in self.open if each.state not in (State.SUPERSEDED, State.BURYING)]
        lane = self.world.restart()
        assert old.state.lost
        assert old is not lane
        assert (old.key, old.epoch) == (lane.key, lane.epoch)
        assert all(attempt.state is not State.SUPERSEDED for attempt in valid)
        assert set(self.world.at_workers) <= at_workers
        # A move that had committed before its lane was loaded again was to be repeated. Its row says that it was made.
        moved = self.world.rows.settled()
        assert set(self.world.dead_letters) == {
            dead_letter for dead_letter in waiting if dead_letter.offset not in moved
        }

    @rule()
    def recall(self) -> None:
        """The lane is paused for a moment."""
        self.world.lane.quiet()

    @rule()
    def evict(self) -> None:
        """Others need the room."""
        if not self.world.lane.evict(self.world.now):
            self.world.lane.state.drop_ready()

    @rule()
    def stop(self) -> None:
        """A graceful hand-over: no attempt is counted that did not run."""
        self.end_all("ack")
        self.world.stop()
        rows = self.world.rows
        assert self.restarted or rows.mark <= max(self.top, rows.acked or 0), "marked, and no handler has seen it"
        before = {offset: rows.counted(offset) for offset in range(1, self.world.head + 1)}
        self.new_owner()
        for offset, wait in self.world.lane.state.waiting.items():
            assert wait.attempts == before[offset]
            assert self.deaths or wait.attempts == self.starts.get(offset, 0)

    @rule()
    def crash(self) -> None:
        """The process dies: what is left is what was committed, whatever was on its way."""
        for offset, row in self.world.rows.rows.items():
            if row.lease_epoch == self.world.epoch:
                self.died[offset] = row.alone
        self.deaths += 1
        self.open.clear()
        self.new_owner()

    @rule(forgotten=st.integers(0, 2), changed=st.sets(st.integers(1, 40), max_size=2), late=st.booleans())
    def server_restarts(self, forgotten: int, changed: set[int], late: bool) -> None:
        """The server crashes, forgets its last commits, and may have given an offset to another message.

        `late`: what was on its way had its answer, and perhaps is forgotten; the settler hears that it was committed.
        """
        world = self.world
        if late:
            self.send()
            self.land()
        if self.writing is not None and not self.landed:
            self.answer_flush("unknown")
        if self.burying is not None and not self.moved:
            self.end_burial(committed=False)
        commits = world.commits
        world.rows = commits[max(0, len(commits) - 1 - forgotten)].copy() if forgotten else world.rows
        settled = world.rows.settled()
        mine = {offset for offset in world.log if offset not in settled and not world.log[offset].target_group}
        lane = world.restart(changed=changed & mine)
        self.deaths += 1
        self.restarted = True
        self.skip_what_is_not_ours()
        self.done |= {offset for first, last in lane.state.settled for offset in range(first, last + 1)}
        self.done |= set(range(1, lane.state.watermark + 1))
        self.done |= {a.offset for _, a, outcome in self.decided if outcome == "ack" and a.state is State.RUNNING}
        world.flush()
        # What the server forgot, a failure not yet written down, and another message at that offset: nobody counts
        # them.
        known = {offset: wait.attempts for offset, wait in lane.state.waiting.items()}
        known |= {offset: attempt.number for offset, attempt in lane.state.running.items()}
        self.starts = {
            offset: min(count, known.get(offset, 0), world.rows.counted(offset))
            for offset, count in self.starts.items()
            if offset not in changed & mine
        }
        world.commits = [world.rows.copy()]

    # -- what must be true ---------------------------------------------------------------------------------------------

    def check_start(self, attempt: Attempt) -> None:
        offset, rules = attempt.offset, self.world.rules
        self.top = max(self.top, offset)
        assert offset not in self.world.rows.settled(), "acked and committed, and delivered again"
        assert offset not in self.done
        assert not self.world.log[offset].target_group
        beside = {other.offset for other, run in self.open.items() if run is attempt.run}
        runs = {run for other, run in self.open.items() if other.state is State.RUNNING and run is not attempt.run}
        assert len(runs) < rules.concurrency
        if rules.strict:
            assert set(range(1, offset)) <= self.done | beside, "started while an earlier one was not settled"
        started = self.starts.get(offset, 0)
        assert attempt.number > started
        assert attempt.number <= started + self.deaths + 1
        assert self.world.rows.counted(offset) == attempt.number, "started without its mark"
        if rules.max_deliveries is not None and not self.deaths and not attempt.row.original_topic:
            assert attempt.number <= rules.max_deliveries

    @invariant()
    def every_offset_is_in_one_place(self) -> None:
        lane = self.world.lane
        settled = {offset for first, last in lane.state.settled for offset in range(first, last + 1)}
        ready = [row.offset for row in lane.state.ready]
        places = [*settled, *lane.state.waiting, *lane.state.running, *ready]
        assert len(places) == len(set(places)), lane
        assert ready == sorted(ready)
        assert min(places, default=lane.state.watermark + 1) > lane.state.watermark, lane
        assert set(range(lane.state.watermark + 1, lane.state.cursor + 1)) <= set(places), lane
        assert lane.state.watermark + 1 not in settled, lane

    @invariant()
    def what_is_settled_was_decided(self) -> None:
        lane = self.world.lane
        settled = {offset for first, last in lane.state.settled for offset in range(first, last + 1)}
        assert settled | set(range(1, lane.state.watermark + 1)) <= self.done, lane

    @invariant()
    def the_budget_is_what_is_held(self) -> None:
        lane = self.world.lane
        held = [*lane.state.ready, *(a.row for a in lane.state.running.values())]
        held += [wait.body for wait in lane.state.waiting.values() if wait.body is not None]
        assert self.world.budget.messages == len(held)
        assert self.world.budget.payload_bytes == sum(row.payload_bytes for row in held)

    @invariant()
    def the_database_counts_what_runs(self) -> None:
        rows = self.world.rows
        done = rows.settled()
        for offset, started in self.starts.items():
            assert offset in done or rows.counted(offset) >= started, offset

    @invariant()
    def what_waits_for_a_worker_is_not_counted(self) -> None:
        if self.writing is not None or self.world.lane.progress.needs_write or self.restarted:
            return
        rows, concurrent = self.world.rows, self.world.rules.concurrency > 1
        for run in self.world.at_workers:
            if not run.marked and not (run.first and concurrent):  # a later one's run mark may cover it there
                assert all(rows.counted(each.offset) == each.number - 1 for each in run.attempts), run

    @invariant()
    def rows_are_exceptions(self) -> None:
        if self.writing is not None or self.world.lane.progress.needs_write:
            return
        lane, rows = self.world.lane, self.world.rows.rows
        assert len(rows) <= len(lane.state.settled) + len(lane.state.waiting) + len(lane.state.running)
        assert all(offset > lane.state.watermark for offset in rows), "a row behind the watermark was forgotten"

    def teardown(self) -> None:
        """Nothing is lost: without further trouble everything published gets settled, and nothing is left over."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if self.writing is not None:
            self.answer_flush("committed")
        for _ in range(8 * (world.head + 2)):
            self.end_all("ack")
            world.go()
            for run in list(world.at_workers):
                while (attempt := world.begin(run)) is not None:
                    self.check_start(attempt)
                    self.starts[attempt.offset] = self.starts.get(attempt.offset, 0) + 1
                    self.open[attempt] = run
                    self.end_one(0, "ack", last=False)
                self.finish(run)
            world.now += 60
        self.bury_all()
        world.flush()
        assert world.lane.state.watermark == world.rows.acked == world.head
        assert world.rows.mark <= world.head
        assert not world.rows.rows
        assert world.lane.idle
        assert (world.budget.messages, world.budget.payload_bytes) == (0, 0)


class BatchMachine(LaneMachine):
    """The same with a handler that gets all messages of a run at once. What it has not decided at its end goes back."""

    @initialize(size=st.sampled_from([2, 4]), wait=st.sampled_from([0.0, 4.0]), behind=st.sampled_from([0, 3]))
    def begin(self, size: int, wait: float, behind: int) -> None:
        rules = {"run": size, "late": True, "batch_size": 8, "batch": Gather(size, wait)}
        self.begin_with(World(behind=behind, **rules, **self.new_rules))

    @precondition(lambda self: self.world.at_workers)
    @rule(pick=PICK, size=st.integers(0, 4))
    def fit(self, pick: int, size: int) -> None:
        """A worker has room for so many messages of a run, which nothing has marked."""
        runs = [run for run in self.world.at_workers if not (run.marked or run in self.entering)]
        if runs:
            self.world.lane.dispatch.fit(runs[pick % len(runs)], size, self.world.now)

    def start_next(self, run: Run) -> bool:
        started = False
        while super().start_next(run):
            started = True
        return started

    def finish(self, run: Run) -> None:
        super().finish(run)
        for attempt in [each for each, of in self.open.items() if of is run]:
            del self.open[attempt]
            if attempt.state is State.RUNNING:
                self.world.lane.dispatch.returned(attempt, self.world.now, body=attempt.row)
                attempt.move(State.SUPERSEDED)
                self.starts[attempt.offset] -= 1

    @precondition(lambda self: self.open)
    @rule(pick=PICK, together=st.integers(1, 2))
    def give_up(self, pick: int, together: int) -> None:
        """A batch times out: it comes again with fewer messages, and no attempt has counted."""
        attempt, run = list(self.open.items())[pick % len(self.open)]
        if attempt.state is State.RUNNING:
            for each, of in self.open.items():
                each.together = together if of is run else each.together
            self.finish(run)


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("machine", [LaneMachine, BatchMachine])
@pytest.mark.parametrize("order", ORDERS)
def test_a_lane_keeps_its_promises_whatever_happens(order: str, machine: type[LaneMachine], examples: int) -> None:
    """Nothing is lost, repeated after its commit, out of order, uncounted or left over, in any interleaving."""
    run_state_machine_as_test(
        lambda: machine(ORDERS[order]),
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )
