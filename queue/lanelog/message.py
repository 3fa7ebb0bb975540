"""Messages, receipts, metadata, and the exceptions by which a handler settles.

Never talks to a database or to the engine: a message hands its settlement to the delivery that it came with. `codec`
encodes and decodes payloads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen

from lanelog._base.checks import Duration, check_duration
from lanelog._base.payloads.codec import CONTENT_TYPE, Codec, decode_payload
from lanelog._base.payloads.metadata import decode_metadata
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = (datetime(MAXYEAR, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""The latest time that is shown. Every time zone has it."""


class Reject(Exception):
    """Raised by a handler: the message can never succeed. It goes to the dead letters at once.

    A message that is a dead letter itself is tried again instead.

    Args:
        reason: The text of the error that the dead letter keeps.
    """

    def __init__(self, reason: str = "rejected by the handler") -> None:
        self.reason = _reason(reason)
        super().__init__(self.reason)


class Retry(Exception):
    """Raised by a handler: the attempt failed, and the retry policy decides what comes next.

    Args:
        delay: The wait before the next attempt, in seconds or as a timedelta. None: the wait of the retry policy.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        self.delay = None if delay is None else check_duration("delay", delay)
        super().__init__(self.delay)

    def __str__(self) -> str:
        return "the handler asked for another attempt" + ("" if self.delay is None else f" in {self.delay:g} s")


class Postpone(Exception):
    """Raised by a handler: no failure, but not now. The message starts again as attempt 1.

    Args:
        delay: The wait, in seconds or as a timedelta.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = check_duration("delay", delay)
        super().__init__(self.delay)

    def __str__(self) -> str:
        return f"the handler postponed the message by {self.delay:g} s"


class DeliveryHandle(Protocol):
    """What a message needs of the delivery that it came with."""

    @property
    def codec(self) -> Codec | None:
        """The codec of the consumer's client."""

    def ack(self) -> None:
        """Settle as done."""

    def ack_in(self, connection: object) -> int:
        """Settle as done in the caller's transaction. Return the `wait_timeout` that its session had before."""

    def promise_ack(self) -> None:
        """A commit will ack. Without it, the handler's return does not."""

    def nack(self, delay: float | None, reason: str | None) -> None:
        """Settle as failed."""

    def reject(self, reason: str) -> None:
        """Settle as impossible."""

    def postpone(self, delay: float) -> None:
        """Settle as not yet due."""

    def extend(self, seconds: float) -> None:
        """Keep the delivery for that many seconds from now."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit the handler's writes together with the ack."""


@frozen
class Outgoing:
    """A message for `publish_many`. Its fields are the arguments of `publish`, without the topic.

    Its `codec` comes before the codec of the call, and that before the client's.
    """

    key: str | None
    payload: Any = field(repr=False)
    id: str | None = None
    metadata: Mapping[str, str] | None = field(default=None, repr=False)
    delay: Duration | None = None
    deliver_at: datetime | None = None
    ttl: Duration | None = None
    codec: Codec | None = field(default=None, repr=False)

    def with_metadata(self, metadata: Mapping[str, str]) -> Outgoing:
        """Return the same message with other metadata. `attrs.evolve` does that, too, and takes longer."""
        return Outgoing(self.key, self.payload, self.id, metadata, self.delay, self.deliver_at, self.ttl, self.codec)


def _messages(given: Iterable[Outgoing]) -> tuple[Outgoing, ...]:
    return tuple(given)


@frozen
class Publication:
    """One call of `publish`, `publish_many` or `schedule`, as a middleware of `connect` sees it.

    A middleware hands on this one or `attrs.evolve(publication, messages=…)`. Metadata, payload and the other fields of
    the messages may differ. Topic, schedule and the number of messages stay. `call_next` returns a list with one
    receipt for each message, or the `ScheduleInfo` of a schedule.

    Example::

        def signed(publication, call_next):
            messages = [attrs.evolve(m, metadata={**(m.metadata or {}), "by": "ann"}) for m in publication.messages]
            return call_next(attrs.evolve(publication, messages=messages))
    """

    topic: str
    messages: tuple[Outgoing, ...] = field(converter=_messages)
    """In the order of the call. `publish` and `schedule` have one."""
    schedule: str | None = None
    """The name of the schedule that is declared. None: the messages are published now, or after their delay."""


@frozen
class Receipt:
    """What `publish` returns for a message."""

    offset: int
    """Its offset in its lane. 0: it, or the first message with its id, waits until it is due, and has no offset yet."""
    id: str
    """The id that the publisher gave, or one that lanelog made."""
    duplicate: bool
    """Whether a message with this id was there before. Nothing was stored then; `offset` is the first one's."""
    key: str = field(default="", eq=False)
    """The key of its lane: the given one, or the open lane's of a message without a key."""


@frozen(kw_only=True)
class DeadLetter:
    """Where a dead letter comes from, and why its group gave it up."""

    original_topic: str
    original_offset: int
    group: str
    """The group that gave it up."""
    failed_at: datetime
    """When, by the database's clock. An aware datetime in UTC."""
    failure_count: int
    """The attempts that were made, crashes and time-outs included. 0: its `ttl` ended before the first one."""
    last_error: str


@define(eq=False, repr=False)
class Message:
    """One delivery of a message to a handler or a puller.

    Example::

        def handle(message: lanelog.Message) -> None:
            order = message.json()
            if order["amount"] < 0:
                raise lanelog.Reject("negative amount")
            print(message.key, message.offset, message.attempt, order)
    """

    topic: str
    key: str
    """The key that it was published under. A message without a key has its open lane's, such as `open~007`."""
    offset: int
    """Its number in its lane. The first one is 1, and there are no gaps."""
    id: str
    """The id that the publisher gave, or one that lanelog made. The same at every delivery."""
    payload: bytes = field(repr=False)
    _metadata_json: str | bytes | None = field(repr=False)
    _published_at_ms: int
    attempt: int
    """The number of this attempt, from 1. A crash and a time-out count, too."""
    group: str
    fencing_token: int
    """The epoch of the lane's lease. It grows with every owner: what a handler writes to can refuse a smaller one."""
    dead_letter: DeadLetter | None
    """Where it comes from, if it is a dead letter. Otherwise None."""
    _delivery: DeliveryHandle
    _metadata: Mapping[str, str] | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        # Without payload and metadata: they may be large, or secret. Where rich shows local variables, it does not use
        # this text but the fields, so these two have repr=False.
        return (
            f"<Message topic={self.topic!r} key={self.key!r} offset={self.offset} group={self.group!r} "
            f"attempt={self.attempt} id={self.id!r} {len(self.payload)} bytes>"
        )

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata that the publisher gave, read-only."""
        if self._metadata is None:
            self._metadata = decode_metadata(self._metadata_json)
        return self._metadata

    @property
    def published_at(self) -> datetime:
        """When it was published, by the database's clock. An aware datetime in UTC."""
        return utc_from_ms(self._published_at_ms)

    def json(self) -> Any:
        """Return the payload, parsed as JSON.

        Raises:
            ValueError: The payload is not JSON.
        """
        return json.loads(self.payload)

    def decode(self) -> Any:
        """Return the payload as it was published.

        The metadata `content-type`, which `publish` writes, says how to decode it. A message may have none: bytes, or a
        message of another program. Then the client's codec decodes it, if there is one.

        Returns:
            A dict, list or number from JSON, a str, bytes, or the codec's object. A type that JSON does not have comes
            back as its JSON: a datetime as text.

        Raises:
            ConfigurationError: This client has no codec for the content type.
            ValueError: The payload is not what its content type says.
            Exception: The codec raised it.
        """
        return decode_payload(self.payload, self.metadata.get(CONTENT_TYPE), self._delivery.codec)

    def ack(self, *, connection: object = None) -> None:
        """Settle the message as done. Returns when that is committed, or with `connection` when it is written there.

        Args:
            connection: Your own connection with an open transaction, or what an ORM has for one, as in
                `Client.publish`. Its writes and the ack are one commit, which is yours: the message is done if and only
                if you commit. Ack last: a later publish in this transaction is refused. If you roll back, the attempt
                has failed, or you ack once more in another transaction. `wait_timeout` of the session is lowered to
                `lease_duration`, and stays so.

        Raises:
            LeaseLost: The delivery ended before. The lane has another owner, or the visibility time-out is over.
                Nothing was written.
            AlreadySettled: This delivery was settled before, or its ack stands in a transaction that is still open.
            ClosedError: The client was closed before this was committed.
            ConfigurationError: The connection has no transaction open, is one of lanelog's own, or leads to another
                server. Or a message was acked in this transaction before.
            DatabaseError: The database refused a statement on `connection`. Roll back: the lease may be locked.
        """
        if connection is None:
            self._delivery.ack()
        else:
            self._delivery.ack_in(connection)

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Settle this attempt as failed. The retry policy decides what comes next. Returns when that is committed.

        Args:
            delay: Replaces only the wait of the retry policy. Seconds or a timedelta.
            reason: The text of the error. None: a default text.

        Raises:
            LeaseLost: As `ack`.
            AlreadySettled: As `ack`.
        """
        self._delivery.nack(
            None if delay is None else check_duration("delay", delay),
            None if reason is None else _reason(reason),
        )

    def reject(self, reason: str) -> None:
        """Settle the message as one that can never succeed. Returns when it is a dead letter, and that is committed.

        Args:
            reason: The text of the error that the dead letter keeps.

        Raises:
            LeaseLost: As `ack`.
            AlreadySettled: As `ack`.
        """
        self._delivery.reject(_reason(reason))

    def postpone(self, delay: Duration) -> None:
        """Postpone the message. It starts again as attempt 1: this is no failure. Returns when that is committed.

        Args:
            delay: The wait, in seconds or as a timedelta.

        Raises:
            LeaseLost: As `ack`.
            AlreadySettled: As `ack`.
        """
        self._delivery.postpone(check_duration("delay", delay))

    def extend(self, seconds: Duration) -> None:
        """Keep the delivery for a time from now, instead of the visibility time-out.

        Args:
            seconds: The time, in seconds or as a timedelta. More than 0.

        Raises:
            LeaseLost: As `ack`.
        """
        self._delivery.extend(check_duration("seconds", seconds, above=True))

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that gives a DB-API connection with an open transaction.

        The end of the block commits the block's writes together with the ack: all of it, or nothing.

        Raises:
            LeaseLost: As `ack`, when the block begins or ends. Nothing was committed, unless COMMIT was not answered
                and the lane has another owner by now: the text of the error says so.
            AlreadySettled: As `ack`.
            DatabaseError: The database refused a statement or the COMMIT. Nothing was committed, unless
                `outcome_unknown` is true.
        """
        return self._delivery.transaction()


def utc_from_ms(milliseconds: int) -> datetime:
    """Return the aware UTC datetime of epoch milliseconds, without rounding. After the year 9998: that year's end."""
    # lanelog writes no such time, but a damaged row may have one, and what reads many rows must not fail by it.
    return _EPOCH + timedelta(milliseconds=min(milliseconds, _LATEST_MS))


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise ConfigurationError(f"reason must be a str, not {type(reason).__name__}")
    # Often the text of an exception; a lone surrogate in it must not prevent the settlement.
    return reason.encode("utf-8", "backslashreplace").decode()
