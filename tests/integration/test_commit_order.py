"""Per-key order is commit order, whoever publishes in whatever transaction.

A plain log would lose messages here: `test_publish_order.py` shows how.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import frozen

import lanelog
from lanelog import Message
from support.sql import one
from support.waiting import Record, eventually

KEYS = ("k0", "k1", "k2", "k3")
PUBLISHERS, TRANSACTIONS = 8, 15
TOTAL = PUBLISHERS * TRANSACTIONS * 3


@frozen
class Committed:
    """One transaction: which rows, of which key, and when its COMMIT was sent."""

    key: str
    names: tuple[str, ...]
    sent: float


def publish_from_many(transaction: Callable[[str, list[str], Callable[[], None]], float]) -> list[Committed]:
    """Eight publishers at once; each transaction writes three rows and pauses before it commits."""
    together = threading.Barrier(PUBLISHERS)

    def publisher(number: int) -> list[Committed]:
        chance, pause, done = random.Random(number), threading.Event(), []
        together.wait(10)
        for turn in range(TRANSACTIONS):
            key = KEYS[chance.randrange(len(KEYS))]
            names = [f"{number}-{turn}-{row}" for row in range(3)]
            seconds = chance.uniform(0, 0.008)
            sent = transaction(key, names, lambda seconds=seconds: pause.wait(seconds))
            done.append(Committed(key, tuple(names), sent))
        return done

    with ThreadPoolExecutor(PUBLISHERS) as pool:
        return [committed for part in pool.map(publisher, range(PUBLISHERS)) for committed in part]


def test_three_row_transactions_that_pause_before_their_commit_lose_nothing(lanelog_url: str) -> None:
    """A group that consumes meanwhile gets every row, each key in commit order, a transaction's rows together."""
    seen = Record()
    with lanelog.connect(lanelog_url, pool_size=PUBLISHERS + 2) as client:

        def transaction(key: str, names: list[str], pause: Callable[[], None]) -> float:
            with client.transaction() as connection:
                for name in names:
                    client.publish("t", key, name, connection=connection)
                pause()
                return time.monotonic()

        def handle(message: Message) -> None:
            seen((message.key, message.offset, message.payload.decode(), message.attempt))

        client.subscribe("t", "g", handle)
        committed = publish_from_many(transaction)
        seen.wait(TOTAL, within=20)
    assert len(seen) == TOTAL
    assert {attempt for _, _, _, attempt in seen.items} == {1}
    for key in KEYS:
        mine = [(offset, name) for k, offset, name, _ in seen.items if k == key]
        assert [offset for offset, _ in mine] == list(range(1, len(mine) + 1))
        in_order = sorted((c for c in committed if c.key == key), key=lambda c: c.sent)
        assert [name for _, name in mine] == [name for c in in_order for name in c.names]


def test_who_comes_second_to_a_key_commits_second(lanelog_url: str, raw: Any) -> None:
    """The reversed commits that lose rows elsewhere cannot happen: a key's second publisher waits for the first."""
    seen = Record()
    first_written, first_may_commit, second_written = threading.Event(), threading.Event(), threading.Event()
    with lanelog.connect(lanelog_url) as client, ThreadPoolExecutor(2) as pool:
        client.subscribe("t", "g", lambda message: seen((message.key, message.payload)))
        client.publish_many("t", [("k", b"0"), ("other", b"0")])

        def first() -> None:
            with client.transaction() as connection:
                client.publish("t", "k", b"1", connection=connection)
                first_written.set()
                assert first_may_commit.wait(20)

        def second() -> None:
            assert first_written.wait(10)
            with client.transaction() as connection:
                client.publish("t", "k", b"2", connection=connection)
                second_written.set()

        running = [pool.submit(first), pool.submit(second)]
        assert first_written.wait(10)
        client.publish("t", "other", b"1")  # no other key waits
        assert not second_written.wait(1.0)
        first_may_commit.set()
        for future in running:
            future.result(20)
        seen.wait(5)
        assert [payload for key, payload in seen.items if key == "k"] == [b"0", b"1", b"2"]
    eventually(
        lambda: one(raw, "SELECT head_offset FROM queue_partitions WHERE topic = 't' AND partition_key = 'k'") == 3
    )
