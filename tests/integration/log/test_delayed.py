"""Messages with a delay: when they are appended, in which order, under which ids, and by whom."""

import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from attrs import define, evolve

import lanelog
from lanelog import Client, Outgoing, Receipt
from lanelog._database import Database, Session
from lanelog._engine.engine_context import EngineContext
from lanelog._engine.scheduling import scheduler
from lanelog._engine.scheduling.scheduler import Scheduler, SchedulerPace
from lanelog._log.due import DelayedMessages
from lanelog._stores._due_soon import HORIZON_MS
from lanelog.publisher import Publisher
from support.clocks import clock, libfaketime
from support.commands import commands_sent
from support.memberships import Clock
from support.pace import paced
from support.processes import Fleet
from support.publishing import appender_of
from support.situations import NOW
from support.sql import one, rows
from support.waiting import Record, accept, events, eventually


@pytest.fixture
def by_hand(database: Database, publisher: Publisher, published: list[str]) -> Iterator[Scheduler]:
    """A scheduler whose turns are taken by the test."""
    turning = Scheduler(EngineContext(database, appender_of(publisher, published.append)))
    yield turning
    turning.close()


@pytest.fixture
def waits_of_appending(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The hand by which it is told when a busy lane is tried again, moved by the test alone."""
    hand = Clock()
    monkeypatch.setattr("lanelog._log.due.time", hand)
    return hand


def log(raw: Any, key: str = "k", topic: str = "t") -> list[str]:
    """The ids of a lane in order of their offsets, which are dense."""
    sql = "SELECT `offset`, id FROM queue_messages WHERE topic = %s AND partition_key = %s ORDER BY 1"
    found = rows(raw, sql, topic, key)
    assert [offset for offset, _ in found] == list(range(1, len(found) + 1))
    return [message_id for _, message_id in found]


def waiting(raw: Any) -> list[str]:
    """The ids that are scheduled."""
    return [message_id for (message_id,) in rows(raw, "SELECT id FROM queue_scheduled ORDER BY id")]


def make_due(raw: Any, *, ago: int = 1) -> None:
    """Everything that is scheduled becomes due, in the same order."""
    rows(raw, f"UPDATE queue_scheduled SET deliver_at = deliver_at - 3600000 - {ago}")


def lateness(raw: Any, message_id: str, delay: float) -> int:
    """Wait until it is in the log; for how many milliseconds it had been due, by the database's clock."""
    eventually(lambda: not waiting(raw))
    published, created = rows(raw, "SELECT published_at, created_at FROM queue_messages WHERE id = %s", message_id)[0]
    return int(created - published - delay * 1000)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Record:
    """Each turn of a scheduler: in how many milliseconds it found a message to be due, and how long it waits then."""
    turns, found, turn, ask = Record(), Record(), Scheduler.turn, Session.one

    def asked(session: Session, sql: str, args: Any = ()) -> Any:
        row = ask(session, sql, args)
        if sql == scheduler.NEXT:
            found(None if row is None else row[0])
        return row

    def turned(turning: Scheduler, now: float) -> float:
        wait = turn(turning, now)
        turns((found.items[-1], wait))
        return wait

    monkeypatch.setattr(Session, "one", asked)
    monkeypatch.setattr(Scheduler, "turn", turned)
    return turns


# -- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_message_with_a_delay_is_delivered_when_it_is_due(lanelog_client: Client, raw: Any) -> None:
    """The message gets its offset when it is due, not before: messages published meanwhile are before it."""
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda message: seen((message.id, message.offset, time.monotonic(), message)))
    begun = time.monotonic()
    receipt = lanelog_client.publish("t", "k", b"later", id="a", delay=3600, metadata={"by": "ann"})
    assert receipt == Receipt(0, "a", duplicate=False)
    assert lanelog_client.publish("t", "k", b"now", id="b") == Receipt(1, "b", duplicate=False)
    rows(raw, "UPDATE queue_scheduled SET deliver_at = deliver_at - 3600000 + 600")
    got = seen.wait(2)
    assert [(message_id, offset) for message_id, offset, *_ in got] == [("b", 1), ("a", 2)]
    at, message = got[1][2:]
    assert at - begun >= 0.6
    assert (message.payload, dict(message.metadata)) == (b"later", {"by": "ann"})
    published, created = rows(raw, "SELECT published_at, created_at FROM queue_messages WHERE id = 'a'")[0]
    assert created - published >= 600
    assert int(message.published_at.timestamp() * 1000) == published
    assert waiting(raw) == []


@pytest.mark.thorough
def test_deliver_at_is_an_instant_and_one_in_the_past_is_due_at_once(lanelog_client: Client, raw: Any) -> None:
    """By the database's clock."""
    now = one(raw, f"SELECT {NOW}")
    at = datetime.fromtimestamp(now / 1000, UTC)
    assert lanelog_client.publish("t", "k", b"x", id="past", deliver_at=datetime(2001, 1, 1, tzinfo=UTC)).offset == 0
    assert lanelog_client.publish("t", "k", b"x", id="soon", deliver_at=at + timedelta(seconds=0.7)).offset == 0
    assert lanelog_client.publish("t", "k", b"x", id="far", deliver_at=at + timedelta(hours=1)).offset == 0
    assert one(raw, "SELECT deliver_at FROM queue_scheduled WHERE id = 'far'") - now == 3_600_000
    eventually(lambda: log(raw) == ["past", "soon"])
    assert one(raw, "SELECT created_at FROM queue_messages WHERE id = 'soon'") - now >= 700


@pytest.mark.thorough
@pytest.mark.parametrize("subscribes", [pytest.param(True, id="subscriber"), pytest.param(False, id="publisher")])
def test_an_idle_client_reads_at_the_moment_at_which_a_message_is_due(
    lanelog_client: Client, raw: Any, turns: Record, subscribes: bool
) -> None:
    """A scheduled message wakes the scheduler, whatever its delay; each poll plans the next for then at the latest."""
    if subscribes:
        lanelog_client.subscribe("other", "g", accept)
    late = []
    for number, delay in enumerate((1.6, 0.3, 0.05)):
        lanelog_client.publish("t", "k", b"x", id=f"{number}", delay=delay)
        late.append(lateness(raw, f"{number}", delay))
        if number == 0:  # the next look would be too late for the others, which are seen from here on
            assert all(wait < HORIZON_MS / 1000 for due_in_ms, wait in turns.items if due_in_ms is None)
            lanelog_client._engine._scheduler.pace = SchedulerPace(turn_seconds=100.0)
    assert min(late) >= 0
    assert [due_in_ms for due_in_ms, _ in turns.items if due_in_ms is not None and due_in_ms > 0]
    assert all(wait * 1000 <= max(due_in_ms, 0) for due_in_ms, wait in turns.items if due_in_ms is not None)


def test_what_has_been_due_for_long_is_appended_by_whoever_comes(
    by_hand: Scheduler, publisher: Publisher, raw: Any
) -> None:
    """At once by a client that starts, now and then by one that runs; which otherwise does not look that far back."""
    publisher.publish("t", Outgoing("k", b"x", id="old", delay=3600))
    make_due(raw, ago=3_600_000)
    assert by_hand.turn(0.0) == 0.0
    assert log(raw) == ["old"]
    publisher.publish("t", Outgoing("k", b"x", id="new", delay=3600))
    make_due(raw)
    by_hand.turn(1.0)
    by_hand.turn(2.0)  # nothing is left of any age
    publisher.publish("t", Outgoing("k", b"x", id="late", delay=3600))
    make_due(raw, ago=3_600_000)
    by_hand.turn(2.0 + by_hand.pace.full_poll_seconds / 2)
    assert log(raw) == ["old", "new"]
    by_hand.turn(2.0 + by_hand.pace.full_poll_seconds)
    assert log(raw) == ["old", "new", "late"]


@pytest.mark.thorough
def test_a_subscriber_sees_what_a_process_that_is_gone_has_scheduled(
    lanelog_client: Client, publisher: Publisher, raw: Any
) -> None:
    """By its keeper's turns, of which there are four a second, although it looks for itself less often."""
    paced(lanelog_client, scheduler={"turn_seconds": 100.0})
    lanelog_client.subscribe("other", "g", accept)
    late = []
    for number in range(3):
        publisher.publish("t", Outgoing("k", b"x", id=f"{number}", delay=0.1))  # no client, no loop of its own
        late.append(lateness(raw, f"{number}", 0.1))
    assert min(late) >= 0


def test_a_client_that_only_publishes_has_one_loop_from_its_first_delay_on(lanelog_url: str, raw: Any) -> None:
    """No thread and no connection before, with PyMySQL. None when it is closed; what is left waits for others.

    The loop's connection is watched by a thread of its own: it may wait for a packet that the server has stopped.
    """

    def loops() -> list[str]:
        return sorted(each.name for each in threading.enumerate() if each.name.startswith("lanelog-"))

    before = loops()
    client = lanelog.connect(lanelog_url, driver="pymysql")
    client.publish("t", "k", b"x", delay=0)
    client.publish("t", "k", b"x", ttl=5)
    assert loops() == before
    client.publish("t", "k", b"x", id="a", delay=0.1)
    eventually(lambda: log(raw)[2:] == ["a"])
    client.publish("t", "k", b"x", id="b", delay=3600)
    assert loops() == sorted([*before, "lanelog-packets", "lanelog-scheduler"])
    assert client.close()
    assert loops() == before
    assert waiting(raw) == ["b"]


@pytest.mark.thorough
def test_a_forked_child_has_a_scheduler_of_its_own(fleet: Fleet, raw: Any) -> None:
    """From its first message with a delay on; the parent's is closed meanwhile."""
    program = fleet.start("parent", "delaying.py", keys=["k"], delay=0.3, fork=True)
    assert program.said("appended")[0].fields == {"threads": ["lanelog-scheduler"], "closed": True}
    assert program.said("forked")[0]["status"] == 0
    assert "child" in log(raw)
    assert fleet.heard("log") == []


def test_a_client_with_a_scheduler_that_was_never_closed_says_so(lanelog_url: str) -> None:
    """A ResourceWarning, as for a subscription."""
    client = lanelog.connect(lanelog_url)
    client.publish("t", "k", b"x", delay=3600)
    engine = client._engine
    with pytest.warns(ResourceWarning, match="never closed"):
        del client
    engine.close()


def test_a_delay_costs_an_idle_client_one_statement_a_second_at_most(by_hand: Scheduler, publisher: Publisher) -> None:
    """Each look is one, with much that waits and nothing that is due; and then it waits for a second at least."""
    publisher.publish_many("t", [Outgoing(f"k{n}", b"x", delay=3600) for n in range(1000)])
    by_hand.turn(0.0)  # the greeting of a new connection is over
    with commands_sent() as sent:
        waits = [by_hand.turn(2.0 * by_hand.pace.full_poll_seconds * number) for number in range(10)]
    assert len(sent) == 10
    assert min(waits) >= 1.0


def test_clocks_an_hour_wrong_make_no_difference(fleet: Fleet, raw: Any) -> None:
    """Processes an hour fast and slow append at the database's time, and what they schedule is due at that."""
    library = libfaketime()
    programs = [
        fleet.start(name, "delaying.py", environment=clock(library, offset), keys=["a", "b"], delay=0.5)
        for name, offset in (("fast", "+1h"), ("slow", "-1h"))
    ]
    for program in programs:
        program.said("scheduled")
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") == 4)
    early = one(raw, "SELECT MIN(CAST(created_at AS SIGNED) - CAST(published_at AS SIGNED)) FROM queue_messages")
    assert early >= 500


# -- ids and duplicates ------------------------------------------------------------------------------------------------


def test_an_id_is_there_once_in_the_schedule_and_the_log(
    publisher: Publisher, appending: DelayedMessages, raw: Any
) -> None:
    """Delayed twice, delayed then normal, normal then delayed, in one call or several: the first one counts."""

    def publish(key: str, payload: bytes, *, id: str, delay: float | None = None) -> Receipt:  # noqa: A002
        return publisher.publish("t", Outgoing(key, payload, id, delay=delay))

    assert publish("k", b"1", id="a", delay=3600) == Receipt(0, "a", duplicate=False)
    assert publish("k", b"2", id="a", delay=1) == Receipt(0, "a", duplicate=True)
    assert publish("k", b"3", id="a") == Receipt(0, "a", duplicate=True)
    assert publish("other", b"3", id="a") == Receipt(1, "a", duplicate=False)  # another lane
    assert publish("k", b"4", id="b") == Receipt(1, "b", duplicate=False)
    assert publish("k", b"5", id="b", delay=3600) == Receipt(1, "b", duplicate=True)
    items = [
        Outgoing("k", b"6", "c", delay=3600),
        Outgoing("k", b"7", "c"),
        Outgoing("k", b"8", "d"),
        Outgoing("k", b"9", "d", delay=3600),
        Outgoing("k", b"10", "a"),
    ]
    receipts = [(r.offset, r.duplicate) for r in publisher.publish_many("t", items)]
    assert receipts == [(0, False), (0, True), (2, False), (2, True), (0, True)]
    make_due(raw)
    assert appending.append() == 2
    assert log(raw) == ["b", "d", "a", "c"]
    assert publish("k", b"11", id="a", delay=3600) == Receipt(3, "a", duplicate=True)
    payloads = dict(rows(raw, "SELECT id, payload FROM queue_messages WHERE partition_key = 'k'"))
    assert payloads == {"a": b"1", "b": b"4", "c": b"6", "d": b"8"}
    assert waiting(raw) == []


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_in_a_callers_transaction_it_is_scheduled_if_and_only_if_that_commits(
    publisher: Publisher, open_raw: Any, raw: Any, appending: DelayedMessages, isolation: str
) -> None:
    """Duplicates are met there as well: committed ones, and those of the same transaction."""
    mine = open_raw()
    rows(mine, f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    rows(mine, "SELECT * FROM queue_groups")  # an old snapshot
    publisher.publish("t", Outgoing("k", b"x", id="logged"))
    publisher.publish("t", Outgoing("k", b"x", id="waiting", delay=3600))

    def publish(message_id: str, delay: float | None = None) -> tuple[int, bool]:
        receipt = publisher.publish("t", Outgoing("k", b"x", id=message_id, delay=delay), connection=mine)
        return receipt.offset, receipt.duplicate

    assert publish("a", 3600) == (0, False)
    mine.rollback()
    assert waiting(raw) == ["waiting"]
    mine.begin()
    assert publish("logged", 3600) == (1, True)
    assert publish("waiting", 3600) == (0, True)
    assert publish("waiting") == (0, True)
    assert publish("a", 3600) == (0, False)
    assert publish("a", 3600) == (0, True)
    assert publish("b") == (2, False)
    assert publish("b") == (2, True)
    assert waiting(raw) == ["waiting"]
    mine.commit()
    assert waiting(raw) == ["a", "waiting"]
    make_due(raw)
    assert appending.append() == 2
    assert sorted(log(raw)) == ["a", "b", "logged", "waiting"]


def test_an_id_used_both_ways_in_one_transaction_of_a_caller_ends_in_one_message(
    publisher: Publisher, open_raw: Any, raw: Any, appending: DelayedMessages
) -> None:
    """Only the caller's transaction sees its own rows; when the scheduled one is due, it is dropped."""
    publisher.publish("t", Outgoing("k", b"x", id="first"))
    mine = open_raw()
    for first, second in ((None, 3600.0), (3600.0, None)):
        mine.begin()
        publisher.publish("t", Outgoing("k", b"x", id=f"{first}", delay=first), connection=mine)
        publisher.publish("t", Outgoing("k", b"y", id=f"{first}", delay=second), connection=mine)
        mine.commit()
    assert len(waiting(raw)) == 2
    assert publisher.publish("t", Outgoing("k", b"z", id="None")).offset == 2  # what is in the log counts
    make_due(raw)
    assert appending.append() == 2
    assert log(raw) == ["first", "None", "3600.0"]
    assert waiting(raw) == []


def test_our_own_transactions_wake_the_scheduler_when_they_commit(
    lanelog_client: Client, raw: Any, turns: Record
) -> None:
    """`client.transaction()` and `message.transaction()`: it looks at once, whenever its next look would have been."""
    paced(lanelog_client, scheduler={"turn_seconds": 100.0})
    lanelog_client.publish("t", "k", b"x", delay=3600)
    turns.wait(1)
    with lanelog_client.transaction() as connection:
        lanelog_client.publish("t", "k", b"x", id="a", delay=0.05, connection=connection)
    eventually(lambda: log(raw) == ["a"])

    def handle(message: lanelog.Message) -> None:
        with message.transaction() as connection:
            lanelog_client.publish("out", "k", b"x", id=message.id, delay=3600, connection=connection)

    told = Record()
    lanelog_client._engine.context.due_in = told
    lanelog_client.subscribe("t", "g", handle)
    assert told.wait(1) == [0.0]  # of what is that far away the keeper says nothing
    assert "a" in waiting(raw)


def test_what_becomes_visible_during_a_read_does_not_wait_for_a_later_one(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request while the scheduler polls makes it poll again: the present poll may have read before the commit."""
    answers = Record()
    append = DelayedMessages.append

    def appended(appending: DelayedMessages, **options: Any) -> int:
        answers(lanelog_client._engine._scheduler.is_late_for(0.3))
        return append(appending, **options)

    monkeypatch.setattr(DelayedMessages, "append", appended)
    lanelog_client.publish("t", "k", b"x", delay=0.1)
    assert answers.wait(1)[0] is True


@pytest.mark.thorough
def test_what_a_transaction_of_the_callers_own_has_scheduled_is_seen_when_it_commits(
    lanelog_client: Client, by_hand: Scheduler, open_raw: Any, raw: Any, turns: Record
) -> None:
    """Nobody notifies the client that only publishes; it polls more often for a while, and then no more."""
    paced(lanelog_client, scheduler={"attention_seconds": 100.0})
    mine = open_raw()
    lanelog_client.publish("t", "k", b"x", id="a", delay=0.1, connection=mine)
    turns.wait(4)
    mine.commit()
    eventually(lambda: log(raw) == ["a"])
    assert all(wait <= 0.2 for _, wait in turns.items)
    by_hand.attend()
    assert by_hand.turn(time.monotonic()) <= 0.2
    assert by_hand.turn(time.monotonic() + 100) >= 1.0


@pytest.mark.thorough
def test_one_lane_that_cannot_be_written_to_does_not_hold_up_the_others(
    publisher: Publisher, appending: DelayedMessages, open_raw: Any, raw: Any, waits_of_appending: Clock
) -> None:
    """A caller's gap lock, which the insert of one lane meets: each lane goes on by itself, and that one later."""
    publisher.publish_many("t", [(key, b"x") for key in "abc"])
    publisher.publish_many("t", [Outgoing(key, b"x", "m", delay=3600) for key in "abc"])
    make_due(raw)
    mine = open_raw()
    rows(mine, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    mine.begin()
    rows(mine, "SELECT * FROM queue_messages WHERE topic = 't' AND partition_key = 'b' FOR UPDATE")
    appending.session.execute("SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(lanelog.DatabaseError) as caught:
        appending.append()
    assert caught.value.code == 1205
    assert log(raw, "c")[1:] == ["m"]
    assert "b" in {key for (key,) in rows(raw, "SELECT partition_key FROM queue_scheduled")}
    assert appending.append() == 0  # at once: what could not be written to is left alone for longer
    mine.rollback()
    waits_of_appending.now += appending.stuck_seconds
    appending.append()
    assert waiting(raw) == []
    assert [log(raw, key)[1:] for key in "abc"] == [["m"]] * 3


def test_the_time_to_live_counts_from_when_the_message_is_due(
    publisher: Publisher, appending: DelayedMessages, raw: Any
) -> None:
    """From the publish for one without a delay; a duplicate changes nothing."""
    publisher.publish("t", Outgoing("k", b"x", id="now", ttl=10))
    publisher.publish("t", Outgoing("k", b"x", id="now", ttl=99))
    publisher.publish("t", Outgoing("k", b"x", id="later", delay=3600, ttl=20))
    publisher.publish_many("t", [Outgoing("k", b"x", "never"), Outgoing("k", b"x", "many", ttl=30)])
    publisher.publish("t", Outgoing("k", b"x", id="later", ttl=99))
    make_due(raw)
    appending.append()
    found = rows(raw, "SELECT id, CAST(expires_at AS SIGNED) - CAST(created_at AS SIGNED) FROM queue_messages")
    assert {name: ttl for name, ttl in found if name != "never"} == {"now": 10_000, "later": 20_000, "many": 30_000}
    assert one(raw, "SELECT expires_at FROM queue_messages WHERE id = 'never'") == 0


# -- order -------------------------------------------------------------------------------------------------------------


def test_a_lane_gets_its_messages_in_the_order_in_which_they_are_due(
    publisher: Publisher, appending: DelayedMessages, raw: Any
) -> None:
    """By deliver_at, then as they were published: in one call, and one after the other within a millisecond."""
    at = datetime.now(UTC) + timedelta(seconds=3600)
    publisher.publish_many("t", [Outgoing("k", b"x", f"z{9 - n}", deliver_at=at) for n in range(10)])
    for n in range(50):
        publisher.publish("t", Outgoing("k", b"x", id=f"s{99 - n}", deliver_at=at))
    publisher.publish("t", Outgoing("k", b"x", id="first", deliver_at=at - timedelta(seconds=1)))
    publisher.publish("t", Outgoing("k", b"x", id="last", deliver_at=at + timedelta(milliseconds=1)))
    make_due(raw, ago=1000)
    assert appending.append() == 62
    assert log(raw) == ["first", *(f"z{9 - n}" for n in range(10)), *(f"s{99 - n}" for n in range(50)), "last"]


def test_a_page_that_cuts_a_lane_and_a_payload_bound_keep_the_order(
    publisher: Publisher, appending: DelayedMessages, raw: Any
) -> None:
    """Each transaction takes what comes first of every lane."""
    small = evolve(appending, page_messages=7, transaction_bytes=1000)
    ids = [f"{n:02}" for n in range(20)]
    publisher.publish_many(
        "t", [Outgoing(f"k{n % 2}", b"x" * (400 if n % 3 else 1), ids[n], delay=3600) for n in range(20)]
    )
    make_due(raw)
    moved = [small.append() for _ in range(20)]
    assert sum(moved) == 20
    assert max(moved) <= 5
    assert log(raw, "k0") == ids[0::2]
    assert log(raw, "k1") == ids[1::2]


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_a_lane_that_somebody_holds_does_not_delay_the_others(
    publisher: Publisher, appending: DelayedMessages, open_raw: Any, raw: Any, waits_of_appending: Clock
) -> None:
    """However much waits for the lane, it is tried again less and less often, and nothing spins meanwhile."""
    publisher.publish_many("t", [Outgoing("held", b"x", f"{n}", delay=3600) for n in range(3000)])
    publisher.publish_many("t", [Outgoing(f"k{n}", b"x", f"{n}", delay=3600.0) for n in range(20)])
    make_due(raw)
    mine = open_raw()
    publisher.publish("t", Outgoing("held", b"x", id="mine"), connection=mine)
    assert appending.append() == 0
    assert 0 < (appending.wait() or 0) <= 0.025
    assert appending.append() == 20
    waits = []
    for _ in range(8):
        waits_of_appending.now += appending.locked.most
        assert appending.wait() is None
        assert appending.append() == 0
        waits.append(appending.wait() or 0)
    assert 0.125 <= waits[-1] <= 0.25
    mine.commit()
    waits_of_appending.now += appending.locked.most
    assert [appending.append() for _ in range(4)] == [1000, 1000, 1000, 0]
    assert log(raw, "held") == ["mine", *(f"{n}" for n in range(3000))]


def test_the_scheduler_does_not_spin_while_a_lane_is_held(
    by_hand: Scheduler, publisher: Publisher, open_raw: Any, raw: Any, waits_of_appending: Clock
) -> None:
    """A few looks a second, and the message comes with the next one when the lane is free."""
    publisher.publish("t", Outgoing("held", b"x", id="first"))
    publisher.publish("t", Outgoing("held", b"x", id="a", delay=3600))
    mine = open_raw()
    publisher.publish("t", Outgoing("held", b"x", id="mine"), connection=mine)
    make_due(raw)
    waits = []
    for _ in range(14):
        waits.append(by_hand.turn(time.monotonic()))
        waits_of_appending.now += waits[-1]
    assert min(waits) > 0
    assert min(waits[4:]) >= 0.125
    assert log(raw, "held") == ["first"]
    mine.commit()
    by_hand.turn(time.monotonic())
    assert log(raw, "held") == ["first", "mine", "a"]


@pytest.mark.thorough
def test_a_scheduler_that_keeps_failing_stops_no_subscription(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Handlers do not need it: it says so once, and tries on."""
    monkeypatch.setattr(scheduler, "NEXT", "SELECT %s, nothing")
    seen = Record()
    with caplog.at_level(logging.ERROR, "lanelog"):
        subscription = lanelog_client.subscribe(
            "t", "g", lambda m: seen(m.offset), lease_duration=2.0, lease_renewal=0.4
        )  # an error of this kind may last for a lease
        eventually(lambda: events(caplog, "scheduler.failed"), within=30.0)
    lanelog_client.publish("t", "a", b"x")
    assert seen.wait(1) == [1]
    assert subscription.state == "running"


def test_many_held_lanes_are_tried_again_together(
    publisher: Publisher, appending: DelayedMessages, open_raw: Any, raw: Any, waits_of_appending: Clock
) -> None:
    """A transaction that holds two hundred lanes costs no more looks than one that holds one."""
    publisher.publish_many("t", [Outgoing(f"k{n}", b"x", f"{n}", delay=3600.0) for n in range(200)])
    make_due(raw)
    mine = open_raw()
    publisher.publish_many("t", [Outgoing(f"k{n}", b"x") for n in range(200)], connection=mine)
    looks, until = 0, waits_of_appending.now + 2.0
    while waits_of_appending.now < until:
        looks += 1
        assert appending.append() == 0
        waits_of_appending.now += appending.wait() or 0.0
    assert 2 <= looks <= 2.0 / 0.125 + 5
    mine.commit()


def test_whoever_asks_how_long_to_wait_is_not_disturbed_by_the_scheduler(appending: DelayedMessages) -> None:
    """Keeper and handlers ask it from their own threads, while lanes come and go."""

    @define
    class Going:
        seconds: float = 1.0

        @property
        def until(self) -> float:
            appending._waits.clear()  # as the scheduler's thread does between two steps of this one
            return time.monotonic() + 0.1

    appending._waits.update({("t", f"k{n}"): cast("Any", Going()) for n in range(3)})
    assert appending.wait() is not None
    assert appending.wait() is None


@pytest.mark.thorough
def test_an_account_that_may_not_delete_leaves_it_to_others(
    lanelog_client: Client, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """One WARNING; its subscriptions go on."""
    paced(lanelog_client, scheduler={"denied_seconds": 0.1})
    subscription = lanelog_client.subscribe("t", "g", accept)
    denied = lanelog.DatabaseError("DELETE command denied", code=1142)

    def append(_self: object, **_: object) -> int:
        tried(1)
        raise denied

    tried = Record()
    monkeypatch.setattr(DelayedMessages, "append", append)
    publisher.publish("t", Outgoing("k", b"x", delay=0.01))
    tried.wait(3)
    assert len(events(caplog, "scheduling.denied")) == 1
    assert subscription.state == "running"


def test_a_session_that_is_lost_is_replaced(lanelog_client: Client, raw: Any) -> None:
    """Killed at the server between two looks: the message comes all the same."""
    lanelog_client.publish("t", "k", b"x", id="a", delay=0.01)
    eventually(lambda: log(raw) == ["a"])
    scheduler: Scheduler = lanelog_client._engine._scheduler
    rows(raw, f"KILL {scheduler.session.connection_id}")
    lanelog_client.publish("t", "k", b"x", id="b", delay=0.3)
    eventually(lambda: log(raw) == ["a", "b"])


# -- costs -------------------------------------------------------------------------------------------------------------


def test_a_page_of_due_messages_costs_eight_round_trips(
    publisher: Publisher, appending: DelayedMessages, raw: Any
) -> None:
    """The cost is the same for up to a thousand messages: none has a trip of its own, and no payload travels."""
    publisher.publish_many("t", [Outgoing(f"k{n % 100}", b"x" * 1000, delay=3600) for n in range(1000)])
    make_due(raw)
    appending.session.ensure()
    with commands_sent() as sent:
        assert appending.append() == 1000
    statements = [command.partition(": ")[2].strip("b'\"") for command in sent]
    assert statements.pop(1) == r"\x00\x00"  # once for a connection: packets are permitted
    assert [" ".join(statement.split()[:2]) for statement in statements] == [
        "SELECT topic,",  # what is due
        "SET autocommit",  # off; the savepoint; lock heads
        "SELECT due.partition_key,",  # lock rows
        "SELECT partition_key,",  # ids in the log
        "UPDATE queue_partitions",
        "INSERT INTO",
        "DELETE gone",
        "RELEASE SAVEPOINT",  # and COMMIT
    ]
