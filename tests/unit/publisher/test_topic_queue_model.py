"""Who leads, who waits and who holds, while threads come and leave in every order that Hypothesis can think of.

The machine does what `group` does with the plan, and knows which threads are there and which transactions are out.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lanelog._base.open_lane_keys import lane_keys
from lanelog._log.append.draft import Draft
from lanelog.message import Receipt
from lanelog.publisher.topic_queue import TopicQueue, Waiter, WaiterRole

KEYS = lane_keys(2)
PICK = st.integers(0, 20)
ENDS = ["committed", "busy", "busy", "for good", "for now", "interrupted"]


class TopicQueueMachine(RuleBasedStateMachine):
    """Threads that publish to one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = TopicQueue(max_batch=3)
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
        waiter = Waiter(draft, deadline=1.0)
        self.threads.append(waiter)
        self.queue.admit(waiter)
        if self.queue.role(waiter):
            self.woken.add(waiter)

    @rule(key=st.sampled_from(KEYS), count=st.integers(0, 3), anywhere=st.booleans())
    def gather(self, key: str, count: int, *, anywhere: bool) -> None:
        """Somebody has a head, and its waiters gather."""
        self.arrive(key, anywhere=anywhere)
        leader = self.queue.leader
        if leader is not None and leader in self.able():
            self.out[leader] = self.queue.take()
            self.finish(leader, "busy", key, [])
        for _ in range(count):
            self.arrive(key, anywhere=anywhere)

    @precondition(lambda self: self.able())
    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """A thread that leads takes what is ready; one that holds has got the head."""
        able = self.able()
        runner = able[pick % len(able)]
        leads = self.queue.role(runner) is WaiterRole.LEAD
        batch = self.queue.take() if leads else self.queue.claim(runner.draft.key)
        assert batch
        self.out[runner] = batch

    @precondition(lambda self: self.out)
    @rule(pick=PICK, end=st.sampled_from(ENDS), key=st.sampled_from(KEYS), late=st.lists(PICK, max_size=4))
    def end(self, pick: int, end: str, key: str, late: list[int]) -> None:
        """A transaction ends; if it is not clear for whom, it concerns the lane of `key`, or the waiters `late`."""
        runners = list(self.out)
        self.finish(runners[pick % len(runners)], end, key, late)

    def finish(self, runner: Waiter, end: str, key: str, late: list[int]) -> None:
        batch = self.out.pop(runner)
        holds = self.queue.role(runner) is WaiterRole.HOLD
        if end == "interrupted":
            self.wake(self.queue.put_back(batch))
            self.leave(runner)
            return
        if end == "committed":
            self.commit(batch)
        elif end == "busy" and holds:
            self.queue.unclaim(runner.draft.key, batch)
        elif end == "busy":
            self.commit([waiter for waiter in batch if waiter.draft.key != key])
            self.wake(self.queue.reroute([waiter for waiter in batch if waiter.draft.key == key], {key}))
        elif end == "for good":  # each goes on by itself
            self.commit([waiter for waiter in batch if waiter.draft.key == key])
            for waiter in batch[::2]:
                if waiter.draft.key != key:
                    self.wake(self.queue.reroute([waiter], {waiter.draft.key}))
            self.fail(batch[1::2])
        else:
            failed = [waiter for n, waiter in enumerate(batch) if n in late or waiter is runner]
            self.wake(self.queue.put_back([waiter for waiter in batch if waiter not in failed]))
            self.fail(failed)
        if not holds and (runner.done or self.queue.role(runner) is not WaiterRole.LEAD):
            self.wake(self.queue.hand_over(runner))

    @precondition(lambda self: self.able())
    @rule(pick=PICK)
    def find_no_database(self, pick: int) -> None:
        """A holder fails before it has claimed anything."""
        able = self.able()
        runner = able[pick % len(able)]
        if self.queue.role(runner) is WaiterRole.HOLD:
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
        for waiter in self.threads:
            self.wake(self.queue.heal(waiter))

    def leave(self, waiter: Waiter) -> None:
        self.threads.remove(waiter)
        self.wake(self.queue.withdraw(waiter))

    def commit(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            if waiter.waiting:
                waiter.receipt = Receipt(1, "i", duplicate=False)

    def fail(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            if not waiter.done:
                waiter.error = ValueError()

    def wake(self, waiters: list[Waiter]) -> None:
        self.woken.update(waiters)

    def idle(self) -> list[Waiter]:
        return [waiter for waiter in self.threads if waiter not in self.out]

    def able(self) -> list[Waiter]:
        return [waiter for waiter in self.idle() if not waiter.done and self.queue.role(waiter)]

    # -- what must be true ---------------------------------------------------------------------------------------------

    @invariant()
    def everybody_waits_for_somebody(self) -> None:
        """Who waits is in one place, and a thread that is there, and was woken, answers for that place."""
        queued = [*self.queue.ready, *(waiter for lane in self.queue.busy.values() for waiter in lane)]
        taken = [waiter for batch in self.out.values() for waiter in batch if waiter.waiting]
        waiting = [waiter for waiter in self.threads if waiter.waiting]
        assert sorted(map(id, waiting)) == sorted(map(id, [m for m in queued if not m.done] + taken))
        assert all(waiter in self.threads for waiter in queued)
        assert self.queue.busy.keys() == self.queue.holders.keys()
        assert all(holder.draft.key == key for key, holder in self.queue.holders.items())
        assert self.queue.leader is not None or not self.queue.ready
        answering = [*self.queue.holders.values(), *([self.queue.leader] if self.queue.leader else [])]
        assert len({id(waiter) for waiter in answering}) == len(answering)
        for waiter in answering:
            assert waiter in self.threads
            assert waiter in self.woken
            assert waiter.waiting or waiter not in self.out

    def teardown(self) -> None:
        """Left to themselves, all get their outcomes, and nothing stays."""
        for waiter in list(self.out):
            self.commit(self.out.pop(waiter))
        while self.threads:
            runner = next(iter(self.able()), None)
            if runner is not None:
                leads = self.queue.role(runner) is WaiterRole.LEAD
                self.commit(self.queue.take() if leads else self.queue.claim(runner.draft.key))
            done = [waiter for waiter in self.threads if waiter.done]
            assert done, "nobody will ever commit what waits"
            for waiter in done:
                self.leave(waiter)
        assert self.queue.empty


@pytest.mark.thorough
def test_nobody_waits_for_a_thread_that_has_left() -> None:
    """If somebody waits, a living thread leads or holds for him, or has him in a transaction, whoever leaves when."""
    run_state_machine_as_test(TopicQueueMachine)
