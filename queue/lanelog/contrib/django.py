"""Django in handlers. Needs Django, and no extra of lanelog.

Owns when a worker thread's connections are closed, and the ack in `atomic()`. Opens none, and commits none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django import db
from django.db import transaction

from lanelog.errors import ConfigurationError
from lanelog.message import Message

_PATIENCE: Final = "_lanelog_wait_timeout"
"""The attribute of Django's connection with the `wait_timeout` that its session had before the ack."""


def ack(message: Message, using: str | None = None) -> None:
    """Ack a message in the open `atomic()` block, as its last statement of lanelog: one commit, or neither.

    Args:
        message: The message of a handler, or a pulled one.
        using: The alias of the database, as in `atomic`. None: the default one.

    Raises:
        ConfigurationError: No `atomic()` is open, or an inner one is, whose savepoint could take the ack back. Or what
            `Message.ack` refuses.
        LeaseLost: As `Message.ack`.
        AlreadySettled: As `Message.ack`.
        DatabaseError: As `Message.ack`.

    Example::

        def bill(message):
            with transaction.atomic():
                Order.objects.filter(id=message.json()["id"]).update(state="billed")
                ack(message)
    """
    connection: Any = transaction.get_connection(using)
    if not connection.in_atomic_block:
        raise ConfigurationError("no atomic() is open, so that nothing would hold the effects and the ack together")
    if connection.savepoint_ids:
        raise ConfigurationError(
            "an inner atomic() is open, whose rollback would take the ack back while the outer one goes on: ack in the "
            "outermost block"
        )
    patience = message._delivery.ack_in(connection)  # noqa: SLF001 - a part of the library
    if not hasattr(connection, _PATIENCE):
        setattr(connection, _PATIENCE, patience)
    # After a rollback `close_old_connections` sets it back, or the commit of the next ack.
    transaction.on_commit(partial(_restore, connection), using=using)


def _restore(connection: Any) -> None:
    """Let the session have its own `wait_timeout` again: a kept connection would be ended by the server.

    An error must not keep other hooks of the commit from running. What the session has then is not known.
    """
    patience = getattr(connection, _PATIENCE, None)
    if patience is None:
        return
    delattr(connection, _PATIENCE)
    try:
        if connection.connection is not None:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION wait_timeout = %s", [patience])
    except db.Error:
        connection.close()


def close_old_connections(message: Message, call_next: Callable[[Message], object]) -> object:
    """Close Django's connections of this thread before and after each message, as Django does around a request.

    A middleware of subscriptions. It closes those that are older than `CONN_MAX_AGE`, and those that an error has left
    unusable. Without it a connection that the server has ended fails every later message of the thread.

    Example::

        client.subscribe("orders", "billing", bill, middleware=(close_old_connections,))
    """
    db.close_old_connections()
    try:
        return call_next(message)
    finally:
        for connection in db.connections.all(initialized_only=True):
            _restore(connection)
        db.close_old_connections()
