"""Collection and purge: what leaves the log, when, and that nobody misses it."""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lanelog
from lanelog import Client, DatabaseError, Message, Reject
from lanelog._engine.cleanup.janitor import Janitor, JanitorPace
from lanelog._log.collect import STEP_OFFSETS
from support.janitors import Janitors, passed
from support.situations import Situations
from support.sql import audit, one, owners, rows, stored, watermark
from support.waiting import Gate, Record, accept, events, eventually, raising

JOBS = 30


@pytest.fixture
def client(janitors: Janitors, lanelog_url: str) -> Iterator[Client]:
    """A client that purges drained lanes after a moment."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0.05) as client:
        yield client


@pytest.fixture
def collected(janitors: Janitors, raw: Any) -> Callable[..., None]:
    """Lets a client collect until nothing is stored any more, or no lane is left, of topic t."""

    def wait(client: Client, left: Callable[[Any, str], object]) -> None:
        eventually(lambda: (janitors.turn(client), not left(raw, "t"))[1])

    return wait


def lanes(raw: Any, topic: str) -> dict[str, int]:
    """Heads by key, without the topic row."""
    found = rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = %s", topic)
    return {key: head for key, head in found if key}


def register(client: Client, topic: str, group: str, **options: Any) -> None:
    """A group that exists and does not run; it has no retention that would hold anything by itself."""
    assert client.subscribe(topic, group, accept, **{"retention": 0, **options}).stop(10)


def test_what_everybody_has_acked_leaves_also_while_the_lane_is_busy(lanelog_client: Client, raw: Any) -> None:
    """retention=0: messages leave behind the watermark while a handler of the same key runs on; the rest stays."""
    gate = Gate()

    def handle(message: Message) -> None:
        if message.offset == 401:
            gate()

    lanelog_client.publish_many("t", [("a", b"x")] * 500)
    subscription = lanelog_client.subscribe("t", "g", handle, retention=0)  # its own janitor collects
    with gate:
        gate.reached()
        eventually(lambda: one(raw, "SELECT MIN(`offset`) FROM queue_messages WHERE topic = 't'") == 401)
        assert stored(raw, "t") == 100
    eventually(lambda: stored(raw, "t") == 0)
    assert subscription.stats().acked == 500
    assert lanes(raw, "t") == {"a": 500}


def test_a_group_that_has_not_come_holds_everything(
    janitors: Janitors, collected: Callable[..., None], lanelog_client: Client, raw: Any
) -> None:
    """A registered group without a single row keeps what it has not read, while others ack all of it."""
    register(lanelog_client, "t", "late")
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'late'") == 0
    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(50)])
    early = lanelog_client.subscribe("t", "early", accept, retention=0)
    eventually(lambda: passed(early) == 100)
    janitors.turn(lanelog_client)
    assert stored(raw, "t") == 100
    seen = Record()
    lanelog_client.subscribe("t", "late", lambda m: seen((m.key, m.offset)), retention=0)
    assert sorted(seen.wait(100)) == [(key, n) for key in ("a", "b") for n in range(1, 51)]
    collected(lanelog_client, stored)


def test_an_unacked_message_holds_its_successors(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """Acked ahead of a waiting one is not past it: nothing behind the waiting message leaves."""

    def handle(message: Message) -> None:
        if message.offset == 3:
            message.nack(delay=3600)

    lanelog_client.publish_many("t", [("a", b"x")] * 20)
    subscription = lanelog_client.subscribe("t", "g", handle, order="serial", retention=0)
    eventually(lambda: subscription.stats().acked == 19 and passed(subscription) == 2)
    janitors.turn(lanelog_client)
    assert rows(raw, "SELECT MIN(`offset`), COUNT(*) FROM queue_messages WHERE topic = 't'") == [(3, 18)]


def test_nothing_younger_than_the_retention_leaves(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """The longest retention of the topic's groups counts, by the time of publishing."""
    lanelog_client.publish_many("t", [("a", b"x")] * 10)
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 3600000 WHERE `offset` <= 5")
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 600000 WHERE `offset` > 5 AND `offset` <= 8")
    register(lanelog_client, "t", "longer", retention=1800, start="latest")
    subscription = lanelog_client.subscribe("t", "g", accept, retention=60)
    eventually(lambda: passed(subscription) == 10)
    janitors.turn(lanelog_client)
    assert rows(raw, "SELECT MIN(`offset`), COUNT(*) FROM queue_messages WHERE topic = 't'") == [(6, 5)]


def test_without_any_group_nothing_leaves(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """A topic that nobody reads keeps everything for the group that may come, also when its last group has gone."""
    lanelog_client.publish_many("t", [("a", b"x")] * 10)
    subscription = lanelog_client.subscribe("t", "g", accept, retention=0)
    eventually(lambda: passed(subscription) == 10)
    rows(raw, "DELETE FROM queue_groups")
    janitors.turn(lanelog_client)
    lanelog_client.admin.maintain()
    assert stored(raw, "t") == 10


def test_dead_letters_stay_when_they_are_acked(
    collected: Callable[..., None], lanelog_client: Client, raw: Any
) -> None:
    """An alerting group acks them; they remain for whoever redrives or inspects them."""
    lanelog_client.publish_many("t", [("a", b"x")] * 5)
    lanelog_client.subscribe("t", "g", raising(Reject, "no"), retention=0)
    alerts = lanelog_client.subscribe("t_dlq", "alerts", accept, retention=0)
    eventually(lambda: passed(alerts) == 5)
    collected(lanelog_client, stored)
    assert stored(raw, "t_dlq") == 5


def test_collection_goes_in_bounded_steps(collected: Callable[..., None], lanelog_client: Client, raw: Any) -> None:
    """A lane's floor rises by at most STEP_OFFSETS in one transaction, however much can leave at once."""
    floors = "NEW.partition_key, OLD.offset_acked, NEW.offset_acked"
    risen = "NEW.consumer_group = '' AND NEW.offset_acked <> OLD.offset_acked"
    audit(raw, "floors", "UPDATE", "queue_offsets", "lane, a, b", floors, risen)
    each = STEP_OFFSETS + 500
    for key in ("a", "b"):
        lanelog_client.publish_many("t", [(key, b"x")] * each)
    subscription = lanelog_client.subscribe("t", "g", accept, retention=0)
    eventually(lambda: passed(subscription) == 2 * each)
    collected(lanelog_client, stored)
    steps = rows(raw, "SELECT lane, b - a FROM floors ORDER BY lane, n")
    assert steps == [(key, step) for key in ("a", "b") for step in (STEP_OFFSETS, 500)]


def test_a_drained_lane_is_purged_and_comes_back_above(
    collected: Callable[..., None], client: Client, raw: Any
) -> None:
    """Head, floor, lease and offsets go; the lane's next offset and fencing token are higher than all before."""
    seen = Record()
    client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.fencing_token)), retention=0)
    client.publish_many("t", [("a", b"x")] * 7 + [("b", b"x")] * 3)
    seen.wait(10)
    collected(client, lanes)
    assert owners(raw, "g", "t") == {}
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE topic = 't'") == 0
    assert client.publish("t", "a", b"again").offset >= 8
    key, offset, token = seen.wait(11)[10]
    assert key == "a"
    assert offset >= 8
    assert token > max(t for _, _, t in seen.items[:10])


@pytest.mark.thorough
def test_purge_that_falls_behind_is_logged_once(
    janitors: Janitors, lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A pass over the drained lanes that lasts too long is an event, and the next one only after one in time."""
    pace = JanitorPace(turn_seconds=0.0, behind_seconds=0.0, purge_lanes=2)
    # No lane becomes idle while the test drains it, on a slow machine either: a pass would begin there.
    with lanelog.connect(lanelog_url, lane_idle_purge=60) as client:
        client.subscribe("t", "g", accept, retention=0)
        janitor, begin = Janitor(client._engine.context, pace), time.monotonic()

        def drain(keys: str, *, later: float = 0.0) -> None:
            client.publish_many("t", [(key, b"x") for key in keys])
            # Time goes on: a lane whose floor is locked, as by the registration of the group, is put off for a moment.
            empty = "SELECT COUNT(*) = 0 FROM queue_messages"
            eventually(lambda: (janitors.take(janitor, time.monotonic() + later), one(raw, empty))[1])
            rows(raw, "UPDATE queue_offsets SET updated_at = 0")  # all are idle for long

        try:
            drain("abcdef")
            for seconds in (200, 300, 400, 500):
                janitors.take(janitor, begin + seconds)
            assert lanes(raw, "t") == {}
            (told,) = events(caplog, "purge.behind", logging.WARNING)
            assert told == "purge.behind topic=t seconds=100 purged=4"
            janitors.take(janitor, begin + 600)  # finds none
            drain("uvw", later=600)
            for seconds in (800, 900):
                janitors.take(janitor, begin + seconds)
            assert len(events(caplog, "purge.behind")) == 2
        finally:
            janitor.close()


def test_a_lane_with_anything_left_is_not_purged(janitors: Janitors, client: Client, raw: Any) -> None:
    """A waiting message, an unread one of another group, an operator's pause: each keeps its lane."""
    register(client, "u", "late")
    gate = Gate()

    def handle(message: Message) -> None:
        if message.key == "waiting":
            message.nack(delay=3600)
        if message.key == "paused":  # held, so that its lane is not drained before it is paused
            gate()

    client.publish_many("t", [("waiting", b"x"), ("drained", b"x"), ("paused", b"x")])
    client.publish("u", "unread", b"x")
    subscription = client.subscribe(["t", "u"], "g", handle, retention=0)
    with gate:
        gate.reached()
        rows(raw, "UPDATE queue_offsets SET paused_at = 1 WHERE consumer_group = 'g' AND partition_key = 'paused'")
    eventually(lambda: subscription.stats().acked == 3)
    eventually(lambda: (janitors.turn(client), "drained" not in lanes(raw, "t"))[1])
    rows(raw, "UPDATE queue_offsets SET updated_at = 0")  # all are idle for long
    janitors.turn(client)
    assert (set(lanes(raw, "t")), set(lanes(raw, "u"))) == ({"waiting", "paused"}, {"unread"})


@pytest.mark.thorough
def test_a_late_group_gets_every_message_of_a_lane_that_came_back(
    janitors: Janitors, collected: Callable[..., None], client: Client, lanelog_url: str, raw: Any
) -> None:
    """Drained and purged while a late group is registered, back again, others collect: the late group misses none."""
    early = client.subscribe("t", "early", accept, retention=0)
    client.publish_many("t", [("a", b"old")] * 5)
    eventually(lambda: early.stats().acked == 5)
    collected(client, lanes)
    register(client, "t", "late")
    sent = [client.publish("t", "a", f"{n}").offset for n in range(30)]
    sent += [r.offset for r in client.publish_many("t", [("a", f"{n}") for n in range(30, 50)])]
    eventually(lambda: passed(early) == sent[-1])
    janitors.turn(client)
    assert stored(raw, "t") == 50
    seen = Record()
    with lanelog.connect(lanelog_url, lane_idle_purge=0.05) as other:
        other.subscribe("t", "late", lambda m: seen((m.offset, m.payload)), retention=0)
        assert seen.wait(50) == [(offset, f"{n}".encode()) for n, offset in enumerate(sent)]
        collected(other, lanes)


@pytest.mark.thorough
@pytest.mark.parametrize("start", ["earliest", "latest", "instant"])
def test_a_group_registered_after_a_lane_was_purged_starts_where_it_said(
    collected: Callable[..., None], client: Client, start: str
) -> None:
    """With any start, a group that is registered after the purge gets messages published after it."""
    early = client.subscribe("t", "early", accept, retention=0)
    client.publish_many("t", [("a", b"old")] * 5)
    eventually(lambda: early.stats().acked == 5)
    collected(client, lanes)
    seen = Record()
    when: Any = datetime.now(UTC) - timedelta(minutes=5) if start == "instant" else start
    client.subscribe("t", "late", lambda m: seen(m.payload), start=when, retention=0)
    client.publish_many("t", [("a", b"new"), ("b", b"new")])
    assert seen.wait(2) == [b"new", b"new"]


def test_old_heartbeats_are_forgotten(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """Of every group of the client, and of no other: which of them are old is in `stores/test_members.py`."""
    for group in ("g", "h", "other"):
        Situations(raw, group=group).owner("left", stopped=True)
    living = [lanelog_client.subscribe("t", group, accept) for group in ("g", "h")]
    names = "SELECT consumer_group, subscriber_name FROM queue_subscriber_heartbeats"
    eventually(lambda: len(rows(raw, names)) == 5)
    janitors.turn(lanelog_client)
    assert set(rows(raw, names)) == {("g", living[0].owner), ("h", living[1].owner), ("other", "left")}


def test_the_watermark_survives_collection_and_restart(
    collected: Callable[..., None], lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """After everything was collected, a new process begins behind it and finds the next message only."""
    first = lanelog_client.subscribe("t", "g", accept, retention=0)
    lanelog_client.publish_many("t", [("a", b"x")] * 10)
    eventually(lambda: first.stats().acked == 10)
    collected(lanelog_client, stored)
    assert first.stop(10)
    lanelog_client.publish("t", "a", b"next")
    seen = Record()
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda m: seen((m.offset, m.payload, m.attempt)), retention=0)
        assert seen.wait(1) == [(11, b"next", 1)]
        eventually(lambda: watermark(raw, "g", "t", "a") == 11)


def test_a_deletion_that_failed_is_repeated(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """Messages behind a raised floor whose deletion was refused once go with a later pass, without new traffic."""
    refuse = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'"
    rows(raw, f"CREATE TRIGGER refuse BEFORE DELETE ON queue_messages FOR EACH ROW {refuse}")
    subscription = lanelog_client.subscribe("t", "g", accept, retention=0)
    lanelog_client.publish_many("t", [("a", b"x")] * 5)
    eventually(lambda: passed(subscription) == 5)
    janitor = janitors.own(lanelog_client)
    with pytest.raises(DatabaseError, match="not now"):
        janitors.work(janitor)
    floor = "SELECT offset_acked FROM queue_offsets WHERE consumer_group = '' AND partition_key = 'a'"
    assert (one(raw, floor), stored(raw, "t")) == (5, 5)
    rows(raw, "DROP TRIGGER refuse")
    janitors.work(janitor)
    assert stored(raw, "t") == 0
    assert subscription.state == "running"


@pytest.mark.thorough
def test_lanes_that_another_client_purged_are_forgotten(
    janitors: Janitors, collected: Callable[..., None], client: Client, lanelog_url: str
) -> None:
    """With a key for every job, memory does not grow with past jobs, whichever client purged their lanes."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0.05) as other:
        members = [each.subscribe("t", "g", accept, retention=0) for each in (client, other)]
        client.publish_many("t", [(f"job-{number}", b"x") for number in range(JOBS)])
        eventually(lambda: sum(passed(each) for each in members) == JOBS and all(passed(each) for each in members))
        remembering = janitors.own(other)
        # A watermark is in the database a moment before its owner knows it.
        janitors.work(remembering)
        topic = janitors.lanes(remembering, "t")
        eventually(lambda: (janitors.work(remembering), topic.collected)[1])
        collected(client, lanes)
        eventually(
            lambda: (
                janitors.work(remembering, later=1000.0),
                not (topic.collected or topic.waits or topic.not_before),
            )[1],
            what="nothing remembered",
        )
