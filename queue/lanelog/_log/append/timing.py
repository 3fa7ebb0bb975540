"""`delay`, `deliver_at` and `ttl`, checked: when a message is due, and how long it lives.

The database's clock decides when a message is due. This machine's clock serves for the bound of ten years only.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

from attrs import frozen

from lanelog._base.checks import check_duration
from lanelog.errors import ConfigurationError

TEN_YEARS: Final = 10 * 366 * 86_400.0
"""The longest delay and the longest time to live, in seconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@frozen(kw_only=True)
class Timing:
    """Milliseconds: due `delay_ms` after the database's now, or at `due_at_ms` since the epoch; alive for `ttl_ms`."""

    delay_ms: int = 0
    """0: there is none."""
    due_at_ms: int | None = None
    ttl_ms: int = 0
    """0: for ever."""

    @property
    def scheduled(self) -> bool:
        """Whether the message waits outside of the log."""
        return self.delay_ms > 0 or self.due_at_ms is not None


AT_ONCE: Final = Timing()


def make_timing(delay: object, deliver_at: object, ttl: object) -> Timing:
    """Check the arguments of a publish. None: not given. Raises ConfigurationError."""
    if delay is not None and deliver_at is not None:
        raise ConfigurationError("give delay, a duration from now, or deliver_at, a time; not both")
    ttl_ms = 0 if ttl is None else _milliseconds(check_duration("ttl", ttl, above=True, most=TEN_YEARS))
    if deliver_at is not None:
        return Timing(due_at_ms=_due_at(deliver_at), ttl_ms=ttl_ms)
    delay_ms = 0 if delay is None else _milliseconds(check_duration("delay", delay, most=TEN_YEARS))
    return Timing(delay_ms=delay_ms, ttl_ms=ttl_ms)


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _due_at(moment: object) -> int:
    if not isinstance(moment, datetime):
        raise ConfigurationError(f"deliver_at must be an aware datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ConfigurationError("deliver_at must be an aware datetime: add tzinfo=datetime.UTC")
    # With a wrong clock, the bound is a little off. It only catches mistakes.
    if moment - datetime.now(UTC) > timedelta(seconds=TEN_YEARS):
        raise ConfigurationError("deliver_at must be at most ten years from now")
    # Rounded up: a message must not be early. A time before the epoch becomes the epoch: both are due.
    return max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
