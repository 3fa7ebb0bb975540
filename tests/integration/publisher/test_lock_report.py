"""A publish that finds its lane locked until its time is up says which lane, and, if it may, who holds it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from lanelog import Outgoing, connect
from lanelog.admin import Admin, Problem, Rank
from lanelog.admin.doctor.doctor import doctor
from lanelog.admin.operate import problems
from lanelog.admin.operate.held_heads import held_heads
from lanelog.devserver import DevServer
from lanelog.devserver._local import OPTIONS
from lanelog.errors import DatabaseError
from lanelog.publisher import Publisher
from support.accounts import account
from support.publishing import hold, publisher_at
from support.sql import connect as sql_connection
from support.sql import one, rows
from support.waiting import eventually

RENEWED = 0.25
"""Seconds between two questions for locks. MariaDB renews its answer only when nobody has asked for 0.1 s."""


@pytest.fixture
def number(publisher: Publisher, open_raw: Any) -> int:
    """The number of a connection that holds lane k."""
    publisher.publish("t", Outgoing("k", b"1"))
    holder = open_raw()
    hold(holder, "k")
    return int(one(holder, "SELECT CONNECTION_ID()"))


@pytest.mark.thorough
@pytest.mark.parametrize("many", [False, True])
def test_the_lane_and_its_holder_are_named(lanelog_url: str, number: int, many: bool) -> None:
    """By one message and by many, whether the server's time-out ends the wait or our own."""
    for seconds in (0.3, 1.2):
        with (
            publisher_at(lanelog_url, impatient=True, publish_timeout=seconds) as publisher,
            pytest.raises(DatabaseError) as caught,
        ):
            if many:
                publisher.publish_many("t", [("j", b"1"), ("k", b"2")])
            else:
                publisher.publish("t", Outgoing("k", b"2"))
        assert "'k' of topic 't' was locked" in str(caught.value)
        assert f"by connection {number} (" in str(caught.value)
        assert caught.value.retriable


@pytest.mark.thorough
def test_the_error_of_each_of_many_that_give_up_at_once_names_the_holder(lanelog_url: str, number: int) -> None:
    """The threads ask the server together."""
    with publisher_at(lanelog_url, impatient=True, publish_timeout=0.5) as publisher, ThreadPoolExecutor(12) as threads:
        publishing = [threads.submit(publisher.publish, "t", Outgoing("k", b"2")) for _ in range(12)]
        errors = [each.exception(30) for each in publishing]
    assert [str(error) for error in errors if f"by connection {number} (" not in str(error)] == []


@pytest.mark.thorough
def test_a_holder_is_distinguished_from_those_who_wait(lanelog_url: str, number: int, open_raw: Any, raw: Any) -> None:
    """Others who wait in front are not the ones to look for."""
    waiting = open_raw()
    waiter = threading.Thread(target=hold, args=(waiting, "k"))
    waiter.start()
    mine = one(raw, "SELECT CONNECTION_ID()")
    others = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID <> %s AND INFO LIKE %s"
    eventually(lambda: one(raw, others, mine, "%FOR UPDATE%"))
    with (
        publisher_at(lanelog_url, impatient=True, publish_timeout=0.3) as publisher,
        pytest.raises(DatabaseError) as caught,
    ):
        publisher.publish("t", Outgoing("k", b"2"))
    assert f"by connection {number} (" in str(caught.value)
    rows(raw, f"KILL {number}")
    waiter.join(20)


@pytest.mark.thorough
def test_in_a_callers_transaction_too(publisher: Publisher, number: int, open_raw: Any) -> None:
    """The transaction may go on, or must not, as the error says."""
    mine = open_raw()
    rows(mine, "SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(DatabaseError) as caught:
        publisher.publish("t", Outgoing("k", b"3"), connection=mine)
    assert caught.value.code == 1205
    assert "the lane of key 'k' of topic 't' was locked by another transaction (now held " in str(caught.value)
    assert f"by connection {number} (" in str(caught.value)


@pytest.mark.thorough
def test_who_may_not_see_the_holder_gets_the_lane(lanelog_url: str, number: int, raw: Any) -> None:
    """The error names the lane, and is the same as without the question."""
    granted = {"*": "SELECT, INSERT, UPDATE, DELETE"}
    with (
        account(raw, lanelog_url, granted) as url,
        publisher_at(url, impatient=True, publish_timeout=0.3) as publisher,
        pytest.raises(DatabaseError) as caught,
    ):
        publisher.publish("t", Outgoing("k", b"2"))
    assert "the lane of key 'k' of topic 't' was locked by " in str(caught.value)
    assert "held by" not in str(caught.value)
    assert number


@pytest.fixture
def watching(request: pytest.FixtureRequest, lanelog_server: DevServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database on a server that watches its locks. The servers of tests run without, for a quicker start.

    MariaDB shows them in any case.
    """
    if lanelog_server.family == "mariadb":
        return str(request.getfixturevalue("lanelog_url"))
    watched = [option for option in OPTIONS["mysql"] if option != "--performance-schema=OFF"]
    monkeypatch.setitem(OPTIONS, "mysql", tuple(watched))
    server: DevServer = request.getfixturevalue("private_server")
    return server.create_database("watching")


@contextmanager
def waiting(url: str) -> Iterator[int]:
    """A publisher that waits for lane k of topic t. Yields the number of the connection that holds it."""
    with connect(url) as client, sql_connection(url, autocommit=False) as holder, ThreadPoolExecutor(1) as threads:
        client.migrate()
        client.publish("t", "k", b"1")
        hold(holder, "k")
        published = threads.submit(client.publish, "t", "k", b"2")
        try:
            yield int(one(holder, "SELECT CONNECTION_ID()"))
        finally:
            holder.rollback()
        published.result(20)


@pytest.mark.thorough
def test_status_names_the_transaction_that_publishers_wait_for(watching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status shows lane, connection and account; the monitor gets the age. A young transaction is no problem."""
    with waiting(watching) as number, connect(watching) as client:
        look(client.admin, number, monkeypatch)


@pytest.mark.thorough
def test_a_statement_with_an_emoji_hides_no_transaction(watching: str) -> None:
    """MySQL refuses its table of transactions while one runs such a statement."""
    emoji = "SELECT * FROM queue_partitions WHERE topic = 't' AND partition_key IN ('\U0001f600', 'k') FOR UPDATE"

    def lock() -> None:
        with sql_connection(watching, autocommit=False) as other:
            rows(other, emoji)

    with connect(watching) as client, ThreadPoolExecutor(1) as threads:
        database = client.admin._database
        with waiting(watching) as number:
            locked = threads.submit(lock)
            eventually(lambda: [each.waiting for each in held_heads(database) or []] == [2], every=RENEWED)
            (found,) = held_heads(database) or []
            assert (found.key, found.connection) == ("k", number)
            assert (client.admin.server().oldest_transaction or 0) >= found.seconds
            oldest = [each.detail for each in doctor(database, old_after=-1) if each.check == "oldest transaction"]
            assert "has had one open for" in oldest[0]
        locked.result(20)


def look(admin: Admin, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What administration shows of the connection that holds the lane."""
    assert problems.HELD > 3
    (young,) = eventually(lambda: held_heads(admin._database), every=RENEWED)
    assert (young.topic, young.key, young.connection, young.waiting) == ("t", "k", number, 1)
    assert [each for each in admin.status(["t"]).problems if each.what == "head locked"] == []
    monkeypatch.setattr(problems, "HELD", 1.0)

    def head_locked() -> list[Problem]:
        return [each for each in admin.status().problems if each.what == "head locked"]

    (found,) = eventually(head_locked, every=RENEWED)
    assert (found.topic, found.key, found.rank) == ("t", "k", Rank.STUCK)
    assert f"Connection {number} (root@" in found.detail
    assert f"KILL {number}" in found.detail
    assert found.lasted is not None
    assert 1 <= found.lasted < 15
    assert (admin.figures().held_head or 0) >= 1


def test_status_does_without_what_the_account_may_not_see(lanelog_url: str, raw: Any) -> None:
    """The rest of the answer is as ever, and the monitor has no such figure."""
    with waiting(lanelog_url), account(raw, lanelog_url, {"*": "SELECT"}) as url, connect(url) as client:
        assert client.admin.status().topics == 1
        assert client.admin.figures().held_head is None
