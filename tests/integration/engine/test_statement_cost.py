"""What a message costs in statements, counted at a server that nobody else uses: exact where nothing varies.

What an idle client costs is counted by test_idle_cost.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

import lanelog
from lanelog import Client, Outgoing
from lanelog.admin.operate import status as looking
from lanelog.admin.operate.status import Status
from lanelog.devserver import DevServer, start
from lanelog.publisher import Publisher
from support.proxy import proxy_to
from support.situations import Situations
from support.sql import audit, one, rows, tables_locked, watermark
from support.sql import connect as past_the_library
from support.waiting import accept, eventually

QUIET = {"lease_duration": 3600.0, "lease_renewal": 1800.0}
"""A keeper that writes no heartbeat after its first."""

PUBLISHED = {"select": 1, "update": 1, "insert": 1, "commit": 1}
"""A message alone: lock the head, insert, advance, commit. It begins without a statement."""

PROVEN = {"set_option": 1, "savepoint": 1, "release_savepoint": 1}
"""What proves that a transaction has not ended unseen, in the packets of its first and of its last statement.

The first of them proves that autocommit is off: the session was not reset before.
"""

TOGETHER = {**PUBLISHED, **PROVEN, "select": 2}
"""Messages together: lock the heads, advance them, note the time, insert, commit; all but the first in one packet."""

IN_A_TRANSACTION = {
    "savepoint": 1,  # is a transaction open? and: an error must leave nothing of ours
    "rollback_to_savepoint": 1,
    "select": 2,  # is the lane there, on another connection; lock its head
    "update": 1,
    "insert": 1,
    "release_savepoint": 1,
}


@pytest.fixture(scope="module")
def private_server(lanelog_server: DevServer, request: pytest.FixtureRequest) -> Iterator[DevServer]:
    """A server of this module alone: it counts for all its clients together."""
    with start(request.config.getoption("--server")) as server:
        yield server


@pytest.fixture
def url(private_server: DevServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with tables, dropped after the test."""
    url = private_server.create_database("counted")
    with lanelog.connect(url) as client:
        client.migrate()
    yield url
    private_server.drop_database("counted")


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client whose connections for publishing are open, and whose lane k exists.

    Its first message has read who is to be told. A publisher reads that once a second, whatever a message costs.
    """
    with lanelog.connect(url) as client:
        hints = client._announcements.hints
        hints.refresh_seconds = 3600.0
        client.publish("t", "k", b"x")
        yield client


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Any]]:
    """Opens connections past the library, closed after the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(closing(past_the_library(url, **options)))


@pytest.fixture
def raw(connect: Any) -> Any:
    """The connection that counts, and looks into tables."""
    return connect(autocommit=True)


def status(raw: Any) -> Counter[str]:
    """How many statements of each kind the server has got, and of all kinds together, since it started."""
    counted = rows(raw, r"SHOW GLOBAL STATUS WHERE variable_name = 'Questions' OR variable_name LIKE 'Com\_%'")
    return Counter({name.removeprefix("Com_").lower(): int(value) for name, value in counted if str(value).isdigit()})


@contextmanager
def counting(raw: Any) -> Iterator[dict[str, int]]:
    """What clients have sent during the block, by kind; "questions": all together. Our own question is left out."""
    sent: dict[str, int] = {}
    before = status(raw)
    yield sent
    after = status(raw)
    sent |= {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}
    sent["questions"] -= 1
    for own in ("show_status", "admin_commands"):  # admin: pings, which are no statements and no questions
        sent.pop(own, None)


def total(kinds: dict[str, int], times: int = 1) -> dict[str, int]:
    """These statements, so often, and nothing else."""
    return {"questions": sum(kinds.values()) * times, **{kind: count * times for kind, count in kinds.items()}}


# -- publishing --------------------------------------------------------------------------------------------------------


def test_a_single_publish_is_four_statements(client: Client, raw: Any) -> None:
    """Lock, insert, advance, commit; an id of the caller's is looked up behind the lock; a duplicate writes nothing."""
    with counting(raw) as sent:
        for _ in range(10):
            client.publish("t", "k", b"x")
    assert sent == total(PUBLISHED, 10)
    with counting(raw) as sent:
        for number in range(10):
            client.publish("t", "k", b"x", id=f"id-{number}")
    assert sent == total({**TOGETHER, "select": 3}, 10)
    with counting(raw) as sent:
        assert client.publish("t", "k", b"x", id="id-0").duplicate
    assert sent == total({**PROVEN, "select": 2, "commit": 1})


def test_a_publish_with_a_delay_is_five_statements(client: Client, raw: Any) -> None:
    """Lock, insert, commit, and the proof; no head moves before it is due; with an id of the caller's, one more."""
    publisher = Publisher(client._database)  # without a scheduler, whose looks would be counted
    with counting(raw) as sent:
        for _ in range(10):
            publisher.publish("t", Outgoing("k", b"x", delay=3600))
    assert sent == total({**PROVEN, "select": 1, "insert": 1, "commit": 1}, 10)
    with counting(raw) as sent:
        publisher.publish("t", Outgoing("k", b"x", delay=3600, id="a"))
    assert sent == total({**PROVEN, "select": 2, "insert": 1, "commit": 1})
    publisher.close()


def test_the_first_message_of_a_key_is_eighteen_statements(client: Client, raw: Any) -> None:
    """Once in the life of a lane: the head is missing, it is created with its floor, and the publish is repeated."""
    client.publish("t", "warm", b"x")  # the connection that creates lanes is open
    with counting(raw) as sent:
        client.publish("t", "new", b"x")
    failed = {"select": 1, "insert": 1, "rollback": 1}  # one packet: without a head there is no offset to insert at
    missed = {**PROVEN, "select": 2, "commit": 1}  # no head, and it is not that somebody has it
    created = {**PROVEN, "select": 1, "insert": 2, "commit": 1}  # where it begins, by its topic's row
    assert sent == total(dict(Counter(failed) + Counter(missed) + Counter(created) + Counter(PUBLISHED)))


def test_a_hundred_messages_at_once_cost_what_one_costs(client: Client, raw: Any) -> None:
    """publish_many locks, advances and inserts all of them together, under one key or under a hundred."""
    for keys in (1, 100):
        items = [(f"k{number % keys}", b"x") for number in range(100)]
        client.publish_many("t", items)
        with counting(raw) as sent:
            client.publish_many("t", items)
        assert sent == total(TOGETHER)


def test_a_hundred_messages_at_once_take_two_round_trips(url: str) -> None:
    """The locks, and all behind them. The rows are short: a long statement comes in pieces."""
    with proxy_to(url) as proxy, lanelog.connect(proxy.url) as client:
        items = [(f"k{number}", b"x") for number in range(100)]
        client.publish_many("t", items)
        before = proxy.requests
        client.publish_many("t", items)
        assert proxy.requests == before + 2


def test_eight_threads_at_once_share_a_transaction(client: Client, raw: Any, connect: Any) -> None:
    """Seven that publish while the first one's transaction is under way share the next: eleven statements for eight."""
    client.publish_many("t", [(f"k{number}", b"x") for number in range(8)])
    locker = connect(autocommit=True)

    def queued() -> int:
        queue = client._publisher._group._queues.get("t")
        return len(queue.ready) if queue is not None else -1

    with ThreadPoolExecutor(8) as pool, counting(raw) as sent:
        with tables_locked(locker, "LOCK TABLES queue_messages WRITE"):
            publishing = [pool.submit(client.publish, "t", "k0", b"x")]
            eventually(lambda: queued() == 0)  # it leads, and waits to insert
            publishing += [pool.submit(client.publish, "t", f"k{number}", b"x") for number in range(1, 8)]
            eventually(lambda: queued() == 7)
        for future in publishing:
            future.result(20)
    both = Counter(PUBLISHED) + Counter(TOGETHER)
    assert {kind: sent[kind] for kind in both} == both
    assert sent["questions"] == both.total() + 2  # LOCK and UNLOCK TABLES


@pytest.mark.thorough
def test_a_publish_in_a_callers_transaction_is_seven_statements(client: Client, raw: Any, connect: Any) -> None:
    """A savepoint set, tried and released around the publish; our own connection looks whether the lane is there."""
    mine = connect(autocommit=False)
    client.publish("t", "k", b"x", connection=mine)
    mine.commit()
    with counting(raw) as sent:
        for _ in range(3):
            client.publish("t", "k", b"x", connection=mine)
        mine.commit()
    each = Counter(IN_A_TRANSACTION)
    assert sent == total(dict(each + each + each + Counter(commit=1)))
    with counting(raw) as sent:
        client.publish_many("t", [("k", b"x")] * 100, connection=mine)
        mine.commit()
    assert sent == total(dict(each + Counter(commit=1)))


def test_our_own_transaction_costs_five_statements_more(client: Client, raw: Any) -> None:
    """A savepoint at its start, released before its commit, shows whether it is still the same transaction.

    Two more make the connection as new: a reset of the session, which is one of the questions, and its settings.
    """
    with client.transaction() as connection:
        client.publish("t", "k", b"x", connection=connection)
    with counting(raw) as sent, client.transaction() as connection:
        client.publish("t", "k", b"x", connection=connection)
    each = Counter(IN_A_TRANSACTION) + Counter(savepoint=1, release_savepoint=1, commit=1, set_option=2)
    if blocks := sent.pop("compound_sql", 0):  # MariaDB begins and commits in blocks, each of which is one question
        sent["questions"] += blocks
    else:  # MySQL counts that packets are refused before the block, and permitted behind it
        each["set_option"] += 2
    assert sent == {**total(dict(each)), "questions": each.total() + 1}


# -- consuming ---------------------------------------------------------------------------------------------------------


def test_a_message_that_comes_alone_is_written_down_twice(client: Client, raw: Any) -> None:
    """One statement marks it before its handler starts, one acks it; nothing else of a consumer writes."""
    client.subscribe("t", "g", accept, **QUIET)
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    messages = 5
    with counting(raw) as sent:
        for offset in range(2, 2 + messages):
            client.publish("t", "k", b"x")
            eventually(lambda offset=offset: watermark(raw, "g", "t", "k") == offset)
    flush = {"insert_select": 1}  # the fence, the row and its commit at once
    expected = Counter(PUBLISHED) + Counter(flush) + Counter(flush)
    # SELECTs are not counted: how often a client looks, and this test, depends on the time that passes.
    kinds = ("begin", "insert", "insert_select", "update", "delete", "commit", "rollback")
    assert {kind: sent.get(kind, 0) for kind in kinds} == {kind: messages * expected[kind] for kind in kinds}


@pytest.mark.thorough
def test_a_backlog_over_a_hundred_lanes_costs_a_twenty_fifth_of_a_statement_a_message(
    client: Client, raw: Any, url: str
) -> None:
    """Fetches and flushes are shared by hundreds of messages, and none of them ever has a delivery row.

    A statement is one round trip.
    """
    lanes, messages = 100, 20_000
    for _ in range(messages // 2000):
        client.publish_many("c", [(f"k{number % lanes}", b"x" * 100) for number in range(2000)])
    audit(raw, "exceptions", "INSERT", "queue_delivery_state", "lane", "NEW.partition_key")
    since = time.monotonic()
    with proxy_to(url) as proxy, lanelog.connect(proxy.url) as consumer, counting(raw) as sent:
        subscription = consumer.subscribe("c", "g", accept, **QUIET)
        eventually(lambda: subscription.stats().acked == messages, within=60)
        trips = proxy.requests
    seconds = time.monotonic() - since
    assert one(raw, "SELECT COUNT(*) FROM exceptions") == 0
    # A fetch brings at most 4,000 messages (prefetch), so five of them at least; a flush is four statements and carries
    # what workers have done during the one before: 57 to 69 flushes and 0.014 to 0.019 statements a message were
    # measured on both families. What an idle client may send (see test_idle_cost) grows with the time that it takes.
    assert sent["commit"] <= messages / 100, sent
    assert sent["questions"] <= messages / 25 + 30 * seconds, sent
    assert trips <= messages / 25 + 30 * seconds, (trips, sent)


# -- looking -----------------------------------------------------------------------------------------------------------


def status_of(client: Client, raw: Any, topics: int) -> tuple[Status, int]:
    """A status of so many topics, and how many statements it sent.

    A few of them belong to no topic. Their number depends on how many threads are at work at once: beside 40 topics it
    is less than half a statement a topic.
    """
    client.admin.status()
    with counting(raw) as sent:
        found = client.admin.status()
    assert len(found.groups) == topics
    return found, sent["questions"]


@pytest.mark.thorough
def test_a_status_of_topics_in_which_no_lane_can_be_wrong_is_seven_statements_a_topic(
    client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads, places, exceptions, owners, leases, the oldest message and its commit.

    Lanes are looked into one by one only where one may be stuck: a paused one, or one with members and old messages.
    """
    monkeypatch.setattr(looking, "COMPARING", -1.0)  # how many topics are compared depends on time
    sent = []
    for topics in (range(40), range(40, 80)):
        for number in topics:
            client.publish(f"t{number}", "k", b"x")
            Situations(raw, f"t{number}").register(created_at=0)
        found, questions = status_of(client, raw, topics.stop)
        assert found.lag == topics.stop
        sent.append(questions)
    assert round((sent[1] - sent[0]) / 40) == 7, sent


@pytest.mark.thorough
def test_a_lane_that_is_stuck_costs_a_status_twelve_statements_more(
    client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of its own in which head, place, lease, exceptions, owner and first message are read.

    Two more read what the group's workers do, and reset the connection. Lanes in which nothing lags are not read.
    """
    monkeypatch.setattr(looking, "COMPARING", -1.0)
    sent = []
    for topics in (range(40), range(40, 80)):
        for number in topics:
            made = Situations(raw, f"t{number}")
            client.publish_many(f"t{number}", [("k", b"x"), ("idle", b"x")])
            made.register(created_at=0)
            made.place("idle", 1)
            made.owner("living")
            made.lease("k", "living", 1)
            made.row("k", 1, retry_count=1, first_attempt_at=1000, last_error="boom")
            made.written("k", 1, ago=600)
        found, questions = status_of(client, raw, topics.stop)
        assert Counter(each.what for each in found.problems) == {"failing": topics.stop, "behind": topics.stop}
        sent.append(questions)
    assert round((sent[1] - sent[0]) / 40) == 7 + 12, sent


def test_a_page_of_members_costs_the_same_whatever_number_of_groups_it_has(client: Client, raw: Any) -> None:
    """The rows, their lanes, and the three statements of their snapshot."""
    sent = []
    for groups in (range(1), range(1, 40)):
        for number in groups:
            made = Situations(raw, f"t{number}", f"g{number}")
            made.register()
            made.owner("living")
            made.lease("k", "living", 1)
        client.admin.members()
        with counting(raw) as kinds:
            found = client.admin.members(limit=50)
        assert [each.lanes for each in found] == [1] * groups.stop
        sent.append(kinds)
    assert sent == [total({"set_option": 1, "begin": 1, "select": 2, "commit": 1})] * 2
