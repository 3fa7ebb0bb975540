"""Connections, transactions and what breaks them, on a real server."""

import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from lanelog._database import Database, Session
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from lanelog.devserver._local import LocalServer
from lanelog.errors import ClosedError, ConfigurationError, DatabaseError
from support.accounts import account, as_user
from support.forking import exit_status_of
from support.sql import rows
from support.unseen import DRIVERS
from support.waiting import Gate


def connection_id(cx: Any) -> int:
    row = cx.one("SELECT CONNECTION_ID()")
    return int(row[0])


@pytest.fixture
def table(raw: Any) -> str:
    rows(raw, "CREATE TABLE own (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0) ENGINE=InnoDB")
    return "own"


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    session = database.session("test")
    yield session
    session.close()


def test_a_transaction_commits_at_the_end_of_its_block(database: Database, raw: Any, table: str) -> None:
    """The writes of the block are visible to others after it, and not before."""
    with database.transaction() as transaction:
        transaction.execute(f"INSERT INTO {table} (id) VALUES (1)")
        assert rows(raw, f"SELECT COUNT(*) FROM {table}") == [(0,)]
    assert rows(raw, f"SELECT COUNT(*) FROM {table}") == [(1,)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_rolls_back_and_passes_through(
    database: Database, raw: Any, table: str, error: type[BaseException]
) -> None:
    """Even an interrupt leaves nothing behind, and the application sees its own exception."""
    with pytest.raises(error, match="mine"), database.transaction() as transaction:
        transaction.execute(f"INSERT INTO {table} (id) VALUES (1)")
        raise error("mine")
    assert rows(raw, f"SELECT COUNT(*) FROM {table}") == [(0,)]


def test_sessions_are_prepared_alike(database: Database) -> None:
    """Pooled or dedicated: strict, READ COMMITTED, short time-outs, byte-wise comparison, matched rows counted."""
    session = database.session("test")
    isolation = "@@tx_isolation" if database.facts().mariadb else "@@transaction_isolation"
    wanted = f"SELECT {isolation}, @@innodb_lock_wait_timeout, @@wait_timeout, @@collation_connection, @@sql_mode"
    with database.autocommit() as pooled:
        found = [pooled.one(wanted), session.one(wanted)]
    for row in found:
        assert row[:4] == ("READ-COMMITTED", 5, 15, "utf8mb4_bin")
        assert "STRICT_ALL_TABLES" in row[4]
    session.close()


def test_row_counts_are_matched_rows(database: Database, table: str) -> None:
    """An UPDATE that changes nothing still counts the rows it found: a renewal is no lost lease."""
    with database.autocommit() as cx:
        cx.execute(f"INSERT INTO {table} (id) VALUES (1)")
        assert cx.execute(f"UPDATE {table} SET n = 0 WHERE id = 1") == 1


@pytest.mark.parametrize("of_a_session", [False, True], ids=["pool", "session"])
def test_a_lost_connection_is_not_used_again_in_its_transaction(
    database: Database, session: Session, raw: Any, table: str, of_a_session: bool
) -> None:
    """Nothing goes on half-way on another one or commits, whoever swallows the error; the next one just works."""
    begin = session.transaction if of_a_session else database.transaction

    with pytest.raises(DatabaseError) as caught, begin() as transaction:
        transaction.execute(f"INSERT INTO {table} (id) VALUES (1)")
        rows(raw, f"KILL {connection_id(transaction)}")
        for number in (2, 3):
            with pytest.raises(DatabaseError):
                transaction.execute(f"INSERT INTO {table} (id) VALUES ({number})")
    assert caught.value.retriable
    assert rows(raw, f"SELECT COUNT(*) FROM {table}") == [(0,)]
    with begin() as transaction:
        transaction.execute(f"INSERT INTO {table} (id) VALUES (4)")
    assert rows(raw, f"SELECT id FROM {table}") == [(4,)]


@pytest.mark.parametrize("of_a_session", [False, True], ids=["pool", "session"])
def test_a_deadlock_that_is_swallowed_does_not_commit(
    database: Database, session: Session, raw: Any, table: str, of_a_session: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has rolled everything back: a COMMIT of the rest would look like success."""
    begin = session.transaction if of_a_session else database.transaction
    rows(raw, f"INSERT INTO {table} (id) VALUES (1), (2), (3), (4)")
    rows(raw, "BEGIN")
    # More rows changed: the server rolls back the other side.
    rows(raw, f"UPDATE {table} SET n = n + 1 WHERE id IN (1, 3)")

    with pytest.raises(DatabaseError) as raised, begin() as transaction:
        transaction.execute(f"UPDATE {table} SET n = 100 WHERE id = 2")
        helper = threading.Thread(target=rows, args=(raw, f"UPDATE {table} SET n = n + 1 WHERE id = 2"))
        helper.start()
        with pytest.raises(DatabaseError) as caught:
            transaction.execute(f"UPDATE {table} SET n = 100 WHERE id = 1")
        assert caught.value.code == 1213
        transaction.execute(f"UPDATE {table} SET n = 100 WHERE id = 4 AND n = 77")
        helper.join()
    assert (raised.value.code, raised.value.retriable) == (1213, True)
    rows(raw, "COMMIT")
    assert rows(raw, f"SELECT MAX(n) FROM {table}") == [(1,)]
    assert not caplog.records


@pytest.mark.thorough
def test_a_statement_that_met_a_lock_does_not_stop_the_transaction_after_it(
    session: Session, raw: Any, table: str
) -> None:
    """A session's statement outside of a transaction fails by itself; what comes next is committed."""
    rows(raw, f"INSERT INTO {table} (id) VALUES (1)")
    session.execute("SET SESSION innodb_lock_wait_timeout = 1")
    rows(raw, "BEGIN")
    rows(raw, f"SELECT * FROM {table} FOR UPDATE")
    with pytest.raises(DatabaseError) as caught:
        session.execute(f"UPDATE {table} SET n = 1 WHERE id = 1")
    assert caught.value.code == 1205
    rows(raw, "COMMIT")
    with session.transaction() as transaction:
        transaction.execute(f"UPDATE {table} SET n = 2 WHERE id = 1")
    assert rows(raw, f"SELECT n FROM {table}") == [(2,)]


@pytest.mark.thorough
def test_a_lock_timeout_is_retriable(database: Database, raw: Any, table: str) -> None:
    """Somebody who holds a row for long costs a retriable error, after at most five seconds."""
    rows(raw, f"INSERT INTO {table} (id) VALUES (1)")
    rows(raw, "BEGIN")
    rows(raw, f"SELECT * FROM {table} FOR UPDATE")

    with pytest.raises(DatabaseError) as caught, database.transaction() as transaction:
        transaction.execute("SET SESSION innodb_lock_wait_timeout = 1")
        transaction.execute(f"UPDATE {table} SET n = 1 WHERE id = 1")
    assert (caught.value.code, caught.value.retriable) == (1205, True)
    rows(raw, "ROLLBACK")


def test_the_wait_for_a_connection_is_bounded(lanelog_url: str) -> None:
    """A pool in use by others for too long is a retriable error that names the option, not a hang."""
    database = Database(ConnectConfig.from_url(lanelog_url, pool_size=2))
    with (
        database.transaction(),
        database.transaction(),
        pytest.raises(DatabaseError, match="pool_size") as caught,
        database.transaction(wait=0.05),
    ):
        pass
    assert caught.value.retriable
    with database.transaction(wait=0) as transaction:
        assert transaction.one("SELECT 1") == (1,)
    database.close()


def test_a_connection_is_reused_until_it_died_while_idle(
    database: Database, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server drops silent sessions; one that was silent for some seconds is asked before it is used."""
    seen = []
    for _ in range(2):
        with database.autocommit() as cx:
            seen.append(connection_id(cx))
    assert seen[0] == seen[1]
    rows(raw, f"KILL {seen[0]}")
    monkeypatch.setattr("lanelog._database.connection.wire.time.monotonic", lambda: 1e9)
    with database.transaction() as transaction:
        assert connection_id(transaction) != seen[0]


def test_a_guarded_transaction_replaces_a_dead_connection(database: Database, raw: Any) -> None:
    """User code never starts on a connection that died a moment ago: nothing was written, so another one will do."""
    with database.autocommit() as cx:
        rows(raw, f"KILL {connection_id(cx)}")
    with database.transaction(guarded=True) as transaction:
        assert transaction.one("SELECT 1") == (1,)


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "CREATE TABLE implicit (id INT)"])
def test_a_guarded_transaction_notices_that_it_was_ended(database: Database, table: str, ending: str) -> None:
    """User code that ends the transaction inside the block gets an error instead of a silent half."""
    ends = pytest.raises(DatabaseError, match="ended inside the block")
    with ends, database.transaction(guarded=True) as transaction:
        rows(transaction.raw, f"INSERT INTO {table} (id) VALUES (1)")
        rows(transaction.raw, ending)
        rows(transaction.raw, f"INSERT INTO {table} (id) VALUES (2)")
    with database.autocommit() as cx:
        assert cx.one(f"SELECT COUNT(*) FROM {table} WHERE id = 2") == (0,)


def test_a_closed_database_refuses(database: Database) -> None:
    """After close there are no connections any more; what was in use is closed when it comes back."""
    with database.transaction() as transaction:
        database.close()
        assert transaction.one("SELECT 1") == (1,)
    with pytest.raises(ClosedError), database.transaction():
        pass


def test_a_missing_database_says_so(lanelog_server: DevServer) -> None:
    """An unknown database is not retriable, and the error says what to do."""
    database = Database(ConnectConfig.from_url(lanelog_server.root_url("lanelog_no_such")))
    with pytest.raises(DatabaseError, match="create the database first") as caught, database.transaction():
        pass
    assert (caught.value.code, caught.value.retriable) == (1049, False)
    assert database.reached


@pytest.mark.local_server
@pytest.mark.parametrize("driver", DRIVERS)
def test_localhost_with_a_port_is_the_server_at_that_port(
    lanelog_server: DevServer, private_server: DevServer, monkeypatch: pytest.MonkeyPatch, driver: Any
) -> None:
    """The port counts also where a client library knows the unix socket of another server on this host."""
    assert isinstance(private_server, LocalServer)
    monkeypatch.setenv("MYSQL_UNIX_PORT", str(private_server.socket))
    meant = urlsplit(lanelog_server.url)
    url = meant._replace(netloc=meant.netloc.replace("127.0.0.1", "localhost")).geturl()
    database = Database(ConnectConfig.from_url(url, driver=driver))
    with database.transaction() as transaction:
        assert transaction.one("SELECT @@port") == (meant.port,)
    database.close()


def test_mysqlclient_missing_is_a_clear_error(lanelog_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL of the missing driver raises an error that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "MySQLdb", None)
    database = Database(ConnectConfig.from_url(lanelog_url, driver="mysqlclient"))
    with pytest.raises(ConfigurationError, match=r"pip install .mysqlclient"), database.transaction():
        pass


def test_a_session_connects_again_after_it_was_lost(session: Session, raw: Any) -> None:
    """A loop sees one retriable error and a new generation, so that it knows that its locks are gone."""
    assert session.generation == 0
    assert session.ensure()
    assert not session.ensure()
    assert session.connection_id == connection_id(session)
    rows(raw, f"KILL {session.connection_id}")
    with pytest.raises(DatabaseError) as caught:
        session.execute("DO 1")
    assert caught.value.retriable
    assert not session.connected
    session.execute("DO 1")
    assert session.generation == 2


def test_a_sessions_transaction_is_all_or_nothing(session: Session, raw: Any, table: str) -> None:
    """Statements outside commit by themselves; a block commits at its end, or not at all."""
    session.execute(f"INSERT INTO {table} (id) VALUES (1)")
    with session.transaction() as cx:
        cx.execute(f"INSERT INTO {table} (id) VALUES (2)")
    with pytest.raises(ZeroDivisionError), session.transaction() as cx:
        cx.execute(f"INSERT INTO {table} (id) VALUES (3)")
        _ = 1 // 0
    assert rows(raw, f"SELECT id FROM {table}") == [(1,), (2,)]


def test_a_session_knows_when_the_server_started(session: Session, database: Database) -> None:
    """The start is the server's own, and the same for every session, give or take the seconds its uptime is rounded."""
    other = database.session("other")
    session.ensure()
    other.ensure()
    assert session.incarnation.started_ms > 1_600_000_000_000
    assert session.incarnation.same(other.incarnation)
    other.close()


def test_ping_if_idle_finds_a_dead_session(session: Session, raw: Any) -> None:
    """A session that is not used still learns that the server has dropped it."""
    session.ensure()
    session.ping_if_idle(0)
    rows(raw, f"KILL {session.connection_id}")
    session.ping_if_idle(3600)
    with pytest.raises(DatabaseError):
        session.ping_if_idle(0)
    assert not session.connected


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_disturb_its_parent(database: Database, session: Session) -> None:
    """The child makes connections of its own, closes none of the parent's, and inherits no lock that nobody holds."""
    session.ensure()
    gate = Gate()

    def hold() -> None:
        # A thread that is inside a transaction, with the pool's last place, when the process forks.
        with database.transaction():
            gate()

    threads = [threading.Thread(target=hold) for _ in range(database.config.pool_size - 1)]
    for thread in threads:
        thread.start()
    with gate:
        gate.reached()
        with database.transaction() as transaction:
            mine = connection_id(transaction)
            before = session.connection_id

            def child() -> None:
                with database.transaction(wait=1) as own:
                    assert connection_id(own) != mine
                assert connection_id(session) != before
                with pytest.raises(DatabaseError):
                    transaction.execute("DO 1")
                database.close()
                session.close()

            assert exit_status_of(child) == 0
            assert connection_id(transaction) == mine
        assert session.connection_id == before
        assert session.one("SELECT 1") == (1,)
    for thread in threads:
        thread.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_forks_inside_a_transaction_cannot_commit_it(database: Database, raw: Any, table: str) -> None:
    """The block it inherited ends with an error in the child, and with the COMMIT in the parent."""
    pid = -1
    try:
        with database.transaction() as transaction:
            transaction.execute(f"INSERT INTO {table} (id) VALUES (1)")
            pid = os.fork()
            if pid:
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    except DatabaseError:
        if pid == 0:
            os._exit(7)
        raise
    finally:
        if pid == 0:
            os._exit(8)
    assert rows(raw, f"SELECT id FROM {table}") == [(1,)]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_function_gives_the_password_of_each_login(raw: Any, lanelog_url: str, driver: str) -> None:
    """A password that is changed at the server is that of the next login, and of a lent mysqlclient connection's."""
    secrets, asked = ["first"], []

    def ask() -> str:
        asked.append(secrets[-1])
        return secrets[-1]

    with account(raw, lanelog_url, {"*": "SELECT"}, password="first") as url:
        user = ConnectConfig.from_url(url).user
        config = ConnectConfig.from_url(as_user(url, user, ""), password=ask, driver=driver)
        with closing(Database(config)) as database, database.autocommit() as before:
            assert before.one("SELECT 1") == (1,)
            rows(raw, f"ALTER USER '{user}'@'%%' IDENTIFIED BY %s", "second")
            secrets.append("second")
            with database.transaction(guarded=True) as after:
                after.raw.cursor().execute("SET @mine = 1")
            with database.transaction(guarded=True) as again:
                assert again.one("SELECT @mine") == (None,)
    assert asked == ["first", *["second"] * (1 if driver == "pymysql" else 3)]


def test_a_function_that_gives_no_password_fails_the_login(lanelog_url: str) -> None:
    """What gives passwords may be away for a while, so that is retriable. Another type than a text is a mistake."""
    given: list[Any] = []
    config = ConnectConfig.from_url(as_user(lanelog_url, "root", ""), password=given.pop)
    with closing(Database(config)) as database:
        with (
            pytest.raises(DatabaseError, match=r"its function has failed \(IndexError\)") as failed,
            database.autocommit(),
        ):
            pass
        assert failed.value.retriable
        for wrong in (b"secret", "secret\0", "secret\ud800"):
            given.append(wrong)
            with pytest.raises(ConfigurationError, match="must return a str without NUL") as refused:
                config.login_password()
            shown = traceback.TracebackException.from_exception(refused.value, capture_locals=True)
            assert "secret" not in str(refused.value) + str([frame.locals for frame in shown.stack][1:])
        given.append(ConnectConfig.from_url(lanelog_url).password)
        with database.autocommit() as cx:
            assert cx.one("SELECT 1") == (1,)
