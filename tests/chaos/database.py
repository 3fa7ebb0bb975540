"""The runner's own look into the database: its tables, what is left to do, and what is there at the end.

Owns the run's SQL; it goes past the library on a driver of its own, so that no error of the library hides another.
"""

import threading
import time
from collections import defaultdict
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import pymysql

from chaos.history import Buried, Drained, Effect, Event, Head, Kept, Logged, Redriven, Settled
from chaos.worker import EFFECTS, RECORDS, TOPIC

CREATE: Final = """
CREATE TABLE effects (
  number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, run VARCHAR(64) NOT NULL, topic VARCHAR(255) NOT NULL,
  partition_key VARCHAR(255) NOT NULL, message_offset BIGINT UNSIGNED NOT NULL, id VARCHAR(255) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""
EFFECT_ROWS: Final = "SELECT run, topic, partition_key, message_offset, id FROM effects ORDER BY number"
DEAD_LETTERS: Final = (
    "SELECT failed_group, original_topic, partition_key, original_offset FROM queue_messages WHERE failed_group <> ''"
)
REDRIVEN: Final = """
SELECT target_group, topic, partition_key, `offset`, id, JSON_UNQUOTE(JSON_EXTRACT(metadata, '$."lanelog.original_id"'))
FROM queue_messages WHERE topic = %s AND target_group <> ''"""
LOG: Final = "SELECT topic, partition_key, `offset`, id FROM queue_messages WHERE topic = %s"
HEADS: Final = "SELECT topic, partition_key, head_offset FROM queue_partitions WHERE topic = %s"
WATERMARKS: Final = """
SELECT consumer_group, topic, partition_key, offset_acked FROM queue_offsets
WHERE topic = %s AND consumer_group <> ''"""
ABOVE: Final = """
SELECT consumer_group, topic, partition_key, message_offset, through_offset FROM queue_delivery_state
WHERE topic = %s AND consumer_group <> '' AND acked = 1 ORDER BY message_offset"""
LEFT: Final = """
SELECT COUNT(*) FROM queue_partitions p
LEFT JOIN queue_offsets o ON o.topic = p.topic AND o.partition_key = p.partition_key AND o.consumer_group = %s
WHERE p.topic = %s AND p.partition_key <> '' AND p.head_offset > COALESCE(o.offset_acked, 0)"""


def connect(url: str, patience: float | None = None) -> pymysql.Connection:
    """A new connection with autocommit, as the URL says; `patience` bounds the wait for each answer, in seconds."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/"),
        unix_socket=parse_qs(parts.query).get("unix_socket", [None])[0],
        charset="utf8mb4",
        autocommit=True,
        read_timeout=patience,
        ssl_disabled=True,  # to load the machine's certificates takes longer than to connect
    )


def rows(url: str, sql: str, *args: object) -> list[tuple[Any, ...]]:
    """What one statement gives."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def drain(url: str, within: float) -> list[Drained]:
    """Wait until both groups have settled everything; give those that have when the time is over."""
    until, never = time.monotonic() + within, threading.Event()
    done: dict[str, Drained] = {}
    while len(done) < 2 and time.monotonic() < until:
        for group in {EFFECTS, RECORDS} - done.keys():
            if rows(url, LEFT, group, TOPIC)[0][0] == 0:
                done[group] = Drained(at=time.monotonic(), group=group)
        never.wait(0.25)
    return list(done.values())


def redriven(url: str) -> list[Redriven]:
    """The redriven messages that are in the log."""
    now = time.monotonic()
    return [
        Redriven(at=now, group=group, topic=topic, key=key, offset=offset, id=name, original=original)
        for group, topic, key, offset, name, original in rows(url, REDRIVEN, TOPIC)
    ]


def survived(url: str) -> list[Kept | Settled]:
    """What there is on a server that lost commits, as long as nobody has reached it; whoever opens it says when."""
    kept: list[Kept | Settled] = [
        Kept(loss=0.0, topic=topic, key=key, head=head) for topic, key, head in rows(url, HEADS, TOPIC)
    ]
    above: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for group, topic, key, first, through in rows(url, ABOVE, TOPIC):
        above[group, topic, key].append((first, through))
    watermarks = {(group, topic, key): offset for group, topic, key, offset in rows(url, WATERMARKS, TOPIC)}
    for place in watermarks.keys() | above.keys():
        group, topic, key = place
        watermark = watermarks.get(place, 0)
        kept.append(Settled(loss=0.0, group=group, topic=topic, key=key, watermark=watermark, above=above[place]))
    return kept


def outcome(url: str) -> list[Event]:
    """The rows that handlers wrote, the dead letters, and the log."""
    effects = [
        Effect(run=run, group=EFFECTS, topic=topic, key=key, offset=offset, id=name)
        for run, topic, key, offset, name in rows(url, EFFECT_ROWS)
    ]
    buried = [
        Buried(group=group, topic=topic, key=key, offset=offset)
        for group, topic, key, offset in rows(url, DEAD_LETTERS)
    ]
    logged = [
        Logged(topic=topic, key=key, offset=offset, id=name) for topic, key, offset, name in rows(url, LOG, TOPIC)
    ]
    heads = {key: offset for _, key, offset in rows(url, HEADS, TOPIC)}
    purged = heads.pop("", 0)  # a lane that was purged comes back above this; as long as it is 0, none was
    begun = [Head(topic=TOPIC, key=key, offset=offset) for key, offset in heads.items() if not purged]
    return [*effects, *buried, *logged, *begun]
