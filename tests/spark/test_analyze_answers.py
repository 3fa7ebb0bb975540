"""What an analysis says of a log is what happened there: real subscriptions, and what became of their messages."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from pyspark.sql import SparkSession
from tenacity import stop_never, wait_fixed

import lanelog
from lanelog import RetryPolicy
from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS
from lanelog._log.register import register
from lanelog.client import Client
from lanelog.config import SubscriptionConfig
from lanelog.errors import ConfigurationError
from lanelog.spark.analysing import analysis
from lanelog.spark.analysing.analysis import Analysis, analysed
from lanelog.spark.analyze import AnalyzeOptions
from lanelog.spark.report.parts import MOST_ROWS
from support.archives import Archive, settled
from support.sql import rows
from support.waiting import accept, eventually

pytestmark = pytest.mark.thorough

Analyze = Callable[..., Analysis]
ODD = "ключ 🦊"


@pytest.fixture
def analyze(spark: SparkSession, lanelog_url: str, tmp_path: Path) -> Analyze:
    """Analyses the live log, and what else the options name."""

    def run(most_rows: int = MOST_ROWS, **options: Any) -> Analysis:
        wanted = AnalyzeOptions(**{"output": str(tmp_path), "url": lanelog_url, **options}).wanted()
        return analysed(spark, evolve(wanted, most_rows=most_rows))

    return run


@pytest.fixture
def chosen(spark: SparkSession, lanelog_url: str) -> Callable[..., list[str]]:
    """Which topics an analysis reads, if it is asked for these."""

    def topics(*asked: str, **options: Any) -> list[str]:
        wanted = AnalyzeOptions(**{"output": "unused", "url": lanelog_url, "topics": asked, **options}).wanted()
        return analysis._chosen(spark, wanted, analysis._scope(wanted))

    return topics


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """What runs until the test ends."""
    with ExitStack() as stack:
        yield stack


def age_ms(raw: Any, instant: str, where: str) -> int:
    """How long ago the latest of some instants was, by the database's clock; 0: there is none."""
    return int(rows(raw, f"SELECT COALESCE({NOW_MS} - MAX({instant}), 0) FROM {where}")[0][0])


def reject(message: lanelog.Message) -> None:
    raise lanelog.Reject(f"order {message.offset} of {message.key} is odd")


# -- stalled lanes -----------------------------------------------------------------------------------------------------


def test_a_message_that_fails_again_and_again_stalls_its_lane(
    client: Client, analyze: Analyze, running: ExitStack, raw: Any
) -> None:
    """Every failed attempt writes the lane's rows anew and settles nothing; with others of the lane it is the same."""

    def handle(message: lanelog.Message) -> None:
        if message.offset == 1:
            raise ValueError("no answer\nand much more")

    retry = RetryPolicy(stop=stop_never, wait=wait_fixed(0.1))
    orders = ("concurrent", "serial", "strict")
    tried = "queue_delivery_state WHERE topic = '{}' AND acked = 0 AND first_attempt_at > 0 AND retry_count > 3"
    for order in orders:
        client.publish_many(order, [lanelog.Outgoing(ODD, b"x") for _ in range(3)])
        running.enter_context(client.subscribe(order, "g", handle, order=order, retry=retry, max_deliveries=None))
    for order in orders:
        eventually(lambda order=order: age_ms(raw, "first_attempt_at", tried.format(order)) > 2000, within=240)
    found = analyze(stalled_after=1)
    moved = f"SELECT MAX(updated_at) > {found.facts.cutoff.timestamp() * 1000} FROM queue_offsets"
    eventually(lambda: rows(raw, moved)[0][0], what="a row that every attempt writes")
    lanes = sorted(found.tables["stalled_lanes"].to_pylist(), key=lambda lane: lane["topic"])
    for order, lane in zip(orders, lanes, strict=True):
        assert (lane["topic"], lane["key"], lane["state"]) == (order, ODD, "retrying")
        assert lane["lag"] == (3 if order == "strict" else 1)
        assert lane["still_ms"] > 1500  # each attempt writes the first one's time anew, to a millisecond
        assert lane["attempts"] > 3
        assert lane["last_error"] in {"ValueError: no answer", None}  # None while the next attempt runs


def test_a_lane_that_its_handler_postponed_is_no_warning(
    client: Client, analyze: Analyze, running: ExitStack, raw: Any
) -> None:
    """A postponed lane is in the table, last, in a state of its own, and not among those that are counted.

    The report says, too, that its group keeps history, though it has no outcome yet.
    """

    def handle(_: lanelog.Message) -> None:
        raise lanelog.Postpone(delay=86_400)

    client.publish("t", ODD, b"x")
    running.enter_context(client.subscribe("t", "g", handle, history=True))
    eventually(lambda: rows(raw, "SELECT 1 FROM queue_delivery_state WHERE postponed = 1 AND lease_epoch = 0"))
    register(client._database, GroupTopic(topic="later", group="idle"), SubscriptionConfig())
    client.publish("later", "k", b"x")
    eventually(lambda: age_ms(raw, "created_at", "queue_messages WHERE topic = 'later'") > 100)
    found = analyze(stalled_after=0.1)
    assert (found.facts.stalled, found.facts.counted["stalled_lanes"]) == (1, 2)
    assert (found.facts.keeps_history, found.tables["attempts"].num_rows) == (True, 0)
    first, last = found.page["stalled_lanes"].to_pylist()
    assert (first["key"], first["state"]) == ("k", "waiting")
    assert (last["key"], last["state"], last["attempts"], last["lag"]) == (ODD, "postponed", 0, 1)
    assert last["still_ms"] > first["still_ms"]


# -- latency -----------------------------------------------------------------------------------------------------------

WAITED_MS = 500
"""What is made to wait in these tests waits longer."""

# From when each message that the log still has was written to its success, and how much sooner it was published.
LATENCIES = """
SELECT h.topic, COUNT(*), MAX(h.finished_at - m.created_at), MIN(m.created_at - m.published_at)
FROM queue_history h JOIN queue_messages m
  ON m.topic = h.topic AND m.partition_key = h.partition_key AND m.`offset` = h.message_offset
WHERE h.outcome = 'success' GROUP BY h.topic
"""


def longest(found: Analysis) -> dict[str, tuple[int, int]]:
    """By topic: samples of the group g, and the longest latency."""
    table = found.tables["latency"].to_pylist()
    return {row["topic"]: (row["samples"], row["max_ms"]) for row in table if row["consumer_group"] == "g"}


def test_what_a_message_waited_for_on_purpose_is_no_latency(
    client: Client, analyze: Analyze, running: ExitStack, raw: Any
) -> None:
    """A delayed one counts from when it was due, a redriven one from when it was redriven."""
    repaired = threading.Event()

    def handle(message: lanelog.Message) -> None:
        if not repaired.is_set():
            reject(message)

    running.enter_context(client.subscribe("delayed", "g", accept, history=True))
    running.enter_context(client.subscribe("red", "g", handle, history=True))
    client.publish("delayed", ODD, b"x", delay=2 * WAITED_MS / 1000)
    client.publish("red", ODD, b"x")
    eventually(lambda: age_ms(raw, "failed_at", "queue_messages WHERE failed_at > 0") > WAITED_MS, within=240)
    repaired.set()
    client.admin.redrive("red", "g", all=True, dry_run=False)
    eventually(lambda: len(client.admin.history("delayed", "g")) == 1, within=240)
    eventually(lambda: any(row.outcome == "success" for row in client.admin.history("red", "g")), within=240)
    found = longest(analyze())
    measured = {topic: tuple(map(int, numbers)) for topic, *numbers in rows(raw, LATENCIES)}
    assert {topic: (count, ms) for topic, (count, ms, _) in measured.items()} == found
    assert all(sooner > WAITED_MS for _, _, sooner in measured.values())
    assert found.keys() == {"delayed", "red"}


def test_what_succeeds_again_after_a_seek_counts_as_it_succeeded_first(
    client: Client, analyze: Analyze, archive: Archive, path: str, running: ExitStack, raw: Any
) -> None:
    """The archive has the first outcome, the log the second."""
    client.publish_many("t", [lanelog.Outgoing(ODD, b"x") for _ in range(3)])
    running.enter_context(client.subscribe("t", "g", accept, history=True, retention=3600))
    settled(client, "t")
    archive()
    first = rows(raw, LATENCIES)[0][2]
    eventually(lambda: age_ms(raw, "finished_at", "queue_history") > WAITED_MS, within=240)
    before = rows(raw, f"SELECT {NOW_MS}")[0][0]
    client.admin.seek("t", "g", to="earliest", dry_run=False)
    again = "SELECT COUNT(*) FROM queue_history WHERE finished_at >= %s"
    eventually(lambda: rows(raw, again, before)[0][0] == 3, within=240)
    assert longest(analyze(path=path))["t"] == (3, first)
    assert rows(raw, LATENCIES)[0][2] >= first + WAITED_MS


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_dead_letters_of_a_topic_are_found_wherever_they_lie(
    client: Client, chosen: Callable[..., list[str]], analyze: Analyze, archive: Archive, path: str
) -> None:
    """Whatever the suffix is, in log and archive; those of another topic, whose name begins so too, are not its own."""
    for topic in ("cust", "customers"):
        client.publish_many(topic, [lanelog.Outgoing(f"k{n}", b"x") for n in range(2)])
    for topic, suffix in (("cust", ".failed"), ("cust", "_dlq"), ("customers", ".failed")):
        with client.subscribe(topic, f"g{suffix}", reject, dead_letter_suffix=suffix):
            settled(client, topic)
    archive()
    topics = ["cust", "cust.failed", "cust_dlq"]
    assert (chosen("cust"), chosen("cust", path=path, live=False)) == (topics, topics)
    assert (chosen("cust", path=path), chosen("cust.failed", path=path)) == (topics, ["cust.failed"])
    found = analyze(topics=("cust",), path=path, live=False)
    assert (found.facts.topics, found.facts.dead_letters) == (topics, 4)


def test_dead_letters_that_somebody_dealt_with_are_not_outstanding(
    client: Client, analyze: Analyze, archive: Archive, path: str
) -> None:
    """Letters are counted, as long as log or archive has them; what the live log alone knows is not guessed."""
    client.publish_many("t", [lanelog.Outgoing(key, b"x") for key in ("a", ODD, "c")])
    with client.subscribe("t", "g", reject):
        settled(client, "t")
    with client.subscribe("t_dlq", "alert", accept):
        settled(client, "t_dlq")  # has read them, and dealt with none
    archive()

    def letters(**options: Any) -> tuple[int, int | None, int | None]:
        found = analyze(**options)
        summed = [row["outstanding"] for row in found.tables["dead_letters"].to_pylist()]
        return found.facts.dead_letters, found.facts.outstanding, None if None in summed else sum(summed)

    ids = {letter.key: letter.id for letter in client.admin.dead_letters("t")}
    client.admin.redrive("t", "g", ids=[ids[ODD]], dry_run=False)
    client.admin.delete_dead_letters("t", "g", ids=[ids["c"]], dry_run=False)
    assert (letters(), letters(path=path, live=False)) == ((3, 1, 1), (3, None, None))


# -- topics, and the cut-off -------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_no_topic_unless_the_archive_has_it(
    client: Client, chosen: Callable[..., list[str]], analyze: Analyze, archive: Archive, path: str
) -> None:
    """The topic's row stays in the database. A topic that waits for its first message, with a reader, is one."""
    for topic in ("gone", "t"):
        client.publish(topic, ODD, b"x")
    with client.subscribe("gone", "g", accept, history=True):
        settled(client, "gone")
    register(client._database, GroupTopic(topic="empty", group="g"), SubscriptionConfig())
    archive()
    client.admin.delete_topic("gone", dry_run=False)
    there = ["empty", "t"]
    assert [topic.topic for topic in client.admin.topics()] == there
    assert chosen() == there
    with pytest.raises(ConfigurationError, match="'gone' is neither in the archive nor in the live log"):
        chosen("gone")
    found = analyze(path=path)
    assert (found.facts.topics, longest(found)["gone"][0]) == (["empty", "gone", "t"], 1)


@pytest.mark.parametrize("live", [True, False])
def test_a_cut_off_is_never_in_the_future_and_may_be_any_time_before(lanelog_url: str, *, live: bool) -> None:
    """Also the very first moment, which is 0 in the tables; a report does not reach beyond what it can know."""

    def cutoff_ms(until: datetime | None) -> int:
        given = {"output": "unused", "path": None if live else "unused", "url": lanelog_url, "until": until}
        return analysis._scope(AnalyzeOptions(**given, live=live).wanted()).cutoff_ms

    now = datetime.now(UTC)
    tomorrow_ms = (now + timedelta(hours=23)).timestamp() * 1000
    assert [cutoff_ms(datetime.fromtimestamp(seconds, UTC)) for seconds in (0, 1.5)] == [0, 1500]
    assert all(cutoff_ms(until) < tomorrow_ms for until in (now + timedelta(days=1), None))


# -- what is large, what changes meanwhile -----------------------------------------------------------------------------


def test_a_table_with_a_row_for_every_lane_is_cut_and_counted_whole(client: Client, analyze: Analyze, raw: Any) -> None:
    """The lanes that are still longest, the reasons that are most frequent; the sums are of all of them."""

    def handle(message: lanelog.Message) -> None:
        raise lanelog.Reject("often" if message.offset > 1 else f"once {message.key}")

    for key in ("b", "a", ODD):
        client.publish_many("t", [lanelog.Outgoing(key, b"x") for _ in range(2)])
    with client.subscribe("t", "g", handle):
        settled(client, "t")
    rows(raw, "UPDATE queue_offsets SET updated_at = updated_at - 9000 WHERE consumer_group = 'g'")
    rows(raw, "UPDATE queue_groups SET created_at = created_at - 9000")
    for seconds, key in enumerate(("a", "b", "z")):
        offset = client.publish("t", key, b"x").offset
        age = "UPDATE queue_messages SET created_at = created_at - %s WHERE partition_key = %s AND `offset` = %s"
        rows(raw, age, 1000 * seconds, key, offset)
    found = analyze(most_rows=2, stalled_after=0.001, topics=("t",))
    assert found.facts.counted == {"dead_letters": 4, "stalled_lanes": 3}
    assert (found.facts.dead_letters, found.facts.outstanding, found.facts.reasons, found.facts.stalled) == (6, 6, 4, 3)
    reasons = [(row["reason"], row["dead_letters"]) for row in found.page["dead_letters"].to_pylist()]
    assert reasons == [("often", 3), ("once a", 1)]
    assert [row["reason"] for row in found.tables["dead_letters"].to_pylist()] == ["often", "once a"]
    assert [row["key"] for row in found.page["stalled_lanes"].to_pylist()] == ["z", "b"]
    assert [row["key"] for row in found.tables["stalled_lanes"].to_pylist()] == ["b", "z"]


def test_a_group_that_comes_or_goes_while_the_log_is_read_has_no_lag(
    client: Client, analyze: Analyze, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has no watermarks yet, the other none any more: neither is behind by the whole log."""
    tail = SubscriptionConfig(start="latest")
    client.publish_many("t", [lanelog.Outgoing(ODD, b"x") for _ in range(5)])
    for group in ("stays", "goes"):
        register(client._database, GroupTopic(topic="t", group=group), tail)
    real = analysis._pinned

    def meanwhile(*args: Any) -> Any:
        if args[-1] == "offsets":
            client.admin.delete_group("t", "goes", dry_run=False)
        found = real(*args)
        if args[-1] == "offsets":
            register(client._database, GroupTopic(topic="t", group="comes"), tail)
        return found

    monkeypatch.setattr(analysis, "_pinned", meanwhile)
    found = analyze()
    assert [(row["consumer_group"], row["lag"]) for row in found.tables["lag"].to_pylist()] == [("stays", 0)]
    assert not found.facts.keeps_history
