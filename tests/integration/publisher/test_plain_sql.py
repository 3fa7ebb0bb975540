"""Publishing without Python: the stored procedure, and the statements of docs/howto/sql.md."""

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pymysql
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lanelog import Client
from lanelog._base.open_lane_keys import check_key
from lanelog.admin.operate.grants import grants
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError
from support.accounts import account
from support.readme import sql
from support.sql import connect, one, rows
from support.waiting import Record, eventually

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
DEADLOCK = 1213
NASTY = "  \t\n\x85\u2003\u2028\xadx~"
CALL = "CALL lanelog_publish(%s, %s, %s, %s)"
WAITERS = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
LOG = "SELECT partition_key, `offset`, id, payload FROM queue_messages ORDER BY partition_key, `offset`"


@pytest.fixture
def routines(lanelog_client: Client, raw: Any) -> Iterator[None]:
    """The stored routines, in the test's database."""
    lanelog_client.migrate(procedures=True)
    yield
    rows(raw, "DROP PROCEDURE lanelog_publish")
    rows(raw, "DROP FUNCTION lanelog_append")


@pytest.mark.usefixtures("routines")
def test_under_autocommit_a_call_is_whole_or_refused(raw: Any) -> None:
    """What is refused has SQLSTATE 45000 and leaves nothing; an id that is taken adds nothing, and tells its offset."""
    rows(raw, CALL, "t", "k", b"\0\xff", "one")
    rows(raw, CALL, "t", "k", "two", "one")
    assert one(raw, "SELECT lanelog_append('t', 'k', 'two', 'one')") == 1
    assert one(raw, "SELECT lanelog_append('t', 'k', '', NULL)") == 2
    for refused in (("t", " k", b"", None), ("t", "open~x", b"", None), ("t", "k", None, None), (None, "k", b"", None)):
        with pytest.raises(pymysql.err.OperationalError, match="lanelog: ") as error:
            rows(raw, CALL, *refused)
        assert error.value.args[0] == 1644
    assert [(key, offset, payload) for key, offset, _, payload in rows(raw, LOG)] == [
        ("k", 1, b"\0\xff"),
        ("k", 2, b""),
    ]
    assert rows(raw, "SELECT partition_key, head_offset FROM queue_partitions") == [("", 0), ("k", 2)]


@pytest.mark.usefixtures("routines")
def test_a_call_joins_the_open_transaction_and_leaves_its_session_alone(raw: Any, lanelog_client: Client) -> None:
    """A call commits nothing, and leaves savepoints, variables and LAST_INSERT_ID of its caller as they are."""
    rows(raw, "CREATE TABLE made (id INT AUTO_INCREMENT PRIMARY KEY)")
    raw.begin()
    rows(raw, "INSERT INTO made VALUES (17)")
    rows(raw, "INSERT INTO made VALUES (NULL)")
    rows(raw, "SET @lanelog_now = 1, @lanelog_offset = 2")
    rows(raw, "SAVEPOINT mine")
    rows(raw, CALL, "t", "k", "gone", "gone")
    assert rows(raw, "SELECT LAST_INSERT_ID(), @lanelog_now, @lanelog_offset") == [(18, 1, 2)]
    rows(raw, "ROLLBACK TO SAVEPOINT mine")
    rows(raw, CALL, "t", "k", "kept", "kept")
    raw.commit()
    raw.begin()
    rows(raw, CALL, "t", "other", "gone", None)
    raw.rollback()
    assert [(key, offset, payload) for key, offset, _, payload in rows(raw, LOG)] == [("k", 1, b"kept")]
    assert lanelog_client.publish("t", "k", b"python").offset == 2


@pytest.mark.usefixtures("routines")
def test_an_id_that_waits_is_not_published_a_second_time(raw: Any, lanelog_client: Client) -> None:
    """A message with a delay has its id, and no offset yet: the answer is 0, as in Python's receipt."""
    lanelog_client.publish("t", "k", b"later", id="one", delay=3600)
    assert one(raw, "SELECT lanelog_append('t', 'k', 'now', 'one')") == 0
    assert one(raw, "SELECT lanelog_append('t', 'k', 'now', 'two')") == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("routines")
def test_names_are_checked_as_in_python(raw: Any) -> None:
    """What Python takes as a key, the procedure takes, and nothing else; what it takes is stored as it is."""

    @settings(max_examples=300, deadline=None)
    @given(st.text(max_size=8) | st.text(NASTY, max_size=4) | st.integers(254, 257).map("x".__mul__))
    @example("open~063")
    @example("open~64")
    @example("\U0010ffff" * 255)
    @example("a\u2003b")
    def check(key: str) -> None:
        if any(0xD800 <= ord(character) < 0xE000 for character in key):
            return  # no connection can carry it
        try:
            wanted = check_key(key)
        except ConfigurationError:
            with pytest.raises(pymysql.err.OperationalError, match="lanelog: "):
                rows(raw, CALL, "t", key, b"", None)
        else:
            rows(raw, CALL, "t", key, b"", None)
            assert one(raw, "SELECT COUNT(*) FROM queue_partitions WHERE partition_key = %s", wanted) == 1

    check()


@pytest.mark.thorough
@pytest.mark.usefixtures("routines")
def test_triggers_events_and_the_mysql_client_publish_beside_python(
    raw: Any, lanelog_url: str, lanelog_client: Client, setting: Callable[[str, object], None]
) -> None:
    """All of them under the same keys: each message is handled once, in the order of its lane, without a hole."""
    seen = Record()
    lanelog_client.subscribe("orders", "g", lambda message: seen((message.key, message.offset, message.payload)))
    rows(raw, "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(20))")
    rows(raw, sql("CREATE TRIGGER order_is_made"))
    setting("event_scheduler", "ON")
    event = (
        sql("CREATE EVENT tick").replace("EVERY 1 HOUR", "EVERY 1 SECOND").replace("'ticks', 'hourly'", "'orders', 'b'")
    )
    rows(raw, event.replace("%H'", "%H:%i:%s'"))
    config = ConnectConfig.from_url(lanelog_url)
    where = (f"--user={config.user}", f"--host={config.host}", f"--port={config.port}")

    def by_trigger() -> None:
        with connect(lanelog_url) as mine:
            for _ in range(20):
                rows(mine, "INSERT INTO orders (customer) VALUES ('a')")

    def by_client() -> None:
        text = "".join(f"CALL lanelog_publish('orders', 'a', 'client', 'client-{number}');\n" for number in range(20))
        subprocess.run(
            ["mysql", "--no-defaults", "--batch", *where, config.database],
            input=text,
            text=True,
            check=True,
            env={"PATH": os.environ["PATH"], "MYSQL_PWD": str(config.password)},
        )

    def by_python() -> None:
        for number in range(20):
            lanelog_client.publish("orders", "ab"[number % 2], b"python")

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(each) for each in (by_trigger, by_client, by_python)]:
            done.result()
    ticks = "SELECT COUNT(*) FROM queue_messages WHERE payload = '' AND partition_key = 'b'"
    eventually(lambda: one(raw, ticks) >= 2)
    rows(raw, "DROP EVENT tick")
    last = dict(rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE partition_key <> ''"))
    seen.wait(sum(last.values()))
    for key, count in last.items():
        assert [offset for at, offset, _ in seen.items if at == key] == list(range(1, count + 1))
    assert last["a"] == 50
    times = rows(raw, "SELECT created_at FROM queue_messages WHERE partition_key = 'a' ORDER BY `offset`")
    assert times == sorted(times)


def called(url: str, level: str, key: str, begin: threading.Event, end: Callable[[Any], None]) -> int:
    """Publish in a transaction of this level. Return the server's error, 0 if there was none."""
    with closing(connect(url, autocommit=False)) as raw:
        rows(raw, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        begin.wait(20)
        try:
            rows(raw, CALL, "t", key, "x", None)
            end(raw)
        except pymysql.err.OperationalError as error:
            raw.rollback()
            return int(error.args[0])
    return 0


def commit(raw: Any) -> None:
    raw.commit()


@pytest.mark.thorough
@pytest.mark.usefixtures("routines")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("keys", [["there"] * 6, ["new"] * 6, list("abcdef")], ids=["there", "one new", "six new"])
def test_calls_with_one_key_each_wait_and_meet_no_deadlock(
    lanelog_url: str, lanelog_client: Client, raw: Any, level: str, keys: list[str]
) -> None:
    """Also those that make lanes: no search for a missing row has locked a gap, in which another one inserts."""
    lanelog_client.publish("t", "there", b"x")
    go = threading.Event()
    with ThreadPoolExecutor(len(keys)) as pool:
        callers = [pool.submit(called, lanelog_url, level, key, go, commit) for key in keys]
        go.set()
        assert [caller.result() for caller in callers] == [0] * len(keys)
    for key in set(keys):
        found = rows(raw, "SELECT `offset` FROM queue_messages WHERE partition_key = %s ORDER BY 1", key)
        assert [offset for (offset,) in found] == list(range(1, len(found) + 1))
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 1 + len(keys)


@pytest.mark.thorough
@pytest.mark.usefixtures("routines")
@pytest.mark.parametrize("level", LEVELS)
def test_of_three_makers_of_a_lane_the_first_may_roll_back(lanelog_url: str, raw: Any, level: str) -> None:
    """The servers let both others insert then, and roll back at most one of them (1213). Nothing is half made."""
    begun, go = threading.Event(), threading.Event()
    go.set()

    def rolls_back(mine: Any) -> None:
        begun.set()
        eventually(lambda: one(raw, WAITERS) >= 2, every=0.25)  # the servers renew it when nobody has read it for 0.1 s
        mine.rollback()

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(called, lanelog_url, level, "k", go, rolls_back)
        assert begun.wait(20)
        others = [pool.submit(called, lanelog_url, level, "k", go, commit) for _ in range(2)]
        ends = sorted(other.result() for other in others)
        assert first.result() == 0
    assert ends in ([0, 0], [0, DEADLOCK])
    done = ends.count(0)
    assert rows(raw, "SELECT `offset` FROM queue_messages ORDER BY 1") == [(n + 1,) for n in range(done)]
    assert one(raw, "SELECT head_offset FROM queue_partitions WHERE partition_key = 'k'") == done
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = ''") == 1


def test_migrate_renews_routines_of_an_earlier_version(lanelog_client: Client, raw: Any, lanelog_url: str) -> None:
    """Nobody needs to remember --procedures at the next upgrade; without it the routines are not created.

    Accounts keep their right to call them, and an older library leaves what a newer one has created.
    """
    assert lanelog_client.migrate() == []
    created = lanelog_client.migrate(procedures=True)
    assert created == ["created routine lanelog_append", "created routine lanelog_publish"]
    assert lanelog_client.migrate(procedures=True) == []
    rows(raw, "DROP PROCEDURE lanelog_publish")
    rows(raw, "CREATE PROCEDURE lanelog_publish() COMMENT 'lanelog 0' SELECT 1")
    database = ConnectConfig.from_url(lanelog_url).database
    with account(raw, lanelog_url, {}) as url:
        for statement in grants(
            "publisher", database=database, user=ConnectConfig.from_url(url).user, procedures=True
        ).splitlines():
            if statement.startswith("GRANT"):
                rows(raw, statement)
        assert lanelog_client.migrate() == ["created routine lanelog_publish"]
        with closing(connect(url)) as mine:
            rows(mine, CALL, "t", "k", b"x", None)
    rows(raw, "DROP PROCEDURE lanelog_publish")
    rows(raw, "CREATE PROCEDURE lanelog_publish() COMMENT 'lanelog 9' SELECT 1")
    assert lanelog_client.migrate(procedures=True) == []
    rows(raw, "DROP PROCEDURE lanelog_publish")
    rows(raw, "DROP FUNCTION lanelog_append")


@pytest.mark.thorough
@pytest.mark.usefixtures("routines")
def test_a_trigger_that_catches_the_error_commits_no_half_made_lane(
    raw: Any, lanelog_url: str, lanelog_client: Client
) -> None:
    """The server keeps what a call below a trigger has written before it failed. The lane can be used all the same.

    Here its account may insert no floor. (A deadlock or a lock time-out ends the whole statement, whoever catches it.)
    """
    rows(raw, "CREATE TABLE orders (id INT PRIMARY KEY)")
    may = {"*": "SELECT, EXECUTE, TRIGGER", "queue_partitions": "INSERT, UPDATE", "queue_messages": "INSERT"}
    with account(raw, lanelog_url, may) as url:
        rows(
            raw,
            f"CREATE DEFINER = '{ConnectConfig.from_url(url).user}'@'%' TRIGGER careless AFTER INSERT ON orders "
            "FOR EACH ROW BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; "
            "CALL lanelog_publish('t', 'new', 'x', NULL); END",
        )
        rows(raw, "INSERT INTO orders VALUES (1)")
    assert one(raw, "SELECT COUNT(*) FROM orders") == 1
    assert 0 < one(raw, "SELECT head_offset FROM queue_partitions WHERE partition_key = 'new'") < 2**53
    seen = Record()
    lanelog_client.publish("t", "new", b"after")
    lanelog_client.subscribe("t", "g", lambda message: seen(message.payload))
    assert seen.wait(1) == [b"after"]


@pytest.mark.usefixtures("routines")
def test_each_row_of_a_statement_gets_an_id_of_its_own(raw: Any) -> None:
    """The function is called DETERMINISTIC, and is not: a trigger calls it for each row."""
    rows(raw, "CREATE TABLE orders (id INT PRIMARY KEY)")
    rows(raw, "CREATE TRIGGER made AFTER INSERT ON orders FOR EACH ROW CALL lanelog_publish('t', 'k', 'x', NULL)")
    rows(raw, "INSERT INTO orders VALUES (1), (2), (3)")
    assert one(raw, "SELECT COUNT(DISTINCT id) FROM queue_messages") == 3


@pytest.mark.usefixtures("routines")
def test_a_head_below_its_messages_is_an_error_and_no_duplicate(raw: Any) -> None:
    """As after a restore of one table: the offset is taken, and the message with it is another one."""
    rows(raw, CALL, "by_id", "k", b"x", None)
    rows(raw, "UPDATE queue_partitions SET head_offset = 0 WHERE partition_key = 'k'")
    for message_id in (None, "new"):
        with pytest.raises(pymysql.err.OperationalError, match="run lanelog doctor --repair"):
            rows(raw, CALL, "by_id", "k", b"y", message_id)


@pytest.mark.thorough
@pytest.mark.usefixtures("routines")
def test_grants_let_a_publisher_call(raw: Any, lanelog_url: str) -> None:
    """The routines run with the caller's privileges: without the role's it is refused, and with them nothing more."""
    database = ConnectConfig.from_url(lanelog_url).database
    with account(raw, lanelog_url, {}) as url:
        user = ConnectConfig.from_url(url).user
        for statement in grants("publisher", database=database, user=user).splitlines()[1:]:
            rows(raw, statement)
        with closing(connect(url)) as mine, pytest.raises(pymysql.err.OperationalError, match="denied"):
            rows(mine, CALL, "t", "k", b"x", None)
        rows(raw, grants("publisher", database=database, user=user, procedures=True).splitlines()[-1])
        with closing(connect(url)) as mine:
            rows(mine, CALL, "t", "k", b"x", None)
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                rows(mine, "DELETE FROM queue_messages")


def test_the_pages_statements_publish(raw: Any, lanelog_client: Client) -> None:
    """Without the procedure: make the lane, then append; the id is refused the second time."""
    make, append = sql("SELECT head_offset INTO @begin"), sql("head_offset + 1, 'paid-17'")
    raw.autocommit(False)
    for statement in (make, append):
        for each in re.split(r";\n", statement):
            if each.strip():
                rows(raw, each)
    with pytest.raises(pymysql.err.IntegrityError):
        for each in re.split(r";\n", append)[:2]:
            rows(raw, each)
    raw.rollback()
    raw.autocommit(True)
    assert rows(raw, LOG) == [("customer-4", 1, "paid-17", b'{"order": 17}')]
    assert lanelog_client.publish("orders", "customer-4", b"next").offset == 2
    assert lanelog_client.publish("orders", "customer-4", b"again", id="paid-17").duplicate
    seen = Record()
    lanelog_client.subscribe("orders", "g", lambda message: seen(message.offset))
    assert seen.wait(2) == [1, 2]
