"""Transactions that commit in the reverse of the order in which they began, and a consumer that looks all the time.

A reader that follows `id > last` loses the earlier ones here. In a lane it cannot happen: who publishes to a key holds
its head until the commit, so that offset order, commit order and the order of becoming visible are one.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import lanelog
from lanelog import Client
from support.sql import one, rows
from support.waiting import Record, never

EVERY = 0.001
HOLD = 0.3
"""Seconds for which a lock is held, to see that nobody gets past it; less than the server lets anybody wait."""


@contextmanager
def consumed(url: str) -> Iterator[Record]:
    """What a group sees of topic t: (key, offset, id), by a client of its own, which no publish here wakes."""
    seen = Record()
    with lanelog.connect(url) as client:
        client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.id)), poll_interval=EVERY)
        yield seen


@contextmanager
def followed(raw: Any, key: str) -> Iterator[Record]:
    """What a reader sees that asks the log every millisecond for what is behind the last offset it saw."""
    seen, over = Record(), threading.Event()

    def follow() -> None:
        last, finishing = 0, False
        while not finishing:
            finishing = over.wait(EVERY)
            for offset, name in rows(
                raw,
                "SELECT `offset`, id FROM queue_messages WHERE topic = 't' AND partition_key = %s AND `offset` > %s"
                " ORDER BY `offset`",
                key,
                last,
            ):
                seen((offset, name))
                last = offset

    thread = threading.Thread(target=follow, name="follows")
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(20)


def of_key(seen: Record, key: str) -> list[tuple[int, str]]:
    return [(offset, name) for k, offset, name in seen.items if k == key]


class Transaction:
    """One caller's transaction in a thread of its own, which publishes and ends when it is told to."""

    def __init__(self, pool: ThreadPoolExecutor, connection: Any, publish: Callable[[Any], None]) -> None:
        self.published = threading.Event()
        self._may_end, self._commits = threading.Event(), False
        self._connection = connection
        self._done: Future[None] = pool.submit(self._run, publish)

    def _run(self, publish: Callable[[Any], None]) -> None:
        publish(self._connection)
        self.published.set()
        assert self._may_end.wait(30)
        self._connection.commit() if self._commits else self._connection.rollback()

    def end(self, *, commit: bool) -> None:
        """Let it end as soon as it has published."""
        self._commits = commit
        self._may_end.set()

    def result(self) -> None:
        self._done.result(30)


@pytest.fixture
def begin(open_raw: Any, raw: Any) -> Callable[[], Any]:
    """Opens transactions of callers, which have written something of their own already."""
    rows(raw, "CREATE TABLE work (n INT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB")

    def open_one() -> Any:
        connection = open_raw()
        # With a snapshot from before somebody else's commit, some servers refuse every later lock (error 1020).
        rows(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.begin()
        rows(connection, "INSERT INTO work VALUES ()")
        return connection

    return open_one


def test_who_published_first_commits_first_whoever_is_ready_first(
    lanelog_client: Client, lanelog_url: str, raw: Any, open_raw: Any, begin: Callable[[], Any]
) -> None:
    """Three transactions and a rollback publish to one key; the later ones are told to end first and have to wait.

    They become visible in the order in which they got the key's head, which is offset order; the rolled back one leaves
    no hole, and both the group and a reader that follows the offsets see each committed message once.
    """
    lanelog_client.publish("t", "k", b"0", id="before")
    order: list[str] = []

    def publishing(name: str) -> Callable[[Any], None]:
        def publish(connection: Any) -> None:
            lanelog_client.publish("t", "k", name, id=name, connection=connection)
            order.append(name)  # while it holds the head: nobody else can be here

        return publish

    with (
        consumed(lanelog_url) as seen,
        followed(open_raw(autocommit=True), "k") as read,
        ThreadPoolExecutor(4) as pool,
    ):
        first = Transaction(pool, begin(), publishing("first"))
        assert first.published.wait(20)
        later = {name: Transaction(pool, begin(), publishing(name)) for name in ("undone", "second", "third")}
        for name in ("third", "second", "undone"):
            later[name].end(commit=name != "undone")
        never(lambda: any(each.published.is_set() for each in later.values()), during=HOLD, what="a second publish")
        assert of_key(seen, "k") == read.items == [(1, "before")]
        first.end(commit=True)
        for each in (first, *later.values()):
            each.result()
        seen.wait(4)
        read.wait(4)
    committed = ["before", *(name for name in order if name != "undone")]
    assert sorted(order) == ["first", "second", "third", "undone"]
    assert order[0] == "first"
    assert read.items == list(enumerate(committed, 1))
    assert of_key(seen, "k") == list(enumerate(committed, 1))
    assert one(raw, "SELECT COUNT(*) FROM work") == 3


@pytest.mark.parametrize("keys", [("k", "k", "k"), ("k1", "k2", "k3")], ids=["same key", "different keys"])
def test_transactions_that_publish_last_are_ordered_by_their_commits(
    lanelog_client: Client, lanelog_url: str, raw: Any, begin: Callable[[], Any], keys: tuple[str, str, str]
) -> None:
    """Begun 1, 2, 3, committed 3, 2, 1 with a rollback in between: each is seen at its commit, dense from offset 1."""
    expected: list[tuple[str, int, str]] = []
    with consumed(lanelog_url) as seen:
        open_ones = {n: begin() for n in (1, 2, 3)}
        undone = begin()
        for n, key in ((3, keys[2]), (2, keys[1]), (1, keys[0])):
            lanelog_client.publish("t", key, b"x", id=f"tx-{n}", connection=open_ones[n])
            open_ones[n].commit()
            expected.append((key, 1 + [k for k, _, _ in expected].count(key), f"tx-{n}"))
            assert seen.wait(len(expected)) == expected  # and acked, before the earlier ones are there
            if n == 3:
                for other in sorted(set(keys)):
                    lanelog_client.publish("t", other, b"x", id="undone", connection=undone)
                undone.rollback()
    assert seen.items == expected
    for key in set(keys):
        assert heads(raw)[key] == len([each for each in expected if each[0] == key])


def heads(raw: Any) -> dict[str, int]:
    return dict(rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = 't'"))


def test_different_keys_commit_in_reverse_of_their_publishes(
    lanelog_client: Client, lanelog_url: str, raw: Any, begin: Callable[[], Any]
) -> None:
    """Published 1, 2, 3 and committed 3, 2, 1: no key waits for another, and what commits last is not lost."""
    with consumed(lanelog_url) as seen:
        open_ones = {}
        for n in (1, 2, 3):
            open_ones[n] = begin()
            for part in ("a", "b"):
                lanelog_client.publish("t", f"k{n}", b"x", id=f"tx-{n}{part}", connection=open_ones[n])
        undone = begin()
        lanelog_client.publish("t", "k0", b"x", id="undone", connection=undone)
        expected: list[tuple[str, int, str]] = []
        for n in (3, 2, 1):
            open_ones[n].commit()
            expected += [(f"k{n}", 1, f"tx-{n}a"), (f"k{n}", 2, f"tx-{n}b")]
            assert seen.wait(len(expected)) == expected
            if n == 3:
                undone.rollback()
        lanelog_client.publish("t", "k0", b"x", id="after")
        assert seen.wait(7) == [*expected, ("k0", 1, "after")]


def test_transactions_over_several_keys_have_one_order_in_each_of_them(
    lanelog_client: Client, lanelog_url: str, raw: Any, begin: Callable[[], Any]
) -> None:
    """Overlapping sets of keys, committed in reverse with a rollback over all of them: each lane is in commit order."""
    touched = {1: ("a", "b"), 2: ("b", "c"), 3: ("c", "a")}
    with consumed(lanelog_url) as seen:
        open_ones = {n: begin() for n in (1, 2, 3)}
        undone = begin()
        for n in (3, 2, 1):
            items = [lanelog.Outgoing(key, b"x", id=f"tx-{n}") for key in touched[n]]
            lanelog_client.publish_many("t", items, connection=open_ones[n])
            open_ones[n].commit()
            if n == 2:
                lanelog_client.publish_many(
                    "t", [lanelog.Outgoing(key, b"x", id="undone") for key in "abc"], connection=undone
                )
                undone.rollback()
        seen.wait(6)
    assert of_key(seen, "a") == [(1, "tx-3"), (2, "tx-1")]
    assert of_key(seen, "b") == [(1, "tx-2"), (2, "tx-1")]
    assert of_key(seen, "c") == [(1, "tx-3"), (2, "tx-2")]
    assert {key: head for key, head in heads(raw).items() if key} == {"a": 2, "b": 2, "c": 2}
