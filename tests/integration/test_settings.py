"""What a server's global settings would make of a statement: sessions of lanelog mean the same on every server."""

from collections.abc import Callable
from typing import Any

import pymysql
import pytest

import lanelog
from lanelog import Client
from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.sql import connect, one, rows
from support.waiting import accept, eventually

HOSTILE = {
    "completion_type": "'CHAIN'",
    "foreign_key_checks": 0,
    "group_concat_max_len": 4,
    "innodb_lock_wait_timeout": 1,
    "max_join_size": 1,
    "max_sort_length": 64,
    "sql_auto_is_null": 1,
    "sql_big_selects": 0,
    "sql_mode": "''",
    "sql_safe_updates": 1,
    "sql_select_limit": 2,
    "unique_checks": 0,
    "wait_timeout": 2,
}
UNLIMITED = 2**64 - 1
MEANT = {
    "completion_type": "NO_CHAIN",
    "foreign_key_checks": 1,
    "group_concat_max_len": 1 << 20,
    "innodb_lock_wait_timeout": 5,
    "max_join_size": UNLIMITED,
    "max_sort_length": 4096,
    "sql_auto_is_null": 0,
    "sql_big_selects": 1,
    "sql_mode": "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
    "sql_safe_updates": 0,
    "sql_select_limit": UNLIMITED,
    "unique_checks": 1,
    "wait_timeout": 15,
}


@pytest.fixture
def hostile_url(private_server: DevServer) -> str:
    """A database whose server has been given every setting that changes what a statement means."""
    with lanelog.connect(private_server.url) as client:
        client.migrate()
    with connect(private_server.url) as raw:
        for name, value in HOSTILE.items():
            try:
                rows(raw, f"SET GLOBAL {name} = {value}")
            except pymysql.OperationalError:  # MariaDB has no global one of these: nobody can change it for a session
                assert name in {"foreign_key_checks", "unique_checks", "sql_auto_is_null"}, name
        rows(raw, "SET GLOBAL TRANSACTION READ ONLY")
    return private_server.url


@pytest.mark.parametrize("lent", ["pool", "session"])
def test_every_session_has_its_own_settings(hostile_url: str, lent: str) -> None:
    """Whatever is set globally: a limit of rows, safe updates, a size of joins, read-only transactions, no checks."""
    database = Database(ConnectConfig.from_url(hostile_url))
    asked = f"SELECT {', '.join('@@' + name for name in MEANT)}"
    if lent == "pool":
        with database.transaction() as cx:
            found = cx.one(asked)
    else:
        session = database.session("test")
        found = session.one(asked)
        session.close()
    database.close()
    assert found is not None
    assert dict(zip(MEANT, found, strict=True)) == MEANT


@pytest.mark.thorough
def test_what_a_third_group_has_not_read_is_kept(hostile_url: str) -> None:
    """Collection sees every group, though SELECT returns two rows by default; publishing and consuming go on."""
    with lanelog.connect(hostile_url) as client, connect(hostile_url) as raw:
        rows(raw, "SET SESSION sql_big_selects = 1")
        for group in ("a", "b", "c"):
            client.subscribe("t", group, accept, retention=0).stop()
        client.publish_many("t", [(f"k{n}", b"x") for n in range(10) for _ in range(5)])
        for group in ("a", "b"):
            consume(client, group, lambda acked: acked >= 50)
        client.admin.maintain()
        assert stored(raw) == 50
        consume(client, "c", lambda acked: acked >= 50)
        client.admin.maintain()
        assert stored(raw) == 0


def consume(client: Client, group: str, enough: Callable[[int], bool]) -> None:
    with client.subscribe("t", group, accept, retention=0) as subscription:
        eventually(lambda: enough(subscription.stats().acked), within=30)


def stored(raw: Any) -> int:
    return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't' LIMIT 1"))


@pytest.mark.thorough
def test_many_long_keys_fit_into_small_packets(private_server: DevServer) -> None:
    """Three thousand lanes with the longest keys, and the smallest max_allowed_packet that is in use: one mebibyte."""
    with connect(private_server.url) as raw:
        rows(raw, f"SET GLOBAL max_allowed_packet = {1 << 20}")
    keys = [f"{number:04}{'🦭' * 251}" for number in range(3000)]
    with lanelog.connect(private_server.url) as client:
        client.migrate()
        client.publish_many("t", [(key, b"x") for key in keys])
        subscription = client.subscribe("t", "g", accept)
        eventually(lambda: subscription.stats().acked == len(keys) or subscription.state == "failed", within=60)
        assert subscription.state == "running"
        client.admin.seek("t", "g", to="earliest", dry_run=True)
