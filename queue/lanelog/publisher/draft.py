"""A message on its way into the log: checked, encoded, and with the id it keeps through every repetition.

It never talks to the database. The publisher makes drafts from the caller's arguments before anything else happens, so
that a bad message fails alone and before any SQL.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Mapping
from typing import Final

from attrs import define, field

from lanelog import _open_lanes
from lanelog._codec import CONTENT_TYPE, Codec, encode_payload
from lanelog._stores.messages import wire_bytes
from lanelog.config import check_name
from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.message import Message, encode_metadata
from lanelog.publisher.timing import AT_ONCE, Timing

SCHEDULED: Final = 0
"""The offset in the receipt of a message that is not in the log yet."""


@define(eq=False)
class Draft:
    """A message that may be published; only one thread at a time has it in hand."""

    topic: str
    key: str
    id: str
    given: bool
    """Whether the caller chose the id, so that a message of that id may be there already."""
    payload: bytes = field(repr=False)
    metadata: str | None = field(repr=False)
    wire_bytes: int
    timing: Timing = AT_ONCE
    target_group: str = ""
    """The only group it is meant for; empty: every group."""
    unordered: bool = False
    """Whether it was given no key: then `Spread` sets `key` to an open lane's."""
    lanes: int = 0
    """Over how many open lanes it may be spread; 0: it has a key, or no lane yet."""
    avoided: frozenset[str] = field(default=frozenset(), repr=False)
    """The lanes that it has met busy."""
    repeated: bool = False
    """Whether an attempt has failed, so that it may be there although the id is new."""
    tried: int | None = None
    """The offset it got in an attempt whose outcome is unknown, SCHEDULED for none yet; None: there was no attempt."""
    doubted_at: float | None = None
    """When (`doubt.now`) the first attempt began that may have stored it unnoticed; None: there was none."""
    sent_at: float | None = None
    """When (`doubt.now`) an attempt began whose packet may still be on its way; None: there was none."""

    @property
    def place(self) -> tuple[str, str]:
        """Key and id, which name a message within a topic."""
        return self.key, self.id

    @property
    def looked_up(self) -> bool:
        """Whether its id must be looked up before it gets an offset."""
        return self.given or self.repeated

    @property
    def anywhere(self) -> bool:
        """Whether any open lane will do; an id that was given has one."""
        return self.lanes > 0 and not self.given

    def step_aside(self, busy: Collection[str]) -> bool:
        """Take another open lane than those, if the message may lie in any, and none of them has it; whether it did.

        An id that was given has one lane, and what an attempt of unknown outcome may have stored stays where it was
        put: elsewhere it would be stored twice. One that has met every lane busy waits for its last one, as messages
        with keys do.
        """
        if not self.anywhere or self.doubted_at is not None:
            return False
        self.avoided |= frozenset(busy)
        free = [key for key in _open_lanes.lane_keys(self.lanes) if key not in self.avoided]
        if not free:
            return False
        self.key = random.choice(free)
        return True

    def is_own(self, offset: int) -> bool:
        """Whether what is stored under its id, at `offset`, is what an attempt of unknown outcome wrote.

        What that attempt scheduled may have become due since.
        """
        return self.tried is not None and self.tried in (offset, SCHEDULED)


def make_draft(
    topic: str,
    key: object,
    payload: object,
    *,
    message_id: object,
    metadata: Mapping[str, str] | None,
    codec: Codec | None,
    max_payload_bytes: int,
    timing: Timing = AT_ONCE,
) -> Draft:
    """Check and encode one message; `topic` is checked already. Raises ConfigurationError and PayloadTooLarge.

    `key` None: it needs no order, and its draft no lane before `Spread` has given it one.
    """
    # All keys of open lanes are equally long.
    checked = _open_lanes.lane_key(0) if key is None else _open_lanes.check_key(key)
    chosen = new_id() if message_id is None else check_name("id", message_id)
    if payload is None:
        # Mostly the result of a function that forgot its return. Before any codec: each has a null of its own.
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
    """Return 32 hexadecimal digits: 48 bits of milliseconds, as in a UUID of version 7, and 80 random ones.

    Ids that grow with time go to the end of their lane in the unique index, instead of anywhere in it. A clock that is
    wrong costs that advantage and nothing else: nobody compares ids by age.
    """
    return f"{time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF:012x}{os.urandom(10).hex()}"
