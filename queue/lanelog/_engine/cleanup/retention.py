"""Retention: history rows leave when they are old, and dead letters when they are redriven, deleted or old.

Owns these two duties and their times. Never decides the retention: the group's row has it.

The work of one turn is bounded. It may be repeated, and two processes may do it at once: rows are deleted by exact key
and only when they are old, and locked floors are skipped. After a crash at any point, the next pass goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.cleanup import collection, deletion_events
from lanelog._places import GroupTopic
from lanelog._stores import deliveries, groups, history, partitions
from lanelog._stores.history import BATCH

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.member.member import Member

HISTORY_SOONEST, HISTORY_LATEST = 60.0, 3600.0
"""Seconds between two looks for old rows, when no full batch was found. The least wait keeps a look from serving one
row. The longest wait lets a changed retention take effect."""

HISTORY_LEAST = 1.0
"""The least wait, in seconds, for very short retentions."""

LETTERS_EVERY = 60.0
LANES_A_PASS = 200


@define(eq=False)
class TopicSchedule:
    """When the next looks of one topic are due (monotonic)."""

    history_at: dict[tuple[str, float], float] = field(factory=dict)  # by group and this configuration's retention
    letters_at: dict[str, float] = field(factory=dict)  # by dead letter topic
    letters_after: dict[str, str] = field(factory=dict)  # how far a pass through its lanes has come


def purge_history(session: Session, member: Member, kept: TopicSchedule, now: float) -> bool:
    """Delete one batch of the group's old history rows, when a look is due. True when more may be old at once."""
    at, config = member.at, member.config
    asked = at.group, config.history_retention
    if not config.history or now < kept.history_at.get(asked, 0.0):
        return False
    row = groups.get(session, at)
    # A later registration may have turned history off, while this member still writes it.
    retention = config.history_retention if row is None or not row.history_ms else row.history_ms / 1000
    deleted, oldest = history.purge(session, at, int(retention * 1000))
    if deleted == BATCH:
        return True  # there is no wait between batches: deletion must keep pace with a busy group
    soonest = min(HISTORY_SOONEST, max(HISTORY_LEAST, retention / 10))
    kept.history_at[asked] = now + min(HISTORY_LATEST, max(soonest, retention - (oldest or 0.0)))
    return False


def release_letters(session: Session, member: Member, kept: TopicSchedule, now: float, account: str) -> bool:
    """Delete released dead letters of the topic, a page of lanes at a time. True when more may be ready at once.

    `account`: the account that deletes them, for the event.
    """
    topic = member.topic
    dead_topic = member.config.dead_letter_topic(topic)
    if dead_topic is None or now < kept.letters_at.get(dead_topic, 0.0):
        return False
    retentions = {(topic, group): ms for group, ms in groups.letters_kept(session, topic).items()}
    more = False
    if retentions or deliveries.any_of_group(session, GroupTopic.reserved(dead_topic)):
        after = kept.letters_after.get(dead_topic, "")
        page = [key for key, _ in partitions.page(session, dead_topic, after, LANES_A_PASS)]
        with session.transaction() as cx:
            released = collection.release_letters(cx, dead_topic, [key for key in page if key], retentions)
        deletion_events.tell_aged(account, dead_topic, released)
        collection.delete(session, dead_topic, released.lanes, letters=True)
        more = released.more or len(page) == LANES_A_PASS
        if not released.more:  # with more in these lanes, the next call takes the same page
            kept.letters_after[dead_topic] = page[-1] if more else ""
    if not more:
        kept.letters_at[dead_topic] = now + LETTERS_EVERY
    return more
