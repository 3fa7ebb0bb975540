"""Messages without a key, on a real server: spread over the open lanes, shared evenly, and in nobody's way."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import lanelog
from lanelog import Client, Outgoing
from lanelog._base.open_lane_keys import is_open, lane_keys, lane_of
from lanelog.errors import ConfigurationError, SchemaError
from support.cli import Command
from support.old_tables import set_back
from support.sql import one, owners, rows
from support.waiting import Record, accept, eventually

LANES = lane_keys(64)
HEADS = "SELECT partition_key FROM queue_partitions WHERE topic = %s AND partition_key <> '' ORDER BY partition_key"


def heads(raw: Any, topic: str = "t") -> list[str]:
    return [key for (key,) in rows(raw, HEADS, topic)]


def hold(connection: Any, keys: list[str]) -> None:
    """Lock the heads of lanes, as a long transaction does that has published there."""
    connection.begin()
    for key in keys:  # one by one: of many in a list the server might read, and lock, the whole topic
        rows(connection, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = %s FOR UPDATE", key)


def test_messages_without_a_key_spread_over_the_open_lanes(lanelog_client: Client, raw: Any) -> None:
    """One after the other each to another lane; the receipt and the handler's message name it; none is missed."""
    receipts = [lanelog_client.publish("t", None, f"{n}") for n in range(64)]
    assert {receipt.key for receipt in receipts} == set(LANES)
    assert {receipt.offset for receipt in receipts} == {1}
    many = lanelog_client.publish_many("t", [(None, f"{n}") for n in range(64, 1000)] + [("k", "keyed")])
    assert {receipt.key for receipt in many} == {*LANES, "k"}
    assert heads(raw) == ["k", *LANES]
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda message: seen((message.key, message.payload))):
        found = seen.wait(1001)
    assert len(found) == 1001
    assert dict(Counter(found)) == dict.fromkeys(found, 1)
    where = {payload: key for key, payload in found}
    assert where == {b"keyed": "k"} | {f"{n}".encode(): each.key for n, each in enumerate([*receipts, *many[:-1]])}


def test_few_messages_of_one_call_lock_few_lanes(lanelog_client: Client) -> None:
    """Two who publish some at a time do not lock the same lanes, as long as there are others."""
    receipts = lanelog_client.publish_many("t", [(None, b"x")] * 16)
    assert len({receipt.key for receipt in receipts}) == 2
    others = lanelog_client.publish_many("t", [(None, b"x")] * 16)
    assert not {receipt.key for receipt in receipts} & {receipt.key for receipt in others}


def test_an_id_has_one_lane_however_it_is_published(lanelog_client: Client, raw: Any) -> None:
    """Alone, with others, in a transaction, delayed, scheduled or by another process: it is stored once."""
    publish = lanelog_client.publish
    first = publish("t", None, b"1", id="job-1")
    assert (first.key, first.duplicate) == (lane_of("job-1", 64), False)
    again = [
        publish("t", None, b"2", id="job-1"),
        publish("t", None, b"2", id="job-1", delay=3600),
        publish("t", first.key, b"2", id="job-1"),
        *lanelog_client.publish_many("t", [Outgoing(None, b"2", id="job-1")] * 2),
    ]
    with lanelog_client.transaction() as connection:
        again.append(publish("t", None, b"2", id="job-1", connection=connection))
    assert {(each.offset, each.key, each.duplicate) for each in again} == {(first.offset, first.key, True)}
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 1


def test_a_delayed_message_can_be_taken_back_without_its_key(lanelog_client: Client) -> None:
    """The id says which lane the message waits for; the receipt does as well."""
    receipt = lanelog_client.publish("t", None, b"x", id="a", delay=3600)
    lanelog_client.publish("t", None, b"x", id="b", delay=3600)
    assert lanelog_client.cancel_scheduled("t", None, "a")
    assert not lanelog_client.cancel_scheduled("t", receipt.key, "a")
    assert lanelog_client.admin.cancel_scheduled("t", None, "b", dry_run=True)
    assert [each.id for each in lanelog_client.admin.scheduled("t")] == ["b"]


def test_a_delayed_message_is_delivered(lanelog_client: Client) -> None:
    """From an open lane, when it is due."""
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen):
        lanelog_client.publish("t", None, b"x", delay=0.1)
        (message,) = seen.wait(1)
    assert is_open(message.key)


def test_a_schedule_without_a_key_keeps_to_one_lane(lanelog_client: Client) -> None:
    """Runs follow each other, whoever declares the schedule, and however often."""
    declared = [lanelog_client.schedule("nightly", "0 0 3 1 1 *", "t", None, b"x").key for _ in range(2)]
    assert declared == [lane_of("nightly", 64)] * 2


@pytest.mark.parametrize("key", ["", "open~7", " k", 7, b"k"])
def test_a_bad_key_is_refused_before_anything_is_written(lanelog_client: Client, raw: Any, key: Any) -> None:
    """None is the one value that means: no key."""
    for publish in (
        lambda: lanelog_client.publish("t", key, b"x"),
        lambda: lanelog_client.publish_many("t", [(None, b"x"), (key, b"x")]),
        lambda: lanelog_client.schedule("s", "0 0 3 1 1 *", "t", key, b"x"),
    ):
        with pytest.raises(ConfigurationError, match="key"):
            publish()
    assert heads(raw) == []


def test_busy_lanes_are_stepped_around(lanelog_client: Client, open_raw: Any) -> None:
    """A transaction that holds most of the lanes delays nobody who may lie in another one."""
    lanelog_client.publish("t", None, b"x")
    holder = open_raw()
    hold(holder, LANES[:-2])
    with ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(lambda n: lanelog_client.publish("t", None, f"{n}"), range(40)))
    assert {receipt.key for receipt in receipts} == set(LANES[-2:])
    holder.rollback()


def test_a_lane_that_is_held_is_avoided(lanelog_client: Client, open_raw: Any) -> None:
    """By every way to publish, while another lane is free."""
    lanelog_client.publish("t", None, b"x")
    lanelog_client.admin.set_open_lanes("t", 2)
    lanelog_client._publisher._routing._known.clear()
    holder, mine = open_raw(), open_raw(autocommit=False)
    hold(holder, ["open~000"])
    receipts = [lanelog_client.publish("t", None, b"x") for _ in range(6)]
    receipts += lanelog_client.publish_many("t", [(None, b"x")] * 40)
    receipts += [lanelog_client.publish("t", None, b"x", connection=mine) for _ in range(6)]
    mine.commit()
    assert {receipt.key for receipt in receipts} == {"open~001"}
    holder.rollback()


def test_two_transactions_that_publish_without_keys_never_wait_for_each_other(
    lanelog_client: Client, open_raw: Any, raw: Any
) -> None:
    """In whatever order: each takes lanes that are free."""
    lanelog_client.publish("t", None, b"x")
    lanelog_client.admin.set_open_lanes("t", 8)
    lanelog_client._publisher._routing._known.clear()
    callers = [open_raw(autocommit=False), open_raw(autocommit=False)]
    keys: list[set[str]] = [set(), set()]
    for _ in range(4):
        for number, connection in enumerate(callers):
            keys[number].add(lanelog_client.publish("t", None, b"x", connection=connection).key)
    assert not keys[0] & keys[1]
    for connection in callers:
        connection.commit()
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 9


def test_threads_that_publish_at_once_are_all_served(lanelog_client: Client, raw: Any) -> None:
    """Group commit mixes messages with and without keys; every receipt is the message's own."""
    start = threading.Barrier(16)

    def publish(number: int) -> list[tuple[str, int, bytes]]:
        start.wait()
        key = None if number % 4 else "k"
        receipts = [(f"{number}-{n}", lanelog_client.publish("t", key, f"{number}-{n}")) for n in range(10)]
        return [(receipt.key, receipt.offset, payload.encode()) for payload, receipt in receipts]

    with ThreadPoolExecutor(16) as threads:
        told = {each for receipts in threads.map(publish, range(16)) for each in receipts}
    assert told == set(rows(raw, "SELECT partition_key, `offset`, payload FROM queue_messages"))


@pytest.mark.thorough
@pytest.mark.parametrize("keys", [0, 21])
def test_any_number_of_members_share_the_open_lanes_evenly(
    lanelog_client: Client, lanelog_url: str, raw: Any, keys: int
) -> None:
    """Twelve or thirteen of 64 each for five, whatever keys the topic has besides; and again when one has left."""
    lanelog_client.publish_many("t", [(f"k{n:02}", b"x") for n in range(keys)] + [(None, b"x")])

    def counts() -> dict[bool, list[int]]:
        found = owners(raw, "g", "t")
        held = {owner for owner in found.values() if owner}
        return {
            kind: sorted(sum(owner == each and is_open(key) is kind for key, owner in found.items()) for each in held)
            for kind in (True, False)
        }

    with ExitStack() as stack:
        clients = [stack.enter_context(lanelog.connect(lanelog_url)) for _ in range(5)]
        members = [client.subscribe("t", "g", accept, workers=1) for client in clients]
        eventually(lambda: counts()[True] == [12, 13, 13, 13, 13], within=60, what="even shares of five")
        eventually(lambda: sum(counts()[False]) == keys)
        assert max(counts()[False]) - min(counts()[False]) <= 2
        members[2].stop()
        eventually(lambda: counts()[True] == [16] * 4, within=60, what="even shares of four")
        eventually(lambda: sum(counts()[False]) == keys)


def test_the_number_is_changed_while_messages_go_on(lanelog_client: Client, lanelog_url: str) -> None:
    """Publishers follow when they read it again; what lies in lanes that are too many is handled all the same."""
    admin, seen = lanelog_client.admin, Record()
    lanelog_client.publish("t", None, b"0")
    assert admin.open_lanes("t") == 64
    dry = admin.set_open_lanes("t", 4, dry_run=True)
    assert (dry.before, dry.lanes, dry.changed, admin.open_lanes("t")) == (64, 4, True, 64)
    assert admin.set_open_lanes("t", 4).changed
    assert not admin.set_open_lanes("t", 4).changed
    old = [lanelog_client.publish("t", None, f"old-{n}") for n in range(64)]
    assert {receipt.key for receipt in old} == set(LANES), "it has not read the new number yet"
    with lanelog.connect(lanelog_url) as another:
        new = [another.publish("t", None, f"new-{n}") for n in range(8)]
    assert {receipt.key for receipt in new} == set(lane_keys(4))
    lanelog_client._publisher._routing.fresh = 0.0
    lanelog_client._publisher._routing._known.clear()
    assert {lanelog_client.publish("t", None, b"x").key for _ in range(8)} == set(lane_keys(4))
    with lanelog_client.subscribe("t", "g", seen):
        assert len(seen.wait(81)) == 81


@pytest.mark.parametrize("lanes", [0, 1001, True, "8"])
def test_a_bad_number_is_refused(lanelog_client: Client, lanes: Any) -> None:
    """1 to 1000; and the topic must be there."""
    lanelog_client.publish("t", None, b"x")
    with pytest.raises(ConfigurationError, match="lanes must be"):
        lanelog_client.admin.set_open_lanes("t", lanes)
    with pytest.raises(ConfigurationError, match="no topic 'other'"):
        lanelog_client.admin.set_open_lanes("other", 8)


def test_idle_open_lanes_stay_and_those_that_are_too_many_go(lanelog_url: str, raw: Any) -> None:
    """Purging them would make them anew with the next message; a lane that no publisher chooses any more is purged."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0) as client:
        client.publish_many("t", [(None, b"x")] * 600 + [("k", b"x")])
        seen = Record()
        with client.subscribe("t", "g", seen, retention=0):
            seen.wait(601)
            eventually(lambda: client.admin.groups("t")[0].lag == 0)
        client.admin.maintain()
        assert heads(raw) == LANES
        client.admin.set_open_lanes("t", 3)
        client.admin.maintain()
        assert heads(raw) == lane_keys(3)
        assert client.publish("t", None, b"y").offset > 1, "the number was read before"


@pytest.mark.thorough
def test_the_janitor_keeps_idle_open_lanes(lanelog_url: str, raw: Any) -> None:
    """`maintain` keeps them, too."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0) as client:
        client.publish_many("t", [(None, b"x")] * 600 + [("k", b"x")])
        with client.subscribe("t", "g", accept, retention=0):
            eventually(lambda: "k" not in heads(raw), within=60)
            assert heads(raw) == LANES


def test_older_tables_have_as_many_as_ever(lanelog_url: str, raw: Any) -> None:
    """Messages without a key work there; only the number cannot be changed before the tables are migrated."""
    set_back(raw, 2)
    with lanelog.connect(lanelog_url, lane_idle_purge=0) as client:
        assert {client.publish("t", None, b"x").key for _ in range(64)} == set(LANES)
        seen = Record()
        with client.subscribe("t", "g", seen, retention=0):
            seen.wait(64)
            eventually(lambda: client.admin.groups("t")[0].lag == 0)
        client.admin.maintain()
        assert heads(raw) == LANES
        assert client.admin.open_lanes("t") == 64
        with pytest.raises(SchemaError, match="run `lanelog migrate`"):
            client.admin.set_open_lanes("t", 8)
        client.migrate()
        assert client.admin.set_open_lanes("t", 8).changed


def test_the_command_line_shows_and_sets_the_number(lanelog_client: Client, lanelog_url: str) -> None:
    """The command acts at once, and reports what it did; other commands treat open lanes like any other lane."""
    command = Command(lanelog_url)
    receipt = lanelog_client.publish("t", None, b"x", id="a")
    assert command("open-lanes", "t").stdout == "t has 64 open lanes\n"
    assert command("open-lanes", "t", "8", "--dry-run").stdout == "would set t to 8 open lanes, from 64\n"
    assert command("open-lanes", "t", "8").stdout == "set t to 8 open lanes, from 64\n"
    assert command("open-lanes", "t", "8").stdout == "t has 8 open lanes already\n"
    assert "open~" in command("show", "t", receipt.key, "1").stdout


def test_the_command_line_publishes_without_a_key(lanelog_client: Client, lanelog_url: str) -> None:
    """A message or lines; KEY is left out, and forgetting it is no way to publish without order."""
    command = Command(lanelog_url)
    lane = lane_of("a", 64)
    assert command("publish", "t", "--no-key", "x", "--id", "a").stdout == f"published offset 1 of t, lane {lane}\n"
    assert command("publish", "t", "--no-key", stdin="1\n2\n").stdout == "published 2 messages to t, open lanes\n"
    assert lanelog_client.admin.topic("t").messages == 3
    assert "give the KEY" in command("publish", "t", status=2).stderr
    assert "TOPIC and MESSAGE alone" in command("publish", "t", "k", "x", "--no-key", status=2).stderr


def test_dead_letters_of_open_lanes_are_redriven_into_them(lanelog_client: Client) -> None:
    """The lane of a dead letter is its message's; when it works again it comes back there."""
    works = threading.Event()
    seen = Record()

    def handle(message: lanelog.Message) -> None:
        if not works.is_set():
            raise lanelog.Reject("not yet")
        seen((message.key, message.id))

    receipts = [lanelog_client.publish("t", None, b"x") for _ in range(5)]
    with lanelog_client.subscribe("t", "g", handle):
        eventually(lambda: lanelog_client.admin.topic("t").dead_letters == 5)
        works.set()
        assert lanelog_client.admin.redrive("t", "g", all=True, dry_run=False).messages == 5
        found = seen.wait(5)
    assert sorted(key for key, _ in found) == sorted(receipt.key for receipt in receipts)
