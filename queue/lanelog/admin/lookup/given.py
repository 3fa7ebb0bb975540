"""The names and the offset that a method was given: well formed, and of what exists.

Owns these checks before a method's transaction. Never changes or locks anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.checks import check_name
from lanelog._log.lookup.known import known_group, known_lane, known_topic, read
from lanelog.admin.lookup.arguments import check_names, offset_of, optional
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Database


def given_topic(database: Database, topic: str) -> None:
    """Check the name of a topic that a method was given, and refuse one that does not exist."""
    check_name("topic", topic)
    read(database, known_topic, "finding the topic", topic)


def given_group(database: Database, at: GroupTopic, key: str | None = None) -> int:
    """Check the names of a group and perhaps of a lane, and refuse those that do not exist. Return the lane's head."""
    check_names(at)
    optional("key", key)
    read(database, known_group, "finding the group", at)
    return 0 if key is None else read(database, known_lane, "finding the lane", at.topic, key)


def given_lane(database: Database, lane: LaneId) -> int:
    """Check the names of a lane that a method was given, and refuse one that does not exist. Return its head."""
    check_name("key", lane.key)
    return given_group(database, lane.of, lane.key)


def given_offset(database: Database, lane: LaneId, offset: int) -> None:
    """Do the same for a message of a lane: refuse an offset that was never given out."""
    offset_of(offset)
    head = given_lane(database, lane)
    if offset > head:
        raise ConfigurationError(
            f"lane {lane.key!r} of topic {lane.topic!r} ends at offset {head}: there is no message {offset}"
        )
