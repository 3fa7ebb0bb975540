"""Pulling: the user asks for the next message, instead of a worker running a handler.

Owns the hand-over of one message at a time. Never decides which message is next, and sends no SQL. A message counts as
started when it is handed over. It stays in the user's hands until it is settled.
"""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

from attrs import define

from lanelog._engine.delivery import message_of
from lanelog._engine.lane.values import ACKED, EXPIRED
from lanelog._engine.member.isolation import Passage, process_isolation
from lanelog._engine.working import workload
from lanelog._engine.working.workers import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.run import Run
    from lanelog._engine.member.member import Member
    from lanelog._process.workload import Workload
    from lanelog.config import SubscriptionConfig
    from lanelog.message import Message


@define(eq=False, repr=False)
class Puller:
    """The pulling side of one subscription."""

    config: SubscriptionConfig
    runs: queue.SimpleQueue[Any]
    members: tuple[Member, ...]
    context: EngineContext
    wait_seconds: float = 0.05
    """Of one wait for a message. After each wait, it checks whether its subscription has ended."""
    give_way_seconds: float = 1.0
    """How long a quarantined message waits to go out alone while messages are in the user's hands. The caller may have
    these messages, and could not settle them while it waits."""

    def next(self, until: float | None, goes_on: Callable[[], bool]) -> Message | None:
        """The next message. None at `until` (monotonic), or when `goes_on` says that the subscription ends."""
        while goes_on():
            left = self.wait_seconds if until is None else until - time.monotonic()
            if left <= 0:
                return None
            try:
                item = self.runs.get(timeout=min(left, self.wait_seconds))
            except queue.Empty:
                continue
            if callable(item):
                run_hook(item)
            elif (message := self._hand_over(item[0], item[1], until)) is not None:
                return message
        return None

    def workload(self) -> Workload | None:
        """Return what a heartbeat says of pulled messages: acks in open transactions. None: there is no such ack."""
        found = workload.measure(
            (),
            (),
            workers=0,
            longest=0.0,
            visibility_timeout=self.config.visibility_timeout,
            pool_waits=self.context.database.waits,
            outermost=None,
            acked=[(member, attempt) for member in self.members for attempt in member.caller_acks.open()],
            now=time.monotonic(),
        )
        return found if found.acks else None

    def drain(self) -> None:
        """Give back the runs that were not pulled."""
        while True:
            try:
                item = self.runs.get_nowait()
            except queue.Empty:
                return
            if callable(item):
                run_hook(item)
            else:
                member, run = item
                member.attempts.finish(run)

    def _hand_over(self, member: Member, run: Run, until: float | None) -> Message | None:
        isolation, gives_way = process_isolation(), time.monotonic() + self.give_way_seconds

        def in_time() -> bool:
            return until is None or time.monotonic() < until

        def wanted() -> bool:
            stays = time.monotonic() < gives_way or not any(each.attempts.detached() for each in self.members)
            return stays and bool(run.attempts) and member.attempts.may_start(run.term, time.monotonic()) and in_time()

        if not run.alone:
            if not isolation.enter(lambda: in_time() and bool(run.attempts)):
                if run.attempts:  # without attempts, the run was taken back
                    self.runs.put((member, run))  # it goes out with the next pull
                return None
        elif not isolation.enter_alone(wanted):
            member.attempts.finish(run)
            return None
        passage = Passage(isolation)
        try:
            return self._start(member, run, passage, until)
        except BaseException:  # interrupted
            passage.leave()
            if not run.started:
                member.attempts.finish(run)  # it goes out again
            raise

    def _start(self, member: Member, run: Run, passage: Passage, until: float | None) -> Message | None:
        marked = not run.late or member.attempts.mark(run, until)
        if marked is None:
            passage.leave()
            self.runs.put((member, run))  # the next pull waits on for the same mark
            return None
        now = time.monotonic()
        starts = marked and (member.rules.ack_first or member.attempts.may_start(run.term, now))
        attempt = run.start_next(now, self.config.visibility_timeout) if starts else None
        if attempt is None or attempt.expired or member.rules.ack_first:
            passage.leave()
            if attempt is not None:
                run.record(attempt, EXPIRED if attempt.expired else ACKED)
            member.attempts.finish(run)
        elif not member.attempts.detach(attempt, passage.leave):
            passage.leave()  # its lane was lost just now, so no settlement will end the stay
        return None if attempt is None or attempt.expired else message_of(attempt, member, self.context)
