"""The scheduler: messages whose time has come, delayed ones and those of schedules.

Owns when that is looked for; `delayed` and `recurring` do it. Never touches a group's rows. One thread and one
connection of a client, started with its first subscription or the first thing that it schedules; any number of clients
do this at once and skip each other's locks. Where the account may not, it says so once and leaves that to the clients
of other accounts.

One statement a second tells when the next message is due. What this process schedules wakes the loop; what others do is
seen within a second, or within a keeper's turn where the client subscribes, whose look at its group asks as well.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._database import NOW_MS, codes
from lanelog._engine.scheduling.delayed import DelayedMessages
from lanelog._engine.scheduling.recurring import RecurringSchedules
from lanelog._stores import scheduled, schedules
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Session
    from lanelog._engine.context import EngineContext

TURN = 1.0
"""Seconds between two looks while nothing is due."""

ATTENTIVE_TURN = 0.2
ATTENTION = 10.0
"""The same, for so long after something was scheduled in a transaction of whose end only the server hears."""

ALL_EVERY = 30.0
"""Seconds between two looks that begin with the oldest message: none is that old but where nobody was there to move it,
where somebody held its lane, or where the transaction that scheduled it was open for more than a minute."""

HELD = 0.25
"""Seconds until it is tried again what somebody holds."""

SOON = 0.01
"""A look that is that near need not be brought forward."""

"""The server's errors for a privilege that the account lacks on a table or column."""
DENIED_WAIT = 600.0
"""Seconds until it is tried again whether the account may by now."""

CLOCK_BACK_MS = 1000
"""The server's clock went back if it lost that much against ours, which only goes on: a slow answer looks so, too."""

# Milliseconds until the next delayed message is due, of all or of the recent ones, and until a schedule is; NULL: none
# is, soon (by_due, by_next). And the clock.
NEXT = f"SELECT ({scheduled.NEXT_DUE}), ({schedules.NEXT_DUE}), {NOW_MS}"

log = get_logger("scheduler")


@define(eq=False)
class Scheduler:
    """Turns of the scheduler."""

    context: EngineContext
    session: Session = field(init=False)
    _appending: DelayedMessages = field(init=False)
    _firing: RecurringSchedules = field(init=False)
    _all_at: float = 0.0  # when everything is looked at again (monotonic)
    _attentive_until: float = 0.0  # (monotonic)
    _look_at: float = 0.0  # when the next turn is planned (monotonic); 0: one is under way
    _denied_until: dict[str, float] = field(factory=dict)  # duty -> when it is tried again (monotonic)
    _lead: int | None = None  # by how many milliseconds the server's clock is ahead of ours; None: not known yet

    def __attrs_post_init__(self) -> None:
        context = self.context
        self.session = context.database.session("scheduler")
        self._appending = DelayedMessages(self.session, context.ensure_lanes, context.published)
        self._firing = RecurringSchedules(context.database, context.ensure_lanes, context.published)

    def turn(self, now: float) -> float:
        """Append and fire what is due, a bounded number; the seconds until the next turn."""
        self._look_at = 0.0
        everything = now >= self._all_at or self._appending.held_up
        asked = time.monotonic()
        row = self.session.one(NEXT, (everything,))
        message_ms, schedule_ms, clock_ms = (None, None, 0) if row is None else row
        if everything and (message_ms is None or message_ms > 0):
            self._all_at = now + ALL_EVERY
        waits = [ATTENTIVE_TURN if now < self._attentive_until else TURN * random.uniform(1.0, 1.2)]
        failures: list[LanelogError] = []
        lead = int(clock_ms) - int(asked * 1000)
        if self._lead is None or lead < self._lead - CLOCK_BACK_MS:
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
            raise failures[0]  # when the other duty has had its turn
        delay = min(waits)
        self._look_at = time.monotonic() + delay
        return delay

    def attend(self) -> None:
        """Look more often for a while: somebody else will commit something."""
        self._attentive_until = time.monotonic() + ATTENTION

    def is_late_for(self, seconds: float) -> bool:
        """Whether its next turn would come too late for a message that is due in so many seconds."""
        if self._look_at == 0.0:
            return True  # it may have looked before the message was visible
        return self._appending.wait() is None and time.monotonic() + max(seconds, 0.0) < self._look_at - SOON

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
        return HELD if self._firing.held else TURN  # one that is faulty is due all the time

    def _set_back(self, lead: int) -> float:
        self._firing.set_back(self.session)
        self._lead = lead
        return TURN

    def _if_allowed(self, duty: str, work: Callable[[], float], failures: list[LanelogError]) -> float:
        """Do it, unless the account may not: that is a role of its own, and no fault."""
        now = time.monotonic()
        if now < self._denied_until.get(duty, 0.0):
            return TURN
        try:
            wait = work()
        except LanelogError as error:
            if not (isinstance(error, DatabaseError) and error.code in codes.DENIED):
                if not self.session.connected:
                    raise
                failures.append(error)
                return TURN
            if duty not in self._denied_until:
                log.warning("scheduling.denied", duty=duty, error=error)
            self._denied_until[duty] = now + DENIED_WAIT
            return TURN
        self._denied_until.pop(duty, None)
        return wait
