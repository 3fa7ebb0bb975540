"""Batches: how many messages a handler gets at once, and the messages of one call.

Never decides which messages go together: the engine does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from lanelog._base.checks import Duration, duration, integer, seconds
from lanelog.errors import ConfigurationError
from lanelog.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

MOST_MESSAGES = 10_000
"""The most messages of one batch."""

_ACROSS = ("lane", "lanes")


def _seconds(value: Duration) -> float:
    return seconds(value)


def _across(_: object, __: object, value: object) -> None:
    if value not in _ACROSS:
        raise ConfigurationError(f"across must be 'lane' or 'lanes', not {value!r}")


@frozen
class Batch:
    """How many messages a handler gets in one call. It is the option `batch` of `subscribe`.

    A batch is handed out when it is full, or `wait` after its first message came: sooner if such a message expires. It
    is filled on while no worker is free.

    Example::

        @client.subscriber("events", "search", batch=lanelog.Batch(size=100))
        def index(messages: lanelog.Messages) -> None:
            with messages.transaction() as connection:
                rows = [(m.key, m.offset, m.payload) for m in messages]
                connection.cursor().executemany("INSERT INTO events_seen VALUES (%s, %s, %s)", rows)

    Raises:
        ConfigurationError: A value is out of range or of another type.
    """

    size: int = field(default=100, validator=integer(least=1, most=MOST_MESSAGES))
    """The most messages of a batch."""
    wait: float = field(default=0.2, converter=_seconds, validator=duration())
    """How long a batch waits to be full: seconds, or a timedelta. 0: it goes out with what is there."""
    across: str = field(default="lane", validator=_across)
    """`lane`: all messages of a batch have one key. `lanes`: they may have several."""


class BatchHandle(Protocol):
    """What the messages of a batch need of the engine."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit the handler's writes together with the acks."""

    def ack_in(self, connection: object) -> int:
        """Ack all of them in the caller's transaction. Return the `wait_timeout` that its session had before."""


class Messages(list[Message]):
    """The messages of one call of a handler with `batch=`, in strict and serial order those of a key in their order.

    The handler acks all of them by returning None. Or it returns a list that is as long as the batch, and has for each
    message None, or a `Retry`, `Postpone` or `Reject`. In strict order the first of these stops its lane: what the list
    says of later messages of that key does not count, and they come again.
    """

    def __init__(self, messages: Iterable[Message], handle: BatchHandle) -> None:
        super().__init__(messages)
        self._handle = handle

    def __repr__(self) -> str:
        return f"<Messages {len(self)}: {super().__repr__()}>"

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that gives a DB-API connection with an open transaction.

        The end of the block commits the block's writes together with the acks of all messages: all of it, or nothing.

        Raises:
            LeaseLost: One of the deliveries ended before, as for `Message.transaction`.
            AlreadySettled: One of the messages was settled before.
            DatabaseError: As for `Message.transaction`.
        """
        return self._handle.transaction()

    def ack(self, *, connection: object) -> None:
        """Ack all messages in a transaction of your own: they are done if and only if you commit it.

        Args:
            connection: As for `Message.ack`. Ack last, and all messages at once.

        Raises:
            LeaseLost: As for `transaction`. Nothing was written.
            AlreadySettled: As for `transaction`.
            ConfigurationError: As for `Message.ack`.
            DatabaseError: As for `Message.ack`.
        """
        self._handle.ack_in(connection)
