"""A publish in one packet, alone or behind its locks: what is refused, stands still, or is heard of too late."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any, Literal

import pytest

import lanelog
from lanelog._base.payloads.metadata import decode_metadata
from lanelog._database import Database, Statement
from lanelog._log.append.draft import make_draft
from lanelog._log.append.writing import write
from lanelog.config import ConnectConfig
from lanelog.errors import DatabaseError, SchemaError
from lanelog.message import Outgoing, Receipt
from lanelog.publisher import Publisher, batch
from support.proxy import SET_OPTION, Proxy
from support.publishing import ensure_lanes, hold, publisher_at
from support.sql import one, rows, running, stored, tables_locked
from support.stage import wait_until_blocked
from support.waiting import Record, eventually

Driver = Literal["pymysql", "mysqlclient"]
DRIVERS: list[Driver] = ["pymysql", "mysqlclient"] if find_spec("MySQLdb") else ["pymysql"]
HOSTILE = ["'); DROP TABLE queue_messages; -- ", "%s;%%", "a\\", '"`/*', "ä€𝄞;COMMIT;", "@lanelog_offset"]
BOTH_WAYS = pytest.mark.parametrize("way", ["alone", "many"])
STALL = "DO GET_LOCK('stalled', 20), RELEASE_LOCK('stalled')"


@pytest.fixture(params=DRIVERS)
def publisher(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Publisher]:
    """A publisher that reaches the server through the proxy by each of the drivers, one connection and one lane."""
    with publisher_at(proxy.url, driver=request.param, pool_size=2, publish_timeout=60.0, read_timeout=6.0) as one:
        one.publish("t", Outgoing("k", b"first"))
        one.publish("t", Outgoing("k", b"second"))  # the connection takes packets
        yield one


def publish_one(publisher: Publisher, way: str, payload: bytes) -> Receipt:
    """Publish a message in one packet, or in one behind the lock of its head."""
    if way == "alone":
        return publisher.publish("t", Outgoing("k", payload))
    return publisher.publish_many("t", [("k", payload)])[0]


def log_of(raw: Any, key: str = "k") -> list[tuple[Any, ...]]:
    """Offsets and payloads of a lane."""
    sql = "SELECT `offset`, payload FROM queue_messages WHERE partition_key = %s ORDER BY `offset`"
    return rows(raw, sql, key)


def head_of(raw: Any) -> int:
    return int(one(raw, "SELECT head_offset FROM queue_partitions WHERE partition_key = 'k'"))


def waiting_for_a_table(raw: Any) -> set[int]:
    """The sessions that wait until another one unlocks a table."""
    return {each.number for each in running(raw) if "metadata lock" in each.state}


def test_one_round_trip(publisher: Publisher, proxy: Proxy, raw: Any) -> None:
    """Lock, insert, advance and COMMIT; behind the locks all the rest, where ids are looked up, or rows are many."""
    before = proxy.requests
    assert publisher.publish("t", Outgoing("k", b"x", ttl=60)).offset == 3
    assert proxy.requests == before + 1
    assert publisher.publish("t", Outgoing("k", b"x", id="given", ttl=60)).offset == 4
    assert proxy.requests == before + 4
    assert publisher.publish("t", Outgoing("k", b"x" * 20_000)).offset == 5
    assert proxy.requests >= before + 6  # a long statement may come in pieces
    columns = "created_at = published_at, IF(expires_at, expires_at - created_at, 0), target_group"
    found = rows(raw, f"SELECT {columns} FROM queue_messages WHERE `offset` > 2 ORDER BY `offset`")
    assert found == [(1, 60_000, ""), (1, 60_000, ""), (1, 0, "")]
    assert head_of(raw) == 5


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_early_time_out_locks_before_it_sends(proxy: Proxy, driver: Driver) -> None:
    """The caller might repeat a message that is still on its way: the repetition has to wait for the head."""
    with publisher_at(proxy.url, driver=driver, publish_timeout=29.0) as publisher:
        publisher.publish("t", Outgoing("k", b"x"))
        before = proxy.requests
        publisher.publish("t", Outgoing("k", b"x"))
        assert proxy.requests == before + 2


@pytest.mark.thorough
def test_a_busy_lane_holds_up_nobody_else(publisher: Publisher, raw: Any, open_raw: Any) -> None:
    """The packet does not wait; the message waits for its lane as ever, and is there once."""
    holder = open_raw()
    hold(holder, "k")
    drafted = make_draft("t", Outgoing("k", b"x"), None, 1)
    assert batch.send(publisher._database, drafted) is None  # one that waits ends in a lock time-out
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(publisher.publish, "t", Outgoing("k", b"x"))
        for offset in range(1, 4):
            assert publisher.publish("t", Outgoing("other", b"x")).offset == offset
        assert not waiting.done()
        holder.rollback()
        assert waiting.result(20).offset == 3
    assert head_of(raw) == 3


@pytest.mark.parametrize("deliver", [True, False])
def test_a_lost_answer_is_followed_by_no_second_copy(
    publisher: Publisher, proxy: Proxy, raw: Any, deliver: bool
) -> None:
    """Whether the server has the message or not, it is there once, and its publisher gets no duplicate."""
    proxy.cut_at, proxy.deliver = b"COMMIT", deliver
    receipt = publisher.publish("t", Outgoing("k", b"x"))
    assert (receipt.offset, receipt.duplicate) == (3, False)
    assert proxy.cuts == 1
    assert [offset for offset, _ in log_of(raw)] == [1, 2, 3]
    assert head_of(raw) == 3


def test_a_commit_that_fails_has_an_unknown_outcome(publisher: Publisher, proxy: Proxy, raw: Any) -> None:
    """Some servers say so after the transaction is in their log. It is asked for, and the message is there once."""
    drafted = make_draft("t", Outgoing("k", b"x"), None, 1)
    proxy.fail_after = b"COMMIT"
    with pytest.raises(DatabaseError, match="during COMMIT") as caught:
        batch.send(publisher._database, drafted)
    assert caught.value.outcome_unknown
    proxy.fail_after = b"COMMIT"
    receipt = publisher.publish("t", Outgoing("k", b"y"))
    assert (receipt.offset, receipt.duplicate) == (4, False)
    assert not proxy.fail_after
    assert log_of(raw) == [(1, b"first"), (2, b"second"), (3, b"x"), (4, b"y")]
    assert head_of(raw) == 4


def test_what_arrives_late_meets_its_copy(publisher: Publisher, proxy: Proxy, raw: Any) -> None:
    """A packet that the network has kept until the publisher had repeated it changes nothing."""
    proxy.cut_at, proxy.keep = b"COMMIT", True
    assert publisher.publish("t", Outgoing("k", b"x")).offset == 3
    assert publisher.publish("t", Outgoing("k", b"y")).offset == 4
    proxy.arrive()
    assert log_of(raw)[2:] == [(3, b"x"), (4, b"y")]
    assert head_of(raw) == 4
    assert publisher.publish("t", Outgoing("k", b"z")).offset == 5


def test_what_arrives_late_behind_the_locks_keeps_others_out(publisher: Publisher, proxy: Proxy, raw: Any) -> None:
    """A packet that the network has kept holds its heads: the repetition waits, and finds the messages."""
    proxy.cut_at, proxy.keep = b"COMMIT", True
    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(publisher.publish_many, "t", [("k", b"x"), ("k", b"y")])
        wait_until_blocked(raw)
        proxy.arrive()
        receipts = publishing.result(30)
    assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(3, False), (4, False)]
    assert log_of(raw)[2:] == [(3, b"x"), (4, b"y")]
    assert head_of(raw) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("moves", [{"gone": 1, "k": 1}, {"gone": 2, "k": 1}, {"k": 1, "no more": 2}])
def test_a_head_that_is_not_there_any_more_refuses_all(publisher: Publisher, raw: Any, moves: dict[str, int]) -> None:
    """A proxy may go on with another server, which has no such lane: no message is stored without its head."""
    drafts = [make_draft("t", Outgoing(key, b"x"), None, 1) for key, count in moves.items() for _ in range(count)]
    with pytest.raises(DatabaseError, match="a lane vanished") as caught, publisher._database.transaction() as cx:
        write(cx, "t", drafts, {**dict.fromkeys(moves, 0), "k": 2}, [])
    assert caught.value.retriable
    assert (stored(raw), head_of(raw)) == (2, 2)


@pytest.mark.parametrize("ends", ["is committed", "is rolled back"])
def test_what_follows_a_packet_in_its_block_is_not_lost(publisher: Publisher, raw: Any, ends: str) -> None:
    """The packet has committed; what is sent after it is a transaction of its own, which ends with the block."""
    move = "UPDATE queue_partitions SET head_offset = head_offset + %s WHERE partition_key = 'k'"
    with suppress(ZeroDivisionError), publisher._database.transaction() as cx:
        assert cx.takes_packets()
        cx.commit_with([Statement(move, (10,))])
        assert cx.execute(move, (100,)) == 1
        if ends == "is rolled back":
            raise ZeroDivisionError
    assert head_of(raw) == (112 if ends == "is committed" else 12)


@pytest.mark.thorough
@BOTH_WAYS
@pytest.mark.parametrize(
    ("statement", "refuse", "allow", "kind"),
    [
        ("lock", "RENAME TABLE queue_partitions TO hidden", "RENAME TABLE hidden TO queue_partitions", SchemaError),
        ("insert", "BEFORE INSERT ON queue_messages", "DROP TRIGGER refuse", DatabaseError),
        ("advance", "BEFORE UPDATE ON queue_partitions", "DROP TRIGGER refuse", DatabaseError),
    ],
)
def test_a_statement_that_is_refused(
    publisher: Publisher, proxy: Proxy, raw: Any, way: str, statement: str, refuse: str, allow: str, kind: Any
) -> None:
    """The error is the server's, its outcome is known, nothing is written, and the connection goes on."""
    connections = one(raw, "SHOW GLOBAL STATUS LIKE 'Connections'")
    if statement != "lock":
        refuse = f"CREATE TRIGGER refuse {refuse} FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'"
    rows(raw, refuse)
    try:
        with pytest.raises(kind, match="refused" if statement != "lock" else "tables are missing") as caught:
            publish_one(publisher, way, b"x")
    finally:
        rows(raw, allow)
    assert not getattr(caught.value, "outcome_unknown", False)
    assert stored(raw) == 2
    before = proxy.requests
    assert publish_one(publisher, way, b"y").offset == 3
    assert proxy.requests == before + (1 if way == "alone" else 2)
    assert one(raw, "SHOW GLOBAL STATUS LIKE 'Connections'") == connections


@BOTH_WAYS
def test_a_trigger_on_the_heads_hides_no_offset(publisher: Publisher, raw: Any, way: str) -> None:
    """An online change of the table makes such a trigger: below it, a statement has no LAST_INSERT_ID."""
    rows(raw, "CREATE TABLE copies LIKE queue_partitions")
    columns = "topic, partition_key, head_offset"
    copy = f"REPLACE INTO copies ({columns}) VALUES (NEW.topic, NEW.partition_key, NEW.head_offset)"
    rows(raw, f"CREATE TRIGGER copying AFTER UPDATE ON queue_partitions FOR EACH ROW {copy}")
    assert [publish_one(publisher, way, b"x").offset for _ in range(2)] == [3, 4]
    rows(raw, "DROP TRIGGER copying")
    assert publish_one(publisher, way, b"y").offset == 5
    assert log_of(raw)[2:] == [(3, b"x"), (4, b"x"), (5, b"y")]


@pytest.mark.thorough
def test_an_offset_whose_answer_is_lost_after_the_commit_is_found_again(
    publisher: Publisher, proxy: Proxy, raw: Any
) -> None:
    """Under a trigger, and the connection is lost before the offset is asked for: the message is there once."""
    rows(raw, "CREATE TRIGGER counting AFTER UPDATE ON queue_partitions FOR EACH ROW SET @counted = 1")
    proxy.cut_at = b"SELECT @lanelog_offset"
    receipt = publisher.publish("t", Outgoing("k", b"x"))
    assert (receipt.offset, receipt.duplicate) == (3, False)
    assert proxy.cuts == 1
    assert log_of(raw)[2:] == [(3, b"x")]


@pytest.mark.thorough
@BOTH_WAYS
@pytest.mark.parametrize("statement", ["INSERT ON queue_messages", "UPDATE ON queue_partitions"])
@pytest.mark.parametrize("end", ["goes on", "dies"])
def test_a_server_that_stands_still_in_the_middle(
    publisher: Publisher, raw: Any, open_raw: Any, way: str, statement: str, end: str
) -> None:
    """The client gives up and repeats, waiting for the head; the packet goes on or dies; the message is there once."""
    stalling = open_raw()
    rows(raw, f"CREATE TRIGGER stall BEFORE {statement} FOR EACH ROW {STALL}")
    assert one(stalling, "SELECT GET_LOCK('stalled', 0)") == 1
    stalled = "SELECT id FROM information_schema.processlist WHERE state LIKE 'User lock%'"
    with ThreadPoolExecutor(1) as threads:
        try:
            publishing = threads.submit(publish_one, publisher, way, b"x")
            eventually(lambda: rows(raw, stalled))
            [(number,)] = rows(raw, stalled)
            if end == "dies":
                rows(raw, f"KILL {number}")
                eventually(lambda: (number,) not in rows(raw, stalled))
            else:
                # The client's patience ends: it drops the connection, and its repetition finds the head taken. Or the
                # server has noticed that the client has left, and has ended the statement by itself.
                gate = publisher._group._gate
                eventually(lambda: publishing.done() or gate._waiting, within=20)
        finally:
            rows(stalling, "DO RELEASE_LOCK('stalled')")
        receipt = publishing.result(30)
    assert (receipt.offset, receipt.duplicate) == (3, False)
    assert log_of(raw)[2:] == [(3, b"x")]
    assert head_of(raw) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
@BOTH_WAYS
def test_a_packet_that_ends_between_two_statements_frees_its_lane(
    proxy: Proxy, raw: Any, open_raw: Any, way: str, driver: Driver
) -> None:
    """KILL QUERY there: the server waits for its client, which does not wait for long. It is there once."""
    with publisher_at(proxy.url, driver=driver) as publisher, ThreadPoolExecutor(1) as threads:
        publisher.publish("t", Outgoing("k", b"first"))
        publisher.publish("t", Outgoing("k", b"second"))
        proxy.end_early = True
        began = time.monotonic()
        publishing = threads.submit(publish_one, publisher, way, b"x")
        eventually(lambda: not proxy.end_early)
        waiting = open_raw()
        rows(waiting, "SET SESSION innodb_lock_wait_timeout = 30")
        hold(waiting, "k")
        waiting.rollback()
        assert time.monotonic() - began < (7.5 if driver == "pymysql" else 6)  # with the lane's next lock
        receipt = publishing.result(30)
    assert (receipt.offset, receipt.duplicate) == (3, False)
    assert [offset for offset, _ in log_of(raw)] == [1, 2, 3]


@pytest.mark.thorough
def test_a_server_that_stands_still_before_the_lock(publisher: Publisher, raw: Any, open_raw: Any) -> None:
    """The client gives up and repeats; packet and repetition then go on at once, and the message is there once."""
    before = waiting_for_a_table(raw)
    with ThreadPoolExecutor(1) as threads:
        with tables_locked(open_raw(), "LOCK TABLES queue_partitions WRITE"):
            publishing = threads.submit(publisher.publish, "t", Outgoing("k", b"x"))
            eventually(lambda: waiting_for_a_table(raw) - before, what="a packet that waits")
            first = waiting_for_a_table(raw)
            eventually(lambda: waiting_for_a_table(raw) - first, within=20, what="its repetition")
        assert publishing.result(30).offset == 3
    eventually(lambda: not waiting_for_a_table(raw))
    assert publisher.publish("t", Outgoing("k", b"y")).offset == 4
    assert log_of(raw)[2:] == [(3, b"x"), (4, b"y")]


def test_a_message_that_waited_for_its_lane_is_no_older_than_the_one_before_it(
    publisher: Publisher, raw: Any, open_raw: Any
) -> None:
    """The message waited from before the other's insert on; its time is that of its own insert, behind the lock."""
    holder = open_raw()
    hold(holder, "k")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(publisher.publish, "t", Outgoing("k", b"waited"))
        wait_until_blocked(raw)
        assert publisher.publish("t", Outgoing("k", b"before"), connection=holder).offset == 3
        holder.commit()
        assert waiting.result(20).offset == 4
    times = "MAX(IF(`offset` = 3, created_at, 0)), MAX(IF(`offset` = 4, created_at, 0))"
    [(before, after)] = rows(raw, f"SELECT {times} FROM queue_messages WHERE partition_key = 'k'")
    assert 0 < before <= after


@pytest.mark.thorough
def test_hostile_text_stays_text(publisher: Publisher, proxy: Proxy, raw: Any) -> None:
    """Topic, key, metadata and payload are stored as they are, in one packet."""
    everything = bytes(range(256)) + "".join(HOSTILE).encode()
    for text in HOSTILE:
        name = text.strip()
        ensure_lanes(publisher, name, [name])
        before = proxy.requests
        assert publisher.publish(name, Outgoing(name, everything, metadata={text: text})).offset == 1
        assert proxy.requests == before + 1
        sql = "SELECT payload, metadata FROM queue_messages WHERE topic = %s AND partition_key = %s"
        [(payload, metadata)] = rows(raw, sql, name, name)
        assert payload == everything
        assert decode_metadata(metadata)[text] == text
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 2 + len(HOSTILE)


@pytest.mark.thorough
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_clock_of_a_lane_never_falls(lanelog_url: str, raw: Any, driver: Driver) -> None:
    """Publishers in turns, each in a packet of its own: a message is never older than the one before it."""
    begin = threading.Barrier(4)

    def publish() -> None:
        with publisher_at(lanelog_url, driver=driver) as publisher:
            publisher.publish("t", Outgoing("k", b"x"))
            begin.wait(20)
            for _ in range(100):
                publisher.publish("t", Outgoing("k", b"x"))

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(publish) for _ in range(4)]:
            done.result(60)
    moments = [at for (at,) in rows(raw, "SELECT created_at FROM queue_messages ORDER BY `offset`")]
    assert moments == sorted(moments)
    assert len(moments) == 404


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_proxy_that_takes_one_statement_at_a_time(proxy: Proxy, raw: Any, driver: Driver) -> None:
    """The proxy is asked once on each connection; everything is published in as many trips as it takes."""
    proxy.refuse = SET_OPTION
    with publisher_at(proxy.url, driver=driver, pool_size=2) as publisher:
        assert publisher.publish("t", Outgoing("k", b"1")).offset == 1
        before = proxy.requests
        assert publisher.publish("t", Outgoing("k", b"2")).offset == 2
        # The savepoint, the lock, two writes, and the COMMIT in a block. MySQL takes a note, the release, a COMMIT on
        # a condition, and one more.
        assert proxy.requests == before + (5 if "MariaDB" in one(raw, "SELECT VERSION()") else 8)
    assert log_of(raw) == [(1, b"1"), (2, b"2")]


def test_user_code_gets_a_connection_for_single_statements(publisher: Publisher) -> None:
    """A text with two statements is refused in a transaction of the user's, before and after packets."""
    for _ in range(2):
        with publisher.transaction() as connection, pytest.raises(Exception, match="syntax"):
            connection.cursor().execute("SELECT 1; SELECT 2")
        publisher.publish("t", Outgoing("k", b"x"))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_handler_gets_a_connection_for_single_statements(lanelog_url: str, driver: Driver) -> None:
    """The same in a message's transaction, on a connection that packets were sent on."""
    seen = Record()

    def handle(message: lanelog.Message) -> None:
        with message.transaction() as connection, pytest.raises(Exception, match="syntax"):
            connection.cursor().execute("SELECT 1; SELECT 2")
        seen(message.payload)

    with lanelog.connect(lanelog_url, driver=driver, pool_size=2) as client:
        client.subscribe("t", "g", handle)
        for payload in (b"1", b"2", b"3"):
            client.publish("t", "k", payload)
        assert seen.wait(3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_nothing_is_sent_to_a_server_that_has_hung_up(lanelog_url: str, raw: Any, driver: Driver) -> None:
    """A connection that ended while it was idle is replaced: nobody has to ask what became of the packet."""
    with closing(Database(ConnectConfig.from_url(lanelog_url, driver=driver, pool_size=2))) as database:
        assert database.commit_at_once([Statement("DO LAST_INSERT_ID(%s)", (7,))], noted="SELECT 7") == 7
        with database.autocommit() as cx:
            found = cx.one("SELECT CONNECTION_ID()")
        rows(raw, f"KILL {found[0]}")
        sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %s"
        eventually(lambda: one(raw, sql, found[0]) == 0)
        assert database.commit_at_once([Statement("DO LAST_INSERT_ID(%s)", (7,))], noted="SELECT 7") == 7


@pytest.mark.thorough
def test_what_may_still_arrive_is_waited_for_where_copies_leave_early(
    proxy: Proxy, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the copy may be collected before its packet arrives, nothing is written until it cannot arrive any more."""
    monkeypatch.setattr(batch, "fits_a_packet", lambda draft, _left: not draft.needs_lookup)
    with lanelog.connect(lanelog_url, publish_timeout=1.0) as reader:
        assert reader.subscribe("t", "g", lambda _: None, retention=2.0).stop(10)
    with publisher_at(proxy.url, pool_size=2, publish_timeout=3.0) as publisher:
        publisher.publish("t", Outgoing("k", b"1"))
        proxy.cut_at, proxy.keep = b"COMMIT", True
        with pytest.raises(DatabaseError, match="may still arrive") as caught:
            publisher.publish("t", Outgoing("k", b"2"))
    assert caught.value.outcome_unknown
    assert log_of(raw) == [(1, b"1")]
