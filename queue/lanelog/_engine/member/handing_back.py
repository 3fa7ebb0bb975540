"""The side of a member that gives messages back uncounted: of users who let go of them, and of a process that ends.

Owns which attempts go back, and whether that is written. Which handlers hang is not its decision.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from attrs import define

from lanelog._engine.lane.run import State
from lanelog._engine.member.state import Side, step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.member.attempts import Attempts


_NONE: Final[Mapping[Attempt, str]] = MappingProxyType({})


@define(eq=False, repr=False)
class HandingBack(Side):
    """What goes back before its time. Every method takes the lock itself."""

    attempts: Attempts

    @step
    def hand_back(self, *, forgotten: bool = False) -> None:
        """Return the messages that the user has and has not settled, or only those thrown away. No attempt counts."""
        now = time.monotonic()
        back = [a for a in self.state.detached if a.state is State.RUNNING and (a.forgotten or not forgotten)]
        for attempt in back:
            lane = self.state.lane_of(attempt.term)
            if lane is not None:
                lane.dispatch.returned(attempt, now)
            self.state.supersede_locked([attempt])
            self.state.changed_locked(lane)

    @step
    def cut_off(self, hung: Mapping[Attempt, str] = _NONE) -> list[Attempt]:
        """The process is about to end while handlers still run: return their messages. Their attempts do not count.

        Their settlements are refused. A message that was acked before its handler cannot go back: it is returned as
        well, and the caller reports it as lost. All lanes must be closing, so that nothing new starts.

        `hung`: attempts that do not go back, because the process ends by them, and why. Their marks stay, so they count
        as crashed when it is gone. Their rows say why. One that ends after all is settled as usual.
        """
        now = time.monotonic()
        cut: list[Attempt] = []
        for lane in list(self.state.lanes.values()):
            cut += self._cut_off_locked(lane, hung, now)
        self.state.effects.needs.add(self.state.signals.wake_keeper)  # the lanes may be idle now, and be released
        return cut

    def _cut_off_locked(self, lane: Lane, hung: Mapping[Attempt, str], now: float) -> list[Attempt]:
        runs = [run for run in lane.state.runs if run.attempts]
        # This comes first: from here on, no worker starts another one of them.
        unstarted = [each for run in runs for each in run.recall()] if self.state.rules.ack_first else []
        running = [each for run in runs for each in run.attempts if each.state is State.RUNNING and each not in hung]
        running += unstarted
        for run in runs:
            lane.dispatch.take_back([run])
            if not any(each in hung for each in run.attempts):
                lane.dispatch.finished(run)
            for attempt, outcome in run.take_outcomes():
                if attempt.state is State.RUNNING:
                    running = [each for each in running if each is not attempt]
                    self.attempts.apply_locked(lane, attempt, outcome, now)
        for attempt in hung.keys() & set(lane.state.running.values()):
            lane.dispatch.hung(attempt, hung[attempt])
        for attempt in running:
            lane.dispatch.returned(attempt, now)
        self.state.supersede_locked(running)
        self.state.changed_locked(lane)
        return running

    @step
    def holds_only(self, hung: Collection[Attempt]) -> bool:
        """Whether it holds lanes, in each of them only these attempts are left, and nothing is to be written."""
        lanes = self.state.lanes.values()
        return bool(lanes) and all(lane.has_only(hung) for lane in lanes)
