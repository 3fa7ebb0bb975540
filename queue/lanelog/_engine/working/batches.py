"""Batches: a worker runs its handler on several messages at once.

Owns the way of one batch: it is filled, marked and started, its handler runs, and an outcome is recorded for each of
its messages. Never sends SQL, and never decides which messages of a lane are next.

A batch that raises is tried again in halves, in the same thread, until a message fails alone. That one has failed. The
halves count no attempt. What the handler decides for the whole batch (`Retry`, `Postpone`, `Reject`) is not halved. A
batch that times out goes back to its lanes, and comes again in halves: its handler may go on in its abandoned thread,
and settles nothing any more.

A process that dies counts an attempt for every message of the batch, since every one of them was marked. After that,
each of them comes alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, field

from lanelog._base.text import describe
from lanelog._engine import caller_ack, handler_error
from lanelog._engine.caller_ack import Delivered
from lanelog._engine.delivery import message_of
from lanelog._engine.handler_transaction import HandlerTransaction
from lanelog._engine.lane import policy
from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import EXPIRED, Verb
from lanelog._engine.working import stacks
from lanelog._engine.working.worker import BatchCall, Worker
from lanelog._facts.engine import worker as facts
from lanelog.batches import Messages
from lanelog.config import AckPolicy
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.measures import Handlings
from lanelog.message import Postpone, Reject, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Run
    from lanelog._engine.member.member import Member
    from lanelog.config import SubscriptionConfig

_DECISIONS: Final = (Retry, Postpone, Reject)


@define(eq=False)
class _Handle:
    """The `BatchHandle` of one call."""

    context: EngineContext
    messages: Sequence[Delivered]

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit the handler's writes together with the acks."""
        together = HandlerTransaction(self.context, self.messages, "messages.ack(connection=)")
        return together.open("messages.transaction()")

    def ack_in(self, connection: object) -> int:
        """Ack all of them in the caller's transaction. Return the `wait_timeout` that its session had before."""
        self.context.check_process()
        for each in self.messages:
            caller_ack.forget_rolled_back(each.member, each.attempt, self.context)
        return caller_ack.write(self.messages, self.context, connection)


@define(eq=False)
class Batches:
    """The batches of one subscription's workers."""

    config: SubscriptionConfig
    handler: Callable[[Any], object]
    runs: queue.SimpleQueue[Any]
    context: EngineContext
    slice_seconds: float = 0.05
    """Of one wait for more runs. After each, what is ready in their lanes is counted again."""
    _filling: threading.Lock = field(factory=threading.Lock)
    """One worker fills a batch at a time. Else idle workers would share few messages among them."""
    _left: deque[Any] = field(factory=deque)
    """What was taken from the queue and did not fit: the next worker has it first."""

    def next(self) -> Any:
        """Wait for work: runs that make a batch, a hook of the user, or None to end."""
        with self._filling:
            item = self._left.popleft() if self._left else self.runs.get()
            return item if item is None or callable(item) else self._fill(item)

    def _fill(self, first: tuple[Member, Run]) -> list[tuple[Member, Run]]:
        """Add runs that wait in the queue, until the batch is full or has waited.

        A quarantined message stays alone, and so does one that met a crash.
        """
        batch, runs = self.config.batch, [first]
        if batch is None or batch.across == "lane" or _single(first[1]):
            return runs
        began = time.monotonic()
        most, until = _together(first[1], batch.size), _patience(first[1], began, batch.wait)
        while sum(_available(*each) for each in runs) < most:
            left = max(0.0, until - time.monotonic())
            try:
                item = self._left.popleft() if self._left else self.runs.get(timeout=min(left, self.slice_seconds))
            except queue.Empty:
                if left and not self._full(first[0]):
                    continue
                break
            if item is None or callable(item) or _single(item[1]):
                self._left.append(item)
                break
            run = item[1]
            fewer = _together(run, most)
            if sum(len(each.attempts) for _, each in runs) + len(run.attempts) > fewer and (
                fewer < most or run.waiter is not None
            ):
                self._left.append(item)
                break
            most, until = fewer, min(until, _patience(run, time.monotonic(), batch.wait))
            runs.append(item)
        return runs

    def _full(self, member: Member) -> bool:
        """Whether memory has no room for more messages. Then none come before some are handled."""
        budget, config = member.budget, self.config
        return budget.messages >= config.prefetch or budget.payload_bytes >= config.prefetch_bytes

    def work(self, worker: Worker, runs: list[tuple[Member, Run]]) -> None:
        """Handle the messages of some runs as one batch."""
        worker.passage = passage = worker.enter(*runs[0])
        try:
            if passage is not None:
                runs = self._marked(runs)
                self._handle(worker, self._started(runs), tuple(runs))
            for member, run in runs:
                member.attempts.finish(run, give_back=True)
                if run.alone and run.marked and not worker.abandoned:
                    member.attempts.wait_written(run)
        except BaseException as fault:  # noqa: BLE001 - a fault of the engine, not of the handler
            self._end(runs, fault)
        finally:
            worker.member = worker.run = worker.attempt = worker.call = None
            worker.waits = 0.0
            if passage is not None:
                passage.leave()

    def _end(self, runs: Sequence[tuple[Member, Run]], fault: BaseException) -> None:
        """End a batch after a fault. Its messages have failed, so that the members can end, too."""
        for member, run in runs:
            try:
                for attempt in run.attempts:
                    if attempt.state is State.RUNNING:
                        run.record(attempt, policy.faulted(self.config, attempt, fault, time.monotonic()))
                member.attempts.finish(run, give_back=True)
            finally:
                member.fail(fault)

    def _marked(self, runs: Sequence[tuple[Member, Run]]) -> list[tuple[Member, Run]]:
        """Fit the runs to the batch and let them be marked, all at once. What is not marked in time waits on."""
        most = 1 if self.config.batch is None else self.config.batch.size
        room = most if _single(runs[0][1]) else min(_together(run, most) for _, run in runs)
        until = time.monotonic() + runs[0][0].attempts.hold_seconds
        for member, run in runs:
            member.attempts.ask_mark(run, max(0, room))
            room -= len(run.attempts)
        left = []
        for member, run in runs:
            marked = member.attempts.mark(run, until)
            if marked is None:
                self.runs.put((member, run))  # the next worker waits for the same mark
            elif marked:
                left.append((member, run))
            else:
                member.attempts.finish(run)
        return left

    def _started(self, runs: Sequence[tuple[Member, Run]]) -> list[Delivered]:
        """Start the messages of the runs whose lanes are still ours, in order."""
        now, started = time.monotonic(), []
        for member, run in runs:
            while member.attempts.may_start(run.term, now):
                attempt = run.start_next(now, self.config.visibility_timeout)
                if attempt is None:
                    break
                if not attempt.expired:
                    started.append(Delivered(member, attempt))
                    continue
                run.record(attempt, EXPIRED)
                if member.rules.strict:
                    break
        return started

    def _handle(self, worker: Worker, batch: Sequence[Delivered], runs: tuple[tuple[Member, Run], ...]) -> None:
        """Call the handler on the batch, and then on halves of what raised."""
        parts = deque([batch] if batch else [])
        stopped: set[Run] = set()
        while parts:
            now = time.monotonic()
            part = self._still(parts.popleft(), stopped, now)
            if not part:
                continue
            result, error = self._call(worker, BatchCall(tuple(part), runs), now)
            if worker.abandoned:  # by the keeper's thread, which has given everything back
                return
            error = self._ask_about(part, error)
            if error is None:
                error = _wrong(part, result)  # what it has done is done: a repetition would not help
            elif all(each.attempt.state in (State.SETTLED, State.BURYING) for each in part):
                about = part[0].member.about(part[0].attempt)
                facts.handler_raised_after_settling(**about, exc_info=handler_error.raised(error))
            elif len(part) > 1 and not self._decides(error):
                half = len(part) // 2  # what is settled or lost by then is left out, and a last one still goes alone
                parts.extendleft([part[half:], part[:half]])
                facts.batch_halved(
                    topic=part[0].member.topic,
                    group=part[0].member.at.group,
                    messages=len(part),
                    error=describe(error),
                    exc_info=handler_error.raised(error),
                )
                continue
            self._record(part, result, error, stopped, now)
            if parts:  # the next calls may take long
                for member, run in runs:
                    member.attempts.relieve(run)

    def _ask_about(self, part: Sequence[Delivered], error: BaseException | None) -> BaseException | None:
        """Ask what became of the transaction in which the handler has acked. If nobody knows, the settler asks on.

        Returns the handler's error, or that of a transaction that has ended without a commit.
        """
        acked = [each for each in part if each.attempt.ack is not None and each.attempt.state is State.CLAIMED]
        for each in acked:
            if each.attempt.ack is not None:
                each.attempt.ack.raised = error
        with suppress(LanelogError):  # the database is away
            caller_ack.follow_batch(self.context.database.transaction, acked, self.context)
        gone = [each for each in acked if each.attempt.state is State.RUNNING]
        return caller_ack.without_commit(gone[0].member, gone[0].attempt) if gone and error is None else error

    def _decides(self, error: BaseException) -> bool:
        """Whether an exception decides about the whole batch."""
        return isinstance(error, _DECISIONS) or self.config.ack_policy is AckPolicy.ACK

    def _still(self, part: Sequence[Delivered], stopped: set[Run], now: float) -> list[Delivered]:
        """The messages of a part that are not decided, and may be handled now.

        In strict order none passes another one that a transaction in another thread is just settling.
        """
        left = []
        for each in part:
            attempt, run = each.attempt, each.attempt.run
            if run is not None and attempt.state is State.CLAIMED and each.member.rules.strict:
                stopped.add(run)
            may = attempt.state is State.RUNNING and run not in stopped
            if may and each.member.attempts.may_start(attempt.term, now):
                left.append(each)
        return left

    def _call(self, worker: Worker, call: BatchCall, now: float) -> tuple[object, BaseException | None]:
        """Run the handler. Returns what it returned and what it raised."""
        for each in call.messages:
            each.attempt.started, each.attempt.deadline = now, now + self.config.visibility_timeout
        messages = [message_of(each.attempt, each.member, self.context, batched=True) for each in call.messages]
        first, result, error = call.messages[0], None, None
        worker.member, worker.run = first.member, first.attempt.run
        worker.call, worker.attempt = call, first.attempt
        try:
            own = copy_context()  # what a handler sets there is not the next batch's
            handle = _Handle(self.context, call.messages)
            result = own.run(stacks.outermost, self.handler, Messages(messages, handle))
        except BaseException as raised:  # noqa: BLE001 - any exception of a handler is a failed attempt
            error = raised
        try:
            with worker.lock:  # from here on, the keeper's thread does not abandon this call any more
                worker.call = worker.attempt = None
            worker.longest = max(worker.longest, time.monotonic() - now)
            return result, error
        finally:
            error = None  # its traceback has this frame: the cycle would keep the batch until a collection

    def _record(
        self, part: Sequence[Delivered], result: object, error: BaseException | None, stopped: set[Run], began: float
    ) -> None:
        """Record the outcome of each message that the handler has not settled itself.

        In strict order a failure stops its lane: what comes after it goes back. An exception for the whole batch holds
        for all of its messages, and all of them wait for as long as the first.
        """
        now = time.monotonic()
        held: set[Run] = set()
        ends = result if isinstance(result, list) and error is None else [error] * len(part)
        reported, wait = False, None
        for each, end in zip(part, ends, strict=True):
            attempt, run = each.attempt, each.attempt.run
            if run is None or run in stopped or attempt.state in (State.SETTLED, State.BURYING):
                continue
            outcome = policy.judge(self.config, attempt, end, now)
            if outcome is None:
                continue
            if end is not None and not (reported and error is not None):
                policy.report(each.member.about(attempt), end, outcome)
                reported = True
            if error is not None and outcome.verb is Verb.RETRY:
                wait = outcome.wait if wait is None else wait
                outcome = evolve(outcome, wait=wait)
            # It may be superseded, or another thread may just commit it: `Attempts` sees that.
            run.record(attempt, outcome)
            if outcome.verb is not Verb.ACK and each.member.rules.strict:
                (stopped if error is None else held).add(run)
        stopped |= held
        self._measure(part, ends, began, (now - began) / len(part))

    def _measure(
        self, part: Sequence[Delivered], ends: Sequence[BaseException | None], began: float, seconds: float
    ) -> None:
        """Give observers the times: each message has its share of the time of the call."""
        for member in dict.fromkeys(each.member for each in part):
            if not member.signals.meter.observers:
                continue
            times, clock = Handlings(), time.time() - time.monotonic()
            for each, end in zip(part, ends, strict=True):
                if each.member is member:
                    name = None if end is None or isinstance(end, Postpone) else type(end).__qualname__
                    number, published = each.attempt.number, each.attempt.row.published_at
                    times.add(number, published, seconds, clock + began, done=end is None, error=name)
            member.signals.meter.handled(member.at, times)


def _single(run: Run) -> bool:
    """Whether a run makes a batch of its own: it is quarantined, or it met a crash."""
    return run.alone or any(attempt.crashed for attempt in run.attempts)


def _together(run: Run, most: int) -> int:
    """With how many others at most the messages of a run may go, after a time-out of more."""
    return min([most, *(attempt.together for attempt in run.attempts if attempt.together)])


def _patience(run: Run, now: float, wait: float) -> float:
    """Until when (monotonic) a batch with a run may wait: for half of a message's time to live at most."""
    ends = (attempt.row.start_by for attempt in run.attempts)
    return min([now + wait, *(now + (end - now) / 2 for end in ends if end is not None)])


def _available(member: Member, run: Run) -> int:
    """How many messages a run has, with those that could fill it. Without the lock: the answer may be old at once."""
    lane = member.lanes.get(run.term.key)
    behind = 0 if lane is None or not run.first or run.waiter is not None else len(lane.state.ready)
    return len(run.attempts) + behind


def _wrong(part: Sequence[Delivered], result: object) -> ConfigurationError | None:
    """Return the error of a handler that has returned what it may not."""
    may = "return None, or a list with None, or an instance of Retry, Postpone or Reject, for each message"
    if result is None:
        return None
    if not isinstance(result, list):
        return ConfigurationError(f"the handler of a batch has returned {type(result).__name__!r}: {may}")
    if len(result) != len(part):
        return ConfigurationError(f"the handler has returned a list of {len(result)} for {len(part)} messages: {may}")
    for each in result:
        if each is not None and not isinstance(each, _DECISIONS):
            return ConfigurationError(f"the handler has returned a list with {type(each).__name__!r}: {may}")
    return None
