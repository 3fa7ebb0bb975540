"""Somebody holds one row of one lane for long: an operator's transaction, a backup, a debugger."""

import threading
import time
from typing import Any

from lanelog import Client, Message
from support.sql import rows, watermark
from support.waiting import Record, eventually

KEYS = [f"k{number}" for number in range(6)]
HELD_FOR = 10.0
LOCK_TIMEOUT = 5.0


def test_a_lock_on_one_lane_stalls_that_lane_alone(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """While one offsets row is held for 10 s, only the first flush waits, once; then the other lanes go on as usual."""
    seen = Record()

    def handle(message: Message) -> None:
        seen((message.key, message.offset, time.monotonic()))

    lanelog_client.subscribe("t", "g", handle)
    lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
    eventually(lambda: all(watermark(raw, "g", "t", key) == 1 for key in KEYS))
    holder = open_raw()
    rows(
        holder,
        "SELECT * FROM queue_offsets WHERE consumer_group = 'g' AND topic = 't' AND partition_key = 'k0' FOR UPDATE",
    )
    began = time.monotonic()
    pause = threading.Event()
    published: dict[tuple[str, int], float] = {}
    rounds = 1
    while time.monotonic() - began < HELD_FOR:
        rounds += 1
        at = time.monotonic()
        lanelog_client.publish_many("t", [(key, b"x") for key in KEYS])
        published.update(((key, rounds), at) for key in KEYS)
        pause.wait(0.1)
    # The others' watermarks move in the database, too, while the lock is still held.
    eventually(lambda: all(watermark(raw, "g", "t", key) >= rounds - 2 for key in KEYS[1:]), within=2)
    assert watermark_of_held(open_raw) == 1
    holder.rollback()
    released = time.monotonic()
    seen.wait(len(KEYS) * rounds, within=10)
    eventually(lambda: all(watermark(raw, "g", "t", key) == rounds for key in KEYS), within=5)
    assert time.monotonic() - released < 5
    late = {
        (key, offset): at - published[(key, offset)]
        for key, offset, at in seen.items
        if key != "k0" and (key, offset) in published
    }
    slow = [at for at, waited in late.items() if waited > 1.0]
    stalled = [published[message] - began for message in slow]
    assert not stalled or max(stalled) < LOCK_TIMEOUT + 1.0, "others waited although the first time-out was over"
    assert max(late.values()) < LOCK_TIMEOUT + 1.5
    for key in KEYS:
        assert [offset for k, offset, _ in seen.items if k == key] == list(range(1, rounds + 1))


def watermark_of_held(open_raw: Any) -> int:
    """The held row as it was committed last."""
    return watermark(open_raw(autocommit=True), "g", "t", "k0")
