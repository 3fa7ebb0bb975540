"""What the commit of the outermost `atomic()` publishes and acks. Commits nothing by itself.

Django has no hook before a commit. So the first call gives its connection a `commit` that sends what was registered,
and then commits. What is registered stands among Django's own hooks for after the commit, so that a savepoint that is
rolled back takes its messages along, and a rollback all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from itertools import takewhile
from typing import Any

from attrs import define, evolve, frozen
from django.db import transaction

from lanelog._base.checks import Duration
from lanelog.client import Client
from lanelog.contrib.django.configuration import configuration
from lanelog.contrib.django.process_client import client as process_client
from lanelog.errors import ConfigurationError
from lanelog.message import Message, Outgoing


def publish(
    topic: str,
    key: str | None,
    payload: object,
    *,
    id: str | None = None,  # noqa: A002 - as in `Client.publish`
    metadata: Mapping[str, str] | None = None,
    delay: Duration | None = None,
    deliver_at: datetime | None = None,
    ttl: Duration | None = None,
    using: str | None = None,
    client: Client | None = None,
) -> None:
    """Publish one message when the outermost `atomic()` commits: it is visible if and only if that happens.

    The message is checked at once, and sent right before the COMMIT. So lanes are locked briefly, and in one order,
    whatever the order of the calls. An inner `atomic()` that is rolled back takes its messages along. There is no
    receipt. `Client.publish` with `connection=` gives one, and locks at once.

    Args:
        topic: The topic, as in `Client.publish`.
        key: The unit of order. None: any open lane.
        payload: A copy of it is published: what is changed afterwards is not part of the message.
        id: Makes the publish idempotent within topic and key.
        metadata: Names and texts that travel with the message.
        delay: The time until the message is due, from the commit on.
        deliver_at: The time when the message is due.
        ttl: The time in which a handler may start on the message.
        using: The alias of the database, as in `atomic`. None: the one of `LANELOG`.
        client: The client that publishes. None: the one of the process.

    Raises:
        ConfigurationError: An argument is not valid, or no `atomic()` is open.
        PayloadTooLarge: The payload or the metadata is too large.

    The end of the outermost block raises what `Client.publish` raises. Everything is rolled back then.

    Example::

        with transaction.atomic():
            Order.objects.create(id=7, state="paid")
            publish("orders", "order-7", {"id": 7})
    """
    publishes: Client = process_client if client is None else client
    connection = _open(using)
    outgoing = Outgoing(key, payload, id, metadata, delay, deliver_at, ttl)
    publishes._publisher.check(topic, outgoing)  # noqa: SLF001 - a part of the library
    copied = evolve(outgoing, payload=deepcopy(payload), metadata=None if metadata is None else dict(metadata))
    _register(connection, Pending(publishes, topic, copied))


def ack(message: Message, using: str | None = None) -> None:
    """Ack a message when the outermost `atomic()` commits: its effects and the ack are one commit, or neither happens.

    The ack is sent right before the COMMIT, behind the messages. A rollback drops it: the attempt has failed then, also
    if the handler returns, unless it settles the message otherwise.

    Args:
        message: The message of a handler, or a pulled one.
        using: The alias of the database, as in `atomic`. None: the one of `LANELOG`.

    Raises:
        LeaseLost: As `Message.ack`.
        AlreadySettled: As `Message.ack`.
        ConfigurationError: No `atomic()` is open, or an inner one is, whose rollback would take the ack back. Or
            another message is acked in this transaction.

    The end of the block raises what `Message.ack` raises. Everything is rolled back then.

    Example::

        def bill(message):
            with transaction.atomic():
                Order.objects.filter(id=message.json()["id"]).update(state="billed")
                ack(message)
    """
    connection = _open(using)
    if len(_blocks(connection)) > 1:
        raise ConfigurationError(
            "an inner atomic() is open, whose rollback would take the ack back while the outer one goes on: ack in the "
            "outermost block"
        )
    acked = [each.message for each in _registered(connection) if isinstance(each, _Ack)]
    if any(each is not message for each in acked):
        raise ConfigurationError("another message is acked in this transaction: ack one message in a transaction")
    if not acked:
        message._delivery.promise_ack()  # noqa: SLF001 - a part of the library
        _register(connection, _Ack(message))


def is_open(using: str | None = None) -> bool:
    """Whether an `atomic()` of the application is open on the database."""
    return bool(_blocks(_connection(using)))


def pending(using: str | None = None) -> list[Pending]:
    """Return what the open transaction publishes when it commits, in the order of the calls."""
    return [each for each in _registered(_connection(using)) if isinstance(each, Pending)]


@frozen
class Pending:
    """A message that waits for the commit."""

    client: Client
    topic: str
    outgoing: Outgoing

    def __call__(self) -> None:
        """Do nothing: Django calls it after the commit, and it was sent before."""


@frozen
class _Ack:
    """An ack that waits for the commit."""

    message: Message

    def __call__(self) -> None:
        """Do nothing, as above."""


def _connection(using: str | None) -> Any:
    return transaction.get_connection(configuration().database if using is None else using)


def _blocks(connection: Any) -> list[Any]:
    """Return the open `atomic()` blocks but those of Django's TestCase, which the code under test does not have."""
    return [each for each in connection.atomic_blocks if not each._from_testcase]  # noqa: SLF001 - there is no other way


def _open(using: str | None) -> Any:
    connection = _connection(using)
    if connection.vendor != "mysql":
        raise ConfigurationError(f"the database {connection.alias!r} is one of {connection.vendor}, not of MySQL")
    if not _blocks(connection):
        raise ConfigurationError(
            f"no atomic() is open on {connection.alias!r}, so that nothing would hold your writes and this together"
        )
    if not connection.commit_on_exit:
        raise ConfigurationError(
            f"autocommit is off on {connection.alias!r}, so that the end of atomic() commits nothing: turn it on"
        )
    return connection


def _registered(connection: Any) -> list[Pending | _Ack]:
    return [function for _, function, *_ in connection.run_on_commit if isinstance(function, Pending | _Ack)]


def _register(connection: Any, function: Pending | _Ack) -> None:
    if not hasattr(connection, "lanelog_commit"):  # somebody may have wrapped ours
        connection.lanelog_commit = connection.commit = _Commit(connection, connection.commit)
    transaction.on_commit(function, using=connection.alias)


@define(eq=False)
class _Commit:
    """The `commit` of one of Django's connections."""

    connection: Any
    commit: Callable[[], None]

    def __call__(self) -> None:
        """Send what is registered, and commit. After any error, the transaction must not be committed without it."""
        found = _registered(self.connection)
        if not found:
            self.commit()
            return
        # What Django's commit refuses, before something is sent.
        self.connection.validate_thread_sharing()
        self.connection.validate_no_atomic_block()
        patience: int | None = None
        try:
            _send(self.connection, [each for each in found if isinstance(each, Pending)])
            for each in found:
                if isinstance(each, _Ack):
                    patience = each.message._delivery.ack_in(self.connection)  # noqa: SLF001 - a part of the library
            self.commit()
        except BaseException:
            try:
                self.connection.rollback()
            except BaseException:  # noqa: BLE001 - the first one is raised
                with suppress(Exception):
                    self.connection.close()  # Django would commit when it turns autocommit on again
            raise
        finally:
            if patience is not None:
                self._restore(patience)

    def _restore(self, patience: int) -> None:
        """Let the session have its own `wait_timeout` again: the ack has lowered it, and a connection may be kept."""
        try:
            with self.connection.connection.cursor() as cursor:
                cursor.execute("SET SESSION wait_timeout = %s", [patience])
        except Exception:  # noqa: BLE001 - what it is now is not known: go on with another connection
            hooks = self.connection.run_on_commit
            self.connection.close()
            self.connection.connect()
            self.connection.run_on_commit = hooks


def _send(connection: Any, messages: list[Pending]) -> None:
    # All transactions of this kind lock heads in one order.
    left = sorted(messages, key=lambda each: (each.topic, each.outgoing.key or ""))
    while left:
        client, topic = left[0].client, left[0].topic
        group = [*takewhile(lambda each: each.client is client and each.topic == topic, left)]  # noqa: B023
        client.publish_many(topic, [each.outgoing for each in group], connection=connection)
        del left[: len(group)]
