"""Per-key order is commit order, whoever publishes in whatever transaction, for a consumer that looks all the time.

A reader that follows `id > last` loses messages here: `publisher/test_order.py` shows how. In a lane it cannot happen:
who publishes to a key holds its head until the commit, so that offset order, commit order and the order of becoming
visible are one.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lanelog
from lanelog import Client, Outgoing
from support.sql import rows
from support.stage import Stage, thorough, wait_until_blocked
from support.waiting import Record

PUBLISHERS, TRANSACTIONS = 8, 15


@pytest.fixture
def seen(lanelog_url: str) -> Iterator[Record]:
    """What a group sees of topic t: (key, offset, id, attempt), by a client of its own, which no publish here wakes."""
    seen = Record()
    with lanelog.connect(lanelog_url) as client:
        client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.id, m.attempt)), poll_interval=0.001)
        yield seen


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


def publish(client: Client, name: str, keys: tuple[str, ...], connection: Any) -> None:
    """A message of this name under each of the keys, in one transaction."""
    client.publish_many("t", [Outgoing(key, b"x", id=name) for key in keys], connection=connection)


def assert_seen(seen: Record, committed: list[tuple[str, tuple[str, ...]]]) -> None:
    """Each key's messages have come, once each, in this order and from offset 1 on: (name, keys) as committed."""
    found = seen.wait(sum(len(keys) for _, keys in committed))
    for key in {key for _, keys in committed for key in keys}:
        names = [name for name, keys in committed for each in keys if each == key]
        assert [item[1:] for item in found if item[0] == key] == [(n, name, 1) for n, name in enumerate(names, 1)]


def test_who_published_first_commits_first_whoever_is_ready_first(
    stage: Stage, seen: Record, begin: Callable[[], Any]
) -> None:
    """Three transactions and a rollback publish to one key; the later ones would end at once and have to wait.

    They become visible in the order in which they got the key's head, which is offset order; the rolled back one leaves
    no hole.
    """
    order = ["before", "first"]

    def publish_and_end(name: str, connection: Any) -> None:
        publish(stage.client, name, ("k",), connection)
        order.append(name)  # while it holds the head: nobody else can be here
        connection.rollback() if name == "undone" else connection.commit()

    stage.client.publish("t", "k", b"0", id="before")
    first = begin()
    publish(stage.client, "first", ("k",), first)
    later = [stage.aside(publish_and_end, name, begin()) for name in ("third", "second", "undone")]
    wait_until_blocked(stage.raw, len(later))
    assert order == ["before", "first"]
    assert_seen(seen, [("before", ("k",))])
    first.commit()
    for each in later:
        each.result(30)
    assert_seen(seen, [(name, ("k",)) for name in order if name != "undone"])
    assert len(seen) == 4


@pytest.mark.parametrize(
    "touched",
    [[("k",), ("k",), ("k",)], *thorough([("a", "b"), ("b", "c"), ("c", "a")], [("k1",), ("k2",), ("k3",)])],
    ids=["same key", "overlapping keys", "different keys"],
)
def test_transactions_that_publish_last_are_ordered_by_their_commits(
    stage: Stage, seen: Record, raw: Any, begin: Callable[[], Any], touched: list[tuple[str, ...]]
) -> None:
    """Begun 1, 2, 3, committed 3, 2, 1 with a rollback in between: each is seen at its commit, dense from offset 1."""
    committed: list[tuple[str, tuple[str, ...]]] = []
    everything = tuple(sorted({key for keys in touched for key in keys}))
    open_ones, undone = [begin() for _ in touched], begin()
    for number in (2, 1, 0):
        publish(stage.client, f"tx-{number}", touched[number], open_ones[number])
        open_ones[number].commit()
        committed.append((f"tx-{number}", touched[number]))
        assert_seen(seen, committed)  # and acked, before the earlier ones are there
        if number == 2:
            publish(stage.client, "undone", everything, undone)
            undone.rollback()
    found = dict(rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE partition_key <> ''"))
    assert found == {key: sum(keys.count(key) for keys in touched) for key in everything}


def test_different_keys_commit_in_reverse_of_their_publishes(
    stage: Stage, seen: Record, begin: Callable[[], Any]
) -> None:
    """Published 1, 2, 3 and committed 3, 2, 1: no key waits for another, and what commits last is not lost."""
    open_ones = {}
    for key in ("k1", "k2", "k3", "k0"):
        open_ones[key] = begin()
        for part in ("a", "b"):
            publish(stage.client, part, (key,), open_ones[key])
    committed: list[tuple[str, tuple[str, ...]]] = []
    for key in ("k3", "k2", "k1"):
        open_ones[key].commit()
        committed += [("a", (key,)), ("b", (key,))]
        assert_seen(seen, committed)
    open_ones["k0"].rollback()
    stage.client.publish("t", "k0", b"x", id="after")
    assert_seen(seen, [*committed, ("after", ("k0",))])


@pytest.mark.thorough
def test_three_row_transactions_that_pause_before_their_commit_lose_nothing(
    lanelog_url: str, stage: Stage, seen: Record
) -> None:
    """Eight publishers at once: the group gets every row, each key in commit order, a transaction's rows together."""
    together, pause = threading.Barrier(PUBLISHERS), threading.Event()

    with lanelog.connect(lanelog_url, pool_size=PUBLISHERS + 2) as client:

        def publisher(number: int) -> list[tuple[float, str, list[str]]]:
            """When each transaction's COMMIT was sent, its key, its rows."""
            chance, done = random.Random(number), []
            together.wait(20)
            for turn in range(TRANSACTIONS):
                key, names = f"k{chance.randrange(4)}", [f"{number}-{turn}-{row}" for row in range(3)]
                with client.transaction() as connection:
                    for name in names:
                        publish(client, name, (key,), connection)
                    pause.wait(chance.uniform(0, 0.008))
                    done.append((time.monotonic(), key, names))
            return done

        running = [stage.aside(publisher, number) for number in range(PUBLISHERS)]
        sent = sorted(each for one in running for each in one.result(60))
        assert_seen(seen, [(name, (key,)) for _, key, names in sent for name in names])
    assert len(seen) == PUBLISHERS * TRANSACTIONS * 3
