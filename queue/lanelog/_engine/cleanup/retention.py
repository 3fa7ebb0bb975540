"""What is kept for a time: rows of history, and dead letters, until they are redriven, deleted or old.

Owns these two duties and when they are due; remembers it in what the janitor keeps of a topic. Never decides how long:
that stands in the group's row. Called by the janitor, on its session.

Each is bounded a turn, and harmless to repeat or to do twice at once: rows are deleted by exact key and only while they
are old, floors are skipped where somebody has them. Dies anywhere: what is done is done, the next pass goes on.
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
"""Seconds between two looks for old rows, as far as no full batch was found: not one for every row that gets old, and
not so late that another retention, given meanwhile, is never heard of."""

HISTORY_LEAST = 1.0
"""The same for the shortest retentions."""

LETTERS_EVERY = 60.0
LANES_A_PASS = 200


@define(eq=False)
class TopicSchedule:
    """When the next look is due (monotonic), for one topic."""

    history_at: dict[tuple[str, float], float] = field(factory=dict)  # by group and the retention given here
    letters_at: dict[str, float] = field(factory=dict)  # by dead letter topic
    letters_after: dict[str, str] = field(factory=dict)  # how far a pass through its lanes has come


def purge_history(session: Session, member: Member, kept: TopicSchedule, now: float) -> bool:
    """Delete one batch of the group's old rows, when some may be old; True when more is old at once."""
    at, config = member.at, member.config
    asked = at.group, config.history_retention
    if not config.history or now < kept.history_at.get(asked, 0.0):
        return False
    row = groups.get(session, at)
    # A later registration may have turned it off, while this one still writes.
    retention = config.history_retention if row is None or not row.history_ms else row.history_ms / 1000
    deleted, oldest = history.purge(session, at, int(retention * 1000))
    if deleted == BATCH:
        return True  # no wait between batches: rows are deleted as fast as a group, however busy, writes them
    soonest = min(HISTORY_SOONEST, max(HISTORY_LEAST, retention / 10))
    kept.history_at[asked] = now + min(HISTORY_LATEST, max(soonest, retention - (oldest or 0.0)))
    return False


def release_letters(session: Session, member: Member, kept: TopicSchedule, now: float, account: str) -> bool:
    """Delete dead letters of the topic, a page of lanes at a time; True when more is ready at once.

    `account`: who deletes them, for the event.
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
        if not released.more:  # else there is more in these lanes
            kept.letters_after[dead_topic] = page[-1] if more else ""
    if not more:
        kept.letters_at[dead_topic] = now + LETTERS_EVERY
    return more
