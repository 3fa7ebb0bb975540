"""Publishers for tests, and what gets in their way: lanes that somebody holds, a message that the server refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lanelog._database import Database, driver
from lanelog.config import ConnectConfig
from lanelog.publisher import Publisher
from support.sql import rows

REFUSED = (
    "CREATE TRIGGER refuse BEFORE INSERT ON queue_messages FOR EACH ROW BEGIN "
    "IF NEW.id = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF; END"
)
"""From now on the server refuses messages with the id `bad`."""


@contextmanager
def publisher_at(url: str, **options: Any) -> Iterator[Publisher]:
    """A publisher with a pool of its own, closed with the block."""
    database = Database(ConnectConfig.from_url(url, **options))
    publisher = Publisher(database, lambda _: None)
    try:
        yield publisher
    finally:
        publisher.close()
        database.close()


def hold(connection: Any, *keys: str) -> None:
    """Lock the heads of lanes, as a caller's transaction does; waits for whoever has them."""
    for key in keys:
        sql = "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = %s FOR UPDATE"
        assert rows(connection, sql, key)


def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that are opened from now on wait for a lock one second, not five."""
    shorter = driver._SESSION.replace(
        f"innodb_lock_wait_timeout = {driver.LOCK_WAIT_SECONDS}", "innodb_lock_wait_timeout = 1"
    )
    assert shorter != driver._SESSION
    monkeypatch.setattr(driver, "_SESSION", shorter)
