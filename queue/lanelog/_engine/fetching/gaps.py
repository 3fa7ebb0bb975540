"""Gaps: the fetcher does not find an offset that should be in the log.

Owns the check for a real hole: the lane may also be collected, purged, or not ours any more. Owns the check for heads
that are lower than before, too. Never fetches for delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from lanelog._database import Lock, codes
from lanelog._facts.engine import fetcher as facts
from lanelog._stores._counted import BEYOND_COUNTING
from lanelog._stores.consumers import offsets
from lanelog._stores.log import fetches, partitions
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._database import Session
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.member.member import Member

STEP_OFFSETS = 10_000
"""How many offsets are skipped in one step. The member is locked meanwhile, for some milliseconds."""


@define(eq=False)
class Gaps:
    """Checks under locks before an offset is skipped."""

    session: Session
    still_ours: Callable[[], None]
    """Raises DatabaseError when memory was loaded again since the turn began: the answers may be another server's."""

    def check_heads(self, member: Member, lanes: Sequence[Lane]) -> None:
        """Disown lanes whose head is lower than memory has seen it: their tables were set back.

        The heads are read again, because a lane that was loaded after the poll has a newer head. The messages in memory
        are gone from the log, and new messages will get their offsets. So the lane must be loaded again.
        """
        try:
            heads = partitions.heads(self.session, member.topic, [lane.key for lane in lanes])
            self.still_ours()
        except BaseException:
            member.fetching.still_ahead(lanes)
            raise
        for lane in lanes:
            head = heads.get(lane.key, lane.state.head)  # without a head it was purged: the keeper finds the lease gone
            if head < lane.state.head:
                self._ahead(member, lane, lane.state.head, head)
                member.disown_lane(lane.term, "its head is below what was read of it")

    @staticmethod
    def _ahead(member: Member, lane: Lane, offset: int, head: int) -> None:
        facts.lane_ahead_of_head(topic=member.topic, key=lane.key, group=member.group, offset=offset, head=head)

    def check(self, member: Member, lane: Lane, offset: int) -> None:
        """Skip `offset` if it is really missing.

        Otherwise lose the lane, believe a lower head of the database, or let the fetcher try it again.
        """
        at, key = member.at, lane.key
        owned = leases.owned_among(self.session, at, member.owner, [key])
        self.still_ours()
        if not any(lease.epoch == lane.epoch for lease in owned):
            member.lose_lane(lane.term, "its lease has another owner or epoch")
            return
        try:
            # A user's long transaction may hold the head.
            with self.session.brief_lock_waits(), self.session.transaction() as cx:
                head = partitions.head(cx, at.topic, key, Lock.SHARE)
                found = fetches.exact(cx, at, [(key, offset)], largest=0)
        except DatabaseError as error:
            if error.code != codes.LOCK_WAIT_TIMEOUT:
                raise
            member.fetching.still_needs_fetch(lane)
            return
        self.still_ours()
        if found:
            member.fetching.still_needs_fetch(lane)
            return
        if head is None:
            member.lose_lane(lane.term, "the lane was purged")
            return
        if head < offset:
            self._ahead(member, lane, offset, head)
            member.fetching.lower_head(lane, head)
            return
        if head >= BEYOND_COUNTING:  # nothing was given out up to there: the load repairs it
            member.disown_lane(lane.term, "its head is too great a number")
            return
        self._skip(member, lane, offset, head)

    def _skip(self, member: Member, lane: Lane, offset: int, head: int) -> None:
        """Skip a missing offset, and what was released after it, unless the floor is above the head.

        Such a floor was never raised by counting, so it says nothing about what is released.
        """
        at, key = member.at, lane.key
        floor = offsets.load(self.session, at, [key]).get(("", key))
        self.still_ours()
        if floor is None or floor.offset_acked < offset:
            facts.log_hole_found(topic=at.topic, key=key, group=at.group, offset=offset, head=head)
            member.fetching.skip_holes(lane, offset, offset)
        elif floor.offset_acked > partitions.heads(self.session, at.topic, [key]).get(key, 0):
            # The load repairs it. The head is read again: a purge of messages may have raised both since then.
            member.disown_lane(lane.term, "its floor is above its head")
        else:  # messages up to the floor are released for all groups
            member.fetching.skip_holes(lane, offset, min(floor.offset_acked, offset + STEP_OFFSETS - 1))
