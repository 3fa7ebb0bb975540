"""Gaps: an offset below a lane's head that the log does not hold.

Owns the check that tells a real hole from a lane that was collected or purged, or is not ours any more, and the one of
heads that are lower than they were; never fetches for delivery. Called by the fetcher, on its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from lanelog._database import codes
from lanelog._stores import fetches, leases, offsets, partitions
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Session
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.member.member import Member

# The head may be in a caller's long transaction: wait for it a second, not five.
PATIENCE = "SET SESSION innodb_lock_wait_timeout = %s"

HOLES_AT_ONCE = 10_000
"""Offsets that are passed in one step: the lane's member is locked meanwhile, for some milliseconds."""

log = get_logger("fetcher")


@define(eq=False)
class Gaps:
    """Looks twice before an offset is passed."""

    session: Session

    def check_heads(self, member: Member, lanes: Sequence[Lane]) -> None:
        """Give up lanes whose head is below what memory has seen of it: their tables were set back.

        Read anew, as a lane that was loaded after the look has seen more than that. What memory holds is of messages
        that are gone, and others get their offsets: the lane is loaded again from what there is.
        """
        heads = partitions.heads(self.session, member.topic, [lane.key for lane in lanes])
        for lane in lanes:
            head = heads.get(lane.key, lane.state.head)  # purged: the keeper finds that its lease is gone
            if head < lane.state.head:
                self._ahead(member, lane, lane.state.head, head)
                member.disown_lane(lane.term, "its head is below what was read of it")

    @staticmethod
    def _ahead(member: Member, lane: Lane, offset: int, head: int) -> None:
        log.error(
            "lane.ahead_of_head",
            topic=member.topic,
            key=lane.key,
            group=member.group,
            offset=offset,
            head=head,
        )

    def check(self, member: Member, lane: Lane, offset: int) -> None:
        """Pass `offset` if it is really missing; the lane is looked at again in every other case."""
        at, key = member.at, lane.key
        owned = leases.owned(self.session, at, member.owner)
        if not any(lease.key == key and lease.epoch == lane.epoch for lease in owned):
            member.lose_lane(lane.term, "its lease has another owner or epoch")
            return
        self.session.execute(PATIENCE, (1,))
        try:
            with self.session.transaction() as cx:
                head = fetches.share_head(cx, at.topic, key)
                found = fetches.exact(cx, at, [(key, offset)], largest=0)
        except DatabaseError as error:
            if error.code != codes.LOCK_WAIT_TIMEOUT:
                raise
            member.fetching.still_needs_fetch(lane)
            return
        finally:
            if self.session.connected:
                self.session.execute(PATIENCE, (5,))
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
        floor = offsets.load(self.session, at, [key]).get(("", key))
        if floor is None or floor.offset_acked < offset:
            log.error("log.hole_found", topic=at.topic, key=key, group=at.group, offset=offset, head=head)
            member.fetching.skip_holes(lane, offset, offset)
        else:  # up to the floor nothing is kept for anybody, as when a lane is loaded
            member.fetching.skip_holes(lane, offset, min(floor.offset_acked, offset + HOLES_AT_ONCE - 1))
