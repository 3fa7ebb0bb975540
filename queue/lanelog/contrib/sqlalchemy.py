"""SQLAlchemy: publishing with a session's commit, sessions in handlers, and Alembic. Needs no extra of lanelog.

Owns what a session publishes when it commits, when a worker thread's session ends, and which tables are none of the
application's. Begins a session's transaction, and commits none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import takewhile
from typing import Any, Protocol

from attrs import define, field, frozen
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from lanelog._base.checks import Duration
from lanelog.client import Client
from lanelog.message import Message, Outgoing
from lanelog.migrations import declared_tables

_OUTBOX = "lanelog.outbox"
"""The key of a session's `info`."""


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
    session: Session | scoped_session[Any],
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
) -> None:
    """Publish one message when the session commits: it is visible if and only if that happens.

    The message is checked and encoded at once, and sent right before the COMMIT, after the session's own statements. So
    lanes are locked briefly, and in one order, whatever the order of the calls. A savepoint that is rolled back takes
    its messages along. There is no receipt. `Client.publish` with `connection=session` gives one, and locks at once.

    Args:
        session: A session, or a `scoped_session`. Its transaction begins here, if it has not begun.
        client: The client that publishes. Its tables must be on the server of the session.
        topic: The topic, as in `Client.publish`.
        key: The unit of order. None: any open lane.
        payload: Encoded now. Middleware of the client is called at the commit, and gets the encoded payload.
        id: Makes the publish idempotent within topic and key.
        metadata: Names and texts that travel with the message.
        delay: The time until the message is due, from the commit on.
        deliver_at: The time when the message is due.
        ttl: The time in which a handler may start on the message.

    Raises:
        ConfigurationError: An argument is not valid.
        PayloadTooLarge: The payload or the metadata is too large.

    The session's commit raises what `Client.publish` raises. Then roll back, and repeat all of it.

    Example::

        with Session(engine) as session, session.begin():
            session.add(Order(id=7, state="paid"))
            publish(session, client, "orders", "order-7", {"id": 7})
    """
    own: Session = session() if isinstance(session, scoped_session) else session
    outgoing = Outgoing(key, payload, id, metadata, delay, deliver_at, ttl)
    checked = client._publisher.checked(topic, outgoing)  # noqa: SLF001 - a part of the library
    _Outbox.of(own).add(own, _Pending(client, topic, checked))


@frozen
class _Pending:
    """A message that waits for its session's commit."""

    client: Client
    topic: str
    outgoing: Outgoing
    within: tuple[SessionTransaction, ...] = ()
    """The session's transaction and the savepoints that were open, the innermost first."""


@define(eq=False)
class _Outbox:
    """What one session publishes at its commit."""

    messages: list[_Pending] = field(factory=list)
    sent: bool = False
    """Whether this transaction's messages were sent. A message from a later hook of the commit is sent at once."""

    @classmethod
    def of(cls, session: Session) -> _Outbox:
        """Return that of a session. The first one listens to it."""
        found: _Outbox | None = session.info.get(_OUTBOX)
        if found is None:
            found = session.info[_OUTBOX] = cls()
            event.listen(session, "before_commit", found.send)
            event.listen(session, "after_soft_rollback", found.drop)
            event.listen(session, "after_transaction_end", found.end)
        return found

    def add(self, session: Session, message: _Pending) -> None:
        """Keep a message until the commit."""
        if not session.in_transaction():
            session.begin()
        inner = session.get_nested_transaction() or session.get_transaction()
        within = []
        while inner is not None:
            within.append(inner)
            inner = inner.parent
        self.messages.append(_Pending(message.client, message.topic, message.outgoing, tuple(within)))
        if self.sent:
            self._send(session)

    def send(self, session: Session) -> None:
        """Send what is there before the COMMIT. SQLAlchemy calls this for each savepoint's release, too."""
        if not session.in_nested_transaction():
            session.flush()
            self._send(session)
            self.sent = True

    def _send(self, session: Session) -> None:
        while self.messages:
            # All transactions of this kind lock heads in one order.
            self.messages.sort(key=lambda each: (each.topic, each.outgoing.key or ""))
            client, topic = self.messages[0].client, self.messages[0].topic
            group = [*takewhile(lambda each: each.client is client and each.topic == topic, self.messages)]  # noqa: B023
            client.publish_many(topic, [each.outgoing for each in group], connection=session)
            del self.messages[: len(group)]  # after an error, a second commit sends the others

    def drop(self, _session: Session, transaction: SessionTransaction) -> None:
        """Forget what was published in a transaction or savepoint that was rolled back."""
        self.messages = [each for each in self.messages if transaction not in each.within]

    def end(self, _session: Session, transaction: SessionTransaction) -> None:
        """Forget all with the transaction: it was committed, rolled back or closed."""
        if transaction.parent is None:
            self.messages, self.sent = [], False
