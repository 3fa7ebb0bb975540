"""`lanelog.contrib.sqlalchemy`: what a session's commit publishes and acks."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import Client
from lanelog.contrib.sqlalchemy import ack, publish
from lanelog.contrib.sqlalchemy import session as session_of
from lanelog.errors import ConfigurationError, DatabaseError
from support.publishing import hold
from support.sql import connect, one, rows, stored
from support.waiting import Record, eventually

QUICK = lanelog.RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """A row that is written with a message."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(lanelog_url: str, raw: Any) -> sqlalchemy.Engine:
    """The application's engine, on the same server, with its table."""
    rows(raw, "CREATE TABLE orders (id INT PRIMARY KEY)")
    opened = lambda: connect(lanelog_url, autocommit=False)  # noqa: E731
    return sqlalchemy.create_engine("mysql+pymysql://", creator=opened, poolclass=NullPool)


@pytest.fixture
def session(engine: sqlalchemy.Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture
def sent(engine: sqlalchemy.Engine) -> list[str]:
    """The first word of each statement of the application's, and COMMIT."""
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _k, sql, *_: seen.append(sql.split()[0]))
    event.listen(engine, "commit", lambda _: seen.append("COMMIT"))
    return seen


def payloads(raw: Any) -> list[bytes]:
    """What the log holds, by topic, lane and offset."""
    sql = "SELECT payload FROM queue_messages ORDER BY topic, partition_key, `offset`"
    return [payload for (payload,) in rows(raw, sql)]


def test_a_commit_publishes_after_the_sessions_own_statements(
    lanelog_client: Client, raw: Any, session: Session, sent: list[str]
) -> None:
    """Row and message are one transaction. No lane is locked before the commit."""
    lanelog_client.publish("orders", "k", b"0")
    publish(session, lanelog_client, "orders", "k", {"id": 7}, metadata={"by": "ann"})
    session.add(Order(id=7))
    assert lanelog_client.publish("orders", "k", b"1").offset == 2
    session.commit()
    assert sent == ["INSERT", "COMMIT"]
    assert payloads(raw) == [b"0", b"1", b'{"id":7}']
    assert one(raw, "SELECT COUNT(*) FROM orders") == 1
    metadata = one(raw, "SELECT metadata FROM queue_messages WHERE `offset` = 3")
    assert json.loads(metadata) == {"by": "ann", "content-type": "application/json"}


@pytest.mark.parametrize("how", ["rollback", "close", "error"])
def test_what_is_not_committed_is_not_published(lanelog_client: Client, raw: Any, session: Session, how: str) -> None:
    """Nothing is left for the session's next transaction either."""
    publish(session, lanelog_client, "orders", "k", b"never")
    if how == "error":
        session.add_all([Order(id=1), Order(id=1)])
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.commit()
        session.rollback()
    else:
        getattr(session, how)()
    session.add(Order(id=2))
    session.commit()
    assert stored(raw, "orders") == 0
    assert one(raw, "SELECT COUNT(*) FROM orders") == 1


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(
    lanelog_client: Client, raw: Any, session: Session
) -> None:
    """Also those of a savepoint within it that was released. The release of one publishes nothing yet."""
    publish(session, lanelog_client, "orders", "k", b"1")
    with session.begin_nested():
        publish(session, lanelog_client, "orders", "k", b"2")
    outer = session.begin_nested()
    publish(session, lanelog_client, "orders", "k", b"outer")
    with session.begin_nested():
        publish(session, lanelog_client, "orders", "k", b"inner")
    assert stored(raw, "orders") == 0
    outer.rollback()
    publish(session, lanelog_client, "orders", "k", b"3")
    session.commit()
    assert payloads(raw) == [b"1", b"2", b"3"]


def test_a_message_is_checked_and_encoded_at_once(lanelog_client: Client, raw: Any, session: Session) -> None:
    """A mistake is raised where it was made. What is changed afterwards is not in the message."""
    with pytest.raises(ConfigurationError, match="payload is None"):
        publish(session, lanelog_client, "orders", "k", None)
    with pytest.raises(ConfigurationError, match="topic"):
        publish(session, lanelog_client, "", "k", b"x")
    order = {"id": 7}
    publish(session, lanelog_client, "orders", "k", order)
    order["id"] = 8
    session.commit()
    assert payloads(raw) == [b'{"id":7}']


def test_sessions_lock_lanes_in_one_order(lanelog_client: Client, raw: Any, engine: sqlalchemy.Engine) -> None:
    """Two sessions that publish to the same lanes in opposite orders never wait for each other in a circle."""
    lanes = [("a", "1"), ("a", "2"), ("b", "1")]
    begin = threading.Barrier(2)

    def publish_all(order: int) -> None:
        for number in range(20):
            with Session(engine) as session:
                for topic, key in lanes[::order]:
                    publish(session, lanelog_client, topic, key, str(number).encode())
                begin.wait(20)
                session.commit()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(publish_all, order) for order in (1, -1)]:
            done.result(60)
    assert [stored(raw, topic) for topic in ("a", "b")] == [80, 40]


@pytest.mark.parametrize("how", ["with", "close", "commit"])
def test_a_savepoint_that_sqlalchemy_ends_by_itself(
    lanelog_client: Client, raw: Any, session: Session, how: str
) -> None:
    """After a failed flush its block closes it; one that is open at the commit is released with it."""
    publish(session, lanelog_client, "orders", "k", b"1")
    with session.begin() if not session.in_transaction() else nullcontext():
        if how == "with":
            with suppress(sqlalchemy.exc.IntegrityError), session.begin_nested():
                publish(session, lanelog_client, "orders", "k", b"dropped")
                session.add_all([Order(id=1), Order(id=1)])
                session.flush()
        elif how == "close":
            savepoint = session.begin_nested()
            publish(session, lanelog_client, "orders", "k", b"dropped")
            savepoint.close()
        else:
            session.begin_nested()
            publish(session, lanelog_client, "orders", "k", b"2")
    transaction = session.get_transaction()
    assert transaction is not None
    transaction.commit(_to_root=True)
    assert payloads(raw) == [b"1", *([b"2"] if how == "commit" else [])]


def test_a_transaction_that_commits_through_its_block_publishes(
    lanelog_client: Client, raw: Any, engine: sqlalchemy.Engine
) -> None:
    """Also with a savepoint that is still open, and for a connection without a session."""
    with Session(engine) as session, session.begin():
        publish(session, lanelog_client, "orders", "k", b"1")
        session.begin_nested()
    with engine.begin() as connection:
        publish(connection, lanelog_client, "orders", "k", b"2")
        savepoint = connection.begin_nested()
        publish(connection, lanelog_client, "orders", "k", b"dropped")
        savepoint.rollback()
    with engine.connect() as connection:
        publish(connection, lanelog_client, "orders", "k", b"never")
    assert payloads(raw) == [b"1", b"2"]


@pytest.mark.parametrize("why", ["locked", "interrupted"])
def test_a_commit_that_cannot_publish_rolls_everything_back(
    lanelog_url: str,
    lanelog_client: Client,
    raw: Any,
    session: Session,
    open_raw: Any,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second commit neither loses what was sent nor sends it twice: it is refused. A repetition of all succeeds."""
    lanelog_client.publish("t", "k", b"0")
    with lanelog.connect(lanelog_url, publish_timeout=1) as client:
        holder = open_raw()
        if why == "locked":
            hold(holder, "k")

        def all_of_it() -> None:
            session.execute(sqlalchemy.text("SET innodb_lock_wait_timeout = 1"))
            session.add(Order(id=7))
            publish(session, client, "s", "k", b"first")
            publish(session, client, "t", "k", b"second")

        all_of_it()
        if why == "interrupted":
            really = Client.publish_many

            def strike(self: Client, topic: str, items: Any, **options: Any) -> Any:
                really(self, topic, items, **options)
                raise KeyboardInterrupt

            monkeypatch.setattr(Client, "publish_many", strike)
        with pytest.raises((DatabaseError, KeyboardInterrupt)):
            session.commit()
        with pytest.raises(sqlalchemy.exc.InvalidRequestError):
            session.commit()
        session.rollback()
        holder.rollback()
        monkeypatch.undo()
        assert payloads(raw) == [b"0"]
        assert one(raw, "SELECT COUNT(*) FROM orders") == 0
        all_of_it()
        session.commit()
    assert payloads(raw) == [b"first", b"0", b"second"]
    assert one(raw, "SELECT COUNT(*) FROM orders") == 1


class Upper:
    """A codec without a type."""

    def encode(self, payload: str) -> bytes:
        return payload.upper().encode()

    def decode(self, data: bytes) -> str:
        return data.decode().lower()


def test_the_payload_is_encoded_as_client_publish_encodes_it(lanelog_url: str, raw: Any, session: Session) -> None:
    """A codec that names no type leaves none behind, so that the reader's codec decodes."""
    with lanelog.connect(lanelog_url, codec=Upper()) as client:
        publish(session, client, "orders", "k", "paid")
        session.commit()
        client.publish("orders", "k", "paid")
    assert rows(raw, "SELECT payload, metadata FROM queue_messages") == [(b"PAID", None)] * 2


def test_what_cannot_hold_message_and_rows_together_is_refused_at_once(
    lanelog_client: Client, lanelog_url: str, engine: sqlalchemy.Engine
) -> None:
    """Autocommit, two phases, no engine at all, and what is no session."""
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ConfigurationError, match="autocommit"),
    ):
        publish(connection, lanelog_client, "orders", "k", b"x")
    with Session(engine, twophase=True) as session, pytest.raises(ConfigurationError, match="two phases"):
        publish(session, lanelog_client, "orders", "k", b"x")
    with Session() as session, pytest.raises(sqlalchemy.exc.UnboundExecutionError):
        publish(session, lanelog_client, "orders", "k", b"x")
    wrong: Any = engine
    with pytest.raises(ConfigurationError, match="not Engine"):
        publish(wrong, lanelog_client, "orders", "k", b"x")


@pytest.mark.parametrize("when", ["before_flush", "after_flush", "before_commit"])
def test_a_hook_of_the_application_may_publish(lanelog_client: Client, raw: Any, session: Session, when: str) -> None:
    """A hook that runs after ours has run is in time, too."""
    publish(session, lanelog_client, "orders", "k", b"1")
    called: list[int] = []

    def hook(session: Session, *_: object) -> None:
        if not called:
            called.append(1)
            publish(session, lanelog_client, "orders", "k", b"2")

    event.listen(session, when, hook)
    session.add(Order(id=7))
    session.commit()
    assert payloads(raw) == [b"1", b"2"]
    publish(session, lanelog_client, "orders", "k", b"3")
    assert stored(raw, "orders") == 2
    session.commit()
    assert payloads(raw) == [b"1", b"2", b"3"]


def test_a_scoped_session_will_do(lanelog_client: Client, raw: Any, engine: sqlalchemy.Engine) -> None:
    """The session of the thread publishes."""
    session = scoped_session(sessionmaker(engine))
    publish(session, lanelog_client, "orders", None, b"1", ttl=60)
    session.commit()
    session.remove()
    assert payloads(raw) == [b"1"]


def test_a_sessions_commit_acks(lanelog_client: Client, raw: Any, engine: sqlalchemy.Engine, sent: list[str]) -> None:
    """Row, next message and ack are one commit. An attempt that raises leaves none of them, and comes again."""

    def bill(message: lanelog.Message) -> None:
        with session_of(message, sessionmaker(engine)) as session:
            publish(session, lanelog_client, "billed", message.key, b"y")
            session.add(Order(id=message.offset))
            session.flush()
            if message.attempt == 1 and message.offset % 2:
                raise ValueError("after the flush")

    lanelog_client.publish_many("orders", [("k", b"x")] * 6)
    subscription = lanelog_client.subscribe("orders", "billing", bill, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 6)
    assert rows(raw, "SELECT id FROM orders ORDER BY id") == [(number,) for number in range(1, 7)]
    assert stored(raw, "billed") == 6
    assert sent.count("COMMIT") == 6
    assert subscription.stats().retried == 3


def test_a_return_after_a_rollback_is_no_ack(lanelog_client: Client, raw: Any, engine: sqlalchemy.Engine) -> None:
    """Who asked for an ack with the commit has not handled the message without one."""

    def bill(message: lanelog.Message) -> None:
        with Session(engine) as session:
            ack(session, message)
            session.add(Order(id=message.offset))
            session.flush()
            if message.attempt > 1:
                session.commit()

    lanelog_client.publish("orders", "k", b"x")
    subscription = lanelog_client.subscribe("orders", "billing", bill, retry=QUICK)
    eventually(lambda: subscription.stats().acked == 1)
    assert subscription.stats().retried == 1
    assert rows(raw, "SELECT id FROM orders") == [(1,)]


def test_the_connection_of_an_ack_has_its_patience_again(
    lanelog_client: Client, lanelog_url: str, engine: sqlalchemy.Engine
) -> None:
    """In the pool the server would end it with the lease, and a connection that is kept goes on as before."""
    pooled = sqlalchemy.create_engine("mysql+pymysql://", creator=lambda: connect(lanelog_url, autocommit=False))
    patience, seen = sqlalchemy.text("SELECT @@wait_timeout"), Record()
    with pooled.connect() as connection:
        before = connection.scalar(patience)
    lanelog_client.publish_many("t", [("k", b"x"), ("k", b"y")])
    with lanelog_client.deliveries("t", "g", timeout=5, start="earliest") as deliveries, pooled.connect() as kept:
        ack(kept, next(deliveries))
        kept.commit()
        seen(kept.scalar(patience))
        kept.rollback()
        with Session(pooled) as session:
            ack(session, next(deliveries))
            session.commit()
            seen(session.scalar(patience))
    assert seen.items == [before, before]
    engine.dispose()


def test_an_ack_that_no_commit_can_carry_is_refused(lanelog_client: Client, engine: sqlalchemy.Engine) -> None:
    """In a savepoint, beside another one, and without a session; a rollback drops it."""
    lanelog_client.publish_many("t", [("j", b"x"), ("k", b"y")])
    with lanelog_client.deliveries("t", "g", timeout=5, start="earliest") as deliveries, Session(engine) as session:
        first, second = next(deliveries), next(deliveries)
        with session.begin_nested(), pytest.raises(ConfigurationError, match="savepoint"):
            ack(session, first)
        with pytest.raises(ConfigurationError, match="Session"):
            ack(engine, first)  # type: ignore[arg-type]
        ack(session, first)
        ack(session, first)
        with pytest.raises(ConfigurationError, match="one message"):
            ack(session, second)
        session.rollback()
        ack(session, second)
        session.commit()
        with pytest.raises(lanelog.AlreadySettled):
            second.ack()
        first.ack()
