"""The threads that run handlers.

Owns the worker threads and their current work. Never sends SQL: only `message.transaction()` does, from within a
handler. Never decides which message is next. Runs come through a queue. The settler has marked them, or they are late,
and the worker that takes one has it marked. The keeper's thread calls `supervise`.
"""

from __future__ import annotations

import functools
import threading
import time
from contextlib import suppress
from contextvars import copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import define, field

from lanelog._engine import caller_ack, handler_error
from lanelog._engine.delivery import message_of
from lanelog._engine.lane import policy
from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import ACKED, EXPIRED, Verb
from lanelog._engine.member.rules import RUN_SECONDS
from lanelog._engine.working import stacks, workload
from lanelog._engine.working.batches import Batches
from lanelog._engine.working.worker import BatchCall, Worker
from lanelog._facts.engine import worker as facts
from lanelog.config import AckPolicy
from lanelog.errors import LanelogError
from lanelog.measures import Handlings
from lanelog.message import Postpone

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Sequence

    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.member.member import Member
    from lanelog._process.workload import Workload
    from lanelog.config import SubscriptionConfig
    from lanelog.message import Message

RUN_LIMIT_SECONDS = 3 * RUN_SECONDS
"""After this time, a run is cut. Its outcomes are flushed, and its other messages go out in a new run."""

RELIEF_SECONDS = 0.25
"""After this time in one handler, the earlier outcomes of its run are settled without it."""


_Timed = tuple["Attempt", float, BaseException | None]
"""An attempt, when it ended (monotonic), and what its handler raised."""


class _After(Enum):
    """The next step of a worker after a message."""

    GO_ON = "go on"
    STOP = "stop"  # the rest of the run must not start
    DETACHED = "detached"  # the message is in the user's hands: the run ends when it is settled


def compose(
    handler: Callable[[Message], object], middleware: tuple[Callable[..., object], ...]
) -> Callable[[Message], object]:
    """The handler inside its middleware, the first one outermost."""
    for layer in reversed(middleware):
        handler = functools.partial(_call, layer, handler)
    return handler


def _call(layer: Callable[..., object], call_next: Callable[[Message], object], message: Message) -> object:
    return layer(message, call_next)


def _times(ended: Sequence[_Timed]) -> Handlings:
    """How long the attempts of a run have taken."""
    times, clock = Handlings(), time.time() - time.monotonic()
    for attempt, until, raised in ended:
        began, seconds = attempt.started, until - attempt.started
        error = None if raised is None or isinstance(raised, Postpone) else type(raised).__qualname__
        times.add(attempt.number, attempt.row.published_at, seconds, clock + began, done=raised is None, error=error)
    return times


def run_hook(hook: Callable[[], object]) -> None:
    """Call a user's hook, in a context of its own. An exception is logged and changes nothing."""
    try:
        copy_context().run(hook)
    except BaseException as error:  # noqa: BLE001 - it is logged with its traceback
        facts.hook_failed(exc_info=handler_error.raised(error))


@define(eq=False)
class Workers:
    """The worker threads of one subscription."""

    name: str
    config: SubscriptionConfig
    handler: Callable[[Message], object]
    runs: queue.SimpleQueue[Any]  # (member, run), a hook of the user, or None to end
    context: EngineContext
    _workers: list[Worker] = field(factory=list)
    _lock: threading.Lock = field(factory=threading.Lock)
    _stopped: bool = False
    _started: int = 0
    _longest: float = 0.0  # seconds of the longest handler that ended in a thread that was replaced since
    _batches: Batches | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        if self.config.batch is not None:
            self._batches = Batches(self.config, self.handler, self.runs, self.context)

    def start(self) -> None:
        """Start the threads. Idempotent."""
        with self._lock:
            if not self._workers and not self._stopped:
                for _ in range(self.config.workers):
                    self._start_locked()

    def _start_locked(self) -> None:
        worker = Worker(self._started)
        self._started += 1
        worker.thread = threading.Thread(
            target=self._loop, args=(worker,), name=f"lanelog-worker-{self.name}-{worker.number}", daemon=True
        )
        self._workers.append(worker)
        worker.thread.start()

    def stop(self) -> None:
        """Ask every thread to end after its current run. Does not wait."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            for _ in self._workers:
                self.runs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the threads, at most `timeout` seconds in all."""
        until = time.monotonic() + timeout
        for worker in list(self._workers):
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, until - time.monotonic()))
        return not any(worker.thread is not None and worker.thread.is_alive() for worker in self._workers)

    def in_handlers(self) -> list[workload.Busy]:
        """The threads that are in a handler, abandoned ones left out. Any thread may ask."""
        busy: list[workload.Busy] = []
        for each in list(self._workers):
            # The worker changes them meanwhile.
            attempt, member, thread, call = each.attempt, each.member, each.thread, each.call
            if not (each.abandoned or attempt is None or member is None or thread is None):
                beside = () if call is None else tuple(other.attempt for other in call.messages[1:])
                busy.append(workload.Busy(thread, member, attempt, beside))
        return busy

    def workload(self, busy: Sequence[workload.Busy] | None = None) -> Workload:
        """What the threads do now. Any thread may ask. `busy`: what `in_handlers` has just returned."""
        return workload.measure(
            self.in_handlers() if busy is None else busy,
            [since for each in list(self._workers) if (since := each.waits) and not each.abandoned],
            workers=self.config.workers,
            longest=max([self._longest, *(each.longest for each in list(self._workers))]),
            visibility_timeout=self.config.visibility_timeout,
            pool_waits=self.context.database.waits,
            outermost=HANDLING,
            acked=[
                (member, attempt)
                for member in self.context.members()
                if member.config is self.config
                for attempt in member.caller_acks.open()
            ],
            now=time.monotonic(),
        )

    def supervise(self, now: float) -> None:
        """Check the clock: relieve slow runs, extend handlers' deadlines, and give up attempts that timed out."""
        for worker in list(self._workers):
            # The worker changes them meanwhile. A call is read last: without one, what was read may be of a batch.
            attempt, run, member, call = worker.attempt, worker.run, worker.member, worker.call
            if attempt is None or run is None or member is None or worker.abandoned:
                continue
            if call is not None:
                self._supervise(worker, member, [each.attempt for each in call.messages], call, now)
            elif self._batches is None:
                if now - attempt.started > RELIEF_SECONDS:
                    member.attempts.relieve(run)
                self._supervise(worker, member, [attempt], None, now)

    def _supervise(
        self, worker: Worker, member: Member, attempts: Sequence[Attempt], call: BatchCall | None, now: float
    ) -> None:
        """Check the clock of one handler. One whose messages a transaction is just settling is left alone."""
        first, running = attempts[0], [each for each in attempts if each.state is State.RUNNING]
        claimed = any(each.state is State.CLAIMED for each in attempts)
        if claimed or not running or now < max(each.deadline for each in running):
            return
        if not first.slow_reported:
            first.slow_reported = True
            stack = stacks.text_of_thread(worker.thread, HANDLING)
            notices = member.signals.notices
            facts.handler_slow(notices, **member.about(first), seconds=now - first.started, stack=stack)
        longest = first.started + self.config.max_handler_time
        if self.config.auto_extend and now < longest:
            for each in running:
                each.deadline = min(now + self.config.visibility_timeout, longest)
        elif not any(self._ends_process(each, now) for each in running):
            self._abandon(worker, member, first, call, now)

    def _ends_process(self, attempt: Attempt, now: float) -> bool:
        """Whether the process ends because of an attempt: its lane must stay until the handler is gone."""
        limit = self.config.hard_time_limit
        return attempt.hung is not None or (limit is not None and now - attempt.started >= limit)

    def cut_off(self) -> None:
        """Abandon the threads whose messages went back. They end with their handlers, or with the process."""
        for worker in list(self._workers):
            attempt, call = worker.attempt, worker.call
            attempts = [each.attempt for each in call.messages] if call else [attempt] if attempt else []
            states = {each.state for each in attempts}
            if State.SUPERSEDED in states and not states & {State.RUNNING, State.CLAIMED} and not worker.abandoned:
                worker.abandoned = True
                if worker.passage is not None:
                    worker.passage.leave()

    def _abandon(self, worker: Worker, member: Member, attempt: Attempt, call: BatchCall | None, now: float) -> None:
        reason = f"timed out after {now - attempt.started:.1f} s in its handler"
        outcome = policy.timed_out(self.config, attempt, reason, now)  # before the lock: it asks the user's policy
        if call is None:
            if not member.attempts.give_up(attempt, outcome):
                return
        else:
            with worker.lock:
                if worker.call is not call:
                    return  # it has ended just now
                worker.abandoned = True
                if len(call.messages) == 1:
                    member.attempts.give_up(attempt, outcome)
                for each, run in call.runs:
                    each.attempts.finish(run, give_back=True, together=len(call.messages) // 2)
        facts.handler_abandoned(**member.about(attempt), seconds=now - attempt.started)
        if worker.passage is not None:
            worker.passage.leave()  # the attempt is decided: its handler must not keep the isolation waiting for ever
        with self._lock:
            worker.abandoned = True
            self._longest = max(self._longest, worker.longest)
            self._workers.remove(worker)
            if not self._stopped:
                self._start_locked()

    def _loop(self, worker: Worker) -> None:
        while not worker.abandoned:
            item = self.runs.get() if self._batches is None else self._batches.next()
            if item is None:
                return
            if callable(item):
                run_hook(item)
                continue
            if self._batches is not None:
                self._batches.work(worker, item)
                continue
            member, run = item
            try:
                self._work(worker, member, run)
            except BaseException as error:  # noqa: BLE001 - a fault of the engine, not of the handler
                self._end(worker, member, run, error)
            finally:
                worker.member = worker.run = worker.attempt = None
                worker.waits = 0.0

    def _end(self, worker: Worker, member: Member, run: Run, fault: BaseException) -> None:
        """End a run after a fault. Its message has failed and the others go back, so that the member can end, too."""
        try:
            attempt = worker.attempt
            if attempt is not None and attempt.state is State.RUNNING:
                run.record(attempt, policy.faulted(self.config, attempt, fault, time.monotonic()))
            member.attempts.finish(run)
        finally:
            member.fail(fault)

    def _work(self, worker: Worker, member: Member, run: Run) -> None:
        passage = worker.enter(member, run)
        inside = passage is not None
        began = time.monotonic()
        meter = member.signals.meter
        ended: list[_Timed] | None = [] if meter.observers else None
        detached = False
        try:
            if run.late and inside:
                marked = member.attempts.mark(run)
                if marked is None:
                    self.runs.put((member, run))  # the next worker waits for the same mark
                    return
                inside = marked
                began = time.monotonic()  # the wait for the flush must not count against the run's time
            worker.member, worker.run, worker.passage = member, run, passage
            if inside and passage is not None:
                detached = self._handle_all(worker, member, run, passage.leave, ended)
            if not detached:
                member.attempts.finish(run, seconds=time.monotonic() - began)
                if run.alone and run.marked and not worker.abandoned:
                    member.attempts.wait_written(run)
        finally:
            if passage is not None and not detached:
                passage.leave()
            if ended:
                meter.handled(member.at, _times(ended))
                ended.clear()  # the tracebacks of its errors have a frame that has this list: a reference cycle

    def _handle_all(
        self, worker: Worker, member: Member, run: Run, leave: Callable[[], None], ended: list[_Timed] | None
    ) -> bool:
        """Run the handler on one message after the other. True: the last one is in the user's hands."""
        attempts, rules, context, handler = member.attempts, member.rules, self.context, self.handler
        timeout, acks = self.config.visibility_timeout, self.config.ack_policy is not AckPolicy.MANUAL
        now = time.monotonic()
        until = now + RUN_LIMIT_SECONDS
        # Messages that are acked already must run, or they are lost.
        while rules.ack_first or (now < until and attempts.may_start(run.term, now)):
            attempt = run.start_next(now, timeout)
            if attempt is None:
                return False
            worker.attempt = attempt
            error: BaseException | None = None
            own = copy_context()  # what a handler sets there (a tenant, a precision) is not the next message's
            if not attempt.expired:
                try:
                    own.run(handler, message_of(attempt, member, context))
                except BaseException as raised:  # noqa: BLE001 - any exception of a handler is a failed attempt
                    error = raised
            now = time.monotonic()
            if now - attempt.started > worker.longest:  # noqa: PLR1730 - a call for each message costs more
                worker.longest = now - attempt.started
            if ended is not None and not attempt.expired:
                ended.append((attempt, now, error))
            if error is None and acks and attempt.state is State.RUNNING and not (attempt.promised or attempt.expired):
                run.record(attempt, ACKED)  # nearly all end like this
                after = _After.GO_ON
            else:
                after = own.run(self._decide, member, run, attempt, error, leave)  # its events have what was set
                now = time.monotonic()
            worker.attempt = None
            if after is not _After.GO_ON or worker.abandoned:
                error = None  # its traceback has this frame: the cycle would keep the message until a collection
                return after is _After.DETACHED
        return False

    def _decide(
        self, member: Member, run: Run, attempt: Attempt, error: BaseException | None, leave: Callable[[], None]
    ) -> _After:
        """Record the outcome of an attempt that has expired, has failed, or is not the worker's to settle."""
        if attempt.expired:
            run.record(attempt, EXPIRED)
            return _After.STOP if member.rules.strict else _After.GO_ON
        ack = attempt.ack
        if ack is not None and attempt.state is State.CLAIMED:
            ack.raised = error
            self._ask_about(member, attempt)
        left = attempt.state is State.CLAIMED and member.attempts.leave_claimed(attempt, leave)
        if ack is not None and not left:
            ack.raised = None  # its traceback has a frame that has the ack: a reference cycle
        if error is None and attempt.state is State.RUNNING and (ack is not None or attempt.promised):
            error = caller_ack.without_commit(member, attempt)
        if left or attempt.state not in (State.RUNNING, State.SUPERSEDED):
            if error is not None and not member.rules.ack_first:
                facts.handler_raised_after_settling(**member.about(attempt), exc_info=handler_error.raised(error))
            return _After.DETACHED if left else _After.GO_ON
        outcome = policy.judge(self.config, attempt, error, time.monotonic())
        if error is not None:
            policy.report(member.about(attempt), error, outcome)
        if outcome is None:
            return _After.DETACHED if member.attempts.detach(attempt, leave) else _After.GO_ON
        run.record(attempt, outcome)
        held_back = outcome.verb is not Verb.ACK and member.rules.strict
        return _After.STOP if held_back or attempt.state is State.SUPERSEDED else _After.GO_ON

    def _ask_about(self, member: Member, attempt: Attempt) -> None:
        """Ask what became of the transaction that the handler has acked in. If nobody knows, the settler asks on."""
        with suppress(LanelogError):  # the database is away
            caller_ack.follow(self.context.database.transaction(), member, attempt, self.context)


HANDLING = Workers._handle_all.__code__  # noqa: SLF001 - of this module
"""The innermost frame of the engine in the stack of a handler."""
