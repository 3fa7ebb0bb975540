"""Rows by hand: the situations that administration has to tell apart, without the minutes it takes to get into them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lanelog
from lanelog import Client
from support.sql import one, rows
from support.waiting import accept, eventually

NOW = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000"
HOUR = 3_600_000
MESSAGE = "topic = %s AND partition_key = %s AND `offset` = %s"


class Situations:
    """Writes rows of one topic past the library; times are seconds from now."""

    def __init__(self, raw: Any, topic: str = "t", group: str = "g", client: Any = None) -> None:
        self.raw = raw
        self.client = client
        self.topic = topic
        self.group = group

    def fill(self, key: str, count: int) -> None:
        """Let the client publish so many messages."""
        fill(self.client, key, count, self.topic)

    def register(self, group: str | None = None, **columns: object) -> None:
        """A group, as its first subscription makes it."""
        values = {"delivery_order": "strict", "start_at": "earliest", "created_at": 1000, **columns}
        self._insert("queue_groups", values, group=group)

    def register_many(self, count: int) -> None:
        """So many groups more: `g000000` and so on, like the first one."""
        columns = [name for (name, *_) in rows(self.raw, "SHOW COLUMNS FROM queue_groups")]
        copied = ", ".join("n.name" if name == "consumer_group" else f"g.`{name}`" for name in columns)
        for start in range(0, count, 1000):
            names = [f"{self.group}{number:06}" for number in range(start, min(count, start + 1000))]
            union = " UNION ALL ".join(["SELECT %s AS name"] * len(names))
            sql = f"INSERT INTO queue_groups SELECT {copied} FROM queue_groups g JOIN ({union}) n"
            rows(self.raw, f"{sql} WHERE g.topic = %s AND g.consumer_group = %s", *names, self.topic, self.group)

    def place(self, key: str, watermark: int, *, group: str | None = None, **columns: object) -> None:
        """An offsets row; `group=""`: the floor."""
        sql = "DELETE FROM queue_offsets WHERE consumer_group = %s AND topic = %s AND partition_key = %s"
        rows(self.raw, sql, self.group if group is None else group, self.topic, key)
        values = {"offset_acked": watermark, "marked_through": watermark, "updated_at": 1000, **columns}
        self._insert("queue_offsets", values, group=group, key=key)

    def row(
        self, key: str, offset: int, *, through: int | None = None, due: float | None = None, **columns: object
    ) -> None:
        """A delivery row."""
        values = {"message_offset": offset, "through_offset": through or offset, "last_attempt_at": 5000, **columns}
        self._insert("queue_delivery_state", values, key=key)
        if due is not None:
            where = "consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset = %s"
            sql = f"UPDATE queue_delivery_state SET invisible_until = {NOW} + %s WHERE {where}"
            rows(self.raw, sql, int(due * 1000), self.group, self.topic, key, offset)

    def lease(self, key: str, owner: str, epoch: int, *, group: str | None = None) -> None:
        """A lease row."""
        values = {"leased_by": owner, "lease_epoch": epoch, "leased_at": 7000}
        self._insert("queue_partition_leases", values, group=group, key=key)

    def owner(self, name: str, *, expires: float = 3600.0, stopped: bool = False, **columns: object) -> None:
        """A heartbeat row."""
        values = {"subscriber_name": name, "deregistered_at": 9000 if stopped else 0, **columns}
        self._insert("queue_subscriber_heartbeats", values)
        sql = f"UPDATE queue_subscriber_heartbeats SET heartbeat_at = {NOW} - 1000, expires_at = {NOW} + %s"
        rows(self.raw, f"{sql} WHERE subscriber_name = %s", int(expires * 1000), name)

    def settle_letter(self, topic: str, key: str, offset: int) -> None:
        """A dead letter that was redriven or deleted."""
        values = {"message_offset": offset, "through_offset": offset, "acked": 1, "topic": topic}
        self._insert("queue_delivery_state", values, group="", key=key)

    def written(self, key: str, offset: int, ago: float) -> None:
        """Say when a message was written."""
        sql = f"UPDATE queue_messages SET created_at = {NOW} - %s WHERE {MESSAGE}"
        rows(self.raw, sql, int(ago * 1000), self.topic, key, offset)

    def lose(self, key: str, offset: int) -> None:
        """Make a hole, as a crash of the server can."""
        rows(self.raw, f"DELETE FROM queue_messages WHERE {MESSAGE}", self.topic, key, offset)

    def server_started_at(self) -> int:
        """When the server started, in milliseconds."""
        ((_, uptime),) = rows(self.raw, "SHOW GLOBAL STATUS LIKE 'Uptime'")
        return int(one(self.raw, f"SELECT {NOW}")) - int(uptime) * 1000

    @contextmanager
    def everything_locked(self, other: Any) -> Iterator[None]:
        """Somebody holds a lock on every row there is."""
        rows(other, "START TRANSACTION")
        for (table,) in rows(self.raw, "SHOW TABLES"):
            rows(other, f"SELECT * FROM {table} FOR UPDATE")
        yield
        other.rollback()

    def _insert(
        self, table: str, values: dict[str, object], *, group: str | None = None, key: str | None = None
    ) -> None:
        columns: dict[str, object] = {"consumer_group": self.group if group is None else group, "topic": self.topic}
        if key is not None:
            columns["partition_key"] = key
        columns |= values
        marks = ", ".join(["%s"] * len(columns))
        rows(self.raw, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", *columns.values())


def fill(client: Client, key: str, count: int, topic: str = "t") -> None:
    """Publish so many messages under a key, with ids that say which is which."""
    client.publish_many(topic, [lanelog.Outgoing(key, b"x", id=f"{key}-{n}") for n in range(1, count + 1)])


def settle(client: Client, count: int, group: str = "g", topic: str = "t", **options: Any) -> None:
    """Let a group settle so many messages, and go."""
    with client.subscribe(topic, group, accept, **options) as subscription:
        eventually(lambda: subscription.stats().acked == count)


def around(seconds: float | None, expected: float, *, slack: float = 60.0) -> bool:
    """Whether a measured time is what was written, give or take how long the test has been running."""
    return seconds is not None and abs(seconds - expected) <= slack
