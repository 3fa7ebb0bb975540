"""Tables that contradict each other, as after a restore of one of them: nothing is swallowed, and the ERROR says it."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from lanelog import Client, DatabaseError, Message, Reject, Subscription
from lanelog._engine.leasing.coordinator import Coordinator
from lanelog._log import repair
from lanelog._log.due import DelayedMessages
from lanelog.admin import Finding
from lanelog.admin.operate import status
from lanelog.dashboard.pages.stuck import headline
from support.cli import Command
from support.janitors import Janitors
from support.publishing import appender_of
from support.sql import delivery_rows, one, rows, watermark
from support.stage import wait_until_blocked
from support.waiting import Record, eventually

Mended = Callable[[], list[str]]

LANE = "topic = 't' AND partition_key = 'a'"
QUICK = {"lease_duration": 2.0, "lease_renewal": 0.5, "retention": 3600.0}


@pytest.fixture
def mended(caplog: pytest.LogCaptureFixture) -> Mended:
    """The repairs so far, each an ERROR, without the names of topic and lane that it must have."""
    caplog.set_level(logging.ERROR, "lanelog")

    def found() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("lane.mended ")]
        assert all(record.levelno == logging.ERROR for record in caplog.records)
        return [line.removeprefix("lane.mended topic=t key=a ") for line in lines]

    return found


@contextmanager
def set_back(raw: Any, *tables: str) -> Iterator[None]:
    """These tables are, at the end, what they were at the beginning: restored one by one from a backup."""
    for table in tables:
        rows(raw, f"DROP TABLE IF EXISTS kept_{table}")
        rows(raw, f"CREATE TABLE kept_{table} LIKE queue_{table}")
        rows(raw, f"INSERT INTO kept_{table} SELECT * FROM queue_{table}")
    yield
    for table in tables:
        raw.begin()
        rows(raw, f"DELETE FROM queue_{table}")
        rows(raw, f"INSERT INTO queue_{table} SELECT * FROM kept_{table}")
        raw.commit()


def handle(client: Client, seen: Record, group: str = "g", **options: Any) -> Subscription:
    def note(message: Message) -> None:
        seen(message.payload.decode())

    return client.subscribe("t", group, note, **{**QUICK, **options})


def publish(client: Client, *names: str) -> None:
    client.publish_many("t", [("a", name.encode()) for name in names])


def names(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


def settled(raw: Any, group: str = "g") -> bool:
    """Whether a group has acked all there is."""
    head = one(raw, f"SELECT head_offset FROM queue_partitions WHERE {LANE}")
    return watermark(raw, group, "t", "a") == head


@pytest.mark.thorough
@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_a_watermark_above_the_head_goes_back_to_the_floor(
    lanelog_client: Client, raw: Any, mended: Mended, running: bool
) -> None:
    """Log and heads were set back: what is published under offsets given out anew is delivered, some of it again."""
    first, second = Record(), Record()
    subscription = handle(lanelog_client, first)
    publish(lanelog_client, *names(1, 5))
    first.wait(5)
    with set_back(raw, "messages", "partitions"):
        publish(lanelog_client, *names(6, 10))
        first.wait(10)
        eventually(lambda: settled(raw))
        if not running:
            assert subscription.stop(10)
    publish(lanelog_client, "new1", "new2")
    if not running:
        handle(lanelog_client, second)
    seen = first if running else second
    seen.until(lambda items: items[-2:] == ["new1", "new2"] and set(names(1, 5)) <= set(items))
    eventually(lambda: settled(raw))
    assert mended() == ["group=g problem='watermark above the head' offset=10 head=7"]


@pytest.mark.thorough
@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_a_floor_above_the_head_raises_it(lanelog_client: Client, raw: Any, mended: Mended, running: bool) -> None:
    """The heads were set back after a collection: what is published next gets offsets that nobody has released."""
    seen = Record()
    subscription = handle(lanelog_client, seen, retention=0.0)
    publish(lanelog_client, *names(1, 5))
    with set_back(raw, "partitions"):
        publish(lanelog_client, *names(6, 10))
        seen.wait(10)
        eventually(lambda: watermark(raw, "", "t", "a") == 10)
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") == 0)
        if not running:
            assert subscription.stop(10)
    if not running:
        handle(lanelog_client, seen, retention=0.0)
    eventually(mended)
    publish(lanelog_client, "new1", "new2")
    assert seen.wait(12)[10:] == ["new1", "new2"]
    assert mended() == ["group='' problem='floor above the head' offset=10 head=10"]


@pytest.mark.thorough
@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_acked_rows_above_the_head_go(lanelog_client: Client, raw: Any, mended: Mended, running: bool) -> None:
    """A row of an offset that was never given out settles no later message; the other group keeps its place."""
    first, other = Record(), Record()
    subscription = handle(lanelog_client, first)
    handle(lanelog_client, other, "other")
    publish(lanelog_client, *names(1, 3))
    first.wait(3)
    other.wait(3)
    eventually(lambda: settled(raw) and settled(raw, "other"))
    epoch = epochs(raw)
    if not running:
        assert subscription.stop(10)
    rows(raw, ROW.format(first=4, through=6))
    if not running:
        handle(lanelog_client, first)
    eventually(mended)
    publish(lanelog_client, *names(4, 8))
    assert first.wait(8) == names(1, 8)
    assert other.wait(8) == names(1, 8)
    assert mended() == ["group=g problem='delivery rows above the head' offset=6 head=3"]
    assert delivery_rows(raw, "g", "t") == []
    assert epochs(raw)["g"] > epoch["g"]
    assert epochs(raw)["other"] == epoch["other"]


def epochs(raw: Any) -> dict[str, int]:
    return dict(rows(raw, f"SELECT consumer_group, lease_epoch FROM queue_partition_leases WHERE {LANE}"))


@pytest.mark.thorough
@pytest.mark.parametrize("running", [False, True], ids=["loaded", "running"])
def test_a_head_below_the_log_is_raised(lanelog_client: Client, raw: Any, mended: Mended, running: bool) -> None:
    """The heads were set back: publishing says what happened and what to do, and works again after a full pass."""
    seen = Record()
    subscription = handle(lanelog_client, seen)
    publish(lanelog_client, *names(1, 5))
    seen.wait(5)
    if not running:
        assert subscription.stop(10)
    with set_back(raw, "partitions"):
        publish(lanelog_client, *names(6, 9))
        if running:
            seen.wait(9)
    with pytest.raises(DatabaseError, match=r"topic 't'.*'a'.*lanelog doctor --repair") as refused:
        publish(lanelog_client, "new")
    assert refused.value.code == 1062
    assert not refused.value.retriable
    if not running:
        handle(lanelog_client, seen)
    eventually(mended)
    publish(lanelog_client, "new")
    assert seen.wait(10) == [*names(1, 9), "new"]
    assert mended() == ["group='' problem='messages above the head' offset=9 head=9"]


# -- whoever looks -----------------------------------------------------------------------------------------------------


def acked(raw: Any, group: str, offset: int) -> None:
    """A watermark from another copy of the table."""
    rows(raw, f"UPDATE queue_offsets SET offset_acked = {offset} WHERE consumer_group = '{group}' AND {LANE}")


def test_a_full_pass_repairs_groups_that_nobody_runs(
    janitors: Janitors, lanelog_client: Client, raw: Any, mended: Mended
) -> None:
    """The watermark goes back before later messages reach it. After that, nothing would show that it was wrong."""
    awake, asleep = Record(), Record()
    handle(lanelog_client, awake, "awake")
    assert handle(lanelog_client, asleep, "asleep", start="latest").stop(10)
    publish(lanelog_client, *names(1, 3))
    awake.wait(3)
    rows(raw, "INSERT INTO queue_offsets SET consumer_group = 'asleep', topic = 't', partition_key = 'a'")
    acked(raw, "asleep", 5)
    janitors.turn(lanelog_client)
    assert mended() == ["group=asleep problem='watermark above the head' offset=5 head=3"]
    publish(lanelog_client, *names(4, 8))
    handle(lanelog_client, asleep, "asleep")
    assert asleep.wait(8) == names(1, 8)


def test_a_full_pass_makes_heads_anew(janitors: Janitors, lanelog_client: Client, raw: Any, mended: Mended) -> None:
    """The table of heads is older than the topic, whose own row went as well: lanes go on where they were."""
    seen = Record()
    handle(lanelog_client, seen)
    publish(lanelog_client, *names(1, 3))
    seen.wait(3)
    eventually(lambda: settled(raw))
    rows(raw, "DELETE FROM queue_partitions")
    janitors.turn(lanelog_client)
    assert mended() == ["group='' problem='no head' offset=3 head=3"]
    publish(lanelog_client, "new")
    assert seen.wait(4) == [*names(1, 3), "new"]


def test_an_owner_whose_memory_is_above_the_head_loses_the_lane(
    janitors: Janitors, lanelog_client: Client, raw: Any, mended: Mended
) -> None:
    """The owner's settlements are refused from the repair on, under the new token, and it loads the tables."""
    tokens = Record()
    subscription = lanelog_client.subscribe("t", "g", lambda m: tokens((m.offset, m.fencing_token)), **QUICK)
    publish(lanelog_client, *names(1, 5))
    (_, before) = tokens.wait(5)[0]
    eventually(lambda: settled(raw))
    rows(raw, "DELETE FROM queue_messages WHERE `offset` > 2")
    rows(raw, f"UPDATE queue_partitions SET head_offset = 2 WHERE {LANE}")
    janitors.turn(lanelog_client)
    publish(lanelog_client, "new")
    again = tokens.wait(8)[5:]
    assert [offset for offset, _ in again] == [1, 2, 3]
    assert {token > before for _, token in again} == {True}
    assert subscription.failure is None
    assert mended() == ["group=g problem='watermark above the head' offset=5 head=2"]


@pytest.mark.thorough
def test_a_reload_repairs_contradictions_of_a_restarted_server(
    janitors: Janitors, lanelog_client: Client, raw: Any, mended: Mended
) -> None:
    """Memory is given up with the lane, also what it had settled: everything that is there is delivered again."""
    seen, release = Record(), threading.Event()

    def note(message: Message) -> None:
        seen(message.payload.decode())
        assert message.offset < 5 or release.wait(30)

    subscription = lanelog_client.subscribe("t", "g", note, **QUICK)
    publish(lanelog_client, *names(1, 5))
    seen.wait(5)
    eventually(lambda: watermark(raw, "g", "t", "a") == 4)
    rows(raw, "DELETE FROM queue_messages WHERE `offset` > 2")
    set_head_back(raw, "t", 2)
    with closing(lanelog_client._database.session("keeper")) as session:
        [member] = subscription._core.members
        session.ensure()
        keeper = Coordinator(lanelog_client._engine.context, member, session)
        keeper.new_session(session, "", session.incarnation)
        keeper.reload()
    assert mended() == ["group=g problem='watermark above the head' offset=4 head=2"]
    release.set()
    assert seen.wait(7)[5:] == names(1, 2)


def test_an_owner_that_meets_a_head_below_its_memory_loads_the_lane_again(
    janitors: Janitors, lanelog_client: Client, raw: Any, mended: Mended, caplog: pytest.LogCaptureFixture
) -> None:
    """All tables were set back together under it: no two rows contradict each other, but memory does."""
    seen = Record()
    handle(lanelog_client, seen)
    publish(lanelog_client, *names(1, 2))
    seen.wait(2)
    eventually(lambda: settled(raw))
    with set_back(raw, "messages", "partitions", "offsets", "delivery_state"):
        publish(lanelog_client, *names(3, 8))
        seen.wait(8)
        eventually(lambda: settled(raw))
    publish(lanelog_client, "new")
    assert seen.wait(9)[8:] == ["new"]
    assert mended() == []
    assert "lane.ahead_of_head topic=t key=a group=g offset=8 head=3" in caplog.text


def test_a_lane_without_contradictions_costs_a_pass_one_read_of_its_log(lanelog_client: Client, raw: Any) -> None:
    """Four statements, however many lanes and groups there are; a long log costs no more; and nothing is locked."""
    for group in ("g", "h"):
        assert handle(lanelog_client, Record(), group).stop(10)
    lanelog_client.publish_many("t", [(f"k{n:03}", b"x") for n in range(100) for _ in range(50)])
    session = lanelog_client._database.session("janitor")

    def counted(name: str) -> int:
        return sum(int(value) for _, value in session.query(f"SHOW SESSION STATUS LIKE '{name}'"))

    try:
        raw.begin()
        rows(raw, "SELECT * FROM queue_partitions FOR UPDATE")
        sent, read = counted("Questions"), counted("Handler_read%")
        done = repair.audit(session, "t")
        read, sent = counted("Handler_read%") - read, counted("Questions") - sent - 3  # what counts
    finally:
        raw.rollback()
        session.close()
    assert (list(done.repaired), done.busy, done.more) == ([], 0, False)
    assert sent == 4
    assert read < 100 * 10


# -- dead letters, delayed and scheduled messages, a caller's transaction ----------------------------------------------


def set_head_back(raw: Any, topic: str, head: int = 0) -> None:
    rows(raw, f"UPDATE queue_partitions SET head_offset = {head} WHERE topic = '{topic}' AND partition_key = 'a'")


def test_a_dead_letter_whose_offset_is_taken_is_buried_all_the_same(lanelog_client: Client, raw: Any) -> None:
    """The member that meets the lane repairs it: no subscription fails, and no dead letter is lost."""

    def reject(message: Message) -> None:
        raise Reject(message.payload.decode())

    subscription = lanelog_client.subscribe("t", "g", reject, **QUICK)
    publish(lanelog_client, "m1", "m2")
    letters = "SELECT `offset` FROM queue_messages WHERE topic = 't_dlq'"
    eventually(lambda: rows(raw, letters) == [(1,), (2,)])
    set_head_back(raw, "t_dlq")
    publish(lanelog_client, "m3")
    eventually(lambda: rows(raw, letters) == [(1,), (2,), (3,)])
    assert subscription.failure is None


def test_a_delayed_message_whose_offset_is_taken_is_appended_all_the_same(lanelog_client: Client, raw: Any) -> None:
    """The process that meets the lane repairs it; the scheduler of a client goes on."""
    seen = Record()
    publish(lanelog_client, "m1", "m2")
    set_head_back(raw, "t")
    with closing(lanelog_client._database.session("appending")) as session:
        lanelog_client.publish("t", "a", b"late", delay=0.001)
        lanelog_client.publish("t", "b", b"other", delay=0.001)
        appending = DelayedMessages(session, appender_of(lanelog_client._publisher, seen))
        eventually(lambda: (appending.append(), one(raw, "SELECT COUNT(*) FROM queue_scheduled") == 0)[1])
    assert rows(raw, f"SELECT `offset`, payload FROM queue_messages WHERE {LANE} AND `offset` > 2") == [(3, b"late")]


def test_a_schedule_whose_offset_is_taken_fires_all_the_same(lanelog_client: Client, raw: Any) -> None:
    """The schedule is not put off as faulty."""
    lanelog_client.schedule("tick", "* * * * *", "t", "a", b"tick")
    publish(lanelog_client, "m1")
    set_head_back(raw, "t")
    rows(raw, "UPDATE queue_schedules SET next_fire_at = next_fire_at - 60000, expression_at = expression_at - 60000")
    lanelog_client.admin.maintain()  # unless the client's own scheduler was before it
    fired = f"SELECT `offset`, payload FROM queue_messages WHERE {LANE} AND `offset` > 1"
    eventually(lambda: rows(raw, fired) == [(2, b"tick")])


def test_a_caller_whose_offset_is_taken_gets_an_error_and_goes_on(lanelog_client: Client, raw: Any) -> None:
    """The error says what to do; his transaction is as it was before the call."""
    publish(lanelog_client, "m1")
    set_head_back(raw, "t")
    with lanelog_client.transaction() as connection:
        with pytest.raises(DatabaseError, match=r"lanelog doctor --repair"):
            lanelog_client.publish("t", "a", b"x", connection=connection)
        lanelog_client.publish("t", "b", b"x", connection=connection)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'b'") == 1


# -- doctor and status -------------------------------------------------------------------------------------------------

ROW = (
    "INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset, acked)"
    " VALUES ('g', 't', 'a', {first}, {through}, 1)"
)
WRONG = {
    "watermark above the head": [f"UPDATE queue_offsets SET offset_acked = 9 WHERE consumer_group = 'g' AND {LANE}"],
    "floor above the head": [f"UPDATE queue_offsets SET offset_acked = 9 WHERE consumer_group = '' AND {LANE}"],
    "delivery rows above the head": [ROW.format(first=3, through=5)],
    "messages above the head": [f"UPDATE queue_partitions SET head_offset = 1 WHERE {LANE}"],
    "no head": [f"DELETE FROM queue_partitions WHERE {LANE}"],
    "no floor": [f"DELETE FROM queue_offsets WHERE consumer_group = '' AND {LANE}"],
    "no head, of a topic of which only the log knows": [
        "DELETE FROM queue_partitions WHERE topic = 't'",
        "DELETE FROM queue_offsets WHERE topic = 't'",
    ],
}


@pytest.mark.thorough
@pytest.mark.parametrize("problem", WRONG)
def test_doctor_finds_and_repairs(
    problem: str, janitors: Janitors, lanelog_client: Client, raw: Any, command: Command, mended: Mended
) -> None:
    """Each contradiction is an error until `--repair`, and is gone then; every message is delivered, and later ones."""
    lane, seen = problem.split(",", maxsplit=1)[0], Record()
    publish(lanelog_client, *names(1, 3))
    assert handle(lanelog_client, Record()).stop(10)
    rows(raw, "DELETE FROM queue_offsets WHERE consumer_group = 'g'")
    rows(raw, "INSERT INTO queue_offsets SET consumer_group = 'g', topic = 't', partition_key = 'a', offset_acked = 1")
    for statement in WRONG[problem]:
        rows(raw, statement)
    found = finding(lanelog_client)
    assert found.status == "error"
    assert f"{lane} in topic 't', key 'a'" in found.detail
    assert "lanelog doctor --repair" in found.remedy
    assert mended() == []
    assert (f"CONTRADICTION  t {'g ' if lane in GROUPS else '- '}a" in command("status").stdout) is ("," not in problem)
    repaired = finding(lanelog_client, repair=True)
    assert (repaired.status, repaired.detail.split(" in ")[0]) == ("ok", f"repaired: {lane}")
    assert len(mended()) == 1
    assert finding(lanelog_client).detail == "the tables agree with each other"
    publish(lanelog_client, "new")
    handle(lanelog_client, seen)
    first = FIRST.get(problem, 2)
    assert seen.until(lambda items: "new" in items) == [*names(first, 3), "new"]


GROUPS = ("watermark above the head", "delivery rows above the head")
FIRST = {
    "watermark above the head": 1,
    "no head, of a topic of which only the log knows": 1,
    "floor above the head": 10,
}
"""What is delivered then, of a group that is past the first message: the floor says that nothing below it is wanted."""


def finding(client: Client, *, repair: bool = False) -> Finding:
    (found,) = [each for each in client.admin.doctor(repair=repair) if each.check == "contradictions"]
    return found


def test_a_read_only_server_is_left_as_it_is(
    janitors: Janitors, lanelog_client: Client, raw: Any, mended: Mended, setting: Any
) -> None:
    """A replica is repaired on its primary, also if the account could write: by no pass, and by no doctor."""
    assert handle(lanelog_client, Record()).stop(10)
    publish(lanelog_client, *names(1, 3))
    set_head_back(raw, "t", 1)
    setting("read_only", 1)
    session = lanelog_client._database.session("janitor")
    with pytest.raises(DatabaseError, match="the server is read-only"):
        repair.audit(session, "t")
    session.close()
    found = finding(lanelog_client, repair=True)
    assert (found.status, "on the primary" in found.remedy) == ("error", True)
    assert one(raw, f"SELECT head_offset FROM queue_partitions WHERE {LANE}") == 1
    assert mended() == []


@pytest.mark.thorough
def test_a_lane_that_somebody_holds_is_repaired_when_it_is_free(
    janitors: Janitors, lanelog_client: Client, raw: Any, open_raw: Callable[..., Any], mended: Mended
) -> None:
    """A caller's transaction has the head: what it publishes there is seen by the repair, which waits for it."""
    assert handle(lanelog_client, Record()).stop(10)
    publish(lanelog_client, *names(1, 3))
    acked(raw, "", 9)
    holder = open_raw()
    rows(holder, f"UPDATE queue_partitions SET head_offset = 12 WHERE {LANE}")
    with ThreadPoolExecutor(1) as aside:
        repairing = aside.submit(finding, lanelog_client, repair=True)
        wait_until_blocked(raw)
        holder.commit()
        assert repairing.result(30).detail == "the tables agree with each other"
    assert mended() == []


def test_status_compares_tables_for_a_bounded_time_and_says_how_many_topics_are_left(
    lanelog_client: Client, raw: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` and a scrape count the topics that they did not compare; a topic that is named is compared alone.

    What was not compared may be wrong: neither the command line nor the dashboard says that all is well.
    """
    for topic in ("s", "t"):
        lanelog_client.publish(topic, "a", b"x")
    rows(raw, f"UPDATE queue_partitions SET head_offset = 0 WHERE {LANE}")
    admin = lanelog_client.admin
    assert (admin.status().topics_not_compared, len(admin.status().problems)) == (0, 1)
    assert (len(admin.status(["t"]).problems), len(admin.status(["s"]).problems)) == (1, 0)
    monkeypatch.setattr(status, "COMPARING", -1.0)
    assert (admin.status().topics_not_compared, admin.figures().topics_not_compared) == (2, 2)
    assert admin.status(["t"]).topics_not_compared == 1

    assert admin.status().left_out == "the tables of 2 topics were not compared"
    told = command("status", "--max-lag", "5")  # a bound on lag does not depend on it
    assert told.stdout.splitlines()[-1] == "nothing is stuck in what was read"
    assert told.stderr == "the tables of 2 topics were not compared: name a topic, or a pattern with fewer\n"
    line, tone = headline(admin.status())
    assert (line.split(".")[0], tone) == ("Nothing is stuck in what was read", "warn")
