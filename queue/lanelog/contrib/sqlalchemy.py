"""SQLAlchemy in handlers. Needs no extra of lanelog, and does not import SQLAlchemy.

Owns when a worker thread's session ends. Begins and commits none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lanelog.message import Message


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
