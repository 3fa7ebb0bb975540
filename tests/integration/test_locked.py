"""A publish that finds its lane locked until its time is up says which lane, and, if it may, who holds it."""

import threading
from typing import Any

import pytest

from lanelog.errors import DatabaseError
from lanelog.publisher import Publisher
from support.accounts import account
from support.publishing import hold, publisher_at
from support.sql import one, rows
from support.waiting import eventually


@pytest.fixture
def number(publisher: Publisher, open_raw: Any) -> int:
    """The number of a connection that holds lane k."""
    publisher.publish("t", "k", b"1")
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
                publisher.publish("t", "k", b"2")
        assert "'k' of topic 't' was locked" in str(caught.value)
        assert f"by connection {number} (" in str(caught.value)
        assert caught.value.retriable


@pytest.mark.thorough
def test_a_holder_is_told_from_those_who_wait_as_well(lanelog_url: str, number: int, open_raw: Any, raw: Any) -> None:
    """Others who wait in front are not the ones to look for."""
    waiting = open_raw()
    waiter = threading.Thread(target=hold, args=(waiting, "k"))
    waiter.start()
    mine = one(raw, "SELECT CONNECTION_ID()")
    eventually(
        lambda: one(
            raw,
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID <> %s AND INFO LIKE %s",
            mine,
            "%FOR UPDATE%",
        )
    )
    with (
        publisher_at(lanelog_url, impatient=True, publish_timeout=0.3) as publisher,
        pytest.raises(DatabaseError) as caught,
    ):
        publisher.publish("t", "k", b"2")
    assert f"by connection {number} (" in str(caught.value)
    rows(raw, f"KILL {number}")
    waiter.join(20)


@pytest.mark.thorough
def test_in_a_callers_transaction_too(publisher: Publisher, number: int, open_raw: Any) -> None:
    """It may go on, or must not, as the error said before."""
    mine = open_raw()
    rows(mine, "SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(DatabaseError) as caught:
        publisher.publish("t", "k", b"3", connection=mine)
    assert caught.value.code == 1205
    assert "the lane of key 'k' of topic 't' was locked by another transaction (now held " in str(caught.value)
    assert f"by connection {number} (" in str(caught.value)


@pytest.mark.thorough
def test_who_may_not_see_the_holder_gets_the_lane(lanelog_url: str, number: int, raw: Any) -> None:
    """And no other error than without the question."""
    granted = {"*": "SELECT, INSERT, UPDATE, DELETE"}
    with (
        account(raw, lanelog_url, granted) as url,
        publisher_at(url, impatient=True, publish_timeout=0.3) as publisher,
        pytest.raises(DatabaseError) as caught,
    ):
        publisher.publish("t", "k", b"2")
    assert "the lane of key 'k' of topic 't' was locked by " in str(caught.value)
    assert "held by" not in str(caught.value)
    assert number
