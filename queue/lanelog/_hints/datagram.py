"""What is sent: a token, the number of a topic, and what is new there. Pure.

A topic's number is a hash of its name, so that no agreement on it is needed. Two topics with one number only cause a
poll too many.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from attrs import frozen

_FORMAT: Final = struct.Struct("!QQB")
SIZE: Final = _FORMAT.size
_TOKEN: Final = 8  # bytes, the first ones
_NEW_LANES: Final = 1
_NO_MESSAGE: Final = 2


@frozen
class Hint:
    """What was committed in a topic: lanes, messages or both."""

    topic: int
    new_lanes: bool
    messages: bool = True

    def packed(self, token: int) -> bytes:
        """The datagram for the subscriber whose token this is."""
        news = self.new_lanes * _NEW_LANES | (not self.messages) * _NO_MESSAGE
        return _FORMAT.pack(token, self.topic, news)

    def merged(self, earlier: Hint | None) -> Hint:
        """One hint that says this and what an earlier one of the same topic said."""
        if earlier is None:
            return self
        return Hint(self.topic, self.new_lanes or earlier.new_lanes, self.messages or earlier.messages)


@lru_cache(maxsize=1024)
def number_of(topic: str) -> int:
    """Return the number of a topic."""
    return int.from_bytes(blake2b(topic.encode(), digest_size=8).digest())


def unpack(datagram: bytes, token: int) -> Hint | None:
    """Return what a datagram says. None: it has another length or token."""
    if len(datagram) != SIZE:
        return None
    # The time of the comparison does not reveal which bytes were right: datagrams may come from other hosts.
    if not compare_digest(datagram[:_TOKEN], token.to_bytes(_TOKEN)):
        return None
    _, topic, news = _FORMAT.unpack(datagram)
    return Hint(topic, bool(news & _NEW_LANES), not news & _NO_MESSAGE)
