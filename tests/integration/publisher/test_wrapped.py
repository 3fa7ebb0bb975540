"""Publishing on what an application has around its connection: an ORM's session, a pool's or a tracer's proxy."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy
import wrapt
from attrs import evolve, frozen
from dbutils.persistent_db import PersistentDB
from dbutils.pooled_db import PooledDB
from dbutils.steady_db import connect as steady
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from lanelog import Client
from lanelog._database import find_open
from lanelog.errors import ConfigurationError, DatabaseError
from support.drivers import DRIVERS, Driver
from support.sql import rows, run, stored


@frozen
class Wrapped:
    """What is passed as `connection=`, and how its owner works with it."""

    outer: Any
    write: Callable[[str], object]
    end: Callable[[str], object]
    """Commits or rolls back, by the name of the method."""
    begin: Callable[[], object] = bool
    """Begins a transaction, where that does not happen by itself."""


def plain(outer: Any) -> Wrapped:
    """Worked with like a DB-API connection."""
    return Wrapped(outer, lambda sql: run(outer, sql), lambda how: getattr(outer, how)())


@contextmanager
def in_session(driver: Driver) -> Iterator[Wrapped]:
    with Session(driver.engine()) as session:
        yield Wrapped(session, lambda sql: session.execute(sqlalchemy.text(sql)), lambda how: getattr(session, how)())


@contextmanager
def in_scoped_session(driver: Driver) -> Iterator[Wrapped]:
    session = scoped_session(sessionmaker(driver.engine()))
    yield Wrapped(session, lambda sql: session.execute(sqlalchemy.text(sql)), lambda how: getattr(session, how)())
    session.remove()


@contextmanager
def in_connection(driver: Driver) -> Iterator[Wrapped]:
    with driver.engine().connect() as outer:
        yield Wrapped(outer, lambda sql: outer.execute(sqlalchemy.text(sql)), lambda how: getattr(outer, how)())


@contextmanager
def in_traced_connection(driver: Driver) -> Iterator[Wrapped]:
    engine = sqlalchemy.create_engine(
        driver.engine().url, creator=lambda: wrapt.ObjectProxy(driver.open()), poolclass=NullPool
    )
    with Session(engine) as session:
        yield Wrapped(session, lambda sql: session.execute(sqlalchemy.text(sql)), lambda how: getattr(session, how)())


@contextmanager
def in_pool_of_sqlalchemy(driver: Driver) -> Iterator[Wrapped]:
    with closing(driver.engine().raw_connection()) as outer:
        yield plain(outer)


@contextmanager
def opened(made: Any) -> Iterator[Wrapped]:
    with closing(made):
        yield plain(made)


@contextmanager
def pooled(made: Any) -> Iterator[Wrapped]:
    with closing(made):
        yield evolve(plain(made), begin=made.begin)


WRAPPERS: dict[str, Callable[[Driver], Any]] = {
    "driver": lambda driver: opened(driver.open()),
    "session": in_session,
    "scoped_session": in_scoped_session,
    "connection": in_connection,
    "pool of sqlalchemy": in_pool_of_sqlalchemy,
    "traced session": in_traced_connection,
    "PooledDB": lambda driver: pooled(PooledDB(driver.open, maxshared=0).connection()),
    "PersistentDB": lambda driver: pooled(PersistentDB(driver.open, closeable=True).connection()),
    "SteadyDB": lambda driver: pooled(steady(driver.open)),
    "tracer": lambda driver: opened(wrapt.ObjectProxy(wrapt.ObjectProxy(driver.open()))),
    "traced pool": lambda driver: pooled(wrapt.ObjectProxy(PooledDB(driver.open, maxshared=0).connection())),
}


@pytest.fixture
def client(lanelog_client: Client, raw: Any) -> Client:
    """A client beside a table of the application's."""
    rows(raw, "CREATE TABLE orders (id INT PRIMARY KEY)")
    return lanelog_client


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, lanelog_url: str) -> Driver:
    return Driver(request.param, lanelog_url)


@pytest.mark.parametrize("name", WRAPPERS)
def test_message_and_writes_are_one_transaction(client: Client, raw: Any, driver: Driver, name: str) -> None:
    """A commit shows both, a rollback neither; whatever is passed, and also when the publish comes first."""
    with WRAPPERS[name](driver) as mine:
        mine.begin()
        mine.write("INSERT INTO orders VALUES (1)")
        assert client.publish("t", "k", b"1", connection=mine.outer).offset == 1
        mine.end("rollback")
        mine.begin()
        assert client.publish("t", "k", b"2", connection=mine.outer).offset == 1
        mine.write("INSERT INTO orders VALUES (2)")
        assert stored(raw, "t") == 0
        mine.end("commit")
        mine.begin()
        assert client.publish("t", "k", b"3", connection=mine.outer).offset == 2
        mine.end("commit")
    assert rows(raw, "SELECT payload FROM queue_messages") == [(b"2",), (b"3",)]
    assert rows(raw, "SELECT id FROM orders") == [(2,)]


def test_a_session_sends_what_it_has_pending_before_the_lane_is_locked(client: Client, driver: Driver) -> None:
    """So the lane is locked for the publish and the commit alone."""
    base = sqlalchemy.orm.declarative_base()

    class Order(base):  # type: ignore[misc, valid-type]
        __tablename__ = "orders"
        id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)

    engine, sent = driver.engine(), []
    sqlalchemy.event.listen(engine, "before_cursor_execute", lambda _c, _k, sql, *_: sent.append(sql.split()[0]))
    with Session(engine) as session:
        sqlalchemy.event.listen(session, "after_flush", lambda *_: sent.append(client.publish("t", "j", b"0").offset))
        session.add(Order(id=7))
        assert client.publish("t", "k", b"1", connection=session).offset == 1
        assert sent == ["INSERT", 1]
        session.commit()


def test_a_session_whose_flush_failed_is_to_be_rolled_back(client: Client, driver: Driver) -> None:
    """The error is retriable, as the page says of all that a repetition helps."""
    with Session(driver.engine()) as session:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        session.connection().invalidate()
        with pytest.raises(DatabaseError, match="must be rolled back first") as failed:
            client.publish("t", "k", b"1", connection=session)
        assert failed.value.retriable


def test_a_connection_that_was_closed_or_never_bound_is_refused(client: Client, driver: Driver) -> None:
    """The error names the object, and nothing is published."""
    connection = driver.engine().connect()
    connection.close()
    pooled = PooledDB(driver.open, maxshared=0).connection()
    pooled.close()
    for wrong, words in ((connection, "Connection has no"), (Session(), "Session has no"), (pooled, "is closed")):
        with pytest.raises(ConfigurationError, match=words):
            client.publish("t", "k", b"1", connection=wrong)


def test_what_has_no_transaction_is_refused(client: Client, driver: Driver) -> None:
    """One sentence says what to pass: an engine, a factory of sessions, an asynchronous session, autocommit."""
    engine = driver.engine()
    for wrong, words in (
        (steady(driver.open), r"call connection.begin\(\) before"),
        (engine, r"sqlalchemy's Engine: begin one, `with engine.begin\(\) as connection`"),
        (sessionmaker(engine), r"sqlalchemy's sessionmaker: open a session"),
        (type("AsyncSession", (), {"__module__": "sqlalchemy.ext.asyncio.session"})(), "synchronous driver"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            client.publish("t", "k", b"1", connection=wrong)
    with (
        driver.engine(isolation_level="AUTOCOMMIT").connect() as connection,
        pytest.raises(ConfigurationError, match="autocommit on and no transaction open"),
    ):
        client.publish("t", "k", b"1", connection=connection)


def test_a_wrapper_around_itself_is_refused(client: Client) -> None:
    """The library does not go around in it for ever."""

    class Circle:
        @property
        def __wrapped__(self) -> object:
            return self

    with pytest.raises(ConfigurationError, match="more than 10 wrappers"):
        client.publish("t", "k", b"1", connection=Circle())


def test_our_own_transaction_is_known_through_a_tracer(client: Client, raw: Any) -> None:
    """What is published through a proxy of the connection of `client.transaction()` is announced after its commit."""
    with client.transaction() as connection:
        assert client.publish("t", "k", b"1", connection=wrapt.ObjectProxy(connection)).offset == 1
        entry = find_open(connection)
        assert entry is not None
        assert entry.topics == {"t"}
        assert stored(raw, "t") == 0
    assert stored(raw, "t") == 1
