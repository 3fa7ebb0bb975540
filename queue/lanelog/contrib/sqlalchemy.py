"""SQLAlchemy: publishing and acking with a session's commit, sessions in handlers, and Alembic. Needs no extra.

Owns what a session publishes and acks when it commits, when a worker thread's session ends, and which tables are none
of the application's. Only the block of `session` commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from datetime import datetime
from itertools import takewhile
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from attrs import define, evolve, field, frozen
from sqlalchemy import Connection, Engine, TwoPhaseTransaction, event
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.expression import SavepointClause

from lanelog._base.checks import Duration
from lanelog.client import Client
from lanelog.errors import ConfigurationError
from lanelog.message import Message, Outgoing
from lanelog.migrations import declared_tables

_PATIENCE: Final = "lanelog_wait_timeout"
"""The `wait_timeout` that a session had before the ack, in the `info` of its connection."""


class Removable(Protocol):
    """A `scoped_session`, or what has one, such as `db.session` of Flask-SQLAlchemy."""

    def remove(self) -> object:
        """End the session of this thread, if there is one."""


def remove_session(session: Removable) -> Callable[[Message, Callable[[Message], object]], object]:
    """Return a middleware of subscriptions that ends the thread's session after each message.

    What the handler has not committed is rolled back. Without it a session whose connection the server has ended fails
    every later message of the thread.

    Args:
        session: The `scoped_session` that the handler works with.

    Example::

        Session = scoped_session(sessionmaker(engine))
        client.subscribe("orders", "billing", bill, middleware=(remove_session(Session),))
    """

    def removing(message: Message, call_next: Callable[[Message], object]) -> object:
        try:
            return call_next(message)
        finally:
            session.remove()

    return removing


def include_object(item: object, name: str | None, kind: str, reflected: object = None, other: object = None) -> bool:
    """Return whether Alembic's autogenerate is to compare an object: False for lanelog's tables and what they have.

    Without it, autogenerate finds tables that no model has, and drops them.

    Example::

        context.configure(..., include_object=include_object)  # in env.py
    """
    del reflected, other  # Alembic passes five arguments
    table = name if kind == "table" else getattr(getattr(item, "table", None), "name", None)
    return table not in declared_tables()


def publish(
    session: Session | scoped_session[Any] | Connection,
    client: Client,
    topic: str,
    key: str | None,
    payload: object,
    *,
    id: str | None = None,  # noqa: A002 - as in `Client.publish`
    metadata: Mapping[str, str] | None = None,
    delay: Duration | None = None,
    deliver_at: datetime | None = None,
    ttl: Duration | None = None,
    bind_arguments: dict[str, Any] | None = None,
) -> None:
    """Publish one message when the session commits: it is visible if and only if that happens.

    The message is checked at once, and sent right before the COMMIT, after the session's own statements. So lanes are
    locked briefly, and in one order, whatever the order of the calls. A savepoint of SQLAlchemy's that is rolled back
    takes its messages along. There is no receipt. `Client.publish` with `connection=session` gives one, and locks at
    once.

    Args:
        session: A session, a `scoped_session` or a connection. Its transaction begins here, if it has not begun.
        client: The client that publishes. Its tables must be on the server of the session.
        topic: The topic, as in `Client.publish`.
        key: The unit of order. None: any open lane.
        payload: A copy of it is published: what is changed afterwards is not part of the message.
        id: Makes the publish idempotent within topic and key.
        metadata: Names and texts that travel with the message.
        delay: The time until the message is due, from the commit on.
        deliver_at: The time when the message is due.
        ttl: The time in which a handler may start on the message.
        bind_arguments: For a session with several engines: which one, as in `Session.connection`.

    Raises:
        ConfigurationError: An argument is not valid. Or the connection is in autocommit, or in a transaction of two
            phases, which has no COMMIT of its own.
        PayloadTooLarge: The payload or the metadata is too large.

    The commit raises what `Client.publish` raises. Everything is rolled back then: repeat the whole transaction.

    Example::

        with Session(engine) as session, session.begin():
            session.add(Order(id=7, state="paid"))
            publish(session, client, "orders", "order-7", {"id": 7})
    """
    outgoing = Outgoing(key, payload, id, metadata, delay, deliver_at, ttl)
    client._publisher.check(topic, outgoing)  # noqa: SLF001 - a part of the library
    copied = evolve(outgoing, payload=deepcopy(payload), metadata=None if metadata is None else dict(metadata))
    _outbox_of(_connection_of(session, bind_arguments)).messages.append(_Pending(client, topic, copied))


def ack(
    session: Session | scoped_session[Any] | Connection,
    message: Message,
    *,
    bind_arguments: dict[str, Any] | None = None,
) -> None:
    """Ack a message when the session commits: its effects and the ack are one commit, or neither happens.

    The ack is sent right before the COMMIT, behind the session's own statements and its messages. A rollback drops it:
    the attempt has failed then, also if the handler returns, unless it settles the message otherwise.

    Args:
        session: A session, a `scoped_session` or a connection on the server of the message. Its transaction begins
            here, if it has not begun.
        message: The message of a handler, or a pulled one.
        bind_arguments: For a session with several engines: which one, as in `Session.connection`.

    Raises:
        LeaseLost: As `Message.ack`.
        AlreadySettled: As `Message.ack`.
        ConfigurationError: A savepoint is open: its rollback would take the ack back, and the transaction would go on.
            Or another message is acked in this transaction, or the connection has no transaction of one phase.

    The commit raises what `Message.ack` raises. Everything is rolled back then.

    Example::

        def bill(message):
            with Session(engine) as session, session.begin():
                ack(session, message)
                session.add(Bill(order_id=message.json()["id"]))
    """
    connection = _connection_of(session, bind_arguments)
    if connection.in_nested_transaction():
        raise ConfigurationError(
            "a savepoint is open, whose rollback would take the ack back while the transaction goes on: ack outside of "
            "begin_nested()"
        )
    outbox = _outbox_of(connection)
    if outbox.acked is not None and outbox.acked is not message:
        raise ConfigurationError("another message is acked in this transaction: ack one message in a transaction")
    message._delivery.promise_ack()  # noqa: SLF001 - a part of the library
    outbox.acked = message


@contextmanager
def session(message: Message, factory: Callable[[], Session]) -> Iterator[Session]:
    """Return a block with a session, whose end commits the session's changes together with the ack, or neither.

    Args:
        message: The message of a handler, or a pulled one.
        factory: Opens a session, as a `sessionmaker` does.

    Raises:
        LeaseLost: As `Message.ack`, at the end of the block. Nothing was committed.
        AlreadySettled: As `Message.ack`.

    Example::

        def bill(message):
            with session(message, Session) as orders:
                orders.add(Bill(order_id=message.json()["id"]))
    """
    with factory() as opened, opened.begin():
        ack(opened, message)
        yield opened


@frozen
class _Pending:
    """A message that waits for the commit."""

    client: Client
    topic: str
    outgoing: Outgoing


@define(eq=False)
class _Outbox:
    """What a connection publishes and acks with its next COMMIT.

    The engine's listeners call its methods. They follow what is sent to the server: a session also rolls savepoints
    back where it calls no hook of its own.
    """

    messages: list[_Pending] = field(factory=list)
    acked: Message | None = None
    _marks: dict[str, int] = field(factory=dict)
    """How many messages there were at each savepoint. One from before the first message is not there."""

    def commit(self, connection: Connection) -> None:
        """Send what is there. After any error or interrupt, the transaction must not be committed without it."""
        try:
            while self.messages:
                # All transactions of this kind lock heads in one order.
                self.messages.sort(key=lambda each: (each.topic, each.outgoing.key or ""))
                client, topic = self.messages[0].client, self.messages[0].topic
                group = [*takewhile(lambda each: each.client is client and each.topic == topic, self.messages)]  # noqa: B023
                client.publish_many(topic, [each.outgoing for each in group], connection=connection.connection)
                del self.messages[: len(group)]
            if self.acked is not None:
                patience = self.acked._delivery.ack_in(connection.connection)  # noqa: SLF001 - a part of the library
                connection.info.setdefault(_PATIENCE, patience)
                _restore_with(connection)
        except BaseException:
            with suppress(Exception):  # the first one is raised
                connection.connection.rollback()  # SQLAlchemy takes the transaction for ended, and would send nothing
            raise
        finally:
            self.forget()

    def forget(self) -> None:
        """Forget everything with the transaction."""
        self.messages, self._marks, self.acked = [], {}, None

    def note(self, savepoint: str) -> None:
        """Note what came before a savepoint. The event of its name does not say how the savepoint is called."""
        self._marks[savepoint] = len(self.messages)

    def drop(self, savepoint: str) -> None:
        """Forget what was published since a savepoint."""
        del self.messages[self._marks.get(savepoint, 0) :]


_outboxes: WeakKeyDictionary[Connection, _Outbox] = WeakKeyDictionary()
_listening: WeakSet[Engine] = WeakSet()
"""Engines with the listeners: to give four to each connection takes longer than to encode its messages."""


def _outbox_of(connection: Connection) -> _Outbox:
    """Return that of a connection. It is kept last: an interrupt before leaves one that nobody knows."""
    found = _outboxes.get(connection)
    if found is None:
        engine = connection.engine
        if engine not in _listening:
            for name, listener in _LISTENERS.items():
                event.listen(engine, name, listener)
            _listening.add(engine)
        found = _outboxes[connection] = _Outbox()
    return found


def _on_commit(connection: Connection) -> None:
    if (found := _outboxes.get(connection)) is not None:
        found.commit(connection)


def _on_rollback(connection: Connection) -> None:
    if (found := _outboxes.get(connection)) is not None:
        found.forget()


def _on_execute(connection: Connection, statement: object, *_: object) -> None:
    if isinstance(statement, SavepointClause) and (found := _outboxes.get(connection)) is not None:
        found.note(statement.ident)


def _on_savepoint_rollback(connection: Connection, savepoint: str, _context: object) -> None:
    if (found := _outboxes.get(connection)) is not None:
        found.drop(savepoint)


def _on_begin(connection: Connection) -> None:
    record = connection.connection
    if record.dbapi_connection is not None:
        _restore(record.dbapi_connection, record)


_LISTENERS: Final[dict[str, Callable[..., None]]] = {
    "before_execute": _on_execute,
    "rollback_savepoint": _on_savepoint_rollback,
    "rollback": _on_rollback,
    "commit": _on_commit,
}


def _restore_with(connection: Connection) -> None:
    """Let the connection have its own `wait_timeout` again, when its pool gets it back or another transaction begins.

    The ack has lowered it, and a connection that rests in a pool would be ended by the server.
    """
    if connection.engine.pool not in _restoring:
        event.listen(connection.engine, "checkin", _restore)
        _restoring.add(connection.engine.pool)
    if not event.contains(connection, "begin", _on_begin):
        event.listen(connection, "begin", _on_begin)


def _restore(dbapi_connection: Any, record: Any) -> None:
    patience = record.info.pop(_PATIENCE, None)
    if patience is None or dbapi_connection is None:
        return
    try:
        with closing(dbapi_connection.cursor()) as cursor:
            cursor.execute("SET SESSION wait_timeout = %s", (patience,))
    except Exception as exc:  # noqa: BLE001 - what it is now is not known, so the pool makes another connection
        record.invalidate(exc)


_restoring: WeakSet[Any] = WeakSet()
"""Pools whose connections get theirs back."""


def _connection_of(session: Session | scoped_session[Any] | Connection, bind: dict[str, Any] | None) -> Connection:
    if isinstance(session, Connection):
        connection = session
        if not connection.in_transaction():
            connection.begin()
    elif isinstance(session, Session | scoped_session):
        connection = session.connection(bind_arguments=bind)
    else:
        raise ConfigurationError(
            f"session must be a Session, a scoped_session or a Connection of SQLAlchemy, not {type(session).__name__}"
        )
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        raise ConfigurationError("a transaction of two phases has no COMMIT of its own to publish with: use one phase")
    autocommit = getattr(connection.connection.dbapi_connection, "get_autocommit", None)
    if autocommit is not None and autocommit():
        raise ConfigurationError(
            "the session's connection is in autocommit, so that nothing would hold message and rows"
        )
    return connection
