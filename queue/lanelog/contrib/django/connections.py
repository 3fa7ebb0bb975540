"""When Django's connections of a worker thread are closed. Opens none."""

from __future__ import annotations

from collections.abc import Callable

from django import db

from lanelog.message import Message


def close_old_connections(message: Message, call_next: Callable[[Message], object]) -> object:
    """Close Django's connections of this thread before and after each message, as Django does around a request.

    A middleware of subscriptions, which those of `lanelog.contrib.django.client` have. It closes connections that are
    older than `CONN_MAX_AGE`, and those that an error has left unusable. Without it a connection that the server has
    ended fails every later message of the thread.

    Example::

        client.subscribe("orders", "billing", bill, middleware=(close_old_connections,))
    """
    db.close_old_connections()
    try:
        return call_next(message)
    finally:
        db.close_old_connections()
