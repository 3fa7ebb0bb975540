"""Drafts: messages on their way into the log. A draft is checked and encoded, and keeps its id in every repetition.

Never talks to the database. A draft is made before any SQL, so that a bad message never becomes part of a transaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from attrs import define, field

from lanelog._base import open_lane_keys
from lanelog._base.backoff import RANDOM
from lanelog._base.payloads.codec import CONTENT_TYPE, Codec, encode_payload
from lanelog._base.payloads.metadata import encode_metadata
from lanelog._log.append.timing import AT_ONCE, Timing, make_timing
from lanelog._stores.log.messages import wire_bytes
from lanelog.config import check_name
from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.message import Message, Outgoing

SCHEDULED: Final = 0
"""The offset in the receipt of a message that is not in the log yet."""

_PAIR: Final = 2


@define(eq=False)
class Draft:
    """A message to publish. Only one thread at a time changes it."""

    topic: str
    key: str
    id: str
    given: bool
    """Whether the caller chose the id. Then a message with that id may be stored already."""
    payload: bytes = field(repr=False)
    metadata: str | None = field(repr=False)
    wire_bytes: int
    timing: Timing = AT_ONCE
    target_group: str = ""
    """The only group that gets it. Empty: every group."""
    unordered: bool = False
    """Whether the caller gave no key. Then `OpenLaneRouting` sets `key` to that of an open lane."""
    lanes: int = 0
    """The number of the topic's open lanes when it got one of them. 0: it has a key of the caller's, or no lane yet."""
    avoided: frozenset[str] = field(default=frozenset(), repr=False)
    """The lanes that were busy when it needed one."""
    repeated: bool = False
    """Whether an attempt has failed. Then it may be stored already, although its id is new."""
    tried: int | None = None
    """The offset that it had in an attempt whose COMMIT was not answered. None: there was no such attempt.

    SCHEDULED: it had no offset yet, or one that is not known.
    """
    unknown_since: float | None = None
    """When (`asleep.now`) the first attempt began that may have stored it without an answer. None: none."""
    sent_at: float | None = None
    """When (`asleep.now`) the attempt began whose packet may still be on its way. None: none."""

    @property
    def key_and_id(self) -> tuple[str, str]:
        """The two that name a message within a topic."""
        return self.key, self.id

    @property
    def needs_lookup(self) -> bool:
        """Whether its id must be looked up before it gets an offset."""
        return self.given or self.repeated

    @property
    def anywhere(self) -> bool:
        """Whether it may go to any open lane. An id of the caller's has one lane only."""
        return self.lanes > 0 and not self.given

    def step_aside(self, busy: Collection[str]) -> bool:
        """Take an open lane that was not busy so far, if the message may go to any. Return whether it did.

        A message that may be stored already keeps its lane: in another one it would be stored twice. A message that has
        met every lane busy waits for its last one, as messages with keys do.
        """
        if not self.anywhere or self.unknown_since is not None:
            return False
        self.avoided |= frozenset(busy)
        free = [key for key in open_lane_keys.lane_keys(self.lanes) if key not in self.avoided]
        if not free:
            return False
        self.key = RANDOM.choice(free)
        return True

    def is_own(self, offset: int) -> bool:
        """Whether an attempt of its own, whose COMMIT was not answered, stored the message at `offset` with its id.

        If the attempt had no known offset, any offset is its own. A scheduled message may have become due since.
        """
        return self.tried is not None and self.tried in (offset, SCHEDULED)


def as_outgoing(item: object) -> Outgoing:
    """Return what `publish_many` takes as one message. Raises ConfigurationError for anything else."""
    return item if isinstance(item, Outgoing) else Outgoing(*_pair(item))


def _pair(item: object) -> tuple[Any, object]:
    if not isinstance(item, tuple) or len(item) != _PAIR:
        raise ConfigurationError(f"a message must be (key, payload) or lanelog.Outgoing, not {type(item).__name__}")
    return item


def make_draft(topic: str, item: object, codec: Codec | None, max_payload_bytes: int) -> Draft:
    """Check and encode one message: an Outgoing, or (key, payload). Raises ConfigurationError and PayloadTooLarge.

    The `topic` is checked already. `codec`: if the message has none of its own. A message without a key needs no order:
    `OpenLaneRouting` gives it its lane later.
    """
    message_id, metadata, timing = None, None, AT_ONCE
    if isinstance(item, Outgoing):
        key, payload, message_id, metadata = item.key, item.payload, item.id, item.metadata
        if item.codec is not None:
            codec = item.codec
        if item.delay is not None or item.deliver_at is not None or item.ttl is not None:
            timing = make_timing(item.delay, item.deliver_at, item.ttl)
    else:
        key, payload = _pair(item)  # no Outgoing of it: that takes a tenth of the time of many messages
    # Until then the first open lane stands for its lane: the keys of all open lanes are equally long.
    checked = open_lane_keys.lane_key(0) if key is None else open_lane_keys.check_key(key)
    chosen = new_id() if message_id is None else check_name("id", message_id)
    if payload is None:
        # Usually a function has forgotten its return. Checked before any codec: a codec may have its own null.
        raise ConfigurationError(
            'the payload is None: publish b"" for a message without content, or b"null" if JSON\'s null is meant'
        )
    if isinstance(payload, Message):
        raise ConfigurationError("the payload is a lanelog.Message: publish its payload and its metadata")
    given = metadata.get(CONTENT_TYPE) if isinstance(metadata, Mapping) else None
    encoded, content_type = encode_payload(payload, codec, given=given)
    if len(encoded) > max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload has {len(encoded)} bytes, {max_payload_bytes} are allowed: store the data elsewhere and "
            "publish a reference to it, or raise max_payload_bytes"
        )
    text = encode_metadata(metadata, content_type)
    return Draft(
        topic=topic,
        key=checked,
        id=chosen,
        given=message_id is not None,
        payload=encoded,
        metadata=text,
        wire_bytes=wire_bytes(topic, checked, chosen, len(encoded), text),
        timing=timing,
        unordered=key is None,
    )


def new_id() -> str:
    """Return 32 hexadecimal digits: 48 bits of milliseconds, as in a UUID of version 7, and 80 random bits.

    Ids that grow with time go to the end of their lane in the unique index. Random ids would go anywhere in it. A wrong
    clock costs that advantage and nothing else, because no code compares ids by age.
    """
    return f"{time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF:012x}{os.urandom(10).hex()}"
