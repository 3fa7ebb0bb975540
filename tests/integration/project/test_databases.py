"""The databases that tests leave to later tests: nobody sees what an earlier one did."""

from collections.abc import Iterator

import pytest

import lanelog
from lanelog.devserver import DevServer
from support.databases import RESTING, Databases
from support.sql import connect, rows


@pytest.fixture
def lent(lanelog_server: DevServer) -> Iterator[Databases]:
    """A pool of this test's own."""
    databases = Databases(lanelog_server)
    yield databases
    databases.close()


def used(lent: Databases) -> str:
    """A database in which something was published, given back."""
    name = lent.take()
    with lanelog.connect(lent.server.root_url(name)) as client:
        client.publish("t", "k", b"x")
    lent.give_back(name)
    return name


def assert_dropped(lent: Databases, name: str) -> None:
    """It is lent to nobody, and not there any more."""
    assert name not in {used(lent) for _ in range(RESTING + 2)}
    with connect(lent.server.url) as cx:
        assert rows(cx, f"SHOW DATABASES LIKE '{name}'") == []


def test_a_database_is_lent_again_when_others_were(lent: Databases) -> None:
    """The database is empty, as the first time."""
    names = [used(lent) for _ in range(RESTING + 1)]
    assert len(set(names)) == len(names)
    again = lent.take()
    assert again == names[0]
    with lanelog.connect(lent.server.root_url(again)) as client:
        assert client.admin.topics() == []
        assert client.publish("t", "k", b"x").offset == 1
    lent.give_back(again)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE queue_groups ADD COLUMN more INT",
        "DROP TABLE queue_history",
        "CREATE TABLE effects (n INT)",
        "CREATE TRIGGER mine BEFORE DELETE ON queue_messages FOR EACH ROW SET @x = 1",
        "UPDATE queue_schema SET oldest_code = 99",
    ],
)
def test_a_database_that_is_not_as_it_was_made_is_dropped(lent: Databases, change: str) -> None:
    """Any change counts."""
    name = lent.take()
    with connect(lent.server.root_url(name)) as cx:
        rows(cx, change)
    lent.give_back(name)
    assert_dropped(lent, name)


def test_a_database_that_is_written_to_while_it_rests_is_dropped(lent: Databases) -> None:
    """A process that outlived its test does that."""
    name = used(lent)
    with lanelog.connect(lent.server.root_url(name)) as late:
        late.publish("t", "k", b"x")
    assert_dropped(lent, name)


def test_a_database_that_somebody_is_connected_to_is_dropped(lent: Databases) -> None:
    """A client that a test has not closed would write there."""
    name = lent.take()
    with connect(lent.server.root_url(name)):
        lent.give_back(name)
    assert_dropped(lent, name)
