"""Retention: history rows leave when they are old, and dead letters when they are redriven, deleted or old.

Owns these two duties and their times. Never decides the retention: the group's row has it.

The work of one turn is bounded. It may be repeated, and two processes may do it at once: rows are deleted by exact key
and only when they are old, and locked floors are skipped. After a crash at any point, the next pass goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import define, field

from lanelog._base.places import GroupTopic
from lanelog._log import collect
from lanelog._stores.consumers import deliveries, groups, history
from lanelog._stores.consumers.history import BATCH
from lanelog._stores.log import partitions

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.member.member import Member


@define(eq=False)
class HistoryRetention:
    """Deletes the old history rows of one topic's groups."""

    name: ClassVar[str] = "history"
    soonest_seconds: float = 60.0
    """The least wait between two queries for old rows, if no full batch was found: one query then deletes many rows."""
    least_seconds: float = 1.0
    """The least wait for very short retentions, of which it is a tenth otherwise."""
    latest_seconds: float = 3600.0
    """The longest wait: a changed retention takes effect then."""
    _due_at: dict[tuple[str, float], float] = field(factory=dict)  # by group and this configuration's retention

    def due(self, member: Member, now: float) -> bool:
        """Whether the member writes history, and that of its group is due."""
        return member.config.history and now >= self._due_at.get(_asked(member), 0.0)

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Delete one batch of the group's old rows. True when more may be old at once."""
        row = groups.get(session, member.at)
        # A later registration may have turned history off, while this member still writes it.
        retention = member.config.history_retention if row is None or not row.history_ms else row.history_ms / 1000
        deleted, oldest = history.purge(session, member.at, int(retention * 1000))
        if deleted == BATCH:
            return True  # there is no wait between batches: deletion must keep pace with a busy group
        soonest = min(self.soonest_seconds, max(self.least_seconds, retention / 10))
        wait = min(self.latest_seconds, max(soonest, retention - (oldest or 0.0)))
        self._due_at[_asked(member)] = now + wait
        return False


@define(eq=False)
class LetterRetention:
    """Deletes released dead letters of one topic."""

    name: ClassVar[str] = "dead letters"
    account: str
    """The account that deletes them, for the event."""
    every_seconds: float = 60.0
    page_lanes: int = 200
    _due_at: dict[str, float] = field(factory=dict)  # by dead letter topic (monotonic)
    _after: dict[str, str] = field(factory=dict)  # by dead letter topic: how far a pass through its lanes has come

    def due(self, member: Member, now: float) -> bool:
        """Whether the topic has dead letters, and they are due."""
        dead_topic = member.config.dead_letter_topic(member.topic)
        return dead_topic is not None and now >= self._due_at.get(dead_topic, 0.0)

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Delete those of one page of lanes. True when more may be ready at once."""
        topic = member.topic
        dead_topic = member.config.dead_letter_topic(topic)
        if dead_topic is None:
            return False
        retentions = {(topic, group): ms for group, ms in groups.letters_kept(session, topic).items()}
        more = False
        if retentions or deliveries.any_of_group(session, GroupTopic.reserved(dead_topic)):
            after = self._after.get(dead_topic, "")
            page = [key for key, _ in partitions.page(session, dead_topic, after, self.page_lanes)]
            with session.transaction() as cx:
                released = collect.release_letters(cx, dead_topic, [key for key in page if key], retentions)
            collect.log_aged(self.account, dead_topic, released)
            collect.delete(session, dead_topic, released.lanes, letters=True)
            more = released.more or len(page) == self.page_lanes
            if not released.more:  # with more in these lanes, the next call takes the same page
                self._after[dead_topic] = page[-1] if more else ""
        if not more:
            self._due_at[dead_topic] = now + self.every_seconds
        return more


def _asked(member: Member) -> tuple[str, float]:
    return member.group, member.config.history_retention
