"""The keeper's side of a member: it opens lanes and gives them back.

Owns how a lane is opened, closed, replaced and given back in memory. Never acquires a lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.lane import reload
from lanelog._engine.member.state import Side, step
from lanelog._facts.engine import subscription as facts
from lanelog.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.values import Term


@define(eq=False, repr=False)
class LeasingSide(Side):
    """What the keeper may do with a member. Every method takes the lock itself."""

    settler_grace: float = 5.0  # seconds that the settler of a failed member has for the last settlements of a lane
    _unwritten: dict[Lane, float] = field(factory=dict)  # since when (monotonic) only writes keep a lane from release

    @property
    def pausing(self) -> bool:
        """Whether nothing of any lane may be handed out: `pause` was called, or an operator paused the group."""
        return self.state.paused or self.state.group_paused

    def set_group_paused(self, *, paused: bool) -> None:
        """Note what the group's row says. The keeper passes it on to each lane with the next read-back."""
        before, self.state.group_paused = self.state.group_paused, paused
        if before is not paused:
            fact = facts.group_paused if paused else facts.group_resumed
            fact(self.state.signals.notices, topic=self.state.at.topic, group=self.state.at.group)

    def forget_disowned(self, leases: Collection[tuple[str, int]]) -> None:
        """Forget these disowned lanes: their leases are given back."""
        self.state.disowned.difference_update(leases)

    def grant_authority(self, until: float, slept: float) -> None:
        """Let handlers start until this time (monotonic). `slept`: `suspended()` at the start of the read-back."""
        self.state.slept, self.state.authority_until = slept, until

    @step
    def pump(self) -> None:
        """Visit every lane again, for example after authority came back."""
        for lane in list(self.state.lanes.values()):
            self.state.changed_locked(lane)

    def withdraw_authority(self) -> None:
        """No handler starts until authority is granted again."""
        self.state.authority_until = 0.0

    @step
    def open_lane(self, lane: Lane) -> None:
        """Put a lane into memory that is ours and loaded."""
        self._open_locked(lane)

    def _open_locked(self, lane: Lane) -> None:
        state = self.state
        lane.pause(paused=lane.state.paused or state.paused or state.group_paused)
        if lane.state.closing or state.stopping:
            self._close_locked(lane)
        state.lanes[lane.key] = lane
        state.changes += 1
        state.unsure.add(lane.key)
        state.effects.needs.add(state.signals.wake_fetcher)  # its head may have risen since it was loaded
        for wait in lane.state.waiting.values():
            state.note_due_locked(wait.due, lane)
        state.changed_locked(lane)

    @step
    def pause(self) -> None:
        """Hand out nothing more until `resume`. This holds for lanes that are opened later, too."""
        state = self.state
        state.paused = True
        state.changes += 1
        for lane in state.lanes.values():
            lane.pause(paused=True)
            state.quiet_locked(lane)

    @step
    def resume(self) -> None:
        """Take `pause` back. The keeper lets the lanes go on, because it knows which of them an operator has paused."""
        self.state.paused = False
        self.state.changes += 1

    def stop(self) -> None:
        """Close every lane. Lanes that are opened later are closed at once."""
        self.state.stopping = True
        self.close_lanes()

    def close_lanes(self) -> None:
        """Close every lane that is open now."""
        for lane in list(self.state.lanes.values()):
            if not lane.state.closing:
                self.close_lane(lane)

    @step
    def close_lane(self, lane: Lane) -> None:
        """Hand out nothing more; running handlers finish and settle."""
        self._close_locked(lane)
        self.state.quiet_locked(lane)

    def _close_locked(self, lane: Lane) -> None:
        lane.close()
        self.state.closing[lane] = None

    @step
    def set_paused(self, lane: Lane, *, paused: bool) -> None:
        """Stop or resume handing out; the lane stays leased."""
        # This is decided under the lock, because `pause` may have been called meanwhile.
        paused = paused or self.state.paused or self.state.group_paused
        if lane.state.paused == paused:
            return
        lane.pause(paused=paused)
        if paused:
            self.state.quiet_locked(lane)
        else:
            self.state.changed_locked(lane)

    @step
    def take_idle(self, paused: AbstractSet[str], now: float, *, failed: bool) -> list[Lane]:
        """The closed lanes to give back: their last handler has ended, and their last write is committed.

        `paused`: the keys of the lanes that an operator paused. An idle one is closed here. A busy one stays open, and
        may go on as soon as it is resumed.

        `failed`: the writes may never get through. Then a closed lane is given back `settler_grace` after its last
        handler has ended. Settlements that were not flushed until then are delivered again.
        """
        lanes = self.state.lanes
        for key in lanes if self.state.group_paused else paused & lanes.keys():
            lane = lanes[key]
            if lane.state.paused and lane.idle:
                self._close_locked(lane)
        closed = list(self.state.closing)
        if failed:
            quiet = [lane for lane in closed if not lane.idle and not lane.state.handling]
            self._unwritten = {lane: self._unwritten.get(lane, now) for lane in quiet}
        given_up = {lane for lane, since in self._unwritten.items() if now >= since + self.settler_grace}
        return [lane for lane in closed if lane.idle or lane in given_up]

    @step
    def forget_lane(self, lane: Lane) -> None:
        """The lane was released in good order."""
        self.state.forget_locked(lane)
        self.state.effects.resolve(lane.waiters)  # these threads began to wait when nothing was left to write
        lane.abandon()

    @step
    def vouched(self, keys: Iterable[str]) -> dict[Lane, dict[int, str]]:
        """The lanes of these keys that memory holds, each with the messages whose ids a reload compares."""
        held = [self.state.lanes[key] for key in keys if key in self.state.lanes]
        return {lane: reload.vouched(lane) for lane in held}

    @step
    def replace_lane(self, old: Lane, fresh: Lane, ids: dict[int, str], asked: Mapping[int, bool]) -> set[int]:
        """Replace a lane by the one that was loaded on a new connection.

        `asked`: the server's answers about messages that a transaction of their own had settled: offset -> settled.
        Returns the offsets for which an answer is still missing. Then nothing is changed.
        """
        if self.state.lanes.get(old.key) is not old:
            return set()
        unproven = reload.unproven(fresh, old) - asked.keys()
        if unproven:
            return unproven
        proven = {offset for offset, settled in asked.items() if settled}
        orphans = reload.carry_over(fresh, old, ids, proven)
        self.state.forget_locked(old)
        self.state.lanes[fresh.key] = fresh  # under the same lock: no thread finds the lane missing
        self.state.supersede_locked(orphans.attempts)  # which ends their runs, before the lane makes its plans
        self._open_locked(fresh)
        at = self.state.at
        error = LeaseLost(f"{at.group}/{at.topic}/{old.key}: the server has another message there by now")
        self.state.effects.resolve(orphans.waiters, error)
        return set()

    def lose(self, term: Term, why: str) -> None:
        """Drop a lane whose lease is lost: nothing of it may be written any more. A second call does nothing."""
        at = self.state.at
        lost = self._lose(term, LeaseLost(f"the lease of {at.group}/{at.topic}/{term.key} was lost: {why}"))
        if lost is None:
            return
        refused, running, waiting = lost
        context = {"topic": at.topic, "key": term.key, "group": at.group}
        if refused:  # their handlers have returned, so only the log can report it
            facts.settlement_refused(**context, offset=refused[0], messages=len(refused), why=why)
        if running or waiting:
            facts.lane_lost(**context, running=running, why=why)
        facts.lease_lost(self.state.signals.notices, **context, error=why)

    @step
    def _lose(self, term: Term, error: LeaseLost) -> tuple[list[int], int, bool] | None:
        """Returns refused settlements, how many attempts ran, and whether anybody waited. None: it was lost before."""
        lane = self.state.lane_of(term)
        if lane is None:
            return None
        lane.dispatch.recall()
        running, waiters, refused = list(lane.state.running.values()), lane.waiters, lane.progress.unwritten_settlements
        self.state.counters.refused += len(refused)
        self.state.counters.lost += 1
        self.state.effects.resolve(waiters, error)
        self.state.supersede_locked(running)
        self.state.forget_locked(lane)
        lane.abandon()
        return refused, len(running), bool(waiters)

    def disown(self, term: Term, why: str) -> None:
        """Drop a lane whose lease is still ours. The keeper releases the lease.

        The lane must not be loaded again under its epoch. One of its attempts may be about to commit, and only a new
        epoch can refuse that.
        """
        # This comes before `lose`: the keeper loads leases that memory lacks, unless they are disowned.
        self.state.disowned.add((term.key, term.epoch))
        self.lose(term, why)
        self.state.signals.wake_keeper()
