"""Open lanes, for messages without a key: their names, and the lane of an id.

Never talks to a database. The topic row has their number.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from lanelog._base.checks import check_name
from lanelog.errors import ConfigurationError

PREFIX: Final = "open~"
"""The beginning of the key of every open lane, and of no other key."""

DEFAULT: Final = 64
"""The number of open lanes by default; the default of the column, too."""

MOST: Final = 1000
"""The most open lanes of a topic. Their names have three digits."""

SINCE: Final = 3
"""The first version of the tables that has the number. In older tables it is the default."""

_NAME = re.compile(re.escape(PREFIX) + r"[0-9]{3}")


def is_open(key: str) -> bool:
    """Whether this is the key of an open lane."""
    return key.startswith(PREFIX)


def lane_key(number: int) -> str:
    """Return the key of an open lane, counted from 0."""
    return f"{PREFIX}{number:03}"


def lane_keys(count: int) -> list[str]:
    """Return the keys of the first `count` open lanes."""
    return [lane_key(number) for number in range(count)]


def lane_of(message_id: str, count: int) -> str:
    """Return the key of the open lane of an id, the same in every process that knows the same number.

    When the number changes from n to m, only a share |n - m| / max(n, m) of the ids gets another lane. (Lamping and
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

    The name of an open lane means that lane: a message that was read there may be published there again.
    """
    checked = check_name("key", key)
    if is_open(checked) and not _NAME.fullmatch(checked):
        raise ConfigurationError(
            f"key {checked!r}: keys that begin with {PREFIX!r} are the names of open lanes, {lane_key(0)} to "
            f"{lane_key(MOST - 1)}; for a message that needs no order, publish with None as its key"
        )
    return checked
