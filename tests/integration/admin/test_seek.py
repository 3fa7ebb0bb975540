"""Seek: a group goes on elsewhere, whatever its workers are doing."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lanelog
from lanelog import Client, LeaseLost, Message
from lanelog.admin.change.seek import LANES_A_TRANSACTION
from support.commits import every_commit_unanswered_once
from support.processes import Fleet, Line
from support.situations import settle
from support.sql import delivery_rows, one, owners, rows, watermark
from support.traffic import shares, steady_load
from support.waiting import Gate, Record, accept, eventually

NOW = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000"


def instant(raw: Any) -> datetime:
    """A moment of the database's clock that lies behind everything published so far, and before whatever is then."""
    last = one(raw, "SELECT MAX(created_at) FROM queue_messages")
    eventually(lambda: one(raw, NOW) > last + 1)
    return datetime.fromtimestamp((last + 1) / 1000, UTC)


def epochs(raw: Any) -> dict[str, int]:
    return dict(rows(raw, "SELECT partition_key, lease_epoch FROM queue_partition_leases WHERE topic = 't'"))


def handled_since(lines: Iterable[Line], before: dict[str, int]) -> dict[str, list[int]]:
    """The offsets handled by key under a later fencing token, in the order in which each came first."""
    found: dict[str, dict[int, None]] = {}
    for line in lines:
        if line.event == "handled" and line["token"] > before[line["key"]]:
            found.setdefault(line["key"], {}).setdefault(line["offset"])
    return {key: list(offsets) for key, offsets in found.items()}


@pytest.mark.thorough
def test_seek_to_a_time_while_three_processes_run(lanelog_client: Client, fleet: Fleet, raw: Any) -> None:
    """Nothing before it, everything after it, per key in order; who settles from before the seek is refused."""
    keys, each = [f"k{n}" for n in range(30)], 20
    for name in ("w1", "w2", "w3"):
        fleet.start(name, options={"lease_duration": 10, "lease_renewal": 2})
    for program in fleet.programs:
        program.said("ready")

    def publish(number: int) -> None:
        lanelog_client.publish_many("t", [(key, b"{}") for key in keys for _ in range(number)])

    publish(each)
    moment = instant(raw)
    publish(each)
    eventually(lambda: all(watermark(raw, "g", "t", key) == 2 * each for key in keys), within=30)
    # Even shares move no more: afterwards only the seek gives a lane a later fencing token.
    eventually(lambda: shares(raw) == dict.fromkeys(("w1", "w2", "w3"), len(keys) // 3), within=30)
    held = "k7"
    owner = owners(raw, "g", "t")[held].split(":")[0]
    lanelog_client.publish("t", held, json.dumps({"wait": owner, "how": "ack"}))
    fleet.journal.until(lambda lines: any(line.event == "waiting" for line in lines), what="a handler that waits")

    before = epochs(raw)
    with steady_load(lanelog_client, "t", keys) as traffic:
        sought = lanelog_client.admin.seek("t", "g", to=moment, dry_run=False)
        assert (sought.lanes, sought.clamped) == (len(keys), 0)
        assert sought.again >= len(keys) * each
        eventually(lambda: traffic.rounds > 10)
    for program in fleet.programs:
        program.tell("go")
    last = {key: 2 * each + (key == held) + traffic.each for key in keys}

    def everything(lines: list[Line]) -> bool:
        return all(len(found) == last[key] - each for key, found in handled_since(lines, before).items())

    fleet.journal.until(
        lambda lines: len(handled_since(lines, before)) == len(keys) and everything(lines), within=40, what="everything"
    )
    assert handled_since(fleet.journal.items, before) == {key: list(range(each + 1, last[key] + 1)) for key in keys}
    fleet.journal.until(lambda lines: any(line.event == "lost" for line in lines), what="the refusal")
    [lost] = fleet.heard("lost")
    assert (lost["key"], lost["token"]) == (held, before[held])
    eventually(lambda: all(watermark(raw, "g", "t", key) == last[key] for key in keys))


def test_a_settlement_from_before_the_seek_does_not_undo_it(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """An explicit ack raises LeaseLost, a transaction is rolled back; what the seek brought back is handled again."""
    rows(raw, "CREATE TABLE effects (k VARCHAR(10))")
    gate, results, seen = Gate(), Record(), Record()

    def handle(message: Message) -> None:
        seen((message.key, message.offset, message.fencing_token))
        if message.offset == 3 and message.key not in gate.inside.items:
            gate(message.key)
            try:
                if message.key == "acks":
                    message.ack()
                elif message.key == "commits":
                    with message.transaction() as connection:
                        connection.cursor().execute("INSERT INTO effects VALUES ('x')")
            except LeaseLost:
                results(message.key)
                raise

    keys = ("acks", "commits", "returns")
    lanelog_client.publish_many("t", [(key, b"x") for key in keys for _ in range(5)])
    subscription = lanelog_client.subscribe("t", "g", handle, workers=6)
    with lanelog.connect(lanelog_url) as other, gate:
        gate.reached(3)
        before = epochs(raw)
        other.admin.seek("t", "g", to="earliest", dry_run=False)
        again = {key: [(key, n) for n in range(1, 6)] for key in keys}
        seen.until(lambda items: sum(token > before[key] for key, _, token in items) == 15, what="everything again")
        assert {
            key: [(name, offset) for name, offset, token in seen.items if name == key and token > before[key]]
            for key in keys
        } == again
        gate.open()
        assert sorted(results.wait(2)) == ["acks", "commits"]
    assert subscription.stop(10)
    assert {key: watermark(raw, "g", "t", key) for key in keys} == dict.fromkeys(keys, 5)
    assert delivery_rows(raw, "g", "t") == []
    assert one(raw, "SELECT COUNT(*) FROM effects") == 0


def test_each_target_of_one_lane(lanelog_client: Client, raw: Any) -> None:
    """Earliest, latest, an instant and an offset: the next message is the one named, other lanes and groups stay."""
    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(5)])
    moment = instant(raw)
    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(5)])
    seen = Record()
    for group in ("g", "other"):
        settle(lanelog_client, 20, group)
    admin = lanelog_client.admin
    targets: list[tuple[Any, int]] = [("latest", 10), (moment, 5), ("earliest", 0), (8, 7), (11, 10), (1, 0)]
    before = 10
    for to, after in targets:
        dry = admin.seek("t", "g", key="a", to=to, dry_run=True)
        assert watermark(raw, "g", "t", "a") == before
        sought = admin.seek("t", "g", key="a", to=to, dry_run=False)
        assert (sought.again, sought.passed) == (max(0, before - after), max(0, after - before))
        assert (dry.again, dry.passed, dry.moved, dry.dry_run) == (sought.again, sought.passed, sought.moved, True)
        moved = [(lane.key, lane.before, lane.after) for lane in sought.moved]
        assert moved == [("a", before, after)] * (before != after)
        assert watermark(raw, "g", "t", "a") == after
        before = after
    assert watermark(raw, "g", "t", "b") == watermark(raw, "other", "t", "a") == 10
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset, m.attempt))):
        eventually(lambda: watermark(raw, "g", "t", "a") == 10)
    assert seen.items == [("a", n, 1) for n in range(1, 11)]


@pytest.mark.thorough
def test_what_was_settled_or_tried_ahead_is_forgotten(lanelog_client: Client, raw: Any) -> None:
    """Acked runs, waits and run marks behind the new place are gone: each message starts again as attempt 1."""
    gate, seen = Gate(), Record()

    def handle(message: Message) -> None:
        if message.offset == 1:
            message.nack(delay=3600)
        if message.offset == 8:
            gate()

    lanelog_client.publish_many("t", [("k", b"x")] * 10)
    subscription = lanelog_client.subscribe("t", "g", handle, order="serial")
    with gate:
        gate.reached()
        eventually(lambda: any(row["acked"] for row in delivery_rows(raw, "g", "t")))
        sought = lanelog_client.admin.seek("t", "g", to="earliest", dry_run=False)
        # Offsets 2 to 7 were settled ahead; how many of them a flush had written by then is not for the test to know.
        assert 1 <= sought.again <= 6
        assert sought.passed == 0
    assert subscription.stop(10)
    lanelog_client.admin.seek("t", "g", to="earliest", dry_run=False)
    assert delivery_rows(raw, "g", "t") == []
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt)), order="serial"):
        assert seen.wait(10) == [(n, 1) for n in range(1, 11)]


def test_a_lane_that_the_group_has_never_reached(lanelog_client: Client, raw: Any) -> None:
    """The seek itself creates its offset row and its lease row, born above every epoch of the topic."""
    with lanelog_client.subscribe("t", "g", accept):
        pass
    lanelog_client.publish_many("t", [("k", b"x")] * 4)
    rows(raw, "UPDATE queue_partitions SET max_epoch = 41 WHERE partition_key = ''")
    sought = lanelog_client.admin.seek("t", "g", to=3, key="k", dry_run=False)
    assert (sought.lanes, sought.again, sought.passed) == (1, 0, 2)
    assert epochs(raw) == {"k": 42}
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.fencing_token))):
        assert [offset for offset, _ in seen.wait(2)] == [3, 4]
    assert all(token > 42 for _, token in seen.items)


@pytest.mark.thorough
def test_what_was_collected_cannot_be_sought(lanelog_client: Client, raw: Any) -> None:
    """A target below the floor or beyond the head becomes the nearest place, and is reported."""
    lanelog_client.publish_many("t", [("k", b"x")] * 10)
    with lanelog_client.subscribe("t", "g", accept, retention=0):
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") == 0)
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    low = lanelog_client.admin.seek("t", "g", key="k", to=2, dry_run=False)
    assert (low.clamped, low.again, watermark(raw, "g", "t", "k")) == (1, 0, 10)
    high = lanelog_client.admin.seek("t", "g", key="k", to=99, dry_run=False)
    assert (high.clamped, high.passed, watermark(raw, "g", "t", "k")) == (1, 3, 13)
    early = lanelog_client.admin.seek("t", "g", to=datetime(2000, 1, 1, tzinfo=UTC), dry_run=False)
    assert (early.again, watermark(raw, "g", "t", "k")) == (3, 10)
    late = lanelog_client.admin.seek("t", "g", to=datetime.now(UTC) + timedelta(days=1), dry_run=False)
    assert (late.passed, watermark(raw, "g", "t", "k")) == (3, 13)


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_a_seek_of_many_pages_with_unanswered_commits(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """Every lane is set, page by page, whatever becomes of the answers."""
    count = 3 * LANES_A_TRANSACTION + 1
    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(count)])
    settle(lanelog_client, count)
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        assert lanelog_client.admin.seek("t", "g", to="earliest", dry_run=False).lanes == count
    assert sum(lost) == 4
    marks = "SELECT offset_acked, COUNT(*) FROM queue_offsets WHERE consumer_group = 'g' GROUP BY offset_acked"
    assert rows(raw, marks) == [(0, count)]


@pytest.mark.thorough
def test_a_seek_takes_lanes_from_members_that_take_them_again(lanelog_client: Client, raw: Any) -> None:
    """Live workers go on from the new place by themselves, soon, and no member is left with nothing."""
    seen = Record()
    for _ in range(2):
        lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.offset)))
    keys = [f"k{n}" for n in range(8)]
    lanelog_client.publish_many("t", [(key, b"x") for key in keys for _ in range(3)])
    seen.wait(24)
    eventually(lambda: all(watermark(raw, "g", "t", key) == 3 for key in keys))
    lanelog_client.admin.seek("t", "g", to="earliest", dry_run=False)
    again = seen.wait(48)[24:]
    assert sorted(again) == sorted((key, n) for key in keys for n in (1, 2, 3))
    eventually(lambda: len(set(owners(raw, "g", "t").values())) == 2)
