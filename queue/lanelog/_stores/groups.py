"""`queue_groups`: which groups read a topic; a group exists from its registration, not from its first row.

Owns the SQL of its table; never touches a lane. Called at registration, by the keeper (is the group still there, is it
paused) and by the janitor (whom collection has to ask).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS

if TYPE_CHECKING:
    from lanelog._database import Executor

# One group (PRIMARY).
GET = """
SELECT delivery_order, paused_at, retention_ms, created_at FROM queue_groups WHERE consumer_group = %s AND topic = %s
"""

# One group, locked against deletion while a lease row is born (PRIMARY).
LOCK_SHARED = "SELECT created_at FROM queue_groups WHERE consumer_group = %s AND topic = %s LOCK IN SHARE MODE"

# One group, locked by its registration (PRIMARY).
LOCK = "SELECT delivery_order FROM queue_groups WHERE consumer_group = %s AND topic = %s FOR UPDATE"

# Register (PRIMARY).
CREATE = f"""
INSERT INTO queue_groups (consumer_group, topic, delivery_order, start_at, retention_ms, created_at)
VALUES (%s, %s, %s, %s, %s, {NOW_MS})
"""

# A subscription's retention is the group's from its latest start on (PRIMARY).
SET_RETENTION = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET retention_ms = %s
WHERE consumer_group = %s AND topic = %s"""

# Whom collection has to ask, and for how long acked messages are kept (by_topic).
READERS = "SELECT consumer_group, retention_ms FROM queue_groups FORCE INDEX (by_topic) WHERE topic = %s"


@frozen
class GroupRow:
    """One group's registration for a topic; milliseconds."""

    order: str
    paused: bool
    retention_ms: int
    created_at: int


class Groups:
    """SQL of `queue_groups`."""

    def get(self, cx: Executor, group: str, topic: str) -> GroupRow | None:
        """The registration, or None."""
        row = cx.one(GET, (group, topic))
        return None if row is None else GroupRow(row[0], bool(row[1]), row[2], row[3])

    def lock_shared(self, cx: Executor, group: str, topic: str) -> int | None:
        """Hold a registration in place until the transaction ends; when it was made, or None."""
        row = cx.one(LOCK_SHARED, (group, topic))
        return None if row is None else int(row[0])

    def lock(self, cx: Executor, group: str, topic: str) -> str | None:
        """Lock a registration; its order, or None."""
        row = cx.one(LOCK, (group, topic))
        return None if row is None else str(row[0])

    def create(self, cx: Executor, group: str, topic: str, *, order: str, start: str, retention: float) -> None:
        """Register a group."""
        cx.execute(CREATE, (group, topic, order, start, int(retention * 1000)))

    def set_retention(self, cx: Executor, group: str, topic: str, retention: float) -> None:
        """Keep acked messages for `retention` seconds on behalf of this group."""
        cx.execute(SET_RETENTION, (int(retention * 1000), group, topic))

    def readers(self, cx: Executor, topic: str) -> dict[str, int]:
        """Retention in milliseconds by group."""
        return dict(cx.query(READERS, (topic,)))
