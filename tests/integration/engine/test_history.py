"""History: how each message left a group that keeps it, one row each, written by what settled the message."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import AckPolicy, Client, ConfigurationError, Message, Reject, RetryPolicy
from lanelog._database.connection.wire import Wire
from lanelog._engine.cleanup.history_and_letters import LetterRetention
from lanelog._stores.consumers import history as store
from lanelog.admin import HistoryInfo
from lanelog.message import Postpone
from support.cli import Command
from support.commands import commands_sent
from support.janitors import Janitors
from support.processes import Fleet
from support.situations import NOW, Situations
from support.sql import delivery_rows, one, rows, watermark
from support.stage import Stage
from support.waiting import Gate, Record, accept, eventually, raising

ONCE = RetryPolicy(stop=stop_after_attempt(1), wait=wait_fixed(0.01))
TWICE = RetryPolicy(stop=stop_after_attempt(2), wait=wait_fixed(0.01))


def kept(raw: Any, group: str) -> int:
    """How many rows a group has."""
    return int(one(raw, "SELECT COUNT(*) FROM queue_history WHERE consumer_group = %s", group))


def left(raw: Any, group: str = "g") -> list[tuple[Any, ...]]:
    """(offset, outcome, attempts, error) of every row, in order."""
    columns = "message_offset, outcome, attempts, SUBSTRING_INDEX(last_error, CHAR(10 USING utf8mb4), 1)"
    where = "consumer_group = %s ORDER BY topic, partition_key, message_offset"
    return rows(raw, f"SELECT {columns} FROM queue_history WHERE {where}", group)


fails = raising(ValueError, "no")
rejects = raising(Reject, "bad")


def in_a_transaction(message: Message) -> None:
    with message.transaction():
        pass


def fails_at_first(message: Message) -> None:
    if message.attempt == 1:
        raise ValueError("not yet")


@pytest.mark.parametrize(
    ("handler", "options", "outcome"),
    [
        (accept, {}, ("success", 1, None)),
        (accept, {"ack_policy": AckPolicy.ACK_FIRST}, ("success", 1, None)),
        (in_a_transaction, {}, ("success", 1, None)),
        (lambda message: message.ack(), {"ack_policy": AckPolicy.MANUAL}, ("success", 1, None)),
        (fails_at_first, {}, ("success", 2, "ValueError: not yet")),
        (rejects, {}, ("rejected", 1, "bad")),
        (fails, {}, ("failed", 2, "ValueError: no")),
        (fails, {"ack_policy": AckPolicy.REJECT_ON_ERROR}, ("failed", 1, "ValueError: no")),
        (rejects, {"dead_letter_suffix": None}, ("rejected", 1, "bad")),
        (fails, {"dead_letter_suffix": None}, ("failed", 2, "ValueError: no")),
        (lambda message: message.reject("as said"), {}, ("rejected", 1, "as said")),
    ],
    ids=[
        "success", "ack_first", "transaction", "manual", "retried", "rejected", "failed", "rejected on error",
        "rejected without dead letters", "failed without dead letters", "settled by hand",
    ],
)  # fmt: skip
def test_a_message_leaves_one_row_that_says_how(
    lanelog_client: Client, raw: Any, handler: Callable[[Message], object], options: dict[str, Any], outcome: Any
) -> None:
    """In every way out: outcome, attempts and error; the times are the database's, in their order."""
    lanelog_client.publish("t", "k", b"x", id="first")
    if options.get("ack_policy") not in (AckPolicy.ACK_FIRST, AckPolicy.REJECT_ON_ERROR):
        options = {"retry": TWICE, **options}
    with lanelog_client.subscribe("t", "g", handler, history=True, name="me", **options) as subscription:
        eventually(lambda: watermark(raw, "g", "t", "k") == 1)
        assert left(raw) == [(1, *outcome)]
        (row,) = lanelog_client.admin.history("t", "g")
        assert (row.topic, row.group, row.key, row.offset, row.id) == ("t", "g", "k", 1, "first")
        assert row.owner == subscription.owner
        assert row.first_delivered_at is not None
        assert row.published_at <= row.first_delivered_at <= row.finished_at
    assert one(raw, f"SELECT finished_at BETWEEN {NOW} - 60000 AND {NOW} FROM queue_history")


def test_a_time_out_is_a_lock_that_expired(lanelog_client: Client, raw: Any) -> None:
    """The last attempt timed out; one that raises TimeoutError itself has failed."""
    gate = Gate()
    lanelog_client.publish("t", "k", b"x")
    options = {"visibility_timeout": 0.2, "auto_extend": False, "retry": ONCE}
    with lanelog_client.subscribe("t", "g", gate, history=True, **options), gate:
        eventually(lambda: left(raw))
    ((offset, outcome, attempts, error),) = left(raw)
    assert (offset, outcome, attempts) == (1, "lock_expired", 1)
    assert "timed out" in error

    with lanelog_client.subscribe("t", "h", raising(TimeoutError, "of its own"), history=True, retry=ONCE):
        eventually(lambda: left(raw, "h"))
    assert left(raw, "h") == [(1, "failed", 1, "TimeoutError: of its own")]


@pytest.mark.thorough
def test_a_message_that_kills_its_process_is_a_lock_that_expired(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """Buried by the next owner, with the attempts that were started."""
    options = {"history": True}
    worker = fleet.worker("dies", attempts=1, options=options)
    lanelog_client.publish("t", "k", json.dumps({"exit": True}))
    assert worker.ended() == 9
    fleet.worker("next", attempts=1, options=options)
    eventually(lambda: left(raw), within=30)
    assert left(raw) == [(1, "lock_expired", 1, "the process that ran it died")]
    assert one(raw, "SELECT first_delivered_at > 0 FROM queue_history")


def test_postponing_is_not_leaving(lanelog_client: Client, raw: Any) -> None:
    """The row comes with the end, and counts the attempts since it was postponed."""
    seen = Record()

    def handle(message: Message) -> None:
        seen(message.attempt)
        if len(seen) == 1:
            raise Postpone(0.05)

    lanelog_client.publish("t", "k", b"x")
    with lanelog_client.subscribe("t", "g", handle, history=True):
        eventually(lambda: left(raw))
    assert (seen.items, left(raw)) == ([1, 1], [(1, "success", 1, None)])


def test_an_offset_for_another_group_leaves_no_row(lanelog_client: Client, raw: Any) -> None:
    """A message that was redriven for one group is passed by the others, and leaves no history of theirs."""
    lanelog_client.publish_many("t", [("k", b"x")] * 2)
    with lanelog_client.subscribe("t", "g", rejects, history=True):
        eventually(lambda: len(left(raw)) == 2)
    lanelog_client.admin.redrive("t", "g", all=True, dry_run=False)
    with lanelog_client.subscribe("t", "h", accept, history=True):
        eventually(lambda: watermark(raw, "h", "t", "k") == 4)
    assert [row[0] for row in left(raw, "h")] == [1, 2]
    with lanelog_client.subscribe("t", "g", accept, history=True):
        eventually(lambda: watermark(raw, "g", "t", "k") == 4)
    assert [row[:2] for row in left(raw)] == [(1, "rejected"), (2, "rejected"), (3, "success"), (4, "success")]


def test_a_group_that_keeps_none_writes_none_and_asks_for_none(
    janitors: Janitors, lanelog_client: Client, raw: Any
) -> None:
    """Off is free: no statement of the process touches the table, whatever becomes of its messages."""
    lanelog_client.publish_many("t", [("k", b"x")] * 20)

    def handle(message: Message) -> None:
        if message.offset % 3 == 0:
            raise Reject("bad")
        if message.offset % 3 == 1:
            in_a_transaction(message)

    with commands_sent() as sent, lanelog_client.subscribe("t", "g", handle, order="concurrent") as subscription:
        eventually(lambda: watermark(raw, "g", "t", "k") == 20)
        eventually(lambda: subscription.stats().dead_lettered == 6)
        janitors.turn(lanelog_client)
    assert not [command for command in sent if "queue_history" in command]
    assert left(raw) == []


@pytest.mark.thorough
def test_a_seek_replaces_the_row(lanelog_client: Client, raw: Any) -> None:
    """Handled again, a message has one row still: how it left the last time."""
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    with lanelog_client.subscribe("t", "g", rejects, history=True):
        eventually(lambda: len(left(raw)) == 3)
    before = rows(raw, "SELECT finished_at FROM queue_history ORDER BY message_offset")
    lanelog_client.admin.seek("t", "g", key="k", to=2, dry_run=False)
    with lanelog_client.subscribe("t", "g", accept, history=True):
        eventually(lambda: watermark(raw, "g", "t", "k") == 3)
    assert [row[1] for row in left(raw)] == ["rejected", "success", "success"]
    after = rows(raw, "SELECT finished_at FROM queue_history ORDER BY message_offset")
    assert before[0] == after[0]
    assert before[1] < after[1]


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["return", "reject", "transaction"])
def test_a_death_at_the_commit_leaves_one_row(
    stage: Stage, lanelog_client: Client, raw: Any, when: str, how: str
) -> None:
    """Right before it: the row of the next owner. Right after it: the row stands, and no attempt follows."""
    rows(raw, "CREATE TABLE effects (k VARCHAR(9), o INT, who VARCHAR(9), attempt INT)")
    owner = stage.actor("owner")
    owner.do("subscribe", topic="t", group="g", history=True)
    point = f"{when} COMMIT following history.UPSERT"
    owner.pause(point)
    lanelog_client.publish("t", "k", json.dumps({"how": how}))
    owner.paused(point)
    owner.program.kill()
    ended = "rejected" if how == "reject" else "success"
    seen = Record()

    def handle(message: Message) -> None:
        seen(message.attempt)
        if how == "reject":
            raise Reject("as told")

    if when == "before":
        assert left(raw) == []
    with lanelog_client.subscribe("t", "g", handle, history=True):
        eventually(lambda: watermark(raw, "g", "t", "k") == 1, within=30)
    assert seen.items == ([2] if when == "before" else [])
    assert [row[:3] for row in left(raw)] == [(1, ended, 2 if when == "before" else 1)]


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_without_an_answer_is_repeated_into_the_same_row(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """The flush is written again; whether or not it had been, there is one row for each message."""
    run, commit, unanswered, writing = Wire._run, Wire.commit, Record(), set()

    def noted(wire: Wire, sql: str, args: Any) -> Any:
        if "INSERT INTO queue_history" in sql:
            writing.add(wire)
        return run(wire, sql, args)

    def commits(wire: Wire) -> None:
        lost = wire in writing and len(unanswered) < 3
        writing.discard(wire)
        if committed or not lost:
            commit(wire)
        if lost:
            unanswered(1)
            wire.drop()
            raise lanelog.DatabaseError("no answer", code=2013, retriable=True, outcome_unknown=True)

    monkeypatch.setattr(Wire, "_run", noted)
    monkeypatch.setattr(Wire, "commit", commits)
    lanelog_client.publish_many("t", [("k", b"x")] * 5)
    with lanelog_client.subscribe("t", "g", accept, history=True):
        eventually(lambda: len(unanswered) == 3 and len(left(raw)) == 5)
    assert left(raw) == [(offset, "success", 1, None) for offset in range(1, 6)]


# -- skip --------------------------------------------------------------------------------------------------------------


def test_a_skipped_message_is_recorded_with_the_reason(lanelog_client: Client, raw: Any) -> None:
    """In the transaction that skips it, if the group keeps history; a dry run and a repetition write nothing more."""
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    slow = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(600))
    for group, history in (("g", True), ("h", False)):
        with lanelog_client.subscribe("t", group, fails, retry=slow, history=history) as subscription:
            eventually(lambda s=subscription: s.stats().retried == 1)  # type: ignore[misc]
        for dry_run in (True, False, False):
            lanelog_client.admin.skip("t", group, "k", 1, reason="broken", dry_run=dry_run)
    lanelog_client.admin.skip("t", "g", "k", 3, reason="later", dry_run=False)
    assert left(raw) == [(1, "skipped", 1, "broken"), (3, "skipped", 0, "later")]
    assert left(raw, "h") == []
    first, third = lanelog_client.admin.history("t", "g", key="k")[::-1]
    assert first.first_delivered_at is not None
    assert first.published_at <= first.first_delivered_at <= first.finished_at
    assert third.first_delivered_at is None


# -- registration, reading and retention -------------------------------------------------------------------------------


def test_what_is_kept_stands_with_the_group_and_follows_the_latest_registration(
    lanelog_client: Client, raw: Any
) -> None:
    """Times in milliseconds; 0 for no history and for dead letters that stay for ever."""

    def stored() -> tuple[Any, ...]:
        return rows(raw, "SELECT retention_ms, history_ms, dead_letter_ms FROM queue_groups")[0]

    lanelog_client.subscribe("t", "g", accept).stop()
    assert stored() == (300_000, 0, 0)
    lanelog_client.subscribe("t", "g", accept, history=True, dead_letter_retention=90.5).stop()
    assert stored() == (300_000, 604_800_000, 90_500)
    lanelog_client.subscribe("t", "g", accept, history=True, history_retention=0.0001, retention=0).stop()
    assert stored() == (0, 1, 0)


def test_history_is_read_by_group_and_by_lane(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The latest first; in a lane the highest offset first; the command shows the same; a wrong group is refused."""
    lanelog_client.publish_many("t", [(f"k{n % 2}", b"x") for n in range(6)])
    with lanelog_client.subscribe("t", "g", accept, history=True):
        eventually(lambda: len(left(raw)) == 6)
    rows(raw, "UPDATE queue_history SET finished_at = finished_at + message_offset * 1000")
    found = lanelog_client.admin.history("t", "g", limit=4)
    assert [each.offset for each in found] == [3, 3, 2, 2]
    assert [each.offset for each in lanelog_client.admin.history("t", "g", key="k1")] == [3, 2, 1]
    assert isinstance(found[0], HistoryInfo)
    command = Command(lanelog_url)
    heads, lines = command.table("history", "t", "g", "--key", "k0", "--limit", "2")
    assert heads[:4] == ["KEY", "OFFSET", "OUTCOME", "ATTEMPTS"]
    assert [line[:4] for line in lines] == [["k0", "3", "success", "1"], ["k0", "2", "success", "1"]]
    assert [each["offset"] for each in command.json("history", "t", "g", "--limit", "4")] == [3, 3, 2, 2]
    assert "no group 'x'" in command.refused("history", "t", "x")
    lanelog_client.admin.delete_group("t", "g", dry_run=False)
    assert len(lanelog_client.admin.history("t", "g")) == 6


def test_history_is_filtered_by_outcome_id_and_time(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """Filters go together, in Python and on the command line; what is no outcome and no time is refused."""

    def handle(message: Message) -> None:
        if message.payload == b"bad":
            raise lanelog.Reject("bad")

    items = [lanelog.Outgoing(f"k{n % 2}", b"bad" if n > 3 else b"x", id=f"id-{n}") for n in range(6)]
    lanelog_client.publish_many("t", items)
    with lanelog_client.subscribe("t", "g", handle, history=True):
        eventually(lambda: len(left(raw)) == 6)
    rows(raw, "UPDATE queue_history SET finished_at = 2000000000000 + message_offset * 1000")
    admin, begin = lanelog_client.admin, datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC)

    def ids(**filters: Any) -> set[str]:
        return {each.id for each in admin.history("t", "g", **filters)}

    assert ids(outcome="rejected") == {"id-4", "id-5"}
    assert ids(outcome="rejected", key="k0") == {"id-4"}
    assert ids(id="id-1") == {"id-1"}
    assert ids(key="k0", offset=3) == {"id-4"}
    assert ids(since=begin + timedelta(seconds=2), until=begin + timedelta(seconds=3)) == {"id-2", "id-3"}
    assert ids(until=begin + timedelta(seconds=2), key="k1", outcome="success") == {"id-1"}
    assert ids(outcome="expired") == set()
    for wrong in ({"outcome": "lost"}, {"since": datetime(2026, 1, 1)}, {"id": ""}, {"offset": 1}):  # noqa: DTZ001 - that is refused
        with pytest.raises(ConfigurationError):
            admin.history("t", "g", **wrong)
    command = Command(lanelog_url)
    asked = ("--outcome", "rejected", "--since", begin.isoformat(), "--id", "id-5")
    assert [each["id"] for each in command.json("history", "t", "g", *asked)] == ["id-5"]
    assert "--since 'soon' is no time" in command.refused("history", "t", "g", "--since", "soon")


def test_a_message_dropped_for_a_lower_cap_had_the_attempts_that_were_started(lanelog_client: Client, raw: Any) -> None:
    """The one that was not allowed any more does not count."""
    lanelog_client.publish("t", "k", b"x")
    with lanelog_client.subscribe("t", "g", lambda m: m.nack(delay=60), ack_policy=AckPolicy.MANUAL) as subscription:
        eventually(lambda: subscription.stats().retried == 1)
    rows(raw, "UPDATE queue_delivery_state SET invisible_until = 0")
    with lanelog_client.subscribe("t", "g", accept, history=True, max_deliveries=1, dead_letter_suffix=None):
        eventually(lambda: left(raw))
    assert [row[:3] for row in left(raw)] == [(1, "failed", 1)]


@pytest.mark.thorough
def test_maintenance_deletes_old_history_of_groups_that_are_gone(
    janitors: Janitors, lanelog_client: Client, raw: Any
) -> None:
    """A registered group's by its own retention; of a deleted group, and of one that keeps none now, after 7 days."""
    count = 2 * store.BATCH
    lanelog_client.publish_many("t", [("k", b"x")] * count)
    for group in ("gone", "off", "on"):
        options = {"history_retention": 3600} if group == "on" else {}
        with lanelog_client.subscribe("t", group, accept, history=True, **options):
            eventually(lambda group=group: kept(raw, group) == count)  # type: ignore[misc]
    lanelog_client.subscribe("t", "off", accept).stop()
    lanelog_client.admin.delete_group("t", "gone", dry_run=False)
    for age, offset in ((2 * 3600, 4), (8 * 86400, 8)):
        sql = "UPDATE queue_history SET finished_at = finished_at - %s WHERE message_offset > %s"
        rows(raw, sql, age * 1000, offset)
    assert lanelog_client.admin.maintain(topics=["t"]).history == 3 * count - 4 - 8 - 8
    assert [kept(raw, group) for group in ("gone", "off", "on")] == [8, 8, 4]
    rows(raw, "UPDATE queue_history SET finished_at = 1000, topic = 'deleted' WHERE consumer_group = 'gone'")
    assert lanelog_client.admin.maintain().history == 8


# -- dead letters ------------------------------------------------------------------------------------------------------


def letters(raw: Any) -> list[tuple[str, str, int]]:
    return rows(raw, "SELECT failed_group, partition_key, original_offset FROM queue_messages WHERE topic = 't_dlq'"
                     " ORDER BY partition_key, `offset`")  # fmt: skip


def test_dead_letters_leave_after_their_own_groups_retention(
    janitors: Janitors, lanelog_client: Client, raw: Any
) -> None:
    """Each group's by its own; one that stays holds those behind it in its lane; young ones stay."""
    lanelog_client.publish_many("t", [("a", b"x"), ("a", b"x"), ("b", b"x"), ("c", b"x")])
    with lanelog_client.subscribe("t", "brief", rejects, dead_letter_retention=600):
        eventually(lambda: len(letters(raw)) == 4)
    with lanelog_client.subscribe("t", "ever", rejects):
        eventually(lambda: len(letters(raw)) == 8)
    with lanelog_client.subscribe("t", "brief", rejects, dead_letter_retention=600):
        lanelog_client.publish("t", "b", b"x")
        eventually(lambda: ("brief", "b", 2) in letters(raw))
    others = "topic = 't_dlq' AND partition_key <> 'c'"
    rows(raw, f"UPDATE queue_messages SET created_at = created_at - 700000 WHERE {others}")
    with lanelog_client.subscribe("t", "brief", rejects, dead_letter_retention=600):
        janitors.turn(lanelog_client)
    assert letters(raw) == [
        ("ever", "a", 1), ("ever", "a", 2), ("ever", "b", 1), ("brief", "b", 2), ("brief", "c", 1), ("ever", "c", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["janitor", "maintain"])
def test_old_dead_letters_wait_for_whoever_reads_them(
    janitors: Janitors, lanelog_client: Client, raw: Any, by: str
) -> None:
    """Retention deletes what every registered group of the dead letter topic is past; a group without a place, none."""

    def collect() -> list[tuple[str, int]]:
        if by == "maintain":
            lanelog_client.admin.maintain()
        else:
            with lanelog_client.subscribe("t", "g", rejects, dead_letter_retention=600):
                janitors.turn(lanelog_client)
        return [(key, offset) for _, key, offset in letters(raw)]

    lanelog_client.publish_many("t", [("a", b"x"), ("a", b"x"), ("a", b"x"), ("b", b"x")])
    with lanelog_client.subscribe("t", "g", rejects, dead_letter_retention=600):
        eventually(lambda: len(letters(raw)) == 4)
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 700000 WHERE topic = 't_dlq'")
    for group in ("alerts", "audit"):
        lanelog_client.subscribe("t_dlq", group, accept, start="earliest").stop(10)
    rows(raw, "DELETE FROM queue_offsets WHERE topic = 't_dlq' AND consumer_group <> ''")
    Situations(raw, "t_dlq", "alerts").place("a", 3)
    assert collect() == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    Situations(raw, "t_dlq", "audit").place("a", 2)
    assert collect() == [("a", 3), ("b", 1)]
    lanelog_client.admin.delete_group("t_dlq", "audit", dry_run=False)
    assert collect() == [("b", 1)]
    lanelog_client.admin.delete_group("t_dlq", "alerts", dry_run=False)
    assert collect() == []


@pytest.mark.thorough
def test_settled_dead_letters_leave_by_themselves(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """Redriven or deleted, they and their rows go while somebody consumes the topic; there is no retention needed."""
    lanes = LetterRetention("").page_lanes + 5
    lanelog_client.publish_many("t", [*((f"k{n}", b"x") for n in range(lanes)), ("k0", b"x"), ("k1", b"x")])
    with lanelog_client.subscribe("t", "g", rejects, retention=0):
        eventually(lambda: len(letters(raw)) == lanes + 2)
    ids = [each.id for each in lanelog_client.admin.dead_letters("t", "g", limit=6)]
    lanelog_client.admin.delete_dead_letters("t", "g", ids=ids, dry_run=False)
    lanelog_client.admin.redrive("t", "g", all=True, dry_run=False)
    with lanelog_client.subscribe("t", "g", accept, retention=0):
        janitors.turn(lanelog_client)
    assert letters(raw) == []
    assert delivery_rows(raw, "", "t_dlq") == []


def test_maintenance_releases_dead_letters_by_retention(janitors: Janitors, lanelog_client: Client, raw: Any) -> None:
    """The same for a topic that nobody consumes, by what its groups were registered with."""
    lanelog_client.publish_many("t", [("a", b"x")] * 3)
    with lanelog_client.subscribe("t", "g", rejects, dead_letter_retention=600):
        eventually(lambda: len(letters(raw)) == 3)
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 700000 WHERE topic = 't_dlq' AND `offset` <= 2")
    assert lanelog_client.admin.maintain().dead_letters == 2
    assert letters(raw) == [("g", "a", 3)]
