"""Open lanes: the lanes that messages without a key spread over; their names, and which of them an id belongs to.

It never talks to a database: how many there are stands in the topic row. The publisher chooses with it, the engine
tells open lanes from others by it, administration checks the number.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from lanelog._checks import check_name
from lanelog.errors import ConfigurationError

PREFIX: Final = "open~"
"""How the key of every open lane begins, and no other key."""

DEFAULT: Final = 64
"""How many a topic has unless it is told otherwise; the default of the column, too."""

MOST: Final = 1000
"""The most that a topic can have; their names have three digits."""

SINCE: Final = 3
"""The version of the tables that tell the number; in older ones it is the default."""

_NAME = re.compile(re.escape(PREFIX) + r"[0-9]{3}")


def is_open(key: str) -> bool:
    """Whether a lane is an open one, by its key."""
    return key.startswith(PREFIX)


def lane_key(number: int) -> str:
    """Return the key of an open lane, counted from 0."""
    return f"{PREFIX}{number:03}"


def lane_keys(count: int) -> list[str]:
    """Return the keys of the first `count` open lanes."""
    return [lane_key(number) for number in range(count)]


def lane_of(message_id: str, count: int) -> str:
    """Return the key of the open lane of an id, the same in every process that knows the same number.

    When the number changes from n to m, only the share |n - m| / max(n, m) of the ids changes its lane. (Lamping and
    Veach, A Fast, Minimal Memory, Consistent Hash Algorithm, 2014.)
    """
    seed = int.from_bytes(hashlib.blake2b(message_id.encode(), digest_size=8).digest())
    lane, following = 0, 0
    while following < count:
        lane = following
        seed = (seed * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((lane + 1) * ((1 << 31) / ((seed >> 33) + 1)))
    return lane_key(lane)


def check_key(key: object) -> str:
    """Return `key` as a plain str if a message may be published under it. Raises ConfigurationError.

    The name of an open lane means that lane: what was read there may be published there again, or copied.
    """
    checked = check_name("key", key)
    if is_open(checked) and not _NAME.fullmatch(checked):
        raise ConfigurationError(
            f"key {checked!r}: keys that begin with {PREFIX!r} are the names of open lanes, {lane_key(0)} to "
            f"{lane_key(MOST - 1)}; for a message that needs no order, publish with None as its key"
        )
    return checked
