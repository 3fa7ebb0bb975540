"""Who leads, who waits and who holds, while threads come and leave in every order that Hypothesis can think of.

The machine does what `group` does with the plan, and knows which threads are there and which transactions are out.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lanelog._base.open_lane_keys import lane_keys
from lanelog._log.append.draft import Draft
from lanelog.message import Receipt
from lanelog.publisher.line import Line, Waiter, WaiterRole

KEYS = lane_keys(2)
PICK = st.integers(0, 20)
ENDS = ["committed", "busy", "busy", "for good", "for now", "interrupted"]


class LineMachine(RuleBasedStateMachine):
    """Threads that publish to one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line(max_batch=3)
        self.threads: list[Waiter] = []
        """Who is there, in the order of arrival."""
        self.out: dict[Waiter, list[Waiter]] = {}
        """The transaction that a thread runs, and whose messages it has."""
        self.woken: set[Waiter] = set()

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), anywhere=st.booleans())
    def arrive(self, key: str, *, anywhere: bool) -> None:
        draft = Draft(topic="t", key=key, id="i", given=False, payload=b"", metadata=None, wire_bytes=1)
        draft.lanes = len(KEYS) if anywhere else 0
        member = Waiter(draft, deadline=1.0)
        self.threads.append(member)
        self.line.admit(member)
        if self.line.role(member):
            self.woken.add(member)

    @rule(key=st.sampled_from(KEYS), count=st.integers(0, 3), anywhere=st.booleans())
    def gather(self, key: str, count: int, *, anywhere: bool) -> None:
        """Somebody has a head, and its members gather."""
        self.arrive(key, anywhere=anywhere)
        leader = self.line.leader
        if leader is not None and leader in self.able():
            self.out[leader] = self.line.take()
            self.finish(leader, "busy", key, [])
        for _ in range(count):
            self.arrive(key, anywhere=anywhere)

    @precondition(lambda self: self.able())
    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """A thread that leads takes what is ready; one that holds has got the head."""
        able = self.able()
        runner = able[pick % len(able)]
        leads = self.line.role(runner) is WaiterRole.LEAD
        batch = self.line.take() if leads else self.line.claim(runner.draft.key)
        assert batch
        self.out[runner] = batch

    @precondition(lambda self: self.out)
    @rule(pick=PICK, end=st.sampled_from(ENDS), key=st.sampled_from(KEYS), late=st.lists(PICK, max_size=4))
    def end(self, pick: int, end: str, key: str, late: list[int]) -> None:
        """A transaction ends; if it is not clear for whom, it concerns the lane of `key`, or the members `late`."""
        runners = list(self.out)
        self.finish(runners[pick % len(runners)], end, key, late)

    def finish(self, runner: Waiter, end: str, key: str, late: list[int]) -> None:
        batch = self.out.pop(runner)
        holds = self.line.role(runner) is WaiterRole.HOLD
        if end == "interrupted":
            self.wake(self.line.put_back(batch))
            self.leave(runner)
            return
        if end == "committed":
            self.commit(batch)
        elif end == "busy" and holds:
            self.line.unclaim(runner.draft.key, batch)
        elif end == "busy":
            self.commit([member for member in batch if member.draft.key != key])
            self.wake(self.line.part([member for member in batch if member.draft.key == key], {key}))
        elif end == "for good":  # each goes on by itself
            self.commit([member for member in batch if member.draft.key == key])
            for member in batch[::2]:
                if member.draft.key != key:
                    self.wake(self.line.part([member], {member.draft.key}))
            self.fail(batch[1::2])
        else:
            failed = [member for n, member in enumerate(batch) if n in late or member is runner]
            self.wake(self.line.put_back([member for member in batch if member not in failed]))
            self.fail(failed)
        if not holds and (runner.done or self.line.role(runner) is not WaiterRole.LEAD):
            self.wake(self.line.hand_over(runner))

    @precondition(lambda self: self.able())
    @rule(pick=PICK)
    def find_no_database(self, pick: int) -> None:
        """A holder fails before it has claimed anything."""
        able = self.able()
        runner = able[pick % len(able)]
        if self.line.role(runner) is WaiterRole.HOLD:
            self.fail([runner])

    @precondition(lambda self: self.idle())
    @rule(pick=PICK)
    def go(self, pick: int) -> None:
        """A thread that is in no transaction of its own has its outcome, or is out of time, or is interrupted."""
        idle = self.idle()
        self.leave(idle[pick % len(idle)])

    @precondition(lambda self: self.threads)
    @rule(pick=PICK)
    def vanish(self, pick: int) -> None:
        """An interrupt strikes wherever it likes: a thread passes nothing on, and the others heal what it left."""
        gone = self.threads.pop(pick % len(self.threads))
        gone.gone = True
        self.out.pop(gone, None)
        if not self.threads:
            self.arrive(KEYS[0], anywhere=False)
        for member in self.threads:
            self.wake(self.line.heal(member))

    def leave(self, member: Waiter) -> None:
        self.threads.remove(member)
        self.wake(self.line.withdraw(member))

    def commit(self, members: list[Waiter]) -> None:
        for member in members:
            if member.waiting:
                member.receipt = Receipt(1, "i", duplicate=False)

    def fail(self, members: list[Waiter]) -> None:
        for member in members:
            if not member.done:
                member.error = ValueError()

    def wake(self, members: list[Waiter]) -> None:
        self.woken.update(members)

    def idle(self) -> list[Waiter]:
        return [member for member in self.threads if member not in self.out]

    def able(self) -> list[Waiter]:
        return [member for member in self.idle() if not member.done and self.line.role(member)]

    # -- what must be true ---------------------------------------------------------------------------------------------

    @invariant()
    def everybody_waits_for_somebody(self) -> None:
        """Who waits is in one place, and a thread that is there, and was woken, answers for that place."""
        queued = [*self.line.ready, *(member for queue in self.line.busy.values() for member in queue)]
        taken = [member for batch in self.out.values() for member in batch if member.waiting]
        waiting = [member for member in self.threads if member.waiting]
        assert sorted(map(id, waiting)) == sorted(map(id, [m for m in queued if not m.done] + taken))
        assert all(member in self.threads for member in queued)
        assert self.line.busy.keys() == self.line.holders.keys()
        assert all(holder.draft.key == key for key, holder in self.line.holders.items())
        assert self.line.leader is not None or not self.line.ready
        answering = [*self.line.holders.values(), *([self.line.leader] if self.line.leader else [])]
        assert len({id(member) for member in answering}) == len(answering)
        for member in answering:
            assert member in self.threads
            assert member in self.woken
            assert member.waiting or member not in self.out

    def teardown(self) -> None:
        """Left to themselves, all get their outcomes, and nothing stays."""
        for member in list(self.out):
            self.commit(self.out.pop(member))
        while self.threads:
            runner = next(iter(self.able()), None)
            if runner is not None:
                leads = self.line.role(runner) is WaiterRole.LEAD
                self.commit(self.line.take() if leads else self.line.claim(runner.draft.key))
            done = [member for member in self.threads if member.done]
            assert done, "nobody will ever commit what waits"
            for member in done:
                self.leave(member)
        assert self.line.empty


@pytest.mark.thorough
def test_nobody_waits_for_a_thread_that_has_left() -> None:
    """If somebody waits, a living thread leads or holds for him, or has him in a transaction, whoever leaves when."""
    run_state_machine_as_test(LineMachine)
