"""Memory full of what busy keys read ahead: it is neither read again and again, nor in the way of what could go out."""

import threading
from typing import Any

from lanelog import Client, Message
from support.sql import watermark
from support.waiting import Record, eventually

WITHIN = 20.0
TURNS = 50


def bytes_sent(raw: Any) -> int:
    with raw.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")
        return int(cursor.fetchone()[1])


def test_busy_keys_do_not_read_again_what_the_others_evicted(lanelog_client: Client, raw: Any) -> None:
    """Three busy keys with more than fits: while their handlers run, hardly anything is read."""
    release, started, payload = threading.Event(), Record(), b"x" * 100_000

    def handle(message: Message) -> None:
        started(message.key)
        assert release.wait(WITHIN)

    for key in ("a", "b", "c"):
        lanelog_client.publish_many("t", [(key, payload) for _ in range(30)])
    subscription = lanelog_client.subscribe("t", "g", handle, workers=4, prefetch_bytes=1_000_000)
    started.wait(3, within=WITHIN)
    eventually(lambda: subscription.stats().prefetched_bytes > 900_000, within=WITHIN)
    before = bytes_sent(raw)
    for _ in range(TURNS):  # each of them is many turns of a fetcher that does not rest
        with raw.cursor() as cursor:
            cursor.execute("SELECT SLEEP(0.02)")
    read = bytes_sent(raw) - before
    release.set()
    assert read < 50 * len(payload)  # 140 MB a second once


def test_a_payload_that_does_not_fit_beside_what_a_busy_key_read_ahead(lanelog_client: Client, raw: Any) -> None:
    """A message of another key that could go out at once is handled while the busy key's handler runs."""
    release, started = threading.Event(), Record()

    def handle(message: Message) -> None:
        started(message.key)
        assert message.key == "b" or release.wait(WITHIN)

    lanelog_client.publish_many("t", [("a", b"x" * 100) for _ in range(10)])
    subscription = lanelog_client.subscribe("t", "g", handle, workers=4, prefetch_bytes=1200)
    started.wait(1, within=WITHIN)
    eventually(lambda: subscription.stats().prefetched == 10, within=WITHIN)
    lanelog_client.publish("t", "b", b"x" * 600)
    try:
        assert started.wait(2, within=WITHIN / 2) == ["a", "b"]
    finally:
        release.set()
    eventually(lambda: watermark(raw, "g", "t", "a") == 10, within=WITHIN)
