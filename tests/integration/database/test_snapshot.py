"""Snapshots: several queries that see one moment, on a pooled connection that is as before afterwards."""

from contextlib import closing
from typing import Any

import pytest

from lanelog import DatabaseError
from lanelog._database import Database
from lanelog.config import ConnectConfig
from support.sql import rows


def test_a_snapshot_is_one_moment_and_the_next_transaction_is_not(lanelog_url: str, raw: Any) -> None:
    """Commits of others stay unseen until the snapshot ends; the connection is then at READ COMMITTED again."""
    rows(raw, "CREATE TABLE seen (n INT PRIMARY KEY)")
    count = "SELECT COUNT(*) FROM seen"
    pool = ConnectConfig.from_url(lanelog_url, pool_size=2)  # one after the other, so always the same connection
    with closing(Database(pool)) as database:
        for number in range(2):
            with database.snapshot() as cx:
                assert cx.one(count) == (2 * number,)
                rows(raw, "INSERT INTO seen VALUES (%s)", 2 * number)
                assert cx.one(count) == (2 * number,)
            with database.transaction() as cx:
                assert cx.one(count) == (2 * number + 1,)
                rows(raw, "INSERT INTO seen VALUES (%s)", 2 * number + 1)
                assert cx.one(count) == (2 * number + 2,)
                cx.execute("UPDATE seen SET n = n")


def test_a_snapshot_writes_nothing(database: Database, raw: Any) -> None:
    """The server refuses, and the next transaction may write."""
    rows(raw, "CREATE TABLE seen (n INT PRIMARY KEY)")
    with pytest.raises(DatabaseError, match="READ ONLY"), database.snapshot() as cx:
        cx.execute("INSERT INTO seen VALUES (1)")
    with database.transaction() as cx:
        cx.execute("INSERT INTO seen VALUES (2)")
    assert rows(raw, "SELECT n FROM seen") == [(2,)]
