"""The read-back notices leases that are lost: it reads which are ours, and extends the authority to start handlers.

Between two read-backs, the fence of each flush (`settler`) notices them.

Owns the comparison of memory with the leases, and how often it is made. Never acquires a lease.

Most of the time it asks only for a digest of the leases. An equal digest says that nothing has changed. A different one
extends nothing: the rows are read in the same turn. All rows are read once a lease in any case. An operator's pauses
are no part of the digest. The group's row counts their changes. The coordinator reads that row before it calls this
module, and calls `forget` after a change.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, frozen

from lanelog._base.duty_cycle import DutyCycle
from lanelog._engine import lifecycle
from lanelog._engine.leasing import loading
from lanelog._process.asleep import suspended
from lanelog._stores.members import leases
from lanelog._stores.members.leases import LeasesDigest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.member.member import Member
    from lanelog._stores.members.leases import OwnedLane


@frozen
class Beaten:
    """The last heartbeat that was written."""

    at: float = float("-inf")
    """When (monotonic) it was sent; before the first: never."""
    asleep: float = 0.0
    """The value of `suspended` at that time."""
    aside: bool = False
    """Whether it says that the member wants no lanes."""


@frozen
class _Agreement:
    """Rows with this digest and memory say the same, as long as `MemberState.changes` stays the same."""

    digest: LeasesDigest
    changes: int
    until: float  # when (monotonic) all rows are read again


@define(eq=False)
class ReadBack:
    """One member's leases as the database has them."""

    context: EngineContext
    member: Member
    cycle: DutyCycle = DutyCycle(1 / 160)
    least_times_a_lease: int = 4
    """The read-back is made this often, however long it takes. Authority must not run out between two."""
    put_off_share: float = 1 / 16
    """The share of a lease for which other work may put a read-back off at most."""
    _agreement: _Agreement | None = None
    _again_at: float = 0.0

    def forget(self) -> None:
        """Read all rows the next time."""
        self._agreement = None

    def take_in(self, session: Session, keys: Sequence[str]) -> int:
        """Load those of these lanes that are ours since just now; how many. All others are as they were read last.

        So a member that acquires many lanes, page by page, does not read all of them for each page. If this fails, the
        rows are read in the next turn. This extends no authority.
        """
        member, agreed = self.member, self._agreement
        self._agreement = None
        before = member.changes
        owned = leases.owned_among(session, member.at, member.owner, keys)
        new = [lease for lease in owned if lease.key not in member.lanes]
        loaded = self._open(session, new)
        # Another change than these lanes' leaves no agreement, nor does a lane that could not be loaded.
        if agreed is not None and agreed.changes == before and len(loaded) == len(owned):
            changes = before + len(loaded)
            self._agreement = _Agreement(LeasesDigest.of(owned, agreed.digest), changes, agreed.until)
        return len(loaded)

    def turn(self, session: Session, beaten: Beaten, patience: float = 0.0) -> None:
        """Extend authority, and lose, load and release the lanes that differ. Does nothing soon after the last time.

        `patience`: seconds by which it may come later than usual, because other work is urgent.
        """
        slept, asked = suspended(), time.monotonic()
        agreed, member = self._agreement, self.member
        if agreed is None or member.stopping or agreed.changes != member.changes or asked >= agreed.until:
            self._read_rows(session, beaten, asked, slept)
        elif asked < self._again_at + min(
            patience, self.put_off_share * self.member.config.lease_duration
        ) and member.has_authority(asked):
            return
        elif leases.digest(session, self.member.at, self.member.owner) == agreed.digest:
            self._extend_authority(beaten, asked, slept)
        else:
            self._read_rows(session, beaten, asked, slept)
        ended = time.monotonic()
        most = self.member.config.lease_duration / self.least_times_a_lease
        self._again_at = ended + min(most, self.cycle.rest(ended - asked))

    def _read_rows(self, session: Session, beaten: Beaten, asked: float, slept: float) -> None:
        member = self.member
        owned = leases.owned(session, member.at, member.owner)
        mine = lose_others(member, owned, "the read-back shows another owner or epoch")
        self._extend_authority(beaten, asked, slept)
        missing = {(lease.key, lease.epoch): lease for lease in owned if lease.key not in member.lanes}
        unwanted = missing.keys() if member.stopping else missing.keys() & member.disowned
        if unwanted:
            with session.brief_lock_waits(), session.transaction() as cx:
                leases.release(cx, member.at, member.owner, unwanted)
            member.leasing.forget_disowned(unwanted)
        ours = [lease for named, lease in missing.items() if named not in unwanted]
        self._open(session, ours)
        changes = member.changes  # read before the loop: the next turn meets a pause that comes during it
        for lane in list(member.lanes.values()):
            lease = mine.get(lane.key)
            wanted = member.leasing.pausing or (lease is not None and lease.paused)
            member.leasing.set_paused(lane, paused=wanted)
        # There is no agreement while a lane could not be loaded, or was released just now.
        # A member that stops reads the rows each time.
        complete = len(member.lanes) == len(owned) and not member.stopping
        until = asked + member.config.lease_duration
        self._agreement = _Agreement(LeasesDigest.of(owned), changes, until) if complete else None

    def _open(self, session: Session, owned: Sequence[OwnedLane]) -> list[Lane]:
        """Load lanes of ours that memory lacks. Returns those that could be loaded."""
        loaded = loading.load(session, self.member, owned) if owned else []
        for lane in loaded:
            self.member.leasing.open_lane(lane)
        lifecycle.acquired(self.member, [lane.key for lane in loaded])
        return loaded

    def _extend_authority(self, beaten: Beaten, asked: float, slept: float) -> None:
        member = self.member
        had_authority = member.has_authority(asked)
        # Authority does not outlast the heartbeat: a process that slept must not go on with lanes that others took.
        if asked > self.context.withdrawn_at:
            sent = beaten.at + beaten.asleep - slept  # the time that the machine has slept since makes it older
            member.leasing.grant_authority(min(asked, sent) + member.config.lease_duration, slept)
        if not had_authority:
            member.leasing.pump()


def lose_others(member: Member, owned: Sequence[OwnedLane], why: str) -> dict[str, OwnedLane]:
    """Lose the lanes whose lease is not ours, or ours with another epoch. Returns the owned leases by key."""
    mine = {lease.key: lease for lease in owned}
    for lane in list(member.lanes.values()):
        lease = mine.get(lane.key)
        if lease is None or lease.epoch != lane.epoch:
            member.lose_lane(lane.term, why)
    return mine
