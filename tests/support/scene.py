"""A database that looks the same in every run: what the documentation's screens show.

Topics, groups and failures are made by the library; then names of owners, errors and times are set, so that every age
is in the middle of its unit and no second more or less changes it.
"""

from typing import Any

import lanelog
from lanelog import Client, Message
from support.sql import rows
from support.waiting import eventually

HOUR = 3_600_000
NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"
ALIVE, GONE = "worker-eu-west-1a-7f9c8:5d41402a", "worker-eu-west-1b-x2k4m:7d793037"
FAILING = [f"customer-{number:05}@shop.example.com" for number in range(1, 41)]
WIDE = "株式会社東京書店オンライン事業部"
ERROR = "SMTPServerDisconnected: mail.example.com closed the connection, please run connect() first"
BROKEN = "ValueError: invoice total -12.50 is negative"


def build(client: Client, raw: Any) -> None:
    """Fill an empty database."""
    client.publish_many(
        "orders",
        [
            *((key, f'{{"customer": "{key}", "total": {19 * n}}}') for n in range(1, 4) for key in ("ann", "bob")),
            *((WIDE, f"order {n}") for n in range(1, 13)),
            ("broken", '{"total": -12.50}'),
        ],
    )
    client.publish_many("orders", [lanelog.Outgoing("zoe", b"the last one", id=f"order-{n}") for n in range(1, 1235)])
    client.publish_many("notifications", [(key, b"hello") for key in FAILING])
    client.publish("metrics", "cpu", b"0.93")
    client.publish("orders", "ann", b"remind", id="reminder-ann-2026-02-14", delay=7200.0, ttl=86_400.0)
    _consume(client, raw)
    client.schedule("nightly-report", "30 2 * * *", "reports", "daily", b"go", timezone="Europe/Berlin")
    client.schedule("heartbeat", "*/5 * * * *", "reports", "beat", b"x")
    client.admin.pause_schedule("heartbeat", by="ann", reason="deploy of the report service")
    client.admin.pause("orders", "billing", key="bob", by="ann", reason="double booking")
    _settle_times(raw)


def _consume(client: Client, raw: Any) -> None:
    def bill(message: Message) -> None:
        if message.key == "broken":
            message.reject(BROKEN)
        elif message.key == "zoe" and message.offset > 2:
            message.postpone(36_000)

    def notify(message: Message) -> None:
        message.nack(delay=36_000, reason=ERROR)

    with client.subscribe("orders", "billing", bill, name="billing", history=True):
        eventually(lambda: client.admin.topic("orders").dead_letters == 1)
        eventually(lambda: client.admin.groups("orders")[0].lag == 1232)
        eventually(lambda: len(client.admin.history("orders", "billing")) == 21)
    with client.subscribe("notifications", "mailer", notify, name="mailer"):
        eventually(lambda: client.admin.groups("notifications")[0].waiting == len(FAILING))
    client.subscribe("orders", "warehouse-eu-west-1-replica", lambda _message: None, start="latest").stop()


def _settle_times(raw: Any) -> None:
    """Every time so many hours and a half ago, and leases that last for hours."""

    def ago(hours: float) -> str:
        return f"{NOW} - {int((hours + 0.5) * HOUR)}"

    def set_all(table: str, **columns: str) -> None:
        rows(raw, f"UPDATE {table} SET {', '.join(f'{name} = {value}' for name, value in columns.items())}")

    set_all("queue_messages", created_at=ago(3), published_at=ago(3))
    set_all("queue_messages", failed_at=f"IF(failed_at = 0, 0, {ago(2)})")
    set_all("queue_partitions", created_at=ago(26))
    set_all("queue_offsets", updated_at=ago(1), marked_at="0", paused_at=f"IF(paused_at = 0, 0, {ago(1)})")
    set_all("queue_groups", created_at=ago(26))
    set_all("queue_delivery_state", first_attempt_at=ago(2), last_attempt_at=ago(1), retry_count="1")
    set_all("queue_delivery_state", invisible_until=f"IF(invisible_until = 0, 0, {ago(-6)})")
    set_all("queue_history", published_at=ago(3), first_delivered_at=ago(2), finished_at=f"{ago(2)} + message_offset")
    set_all("queue_history", owner=f"'{ALIVE}'", last_error=f"IF(outcome = 'success', last_error, '{BROKEN}')")
    set_all("queue_scheduled", published_at=ago(3), deliver_at=ago(-3), created_at=ago(3))
    set_all(
        "queue_schedules", paused_at=f"IF(paused_at = 0, 0, {ago(1)})", next_fire_at=f"IF(paused_at = 0, {ago(-6)}, 0)"
    )
    rows(raw, f"UPDATE queue_messages SET last_error = '{BROKEN}', id = 'broken-1' WHERE failed_at > 0")
    rows(raw, f"UPDATE queue_delivery_state SET last_error = '{ERROR}' WHERE topic = 'notifications'")
    others = "topic <> 'orders_dlq' AND id NOT LIKE 'order-%%'"
    rows(raw, f"UPDATE queue_messages SET id = CONCAT('m-', `offset`) WHERE {others}")
    rows(raw, "DELETE FROM queue_subscriber_heartbeats")
    for topic, group, owner, left in (
        ("orders", "billing", ALIVE, 3.5),
        ("orders", "billing", GONE, -1.5),
        ("notifications", "mailer", ALIVE, 3.5),
    ):
        into = "queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at)"
        values = f"'{group}', '{topic}', '{owner}', {ago(0 if left > 0 else 5)}, {NOW} + {int(left * HOUR)}"
        rows(raw, f"INSERT INTO {into} VALUES ({values})")
    set_all("queue_partition_leases", leased_at=ago(4), lease_epoch="7")
    set_all("queue_partition_leases", leased_by=f"IF(partition_key = 'zoe', '{GONE}', '{ALIVE}')")
    rows(raw, "DELETE FROM queue_partition_leases WHERE consumer_group LIKE 'warehouse%%'")
