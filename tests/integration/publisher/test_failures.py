"""Publishing while connections, the server or the process go away."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from lanelog import Client
from lanelog._process import asleep
from lanelog.devserver import DevServer
from lanelog.errors import DatabaseError
from lanelog.message import Outgoing, Receipt
from lanelog.migrations import migrate
from lanelog.publisher import Publisher
from support.forking import exit_status_of
from support.proxy import SET_OPTION, Proxy
from support.publishing import ensure_lanes, hold, publisher_at
from support.sql import rows, stored, watermark
from support.waiting import Record, accept, eventually


@pytest.fixture(params=[True, False], ids=["packets", "single statements"])
def distant(proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Publisher]:
    """A publisher that reaches the server through a proxy, which takes packets of several statements or not."""
    proxy.refuse = b"" if request.param else SET_OPTION
    with publisher_at(proxy.url, publish_timeout=40.0) as publisher:
        publisher.publish("t", Outgoing("k", b"first"))
        yield publisher


def test_an_unknown_commit_is_repeated_without_a_second_copy(distant: Publisher, proxy: Proxy, raw: Any) -> None:
    """The connection is cut after COMMIT was sent: the message is there once, and no duplicate to its publisher."""
    for deliver in (True, False):
        proxy.deliver = deliver
        for message_id in (None, f"given-{deliver}"):
            proxy.cut_at = b"COMMIT"
            receipt = distant.publish("t", Outgoing("k", b"x", id=message_id))
            assert not receipt.duplicate
            assert rows(raw, "SELECT COUNT(*), MAX(`offset`) FROM queue_messages") == [(receipt.offset, receipt.offset)]
    assert proxy.cuts == 4


def test_an_unknown_commit_of_many_is_repeated(distant: Publisher, proxy: Proxy, raw: Any) -> None:
    """All of them are there once, in order, and old ids are still reported as duplicates."""
    distant.publish("t", Outgoing("k", b"old", id="old"))
    items: list[Any] = [("k", b"1"), Outgoing("k", b"2", id="new"), Outgoing("k", b"3", id="old"), ("j", b"4")]
    for deliver, offset in ((True, 3), (False, 5)):
        proxy.cut_at, proxy.deliver = b"COMMIT", deliver
        items[1] = Outgoing("k", b"2", id=f"new-{deliver}")
        receipts = distant.publish_many("t", items)
        assert [receipt.offset for receipt in receipts][:3] == [offset, offset + 1, 2]
        assert [receipt.duplicate for receipt in receipts] == [False, False, True, False]
    assert proxy.cuts == 2
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'k'") == [(6,)]
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'j'") == [(2,)]


@pytest.mark.thorough
@pytest.mark.parametrize("many", [False, True])
def test_a_publish_ends_with_its_time(proxy: Proxy, many: bool) -> None:
    """A server that does not answer is asked again, but not for as long as an answer may take otherwise."""
    with publisher_at(proxy.url, publish_timeout=5.0, read_timeout=4.0) as publisher:
        publisher.publish("t", Outgoing("k", b"first"))
        proxy.silent = True
        began = time.monotonic()
        with pytest.raises(DatabaseError) as caught:
            if many:
                publisher.publish_many("t", [("k", b"x")])
            else:
                publisher.publish("t", Outgoing("k", b"x"))
        assert 4.0 < time.monotonic() - began < 6.8
        assert caught.value.retriable


@pytest.mark.parametrize("distant", [False], indirect=True, ids=["single statements"])
@pytest.mark.parametrize("statement", [b"SKIP LOCKED", b"')", b",0,DEFAULT)"])
def test_a_connection_lost_before_the_commit_is_repeated(
    distant: Publisher, proxy: Proxy, raw: Any, statement: bytes
) -> None:
    """Wherever in the transaction it is lost, the whole of it is repeated on another connection."""
    proxy.cut_at = statement
    assert distant.publish("t", Outgoing("k", b"x", id="given")).offset == 2
    assert proxy.cuts == 1
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(2,)]


class Outage:
    """What happens between the first attempt, whose COMMIT is not answered, and the second; time passes at once."""

    def __init__(self, patch: pytest.MonkeyPatch, proxy: Proxy) -> None:
        self.meanwhile: list[Callable[[], object]] = []
        self.seconds = 0.0
        self._proxy = proxy
        self._really = asleep.now
        patch.setattr(asleep, "now", self._now)

    def _now(self) -> float:
        while self._proxy.cuts and self.meanwhile:
            self.meanwhile.pop(0)()
        return self._really() + self.seconds

    def last(self, raw: Any, seconds: float) -> None:
        """So much later, by the server's ages and by the publisher's clock."""
        rows(raw, "UPDATE queue_messages SET created_at = created_at - %s", round(seconds * 1000))
        self.seconds += seconds


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch, distant: Publisher, proxy: Proxy) -> Outage:
    ensure_lanes(distant, "t", ["j"])  # the first COMMIT is that of the messages
    return Outage(monkeypatch, proxy)


Publish = Callable[[Publisher], Sequence[Receipt]]

EVERY_WAY = pytest.mark.parametrize(
    "publish",
    [
        lambda publisher: [publisher.publish("t", Outgoing("k", b"x", id="given"))],
        lambda publisher: [publisher.publish("t", Outgoing("k", b"x"))],
        lambda publisher: publisher.publish_many("t", [("k", b"x"), ("j", b"y")]),
    ],
    ids=["given", "generated", "many"],
)


def handle_and_collect(client: Client, raw: Any, outage: Outage, seconds: float) -> None:
    """The group handles what is there, `seconds` pass, and what may leave the log leaves it."""

    def handled() -> bool:
        heads = rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE partition_key > ''")
        return all(watermark(raw, "g", "t", key) == head for key, head in heads)

    eventually(handled)
    outage.last(raw, seconds)
    client.admin.maintain()


@pytest.mark.thorough
@EVERY_WAY
def test_no_second_copy_of_what_was_collected(
    distant: Publisher, proxy: Proxy, lanelog_client: Client, raw: Any, outage: Outage, publish: Publish
) -> None:
    """The unanswered COMMIT took place, the message was handled, and the retention is over: it is not delivered twice.

    The retention suits the subscriber's client; the publisher repeats for longer, or slept.
    """
    handled = Record()
    lanelog_client.subscribe("t", "g", handled, retention=60.0)
    outage.meanwhile = [
        lambda: handle_and_collect(lanelog_client, raw, outage, 61.0),
        lambda: eventually(lambda: stored(raw) == 0),
    ]
    proxy.cut_at = b"COMMIT"
    with pytest.raises(DatabaseError, match="longest retention of the topic's groups is 60 s") as caught:
        publish(distant)
    assert caught.value.outcome_unknown
    assert not caught.value.retriable
    assert proxy.cuts == 1
    assert stored(raw) == 0
    distant.publish("t", Outgoing("k", b"next"))  # the lane is free, and nothing else was refused
    handled.until(lambda items: items[-1].payload == b"next")
    assert [message.payload for message in handled.items if message.key == "k"] == [b"first", b"x", b"next"]


@pytest.mark.thorough
@EVERY_WAY
def test_what_is_found_is_no_matter_of_age(
    distant: Publisher, proxy: Proxy, lanelog_client: Client, raw: Any, outage: Outage, publish: Publish
) -> None:
    """However late the repetition is, the copy is there still, and its receipt is no duplicate's."""
    assert lanelog_client.subscribe("t", "g", accept, retention=60.0).stop(10)
    outage.meanwhile = [lambda: outage.last(raw, 3600.0)]
    proxy.cut_at = b"COMMIT"
    receipts = publish(distant)
    assert proxy.cuts == 1
    assert not any(receipt.duplicate for receipt in receipts)
    assert stored(raw) == 1 + len(receipts)


@pytest.mark.parametrize(("retention", "seconds"), [(60.0, 50.0), (0.0, 3600.0), (None, 3600.0)])
@EVERY_WAY
def test_what_never_happened_is_repeated(
    distant: Publisher,
    proxy: Proxy,
    lanelog_client: Client,
    raw: Any,
    outage: Outage,
    publish: Publish,
    retention: float | None,
    seconds: float,
) -> None:
    """The COMMIT never arrived: repeated within the retention, with a retention of 0, and where no group is."""
    if retention is not None:
        assert lanelog_client.subscribe("t", "g", accept, retention=retention).stop(10)
    outage.meanwhile = [lambda: outage.last(raw, seconds)]
    proxy.cut_at, proxy.deliver = b"COMMIT", False
    receipts = publish(distant)
    assert proxy.cuts == 1
    assert [receipt.offset for receipt in receipts] == [2, 1][: len(receipts)]


@pytest.mark.thorough
@pytest.mark.parametrize("deliver", [True, False], ids=["committed", "lost"])
def test_many_stay_unknown_when_their_lane_is_locked_after_the_commit(
    proxy: Proxy, raw: Any, open_raw: Any, monkeypatch: pytest.MonkeyPatch, deliver: bool
) -> None:
    """The COMMIT was not answered, and another transaction then has the head until the time is up.

    Whoever publishes again without an id after `outcome_unknown=False` would double what was committed.
    """
    with publisher_at(proxy.url, publish_timeout=1.5, impatient=True) as publisher:
        publisher.publish("t", Outgoing("k", b"first"))
        holder = open_raw()
        Outage(monkeypatch, proxy).meanwhile = [lambda: hold(holder, "k")]
        proxy.cut_at, proxy.deliver = b"COMMIT", deliver
        with pytest.raises(DatabaseError, match="the lane of key 'k'") as caught:
            publisher.publish_many("t", [("k", b"1"), ("k", b"2")])
    assert caught.value.outcome_unknown
    assert proxy.cuts == 1
    assert stored(raw) == (3 if deliver else 1)


def test_a_delayed_message_may_be_repeated_for_longer(
    distant: Publisher, proxy: Proxy, lanelog_client: Client, raw: Any, outage: Outage
) -> None:
    """The message is not in the schedule a minute after the unanswered COMMIT, and not due yet: it never was there."""
    assert lanelog_client.subscribe("t", "g", accept, retention=60.0).stop(10)
    outage.meanwhile = [lambda: outage.last(raw, 61.0)]
    proxy.cut_at, proxy.deliver = b"COMMIT", False
    assert distant.publish("t", Outgoing("k", b"x", delay=60.0)).offset == 0
    assert proxy.cuts == 1
    assert rows(raw, "SELECT COUNT(*) FROM queue_scheduled") == [(1,)]


def test_our_transaction_reports_an_unknown_commit(distant: Publisher, proxy: Proxy, raw: Any) -> None:
    """The library cannot repeat the user's block: the error says that the outcome is unknown."""
    with pytest.raises(DatabaseError) as caught, distant.transaction() as connection:
        distant.publish("t", Outgoing("k", b"x"), connection=connection)
        proxy.cut_at = b"COMMIT"
    assert caught.value.outcome_unknown
    assert caught.value.retriable
    eventually(lambda: rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(2,)])


def test_the_very_first_connection_may_be_lost_while_it_logs_in(proxy: Proxy, raw: Any) -> None:
    """A server that has greeted is there: publish repeats, although this client was never connected before."""
    proxy.cut_at = b"READ COMMITTED, READ WRITE"  # the first thing that a session says
    proxy.deliver = False
    with publisher_at(proxy.url, publish_timeout=20.0) as publisher:
        assert publisher.publish("t", Outgoing("k", b"x")).offset == 1
    assert proxy.cuts == 1
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(1,)]


def test_a_server_restart_loses_and_doubles_nothing(private_server: DevServer) -> None:
    """Publishers wait for the server to come back; what they were promised is there, once."""
    with publisher_at(private_server.create_database("restart"), publish_timeout=60.0) as publisher:
        migrate(publisher._database)
        stop, some = threading.Event(), threading.Event()

        def publish(number: int) -> list[str]:
            ids = []
            while not stop.is_set():
                ids.append(publisher.publish("t", Outgoing(f"k{number}", b"x")).id)
                if len(ids) == 20:
                    some.set()
            return ids

        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(publish, number) for number in range(4)]
            try:
                assert some.wait(30)
                private_server.kill()
                private_server.restart()
            finally:
                stop.set()
            promised = [message_id for call in calls for message_id in call.result()]
        with publisher._database.autocommit() as cx:
            stored = [message_id for (message_id,) in cx.query("SELECT id FROM queue_messages")]
            lanes = "queue_partitions p JOIN queue_messages m USING (topic, partition_key)"
            each = "GROUP BY partition_key, p.head_offset"
            heads = cx.query(f"SELECT p.head_offset, COUNT(*), MAX(m.`offset`) FROM {lanes} {each}")
    assert sorted(stored) == sorted(promised)
    assert all(head == count == last for head, count, last in heads)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_publishes_for_itself(publisher: Publisher, raw: Any, open_raw: Any) -> None:
    """A fork in the middle of other threads' publishing disturbs neither side."""
    ensure_lanes(publisher, "t", ["held"])
    holder = open_raw()
    hold(holder, "held")
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(3))
        stack.callback(holder.rollback)
        stuck = [threads.submit(publisher.publish, "t", Outgoing("held", b"parent")) for _ in range(3)]
        publisher.publish("t", Outgoing("k", b"parent"))

        def child() -> int:
            offset = publisher.publish("t", Outgoing("k", b"child")).offset
            with publisher.transaction() as connection:
                publisher.publish("t", Outgoing("new", b"child"), connection=connection)
            publisher.close()
            publisher._database.close()
            return offset

        assert exit_status_of(child) == 2
        assert publisher.publish("t", Outgoing("k", b"parent")).offset == 3
        assert not any(one.done() for one in stuck)
        holder.rollback()
        assert sorted(one.result(20).offset for one in stuck) == [1, 2, 3]
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(7,)]
