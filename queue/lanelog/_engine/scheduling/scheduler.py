"""The scheduler: it publishes delayed messages and the messages of schedules when they are due.

Owns the times of its polls. `_log/due` and `_log/fire` do the work. Never touches a group's rows. It is one thread and
one connection of a client. It starts with the first subscription, or when the client first schedules a message. Any
number of clients do this at once, and skip each other's locks. If the account lacks a privilege, the scheduler logs
that once, and leaves the work to the clients of other accounts.

One statement a second asks when the next message is due. A message that this process schedules wakes the loop. A
message of another process is seen within about a second. In a client that subscribes, it is seen within a keeper's
turn, because the keeper reads the same with its group's row.

While the process publishes, this thread also reads, once a second at most, which processes want hints. No publisher
waits for that.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._base.backoff import RANDOM
from lanelog._database import NOW_MS, codes
from lanelog._facts.engine import scheduler as facts
from lanelog._log.due import DelayedMessages
from lanelog._log.fire.recurring import RecurringSchedules
from lanelog._stores.later import scheduled, schedules
from lanelog.errors import DatabaseError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Session
    from lanelog._engine.engine_context import EngineContext

# Milliseconds until the next delayed message is due (of all or of the recent ones), and until the next schedule is due
# (by_due, by_next). NULL: none is due soon. The third column is the server's clock.
NEXT = f"SELECT ({scheduled.NEXT_DUE}), ({schedules.NEXT_DUE}), {NOW_MS}"


@frozen(kw_only=True)
class SchedulerPace:
    """The times of the scheduler."""

    turn_seconds: float = 1.0
    """Seconds between two polls while nothing is due."""
    attention_seconds: float = 10.0
    """The time with more polls, after a message was scheduled in a user's own transaction. The library does not learn
    when that commits."""
    attentive_turn_seconds: float = 0.2
    """Seconds between two polls in that time."""
    full_poll_seconds: float = 30.0
    """Seconds between full polls. The usual poll sees the last minute. Older messages exist only after downtime, after
    a lock on their lane, or after a long transaction that scheduled them."""
    held_seconds: float = 0.25
    """Seconds before a locked schedule is tried again."""
    near_seconds: float = 0.01
    """A poll within this time need not come earlier."""
    denied_seconds: float = 600.0
    """Seconds before a duty for which the account lacked a privilege is tried again."""
    clock_back_ms: int = 1000
    """The server's clock went back if it lost more against our monotonic clock. A slow answer may seem the same."""


@define(eq=False)
class Scheduler:
    """Turns of the scheduler."""

    context: EngineContext
    pace: SchedulerPace = field(factory=SchedulerPace)
    session: Session = field(init=False)
    _appending: DelayedMessages = field(init=False)
    _firing: RecurringSchedules = field(init=False)
    _all_at: float = 0.0  # when the next full poll is due (monotonic)
    _attentive_until: float = 0.0  # (monotonic)
    _turn_at: float = 0.0  # when the next turn is planned (monotonic); 0: a turn is under way
    _denied_until: dict[str, float] = field(factory=dict)  # duty -> when it is tried again (monotonic)
    _lead: int | None = None  # by how many milliseconds the server's clock is ahead of ours; None: not known yet

    def __attrs_post_init__(self) -> None:
        context = self.context
        self.session = context.database.session("scheduler")
        self._appending = DelayedMessages(self.session, context.appender)
        self._firing = RecurringSchedules(context.database, context.appender)

    def turn(self, now: float) -> float:
        """Publish a bounded number of due messages. Returns the seconds until the next turn."""
        self._turn_at = 0.0
        self.context.read_endpoints(self.session)
        everything = now >= self._all_at or self._appending.held_up
        asked = time.monotonic()
        row = self.session.one(NEXT, (everything,))
        message_ms, schedule_ms, clock_ms = (None, None, 0) if row is None else row
        if everything and (message_ms is None or message_ms > 0):
            self._all_at = now + self.pace.full_poll_seconds
        waits = [
            self.pace.attentive_turn_seconds
            if now < self._attentive_until
            else self.pace.turn_seconds * RANDOM.uniform(1.0, 1.2)
        ]
        failures: list[LanelogError] = []
        lead = int(clock_ms) - int(asked * 1000)
        if self._lead is None or lead < self._lead - self.pace.clock_back_ms:
            waits.append(self._if_allowed("firing", partial(self._set_back, lead), failures))
        else:
            self._lead = max(self._lead, lead)
        for duty, due_ms, work in (
            ("appending", message_ms, partial(self._append, everything=everything)),
            ("firing", schedule_ms, self._fire),
        ):
            if due_ms is not None and due_ms > 0:
                waits.append(int(due_ms) / 1000)
            elif due_ms is not None:
                waits.append(self._if_allowed(duty, work, failures))
        if failures:
            raise failures[0]  # the other duty has had its turn
        delay = min(waits)
        self._turn_at = time.monotonic() + delay
        return delay

    def attend(self) -> None:
        """Poll more often for a while: a user's transaction will commit a scheduled message."""
        self._attentive_until = time.monotonic() + self.pace.attention_seconds

    def is_late_for(self, seconds: float) -> bool:
        """Whether its next turn would come too late for a message that is due in `seconds`."""
        if self._turn_at == 0.0:
            return True  # it may have polled before the message was visible
        near = self._turn_at - self.pace.near_seconds
        return self._appending.wait() is None and time.monotonic() + max(seconds, 0.0) < near

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    def _append(self, *, everything: bool) -> float:
        if self._appending.append(everything=everything):
            return 0.0
        wait = self._appending.wait()
        return 0.0 if wait is None else wait

    def _fire(self) -> float:
        before = self._firing.fired
        more = self._firing.fire_due(self.session)
        if more or self._firing.fired > before:
            return 0.0
        # A faulty schedule waits for an ordinary turn.
        return self.pace.held_seconds if self._firing.held else self.pace.turn_seconds

    def _set_back(self, lead: int) -> float:
        self._firing.set_back(self.session)
        self._lead = lead
        return self.pace.turn_seconds

    def _if_allowed(self, duty: str, work: Callable[[], float], failures: list[LanelogError]) -> float:
        """Do a duty, unless the account lacks the privilege. That is no fault: other accounts may have this role."""
        now = time.monotonic()
        if now < self._denied_until.get(duty, 0.0):
            return self.pace.turn_seconds
        try:
            wait = work()
        except LanelogError as error:
            if not (isinstance(error, DatabaseError) and error.code in codes.DENIED):
                if not self.session.connected:
                    raise
                failures.append(error)
                return self.pace.turn_seconds
            if duty not in self._denied_until:
                facts.scheduling_denied(duty=duty, error=error)
            self._denied_until[duty] = now + self.pace.denied_seconds
            return self.pace.turn_seconds
        self._denied_until.pop(duty, None)
        return wait
