"""What goes into the log and comes out of it: messages, receipts, payloads, metadata, and the handler's control flow.

It never talks to a database or to the engine: a message hands its settlement to the delivery it came with. Payloads are
encoded and decoded by `_codec`. The publisher encodes metadata with it, the engine builds `Message` from rows, and
handlers are given one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen

from lanelog._checks import Duration, check_duration
from lanelog._codec import CONTENT_TYPE, Codec, decode_payload, utf8
from lanelog.errors import ConfigurationError, PayloadTooLarge

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

METADATA_MAX_BYTES = 65_535
"""The most bytes of metadata as JSON; metadata is for headers, data belongs into the payload."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_METADATA: Mapping[str, str] = MappingProxyType({})
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Reject(Exception):
    """Raised by a handler: the message can never succeed and goes to the dead letters at once."""

    def __init__(self, reason: str = "rejected by the handler") -> None:
        self.reason = _reason(reason)
        super().__init__(self.reason)


class Retry(Exception):
    """Raised by a handler: try again, after `delay` seconds or, without one, after the wait of the retry policy."""

    def __init__(self, delay: Duration | None = None) -> None:
        self.delay = None if delay is None else check_duration("delay", delay)
        super().__init__(self.delay)

    def __str__(self) -> str:
        return "the handler asked for another attempt" + ("" if self.delay is None else f" in {self.delay:g} s")


class Postpone(Exception):
    """Raised by a handler: not a failure, but not now; the message starts again as attempt 1 after `delay` seconds."""

    def __init__(self, delay: Duration) -> None:
        self.delay = check_duration("delay", delay)
        super().__init__(self.delay)

    def __str__(self) -> str:
        return f"the handler postponed the message by {self.delay:g} s"


class DeliveryHandle(Protocol):
    """What a message needs of the delivery it came with; the engine implements it."""

    @property
    def codec(self) -> Codec | None:
        """The codec of the client that it came to."""

    def ack(self) -> None:
        """Settle as done."""

    def nack(self, delay: float | None, reason: str | None) -> None:
        """Settle as failed."""

    def reject(self, reason: str) -> None:
        """Settle as impossible."""

    def postpone(self, delay: float) -> None:
        """Settle as not yet due."""

    def extend(self, seconds: float) -> None:
        """Keep the delivery for so many seconds from now."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit the handler's writes together with the ack."""


@frozen
class Outgoing:
    """A message for `publish_many`: as the arguments of `publish`, without the topic. Its codec goes first.

    `key` None: it needs no order, and goes to an open lane.
    """

    key: str | None
    payload: Any = field(repr=False)
    id: str | None = None
    metadata: Mapping[str, str] | None = field(default=None, repr=False)
    delay: Duration | None = None
    deliver_at: datetime | None = None
    ttl: Duration | None = None
    codec: Codec | None = field(default=None, repr=False)


@frozen
class Receipt:
    """What `publish` returns: the message's place in its lane, its id, and whether that id was there before.

    `offset` 0: it is not in the log yet, because it, or the first message of that id, waits until it is due. `key` is
    the lane's: the one that was given or, for a message without one, the open lane that it went to.
    """

    offset: int
    id: str
    duplicate: bool
    key: str = field(default="", eq=False)


@frozen(kw_only=True)
class DeadLetter:
    """Where a dead letter comes from, and why it was given up."""

    original_topic: str
    original_offset: int
    group: str
    failed_at: datetime
    failure_count: int
    last_error: str


@define(eq=False, repr=False, kw_only=True)
class Message:
    """One delivery of a message to a handler.

    `key` is the key that it was published under; of a message published without one, the open lane's (`open~007`).

    `fencing_token` grows with every owner of the key: a system that the handler writes to can refuse a smaller one.
    `metadata` is read-only and `published_at` an aware UTC datetime; both are decoded when they are asked for.
    """

    topic: str
    key: str
    offset: int
    id: str
    payload: bytes = field(repr=False)
    _metadata_json: str | bytes | None = field(repr=False)
    _published_at_ms: int
    attempt: int
    group: str
    fencing_token: int
    dead_letter: DeadLetter | None
    _delivery: DeliveryHandle
    _metadata: Mapping[str, str] | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        # Without payload and metadata: they may be large, or secret. rich, which does not ask for this text where it
        # shows local variables, looks at the fields.
        return (
            f"<Message topic={self.topic!r} key={self.key!r} offset={self.offset} group={self.group!r} "
            f"attempt={self.attempt} id={self.id!r} {len(self.payload)} bytes>"
        )

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the publisher gave along, read-only."""
        if self._metadata is None:
            self._metadata = decode_metadata(self._metadata_json)
        return self._metadata

    @property
    def published_at(self) -> datetime:
        """When it was published, by the database's clock."""
        return utc_from_ms(self._published_at_ms)

    def json(self) -> Any:
        """Return the payload parsed as JSON; ValueError if it is none."""
        return json.loads(self.payload)

    def decode(self) -> Any:
        """Return what was published: a dict, list or number that was JSON, a str, bytes, or what a codec makes of it.

        The metadata `content-type`, which `publish` has written, says how. Where there is none (bytes, messages of
        older versions and of other programs), the client's codec decodes; without a codec it is the payload itself.
        What JSON does not know comes back as JSON has it: a datetime as its text.

        Raises ConfigurationError for a content type that this client has no codec for, ValueError for a payload that is
        not what is said of it, and what the codec raises.
        """
        return decode_payload(self.payload, self.metadata.get(CONTENT_TYPE), self._delivery.codec)

    def ack(self) -> None:
        """Settle the message as done.

        This and the next three return when it is committed; they raise LeaseLost or AlreadySettled.
        """
        self._delivery.ack()

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Settle this attempt as failed: the retry policy decides, a `delay` replaces only its wait."""
        self._delivery.nack(
            None if delay is None else check_duration("delay", delay),
            None if reason is None else _reason(reason),
        )

    def reject(self, reason: str) -> None:
        """Settle the message as one that can never succeed: it goes to the dead letters with this reason."""
        self._delivery.reject(_reason(reason))

    def postpone(self, delay: Duration) -> None:
        """Settle this attempt as no failure: the message starts again as attempt 1 after `delay` seconds."""
        self._delivery.postpone(check_duration("delay", delay))

    def extend(self, seconds: Duration) -> None:
        """Keep the delivery for so long from now, whatever visibility_timeout says. Raises LeaseLost."""
        self._delivery.extend(check_duration("seconds", seconds, above=True))

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that gives a DB-API connection and commits what was written there with the ack.

        Either all of it is committed, or none and the block raises: LeaseLost if the delivery was lost meanwhile.
        """
        return self._delivery.transaction()


def encode_metadata(metadata: object, content_type: str | None = None) -> str | None:
    """Return the JSON text to store, None for none, with the content type in it, if any.

    Raises ConfigurationError unless every key and value is a str, and PayloadTooLarge.
    """
    if metadata is None:
        return None if content_type is None else _only(content_type)
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"metadata must be a mapping of str to str, not {type(metadata).__name__}")
    pairs: dict[object, object] = dict(metadata)
    if content_type is not None:
        pairs[CONTENT_TYPE] = content_type
    if not pairs:
        return None
    for name, value in pairs.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(
                f"metadata must map str to str, not {type(name).__name__} to {type(value).__name__}"
            )
    text = _JSON.encode(pairs)
    size = len(utf8("metadata", text))
    if size > METADATA_MAX_BYTES:
        raise PayloadTooLarge(
            f"metadata has {size} bytes as JSON, {METADATA_MAX_BYTES} are allowed: put data into the payload"
        )
    return text


@lru_cache(maxsize=128)
def _only(content_type: str) -> str:
    return _JSON.encode({CONTENT_TYPE: content_type})


def decode_metadata(text: str | bytes | None) -> Mapping[str, str]:
    """Return the metadata of a row, read-only; what another program stored as other JSON is given as JSON text."""
    if not text:
        return _NO_METADATA
    try:
        return _texts(json.loads(text))
    except ValueError:  # a number that Python cannot hold, or write: 1e400, or one of thousands of digits
        return _texts(json.loads(text, parse_int=str, parse_float=str))


def _texts(found: object) -> Mapping[str, str]:
    if not isinstance(found, dict):
        return _NO_METADATA
    return MappingProxyType(
        {name: value if isinstance(value, str) else _JSON.encode(value) for name, value in found.items()}
    )


def utc_from_ms(milliseconds: int) -> datetime:
    """Return the aware UTC datetime of epoch milliseconds, exactly."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise ConfigurationError(f"reason must be a str, not {type(reason).__name__}")
    # Often the text of an exception; a lone surrogate in it must not prevent the settlement.
    return reason.encode("utf-8", "backslashreplace").decode()
