"""Recurring messages: declared, fired exactly once, caught up with, steered; one process and its tables."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import lanelog
from lanelog import Client, ConfigurationError, PayloadTooLarge
from lanelog._client.announcements import ClientAnnouncements
from lanelog._database import Database, Session
from lanelog._engine.engine_context import EngineContext
from lanelog._engine.scheduling.scheduler import Scheduler
from lanelog._log.fire import recurring
from lanelog._log.fire.recurring import RecurringSchedules
from lanelog.migrations import check
from lanelog.publisher import Publisher
from support.commits import every_commit_unanswered_once
from support.old_tables import set_back
from support.publishing import appender_of
from support.sql import connect, one, rows
from support.waiting import events, eventually, raising

NOW = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000"
MINUTE = 60_000
YEARLY = "0 0 1 1 *"
BERLIN = ZoneInfo("Europe/Berlin")
Fired = Callable[[], int]


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """The connection that fires, whose clock is the one that counts."""
    session = database.session("firing")
    yield session
    session.close()


@pytest.fixture
def fired(database: Database, session: Session, publisher: Publisher, published: list[str]) -> Fired:
    """Fires what is due, as a loop does, until there is no more; how many messages that were."""
    hand = RecurringSchedules(database, appender_of(publisher, published.append))

    def fire() -> int:
        before = hand.fired
        while hand.fire_due(session):
            pass
        return hand.fired - before

    return fire


@pytest.fixture
def admin_only(lanelog_client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client that declares schedules, but has no loop that fires them."""
    monkeypatch.setattr(ClientAnnouncements, "scheduled", lambda _announcements, **_: None)
    return lanelog_client


def stop_the_clock(session: Session, milliseconds: int) -> None:
    """It is so late for what is fired from now on, and stays so."""
    session.execute("SET SESSION timestamp = %s", (Decimal(milliseconds) / 1000,))


def declared(client: Client, name: str = "s", expression: str = "* * * * *", **options: Any) -> Any:
    where = {"topic": "t", "key": "k", "payload": b"x", **options}
    return client.schedule(name, expression, **where)


def late_by(raw: Any, milliseconds: int, name: str = "s") -> int:
    """Move a schedule back, to the whole minute that is so long ago or a little longer; that time.

    Not at the end of a minute: the test goes on in the same one.
    """
    eventually(lambda: one(raw, f"SELECT ({NOW}) % {MINUTE} < {MINUTE} - 5000"))
    now = one(raw, f"SELECT {NOW}")
    first = int(now - milliseconds) // MINUTE * MINUTE
    sql = "UPDATE queue_schedules SET next_fire_at = %s, expression_at = %s, last_fire_at = 0 WHERE name = %s"
    rows(raw, sql, first, first - MINUTE, name)
    return first


def ids(raw: Any, topic: str = "t", key: str = "k") -> list[str]:
    sql = "SELECT id FROM queue_messages WHERE topic = %s AND partition_key = %s ORDER BY `offset`"
    return [message_id for (message_id,) in rows(raw, sql, topic, key)]


def named(name: str, first: int, count: int) -> list[str]:
    return [f"{name}@{datetime.fromtimestamp(first / 1000 + 60 * n, UTC):%Y-%m-%dT%H:%M:%SZ}" for n in range(count)]


def berlin(milliseconds: int) -> str:
    """The id of a message of `s` in Berlin."""
    there = datetime.fromtimestamp(milliseconds / 1000, BERLIN)
    return f"s@{there:%Y-%m-%dT%H:%M:%S}[Europe/Berlin]" + "[fold=1]" * there.fold


def berlin_row(milliseconds: int) -> str:
    """The same time in the row, with the offset of the moment: the tests run in summer, too."""
    there = datetime.fromtimestamp(milliseconds / 1000, BERLIN)
    return f"{there.isoformat()}[Europe/Berlin]" + "[fold=1]" * there.fold


def test_a_schedule_publishes_one_message_at_its_time(
    admin_only: Client, raw: Any, session: Session, fired: Fired, published: list[str]
) -> None:
    """The message has an id of name and wall-clock time, metadata, and expiry; the next time is noted."""
    info = declared(admin_only, metadata={"by": "ann"}, payload={"n": 1}, ttl=90.0, timezone="Europe/Berlin")
    assert (info.fired, info.last_fire_at, info.expression, info.payload) == (0, None, "* * * * *", b'{"n":1}')
    assert timedelta(0) < info.next_fire_at - info.created_at <= timedelta(minutes=1)
    first = one(raw, "SELECT next_fire_at FROM queue_schedules")
    assert info.next_fire_at == datetime.fromtimestamp(first / 1000, UTC)
    stop_the_clock(session, first - 1)
    assert fired() == 0
    stop_the_clock(session, first)
    assert fired() == 1
    assert published == ["t"]
    (message,) = admin_only.admin.messages("t", "k")
    text = f"{datetime.fromtimestamp(first / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert message.id == berlin(first)
    assert message.payload == b'{"n":1}'
    given = {"by": "ann", "content-type": "application/json"}
    assert message.metadata == {**given, "lanelog.schedule": "s", "lanelog.fire_time": text}
    assert one(raw, "SELECT expires_at - created_at FROM queue_messages") == 90_000
    (info,) = admin_only.admin.schedules()
    assert (info.fired, info.last_fire_at) == (1, datetime.fromtimestamp(first / 1000, UTC))
    assert info.next_fire_at == info.last_fire_at + timedelta(minutes=1)


def wall_clock(raw: Any) -> tuple[str, ...]:
    """The wall-clock times of the schedule: the next one, and the last one fired."""
    (row,) = rows(raw, "SELECT next_local, fired_local FROM queue_schedules")
    return tuple(row)


def test_what_was_published_is_not_published_again(admin_only: Client, raw: Any, fired: Fired) -> None:
    """The row's last fire time prevents a second publish. Without it, the message's id does."""
    declared(admin_only)
    first = late_by(raw, 0)
    assert fired() == 1
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s", first)
    assert fired() == 0
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s, last_fire_at = 0", first)
    assert fired() == 0
    assert one(raw, "SELECT next_fire_at FROM queue_schedules") == first + MINUTE
    assert ids(raw) == named("s", first, 1)
    assert one(raw, "SELECT head_offset FROM queue_partitions WHERE partition_key = 'k'") == 1


def test_what_the_version_before_published_is_not_published_again(admin_only: Client, raw: Any, fired: Fired) -> None:
    """The older version's row has moments alone, and so has its id. The row prevents a second publish; else the id."""
    declared(admin_only, timezone="Europe/Berlin")
    first = late_by(raw, 0)
    (old_id,) = named("s", first, 1)
    admin_only.publish("t", "k", b"x", id=old_id)
    rows(raw, "UPDATE queue_schedules SET last_fire_at = %s, next_local = '', tzdata = ''", first)
    assert fired() == 0
    assert one(raw, "SELECT next_fire_at FROM queue_schedules") == first + MINUTE
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s, last_fire_at = 0", first)
    assert fired() == 0
    assert ids(raw) == [old_id]


def test_the_version_before_may_fire_in_between(
    admin_only: Client, raw: Any, database: Database, session: Session, fired: Fired
) -> None:
    """The older version moves the moments on, and not the wall-clock times: these count no more; nothing is lost."""
    check(database)
    declared(admin_only, timezone="Europe/Berlin")
    first = late_by(raw, 0)
    stop_the_clock(session, first)
    assert fired() == 1
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s, last_fire_at = %s", first + 2 * MINUTE, first + MINUTE)
    assert "" not in wall_clock(raw)
    for number, count in ((1, 0), (2, 1), (3, 1)):
        stop_the_clock(session, first + number * MINUTE)
        assert fired() == count
    assert ids(raw) == [berlin(first + number * MINUTE) for number in (0, 2, 3)]
    assert wall_clock(raw) == tuple(berlin_row(first + number * MINUTE) for number in (4, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_after_an_hour_without_any_process(
    admin_only: Client, raw: Any, fired: Fired, caplog: pytest.LogCaptureFixture, catch_up: str
) -> None:
    """Once a minute: the most recent one, each of them in order, or none; an event says so; then the next minute."""
    declared(admin_only, catch_up=catch_up)
    first = late_by(raw, 60 * MINUTE)
    with caplog.at_level(logging.WARNING, "lanelog"):
        count = fired()
    now = one(raw, f"SELECT {NOW}")
    missed = (now - first) // MINUTE + 1
    assert missed in (61, 62)
    expected = {"latest": named("s", first, missed)[-1:], "all": named("s", first, missed), "none": []}[catch_up]
    assert ids(raw) == expected
    assert count == len(expected)
    (event,) = events(caplog, "schedule.missed")
    assert f"catch_up={catch_up}" in event
    assert f"published={count}" in event
    (info,) = admin_only.admin.schedules()
    assert info.next_fire_at == datetime.fromtimestamp((first + missed * MINUTE) / 1000, UTC)
    assert fired() == 0


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_being_late_by_a_moment_misses_nothing(
    admin_only: Client, raw: Any, session: Session, fired: Fired, catch_up: str
) -> None:
    """Once a second and three seconds late: each of them, in order."""
    declared(admin_only, expression="* * * * * *", catch_up=catch_up)
    now = one(raw, f"SELECT {NOW}")
    first = now // 1000 * 1000 - 3000
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s, expression_at = 1", first)
    stop_the_clock(session, now)
    assert fired() == 4
    found = [datetime.fromisoformat(each.partition("@")[2]) for each in ids(raw)]
    assert found == [datetime.fromtimestamp(first / 1000 + n, UTC) for n in range(4)]


def test_what_is_missed_is_published_in_bounded_transactions(admin_only: Client, raw: Any, fired: Fired) -> None:
    """More at once than one may have: in order, each once."""
    declared(admin_only, catch_up="all")
    most = recurring.TRANSACTION_MESSAGES
    first = late_by(raw, 2 * most * MINUTE)
    assert fired() > 2 * most
    assert ids(raw) == named("s", first, len(ids(raw)))


@pytest.mark.thorough
def test_many_schedules_share_transactions_and_lanes(admin_only: Client, raw: Any, fired: Fired) -> None:
    """A hundred and fifty of them over three topics and seven keys, all due: one message each, dense offsets."""
    for number in range(150):
        declared(admin_only, f"s{number:03}", YEARLY, topic=f"t{number % 3}", key=f"k{number % 7}")
    rows(raw, f"UPDATE queue_schedules SET next_fire_at = {NOW}")
    assert fired() == 150
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 150
    assert one(raw, "SELECT SUM(head_offset) FROM queue_partitions") == 150
    assert one(raw, f"SELECT COUNT(*) FROM queue_schedules WHERE next_fire_at > {NOW} AND fired = 1") == 150


@pytest.mark.thorough
def test_a_lane_that_somebody_holds_stops_no_other_schedule(
    admin_only: Client, raw: Any, open_raw: Callable[..., Any], fired: Fired
) -> None:
    """The lane is left for a later turn, at once; the others fire, also behind a long list of missed ones."""
    admin_only.publish("t", "busy", b"x")
    declared(admin_only, "a", key="busy", catch_up="all")
    declared(admin_only, "b", key="free")
    declared(admin_only, "c", key="busy", topic="other")
    late_by(raw, 600 * MINUTE, "a")
    first = late_by(raw, 0, "b")
    late_by(raw, 0, "c")
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'busy' FOR UPDATE")
    assert fired() == 2
    assert ids(raw, key="free") == named("b", first, 1)
    assert len(ids(raw, key="busy")) == 1
    assert fired() == 0
    holder.rollback()
    assert fired() >= 601


def test_a_row_that_somebody_holds_stops_no_other_schedule(
    admin_only: Client, raw: Any, open_raw: Callable[..., Any], fired: Fired
) -> None:
    """Another process fires the locked row."""
    declared(admin_only, "a")
    declared(admin_only, "b", key="k2")
    late_by(raw, 0, "a")
    late_by(raw, 0, "b")
    other = open_raw()
    rows(other, "SELECT 1 FROM queue_schedules FORCE INDEX (PRIMARY) WHERE name = 'a' FOR UPDATE")
    assert fired() == 1
    assert ids(raw) == []
    other.rollback()
    assert fired() == 1


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_that_is_not_answered_is_repeated_without_a_second_message(
    admin_only: Client, raw: Any, fired: Fired, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Whether it was done or not."""
    declared(admin_only, catch_up="all")
    admin_only.publish("t", "k", b"x")
    first = late_by(raw, 10 * MINUTE)
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        with pytest.raises(lanelog.DatabaseError):
            fired()
        fired()
        assert sum(lost) == 1
    found = ids(raw)[1:]
    assert found == named("s", first, len(found))
    assert len(found) >= 11


def test_a_faulty_schedule_stops_no_other_and_says_so_once(
    admin_only: Client, raw: Any, fired: Fired, caplog: pytest.LogCaptureFixture
) -> None:
    """A zone that this process does not know: the others fire, and a minute passes before it is tried again."""
    declared(admin_only, "a")
    declared(admin_only, "b", key="k2")
    late_by(raw, 0, "a")
    late_by(raw, 0, "b")
    rows(raw, "UPDATE queue_schedules SET timezone = 'Europe/Atlantis' WHERE name = 'a'")
    with caplog.at_level(logging.ERROR, "lanelog"):
        assert fired() == 1
        assert fired() == 0
    (event,) = events(caplog, "schedule.faulty")
    assert "Atlantis" in event


def test_a_held_schedule_is_tried_again_soon_and_a_faulty_one_is_not(
    database: Database, session: Session, publisher: Publisher, admin_only: Client, raw: Any, open_raw: Any
) -> None:
    """A faulty schedule is due all the time: the loop takes an ordinary turn, not one for what somebody holds."""
    hand = RecurringSchedules(database, appender_of(publisher))
    declared(admin_only, "a")
    late_by(raw, 0, "a")
    other = open_raw()
    rows(other, "SELECT name FROM queue_schedules WHERE name = 'a' FOR UPDATE")
    assert not hand.fire_due(session)
    assert hand.held
    other.rollback()
    rows(raw, "UPDATE queue_schedules SET timezone = 'Europe/Atlantis' WHERE name = 'a'")
    for _ in range(2):
        assert not hand.fire_due(session)
        assert not hand.held


# -- declaring ---------------------------------------------------------------------------------------------------------


def test_a_process_that_cannot_start_what_fires_has_declared_all_the_same(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The declaration is committed, other processes will fire it, and the caller must not believe otherwise."""
    monkeypatch.setattr(ClientAnnouncements, "scheduled", raising(RuntimeError, "can't start new thread"))
    with caplog.at_level(logging.ERROR, "lanelog"):
        assert declared(lanelog_client).name == "s"
    assert len(events(caplog, "publish.notification_failed")) == 1
    assert one(raw, "SELECT COUNT(*) FROM queue_schedules") == 1


def test_declaring_again_keeps_the_place_in_time(admin_only: Client, raw: Any, fired: Fired) -> None:
    """The same expression and zone: next time, count and pause stay; payload and the rest are the new ones."""
    before = declared(admin_only, metadata={"v": "1"})
    admin_only.admin.pause_schedule("s", by="me", reason="why")
    after = declared(admin_only, expression=" * *  * * * ", payload=b"new", topic="t2", catch_up="all", ttl=5)
    assert (after.payload, after.topic, after.catch_up, after.ttl, after.metadata) == (b"new", "t2", "all", 5.0, {})
    assert (after.paused_by, after.pause_reason, after.created_at) == ("me", "why", before.created_at)
    assert after.next_fire_at is None
    assert admin_only.admin.resume_schedule("s").changed
    late_by(raw, 0)
    declared(admin_only)
    assert fired() == 1


def test_a_changed_expression_or_zone_counts_from_now(admin_only: Client) -> None:
    """The next time is one of the new expression, after the declaration."""
    assert declared(admin_only, expression="0 12 1 1 *").next_fire_at.hour == 12
    changed = declared(admin_only, expression="0 13 1 1 *")
    assert changed.next_fire_at.hour == 13
    there = declared(admin_only, expression="0 13 1 1 *", timezone="Asia/Kolkata")
    assert (there.next_fire_at.hour, there.next_fire_at.minute) == (7, 30)
    assert there.next_fire_at > there.updated_at


@pytest.mark.parametrize("anew", [False, True], ids=["changed", "removed and declared anew"])
def test_a_move_to_a_zone_in_the_west_loses_no_time(
    admin_only: Client, raw: Any, session: Session, fired: Fired, anew: bool
) -> None:
    """The wall clock shows again what it has shown in the other zone: these are other occurrences, each with an id."""
    hour = 60 * MINUTE
    declared(admin_only, expression="0 * * * *", timezone="Europe/Berlin", catch_up="all")
    before = one(raw, "SELECT next_fire_at FROM queue_schedules") - 8 * hour
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s, expression_at = %s", before, before - 1)
    assert fired() >= 8
    if anew:
        admin_only.admin.remove_schedule("s")
    declared(admin_only, expression="0 * * * *", timezone="America/New_York")
    first = one(raw, "SELECT next_fire_at FROM queue_schedules")
    for number in range(8):
        stop_the_clock(session, first + number * hour)
        assert fired() == 1
        assert "[America/New_York]" in ids(raw)[-1]
    moments = [message.metadata["lanelog.fire_time"] for message in admin_only.admin.messages("t", "k")]
    assert moments == [
        f"{datetime.fromtimestamp(each / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for each in range(before, first + 8 * hour, hour)
    ]


def test_a_change_loses_no_time_that_is_due(admin_only: Client, raw: Any, fired: Fired) -> None:
    """Old and new version declare in turn, right when it is due: it is published once, as of the last declaration."""
    declared(admin_only)
    first = late_by(raw, 0)
    for number in range(6):
        declared(admin_only, expression=YEARLY if number % 2 else "* * * * *", payload=str(number))
    assert fired() == 1
    assert ids(raw) == named("s", first, 1)
    (info,) = admin_only.admin.schedules()
    assert (info.expression, info.payload) == (YEARLY, b"5")
    assert (info.next_fire_at.month, info.next_fire_at.day) == (1, 1)


@pytest.mark.thorough
def test_two_versions_that_declare_at_once_lose_and_double_nothing(
    admin_only: Client, lanelog_url: str, raw: Any, fired: Fired
) -> None:
    """The same times in both, though written differently, from two clients over and over while it fires.

    The fires are late by less than the period. Of several times that are due, another expression leaves the first.
    """
    stop = threading.Event()

    def keep_declaring(expression: str) -> None:
        with lanelog.connect(lanelog_url) as client:
            while not stop.is_set():
                declared(client, expression=expression, payload=expression, catch_up="all")

    def enough() -> bool:
        fired()
        return len(ids(raw)) >= 3

    with ThreadPoolExecutor(2) as pool:
        declaring = [pool.submit(keep_declaring, each) for each in ("*/5 * * * * *", "0/5 * * * * *")]
        try:
            eventually(enough, within=30)
        finally:
            stop.set()
        for future in declaring:
            future.result(30)
    found = [datetime.fromisoformat(each.partition("@")[2]) for each in ids(raw)]
    assert found == [found[0] + timedelta(seconds=5 * n) for n in range(len(found))]


def test_what_is_too_large_is_refused_before_anything_is_written(admin_only: Client, raw: Any) -> None:
    """A payload, or metadata that has no room for name and time."""
    with pytest.raises(PayloadTooLarge, match="max_payload_bytes"):
        declared(admin_only, payload=b"x" * (1024 * 1024 + 1))
    with pytest.raises(PayloadTooLarge, match="metadata"):
        declared(admin_only, metadata={"a": "x" * 65_500})
    assert rows(raw, "SELECT * FROM queue_schedules") == []


# -- steering ----------------------------------------------------------------------------------------------------------


def test_a_paused_schedule_fires_nothing_and_what_it_misses_is_skipped(
    admin_only: Client, raw: Any, fired: Fired
) -> None:
    """Any `catch_up` skips; the list shows who paused it, why and since when; resumed, it takes the next time."""
    declared(admin_only, catch_up="all")
    late_by(raw, 0)
    assert admin_only.admin.pause_schedule("s", dry_run=True).changed
    paused = admin_only.admin.pause_schedule("s", by="me", reason="why")
    assert (paused.changed, paused.by, paused.reason) == (True, "me", "why")
    again = admin_only.admin.pause_schedule("s", by="you")
    assert (again.changed, again.by, again.paused_at) == (False, "me", paused.paused_at)
    late_by(raw, 60 * MINUTE)
    assert fired() == 0
    (info,) = admin_only.admin.schedules()
    assert (info.paused_at, info.paused_by, info.pause_reason) == (paused.paused_at, "me", "why")
    assert (info.next_fire_at, info.fired) == (None, 0)
    assert admin_only.admin.resume_schedule("s", dry_run=True).changed
    resumed = admin_only.admin.resume_schedule("s")
    assert (resumed.changed, resumed.by, resumed.paused_at) == (True, "me", paused.paused_at)
    assert not admin_only.admin.resume_schedule("s").changed
    assert resumed.next_fire_at > paused.paused_at
    (info,) = admin_only.admin.schedules()
    assert (info.next_fire_at, info.paused_at) == (resumed.next_fire_at, None)
    assert ids(raw) == []
    late_by(raw, 0)
    assert fired() == 1


def test_a_removed_schedule_is_gone_and_its_messages_stay(admin_only: Client, raw: Any, fired: Fired) -> None:
    """Until it is declared again, as a new one."""
    declared(admin_only)
    late_by(raw, 0)
    assert fired() == 1
    assert admin_only.admin.remove_schedule("s", dry_run=True).fired == 1
    assert len(admin_only.admin.schedules()) == 1
    assert admin_only.admin.remove_schedule("s").key == "k"
    assert admin_only.admin.schedules() == []
    assert len(ids(raw)) == 1
    assert declared(admin_only).fired == 0


def test_a_run_publishes_one_message_besides_those_of_the_times(admin_only: Client, raw: Any, fired: Fired) -> None:
    """No time moves, the audit has who and why, and the occurrence of the same moment is fired, too."""
    declared(admin_only, metadata={"by": "ann"}, ttl=90.0)
    late_by(raw, 0)
    before = rows(raw, "SELECT * FROM queue_schedules")
    operator = admin_only.admin.acting("bob", "the report was wrong")
    planned = operator.run_schedule("s", dry_run=True)
    assert (planned.changed, planned.offset, ids(raw), operator.audit()) == (True, None, [], [])
    done = operator.run_schedule("s")
    assert (done.topic, done.key, done.offset, done.changed) == ("t", "k", 1, True)
    assert ids(raw) == [done.id]
    assert done.id.startswith("s@run-")
    (message,) = admin_only.admin.messages("t", "k")
    assert message.payload == b"x"
    metadata = dict(message.metadata)
    fire_time = datetime.fromisoformat(metadata.pop("lanelog.fire_time"))
    assert metadata == {"by": "ann", "lanelog.schedule": "s"}
    assert timedelta(0) <= message.published_at - fire_time < timedelta(seconds=5)
    assert one(raw, "SELECT expires_at - created_at FROM queue_messages") == 90_000
    (act,) = admin_only.admin.audit()
    entry = (act.verb, act.by, act.reason, act.choice, act.messages)
    assert entry == ("run_schedule", "bob", "the report was wrong", "schedule s", 1)
    rows(raw, "UPDATE queue_schedules SET fired = fired - 1")
    assert rows(raw, "SELECT * FROM queue_schedules") == before
    assert fired() == 1
    assert len(set(ids(raw))) == 2


def test_a_token_runs_a_schedule_once(admin_only: Client, raw: Any) -> None:
    """For callers at the same time, too, and for a paused one, which stays paused. Another token runs it again."""
    declared(admin_only)
    admin_only.admin.pause_schedule("s")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: admin_only.admin.run_schedule("s", token="a.b-c_1"), range(4)))
    assert sorted(each.changed for each in found) == [False, False, False, True]
    assert {(each.offset, each.next_fire_at) for each in found} == {(1, None)}
    assert admin_only.admin.run_schedule("s", token="2", dry_run=True).changed
    assert admin_only.admin.run_schedule("s", token="2").offset == 2
    assert admin_only.admin.run_schedule("s", token="2", dry_run=True).offset == 2
    assert ids(raw) == ["s@run-a.b-c_1", "s@run-2"]
    (info,) = admin_only.admin.schedules()
    assert (info.fired, info.next_fire_at) == (2, None)
    assert len([act for act in admin_only.admin.audit() if act.verb == "run_schedule"]) == 2


@pytest.mark.parametrize("table", ["queue_schedules", "queue_partitions"])
def test_a_run_waits_for_locks_and_holds_up_no_firing(
    admin_only: Client, raw: Any, lanelog_url: str, fired: Fired, table: str
) -> None:
    """The run waits for the schedule's row and the lane's head. The scheduler skips both, and fires them later."""
    declared(admin_only)
    declared(admin_only, name="other", key="elsewhere")
    admin_only.publish("t", "k", b"x")
    late_by(raw, 0)
    late_by(raw, 0, name="other")
    with connect(lanelog_url, autocommit=False) as holder, ThreadPoolExecutor(1) as pool:
        chosen = "name = 's'" if table == "queue_schedules" else "topic = 't' AND partition_key = 'k'"
        rows(holder, f"SELECT 1 FROM {table} WHERE {chosen} FOR UPDATE")
        run = pool.submit(admin_only.admin.run_schedule, "s")
        assert fired() == 1
        assert ids(raw, key="elsewhere")
        assert not run.done()
        holder.rollback()
        done = run.result(20)
    assert (done.changed, done.offset) == (True, 2)
    assert fired() == 1
    assert len(ids(raw)) == 3


def test_a_run_needs_no_lane(admin_only: Client, raw: Any) -> None:
    """A lane that was purged comes back, and subscribers of this process look at once."""
    declared(admin_only, name="n" * 200, topic="new")
    told: list[str] = []
    admin = lanelog.admin.Admin(admin_only._database, appender_of(admin_only._publisher, told.append), lambda: None)
    longest = admin.run_schedule("n" * 200, token="x" * 50)
    assert ids(raw, topic="new") == [longest.id]
    assert len(longest.id) == 255
    admin.run_schedule("n" * 200, token="x" * 50)
    assert told == ["new"]


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_steering_survives_a_commit_that_is_not_answered(
    admin_only: Client, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Declared, paused, resumed, run and removed once each."""
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        declared(admin_only)
        admin_only.admin.pause_schedule("s", by="me")
        assert admin_only.admin.schedules()[0].paused_by == "me"
        admin_only.admin.resume_schedule("s")
        assert admin_only.admin.schedules()[0].paused_at is None
        done = admin_only.admin.run_schedule("s")
        assert (done.changed, done.offset) == (True, 1)
        assert len(admin_only.admin.messages("t", "k")) == 1
        assert admin_only.admin.remove_schedule("s").name == "s"
        assert sum(lost) >= 3  # a repetition that finds it done changes nothing
    assert admin_only.admin.schedules() == []


def test_a_preview_begins_now_or_at_a_given_time(admin_only: Client) -> None:
    """The preview has as many times as asked for; the next test shows that the same ones are fired."""
    preview = admin_only.admin.preview_schedule
    (soon,) = preview("* * * * *", count=1)
    assert timedelta(0) < soon - datetime.now(UTC) <= timedelta(minutes=1, seconds=5)
    spring = preview("30 2 * * *", timezone="Europe/Berlin", count=2, after=datetime(2027, 3, 27, tzinfo=UTC))
    assert [each.isoformat() for each in spring] == ["2027-03-27T02:30:00+01:00", "2027-03-28T03:00:00+02:00"]
    for wrong in ({"count": 0}, {"count": 1001}, {"after": datetime(2027, 1, 1)}, {"after": "now"}, {"timezone": "x"}):  # noqa: DTZ001
        with pytest.raises(ConfigurationError):
            preview("* * * * *", **wrong)


@pytest.mark.thorough
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 1-3 * * *", "0 30 2 * * *"])
@pytest.mark.parametrize("begin", [datetime(2027, 3, 26, tzinfo=UTC), datetime(2027, 10, 29, tzinfo=UTC)])
def test_what_is_fired_across_a_change_of_the_clock_is_what_the_preview_shows(
    admin_only: Client, raw: Any, session: Session, fired: Fired, begin: datetime, expression: str
) -> None:
    """By a server whose clock passes through that night: each fire at its own time, one after the other."""
    shown = admin_only.admin.preview_schedule(expression, timezone="Europe/Berlin", count=12, after=begin)
    declared(admin_only, expression=expression, timezone="Europe/Berlin")
    first = int(shown[0].timestamp() * 1000)
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s, expression_at = 0", first)
    for moment in shown:
        for seconds, count in ((-0.5, 0), (0.2, 1)):
            stop_the_clock(session, int((moment.timestamp() + seconds) * 1000))
            assert fired() == count
    assert ids(raw) == [berlin(int(each.timestamp() * 1000)) for each in shown]


def test_maintain_fires_what_is_due(admin_only: Client, raw: Any) -> None:
    """For topics where no process of the queue runs; of the topics that are given, or of all."""
    declared(admin_only, "a", topic="t1")
    declared(admin_only, "b", topic="t2")
    admin_only.publish("t1", "k", b"x")
    late_by(raw, 0, "a")
    late_by(raw, 0, "b")
    assert admin_only.admin.maintain(topics=["t1"]).fired == 1
    assert admin_only.admin.maintain().fired == 1
    assert admin_only.admin.maintain().fired == 0
    assert len(ids(raw, "t2")) == 1


# -- a clock that was wrong --------------------------------------------------------------------------------------------


@pytest.fixture
def scheduler(database: Database, publisher: Publisher, published: list[str]) -> Iterator[Scheduler]:
    """A scheduler whose turns the test takes. The connection's clock says how late it is."""
    scheduler = Scheduler(EngineContext(database, appender_of(publisher, published.append)))
    yield scheduler
    scheduler.close()


def turns_at(scheduler: Scheduler, milliseconds: int) -> None:
    """Turns of the scheduler until nothing more can be done at that time."""
    stop_the_clock(scheduler.session, milliseconds)
    while scheduler.turn(time.monotonic()) == 0.0:
        pass


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_a_clock_that_was_an_hour_ahead_silences_no_schedule(
    admin_only: Client, raw: Any, scheduler: Scheduler, caplog: pytest.LogCaptureFixture, catch_up: str
) -> None:
    """Set back, it fires at its next time; what was fired for a time to come is not fired again when that comes."""
    hour = 60 * MINUTE
    declared(admin_only, catch_up=catch_up)
    first = one(raw, "SELECT next_fire_at FROM queue_schedules")
    turns_at(scheduler, first)
    turns_at(scheduler, first + hour)
    early = {"latest": named("s", first + hour, 1), "all": named("s", first + MINUTE, 60), "none": []}[catch_up]
    assert ids(raw) == named("s", first, 1) + early
    turns_at(scheduler, first + MINUTE // 2)
    assert len(events(caplog, "schedule.clock_went_back")) == 1
    turns_at(scheduler, first + MINUTE)
    turns_at(scheduler, first + 2 * MINUTE)
    again = [] if catch_up == "all" else named("s", first + MINUTE, 2)
    assert ids(raw) == named("s", first, 1) + early + again
    turns_at(scheduler, first + hour)
    turns_at(scheduler, first + hour + MINUTE)
    assert len(ids(raw)) == len(set(ids(raw)))
    assert ids(raw)[-1:] == named("s", first + hour + MINUTE, 1)
    assert len(events(caplog, "schedule.clock_went_back")) == 1


def test_a_schedule_that_was_declared_by_a_clock_that_was_ahead_fires(
    admin_only: Client, raw: Any, scheduler: Scheduler
) -> None:
    """A process that starts after the clock was set back looks at once: since when the expression holds counts not."""
    declared(admin_only)
    first = one(raw, "SELECT next_fire_at FROM queue_schedules")
    sql = "UPDATE queue_schedules SET next_fire_at = next_fire_at + %s, expression_at = expression_at + %s"
    rows(raw, sql, 60 * MINUTE, 60 * MINUTE)
    turns_at(scheduler, first - 1000)
    turns_at(scheduler, first)
    turns_at(scheduler, first + MINUTE)
    assert ids(raw) == named("s", first, 2)


def test_a_last_time_in_the_future_holds_up_nothing_that_is_due(
    admin_only: Client, raw: Any, session: Session, fired: Fired
) -> None:
    """A new expression goes on from the right clock, too; a server that is some seconds behind waits."""
    declared(admin_only)
    first = one(raw, "SELECT next_fire_at FROM queue_schedules")
    rows(raw, "UPDATE queue_schedules SET last_fire_at = %s", first + 60 * MINUTE)
    stop_the_clock(session, first)
    assert fired() == 1
    assert one(raw, "SELECT last_fire_at FROM queue_schedules") == first
    rows(raw, "UPDATE queue_schedules SET next_fire_at = %s", first)
    rows(raw, "DELETE FROM queue_messages")
    stop_the_clock(session, first - 3000)
    assert fired() == 0


def test_maintenance_goes_on_with_schedules_after_a_clock_went_back(admin_only: Client, raw: Any) -> None:
    """No client fires them here."""
    declared(admin_only)
    first = one(raw, "SELECT next_fire_at FROM queue_schedules")
    rows(raw, "UPDATE queue_schedules SET next_fire_at = next_fire_at + %s", 60 * MINUTE)
    admin_only.admin.maintain()
    assert one(raw, "SELECT next_fire_at FROM queue_schedules") in (first, first + MINUTE)


@pytest.mark.parametrize(
    "fault", ["next_fire_at = 9223372036854775808", "next_fire_at = next_fire_at + 60000, timezone = 'Europe/Atlantis'"]
)
def test_a_waiting_schedule_that_is_faulty_stops_no_other_duty(
    admin_only: Client, raw: Any, scheduler: Scheduler, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """A time beyond the calendar, or a zone that this process does not know: others are set back, fired, appended."""
    for name in ("a", "b"):
        declared(admin_only, name, timezone="Europe/Berlin")
    first = one(raw, "SELECT next_fire_at FROM queue_schedules WHERE name = 'b'")
    rows(raw, f"UPDATE queue_schedules SET {fault} WHERE name = 'a'")
    rows(raw, "UPDATE queue_schedules SET next_fire_at = next_fire_at + %s WHERE name = 'b'", 60 * MINUTE)
    admin_only.publish("t", "later", b"x", id="d", delay=1)
    turns_at(scheduler, first - 1)
    turns_at(scheduler, first)
    assert [each for each in ids(raw) if each.startswith("b@")] != []
    eventually(lambda: turns_at(scheduler, first + 5000) or ids(raw, key="later") == ["d"])
    atlantis = "Atlantis" in fault
    assert len(events(caplog, "schedule.faulty")) == atlantis
    assert len(events(caplog, "schedule.clock_went_back")) == (1 if atlantis else 2)
    rows(raw, f"UPDATE queue_schedules SET {fault} WHERE name = 'a'")
    assert admin_only.admin.maintain().failed == {}


# -- tables of the version before --------------------------------------------------------------------------------------


def test_on_tables_of_the_version_before_schedules_work_without_the_new_columns(
    lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared, listed, paused, resumed, fired once and corrected by a process that found them so."""
    set_back(raw, 5)
    monkeypatch.setattr(ClientAnnouncements, "scheduled", lambda _announcements, **_: None)
    with lanelog.connect(lanelog_url) as client:
        client.ping()
        declared(client, timezone="Europe/Berlin")
        client.admin.pause_schedule("s")
        assert client.admin.resume_schedule("s").changed
        first = late_by(raw, 0)
        assert client.admin.maintain().fired >= 1
        assert ids(raw)[0] == berlin(first)
        rows(raw, "UPDATE queue_schedules SET next_fire_at = next_fire_at + %s", 60 * MINUTE)
        client.admin.maintain()
        (info,) = client.admin.schedules()
        assert info.next_fire_at is not None
        assert info.next_fire_at - info.updated_at < timedelta(minutes=5)
        assert len(ids(raw)) == len(set(ids(raw)))
        assert client.admin.remove_schedule("s").fired >= 1
