"""Ends transactions behind their client's back: ROLLBACK on its session, between two of its requests.

Owns what one connection of the proxy knows of that, and the few bytes of the protocol that it takes. Never does so
within a request: several statements in one packet are one. A proxy that connects again, or resets a session, does the
same to a client.
"""

import random
from typing import Final

from attrs import define, field

ROLLBACK: Final = b"\x09\x00\x00\x00\x03ROLLBACK"
STATEMENTS: Final = b"\x00\x03"
"""Number and command of a packet that begins a request with statements."""

HEADER: Final = 4
DONE: Final = 0
"""What an answer without rows begins with."""

SHARE: Final = 0.1
"""The chance of each request."""


@define(eq=False)
class Unseen:
    """One connection: the request that waits until the server has answered the ROLLBACK before it."""

    _held: bytes = b""
    _answer: bytearray = field(factory=bytearray)
    _told: bool = False
    """Whether the server spoke last, and all of it has been passed on: the client's next bytes begin a request."""

    @property
    def busy(self) -> bool:
        """Whether the server still has to answer a ROLLBACK. Nothing else is read from the client meanwhile."""
        return bool(self._held)

    def told(self) -> None:
        """The server says something to the client."""
        self._told = True

    def asked(self, data: bytes, dice: random.Random | None) -> bytes:
        """What the server gets instead of these bytes of the client; without dice, and within a request, the same."""
        begins, self._told = self._told and data[HEADER - 1 : HEADER + 1] == STATEMENTS, False
        if dice is None or not begins or dice.random() >= SHARE:
            return data
        self._held = data
        return ROLLBACK

    def answered(self, data: bytes) -> bytes:
        """What the server gets next, as it answers the ROLLBACK. ConnectionError: it refused."""
        self._answer += data
        if len(self._answer) < HEADER or len(self._answer) < HEADER + int.from_bytes(self._answer[:3], "little"):
            return b""
        if self._answer[HEADER] != DONE:
            raise ConnectionError(bytes(self._answer))
        held, self._held = self._held, b""
        self._answer.clear()
        return held
