"""Handlers of one subscription that hang: they have run for longer than `hard_time_limit`, or all for too long.

Owns that judgement, the thread that watches `hard_time_limit`, and the subscription's part in the end of its process.
The thread is no loop of the engine: a keeper may wait for a server that stands still. Never sends SQL.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.working import stacks
from lanelog._engine.working.workers import HANDLING
from lanelog._facts.engine import subscription as subscription_facts
from lanelog._facts.engine import worker as facts
from lanelog._process import own_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.member.member import Member
    from lanelog._engine.working.workers import Workers
    from lanelog._engine.working.workload import Busy
    from lanelog.config import SubscriptionConfig


@frozen(eq=False)
class HungHandler:
    """A handler because of which its process ends."""

    member: Member
    attempt: Attempt
    beside: tuple[Attempt, ...]
    """The others of its batch."""
    seconds: float
    why: str
    stack: str


@define(eq=False)
class HungHandlers:
    """The part of one subscription in the end of its process."""

    config: SubscriptionConfig
    members: Sequence[Member]
    workers: Workers | None
    """None: its messages are pulled. It gives them back when others hang."""
    ask_to_stop: Callable[[], None]
    again_seconds: float = 0.05
    """Until the next check after one at which a handler had just ended."""
    _found: tuple[HungHandler, ...] = ()
    _returned: list[tuple[Member, Attempt, float]] = field(factory=list)
    _closed: threading.Event = field(factory=threading.Event)

    def watch(self) -> None:
        """Take part in the end of the process, and bring it about when a handler runs for too long."""
        own_end.join(self)
        if self.workers is not None and self.config.hard_time_limit is not None:
            threading.Thread(
                target=self._watch, args=(self.config.hard_time_limit,), name="lanelog-hard-limit", daemon=True
            ).start()

    def close(self) -> None:
        """End the watch: no handler runs any more."""
        self._closed.set()

    def _watch(self, limit: float) -> None:
        while True:
            now = time.monotonic()
            left = limit - max((now - each.attempt.started for each in self._running()), default=0.0)
            if left <= 0:
                own_end.end_if_hung()
                left = self.again_seconds
            if self._closed.wait(min(left, threading.TIMEOUT_MAX)):
                return

    def _running(self) -> list[Busy]:
        return [] if self.workers is None else self.workers.in_handlers()

    # -- the end of the process ----------------------------------------------------------------------------------------

    def hangs(self) -> bool:
        """Find handlers that hang, and remember them with their stacks."""
        limit, running, now = self.config.hard_time_limit, self._running(), time.monotonic()
        all_hang = self.workers is not None and self.workers.workload(running).hung_for(self.config.unhealthy_after)
        self._found = tuple(
            HungHandler(
                each.member, each.attempt, each.beside, seconds, why, stacks.text_of_thread(each.thread, HANDLING)
            )
            for each in running
            if (why := _why(seconds := now - each.attempt.started, limit, all_hang=all_hang))
        )
        return bool(self._found)

    def give_back(self) -> None:
        """Close all lanes, and give back all messages but those of handlers that hang."""
        self.ask_to_stop()
        hung, now = self._hung(), time.monotonic()
        for member in self.members:
            for attempt in member.handing_back.cut_off(hung):
                self._returned.append((member, attempt, now - attempt.started if attempt.started else 0.0))

    def given_back(self) -> bool:
        """Whether that is written, and every lane is given back but those of handlers that hang."""
        hung = self._hung()
        return all(member.ended.is_set() or member.handing_back.holds_only(hung) for member in self.members)

    def report(self) -> None:
        """Log the handlers that hang with their stacks, and those that were cut off."""
        for each in self._found:
            member, attempt, seconds = each.member, each.attempt, round(each.seconds, 1)
            facts.handler_hung(**member.about(attempt), seconds=seconds, why=each.why, stack=each.stack)
        for member, attempt, seconds in self._returned:
            subscription_facts.handler_cut_off(**member.about(attempt), seconds=seconds)

    def _hung(self) -> dict[Attempt, str]:
        return {
            attempt: f"its handler hung, and its process ended: {each.why}"
            for each in self._found
            for attempt in (each.attempt, *each.beside)
        }


def _why(seconds: float, limit: float | None, *, all_hang: bool) -> str:
    """Return why a handler hangs. Empty: it does not."""
    if limit is not None and seconds >= limit:
        return f"hard_time_limit is {limit:g} s"
    return "all workers hang, for longer than unhealthy_after" if all_hang else ""
