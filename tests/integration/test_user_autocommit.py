"""User code that switches autocommit on in a connection of ours: the pool does not lend it again."""

from typing import Any

import pymysql
import pytest

import lanelog
from lanelog import Client, Outgoing
from support.sql import one, rows

REFUSE = """
CREATE TRIGGER refuse BEFORE INSERT ON queue_messages FOR EACH ROW
IF NEW.id = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF
"""


def by_the_driver(connection: Any) -> None:
    connection.autocommit(True)


def by_statement(connection: Any) -> None:
    connection.cursor().execute("SET autocommit = 1")


@pytest.fixture
def client(lanelog_url: str) -> Any:
    with lanelog.connect(lanelog_url, pool_size=2) as client:
        client.publish("t", "a", b"first")
        yield client


@pytest.mark.parametrize("switch", [by_the_driver, by_statement])
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "ends"])
def test_a_connection_that_commits_by_itself_is_not_lent_again(
    client: Client, raw: Any, switch: Any, *, raises: bool
) -> None:
    """A batch that is refused in the middle leaves its lane as it was, on whatever connection it is written."""
    refused = pytest.raises((ZeroDivisionError, lanelog.LanelogError))
    with refused, client.transaction() as one_of_two, client.transaction() as other:
        switch(one_of_two)
        switch(other)
        if raises:
            raise ZeroDivisionError
    rows(raw, REFUSE)
    with pytest.raises(lanelog.LanelogError):
        client.publish_many("t", [Outgoing("a", b"x"), Outgoing("a", b"y", id="bad")])
    assert one(raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = 'a'") == 1
    with client.transaction() as connection:
        assert isinstance(connection, pymysql.Connection)
        assert not connection.get_autocommit()
        client.publish("t", "a", b"second", connection=connection)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 2
