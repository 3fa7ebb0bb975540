"""Looking into the tables past the library."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from attrs import frozen

from lanelog.config import ConnectConfig


def connect(url: str, **options: Any) -> Any:
    """A connection of the application's own, with autocommit unless told; a context manager that closes it.

    Without TLS: to load the machine's certificates takes longer than to connect.
    """
    config = ConnectConfig.from_url(url)
    account = {name: getattr(config, name) for name in ("host", "port", "unix_socket", "user", "password", "database")}
    return pymysql.connect(**{"autocommit": True, "ssl_disabled": True, **account, **options})


def rows(raw: Any, sql: str, *args: object) -> list[tuple[Any, ...]]:
    """Run one statement on a DB-API connection and return what it gives."""
    with raw.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def run(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    """One statement by a plain cursor of whichever driver."""
    cursor = connection.cursor()
    cursor.execute(sql)
    return list(cursor.fetchall())


def one(raw: Any, sql: str, *args: object) -> Any:
    """The first column of the only row; None when there is none."""
    found = rows(raw, sql, *args)
    assert len(found) <= 1, found
    return found[0][0] if found else None


@frozen
class Running:
    """Another session, as SHOW PROCESSLIST has it."""

    number: int
    user: str
    database: str | None
    state: str
    sql: str
    """The statement under way, or the last one."""


def running(raw: Any) -> list[Running]:
    """All other sessions of the server.

    MySQL's information_schema.processlist fails with error 3854 while a statement is under way that has a character of
    four bytes.
    """
    own = one(raw, "SELECT CONNECTION_ID()")
    found = rows(raw, "SHOW FULL PROCESSLIST")
    return [
        Running(number, user, database, state or "", sql or "")
        for number, user, _, database, _, _, state, sql, *_ in found
        if number != own
    ]


def sessions(raw: Any) -> list[int]:
    """The numbers of the other sessions that use this connection's database."""
    database = one(raw, "SELECT DATABASE()")
    return [each.number for each in running(raw) if each.database == database]


@contextmanager
def tables_locked(raw: Any, statement: str = "FLUSH TABLES WITH READ LOCK") -> Iterator[None]:
    """This connection holds locks of tables, until the end of the block."""
    rows(raw, statement)
    try:
        yield
    finally:
        rows(raw, "UNLOCK TABLES")


def stored(raw: Any, topic: str = "t") -> int:
    """How many messages of a topic the log holds."""
    return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = %s", topic))


def watermark(raw: Any, group: str, topic: str, key: str) -> int:
    """How far a group has acked a lane."""
    sql = "SELECT offset_acked FROM queue_offsets WHERE consumer_group = %s AND topic = %s AND partition_key = %s"
    return one(raw, sql, group, topic, key) or 0


def delivery_rows(raw: Any, group: str, topic: str) -> list[dict[str, Any]]:
    """The delivery rows of a group, in order."""
    names = "partition_key message_offset through_offset acked retry_count postponed crashed lease_epoch last_error"
    columns = names.split()
    sql = f"SELECT {', '.join(columns)} FROM queue_delivery_state WHERE consumer_group = %s AND topic = %s"
    found = rows(raw, f"{sql} ORDER BY partition_key, message_offset", group, topic)
    return [dict(zip(columns, row, strict=True)) for row in found]


def owners(raw: Any, group: str, topic: str) -> dict[str, str]:
    """Who has which lane ('' is nobody)."""
    sql = "SELECT partition_key, leased_by FROM queue_partition_leases WHERE consumer_group = %s AND topic = %s"
    return dict(rows(raw, sql, group, topic))


def take_lanes(raw: Any, owner: str) -> None:
    """Give every lane to somebody else, under the next token, as a keeper does that takes it over."""
    rows(raw, "UPDATE queue_partition_leases SET leased_by = %s, lease_epoch = lease_epoch + 1", owner)


def audit(raw: Any, name: str, event: str, table: str, columns: str, values: str, when: str = "1 = 1") -> None:
    """Let the server itself write down what happens to a table."""
    written = "n INT AUTO_INCREMENT PRIMARY KEY, who VARCHAR(255), lane VARCHAR(255), a BIGINT, b BIGINT"
    rows(raw, f"CREATE TABLE {name} ({written})")
    write = f"IF {when} THEN INSERT INTO {name} ({columns}) VALUES ({values}); END IF;"
    rows(raw, f"CREATE TRIGGER {name}_trigger AFTER {event} ON {table} FOR EACH ROW BEGIN {write} END")


def leases(raw: Any) -> list[tuple[Any, ...]]:
    """(key, owner, epoch) of every lease."""
    return rows(raw, "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1")
