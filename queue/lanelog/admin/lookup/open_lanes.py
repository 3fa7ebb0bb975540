"""The number of a topic's open lanes, and the lane that an id belongs to.

Owns these queries. Never changes the number (`change.open_lanes`), and makes no lane: publishers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base import open_lane_keys
from lanelog._log.lookup.known import read
from lanelog._stores.log import partitions
from lanelog.admin.lookup.given import given_topic

if TYPE_CHECKING:
    from lanelog._database import Database, Executor


def lane_of(database: Database, topic: str, message_id: str) -> str:
    """Return the key of the open lane that an id belongs to, by the present number of open lanes."""
    return open_lane_keys.lane_of(
        message_id, read(database, count, "reading the number of open lanes", database, topic)
    )


def open_lanes(database: Database, topic: str) -> int:
    """See `Admin.open_lanes`."""
    given_topic(database, topic)
    return read(database, count, "reading the number of open lanes", database, topic)


def count(cx: Executor, database: Database, topic: str) -> int:
    """Return the number, which tables of an older version do not have."""
    return partitions.open_lanes(cx, topic, tables=database.tables_version)
