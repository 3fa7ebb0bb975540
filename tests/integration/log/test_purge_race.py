"""Purge, collection and publishing of the same lanes, all at once."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._database import Database
from lanelog._engine.cleanup.janitor import Janitor
from lanelog._engine.cleanup.message_retention import MessageRetention
from lanelog._log import purge_lane
from support.sql import audit, one, rows
from support.stage import Stage
from support.waiting import Record, eventually

KEYS = [f"k{n}" for n in range(4)]
PUBLISHERS = 4
EACH = 50
MOST = 1000
PURGES = "SELECT COUNT(*) FROM purges WHERE lane <> ''"


def publish(client: Client, seed: int, handled: Record, raced: threading.Event) -> list[tuple[str, int]]:
    """Publish to few keys; half of the time let the lane drain, for only then may it be purged. Its (key, offset)s.

    Until lanes were purged meanwhile: how soon that is depends on how busy the machine is.
    """
    dice, receipts = random.Random(seed), []
    for n in range(MOST):
        if n >= EACH and raced.is_set():
            break
        key = dice.choice(KEYS)
        offset = client.publish("t", key, f"{seed}-{n}").offset
        receipts.append((key, offset))
        if dice.random() < 0.5:
            handled.until(lambda items, k=key, o=offset: any(item[:2] == (k, o) for item in items))
    return receipts


def purge(database: Database, over: threading.Event) -> None:
    """Try to purge every lane, again and again."""
    session = database.session("purging")
    while not over.is_set():
        for key in KEYS:
            purge_lane.drained(session, "t", key)
    session.close()


def collect(client: Client, over: threading.Event) -> None:
    """Collect whatever may leave, again and again."""
    janitor = Janitor(client._engine.context)
    while not over.is_set():
        for duties in janitor._topics.values():
            for duty in duties:
                if isinstance(duty, MessageRetention):
                    duty.not_before.clear()
        janitor.turn(0.0)
    janitor.close()


@pytest.mark.thorough
def test_no_offset_and_no_token_is_used_twice_while_purge_and_publish_race(
    stage: Stage, lanelog_url: str, database: Database, raw: Any
) -> None:
    """Every message is handled once, in order, by both groups; offsets and fencing tokens only grow."""
    born = ("who, lane, a", "NEW.consumer_group, NEW.partition_key, NEW.lease_epoch")
    audit(raw, "births", "INSERT", "queue_partition_leases", *born)
    audit(raw, "purges", "DELETE", "queue_partitions", "lane, a", "OLD.partition_key, OLD.head_offset")
    handled, over, raced = {"g": Record(), "h": Record()}, threading.Event(), threading.Event()
    with lanelog.connect(lanelog_url, lane_idle_purge=0.001) as client:
        for group, record in handled.items():
            client.subscribe("t", group, noting(record), retention=0)
        disturbing = [stage.aside(purge, database, over) for _ in range(2)] + [stage.aside(collect, client, over)]
        try:
            publishing = [stage.aside(publish, client, seed, handled["g"], raced) for seed in range(PUBLISHERS)]
            eventually(lambda: one(raw, PURGES) >= 3 or all(each.done() for each in publishing), within=90)
            raced.set()
            receipts = [each for one_of_them in publishing for each in one_of_them.result(90)]
            for record in handled.values():
                record.wait(len(receipts), within=30)
        finally:
            over.set()
        for each in disturbing:
            each.result(20)
    assert one(raw, PURGES) >= 3, "nothing was purged: there was no race"
    for key in KEYS:
        offsets = sorted(offset for each, offset in receipts if each == key)
        assert len(set(offsets)) == len(offsets), "an offset was used twice"
        for group, record in handled.items():
            mine = [item[1:] for item in record.items if item[0] == key]
            assert [(offset, attempt) for offset, _, attempt in mine] == [(offset, 1) for offset in offsets]
            tokens = [token for _, token, _ in mine]
            assert tokens == sorted(tokens)
            births = rows(raw, "SELECT a FROM births WHERE who = %s AND lane = %s ORDER BY n", group, key)
            assert births == sorted(set(births)), "a fencing token was used twice"


def noting(record: Record) -> Callable[[lanelog.Message], None]:
    """A handler that notes (key, offset, token, attempt)."""
    return lambda m: record((m.key, m.offset, m.fencing_token, m.attempt))
