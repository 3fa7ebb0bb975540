"""How long handlers take: p50 and p99 of a group that keeps history, read from that history.

Owns the reading and its bounds, and what was read. Draws nothing (`charts` does). The rows are in the database, so what
is drawn survives a restart of the dashboard.

A span has `BUCKETS` equal buckets. Of each one, the `SAMPLE` messages that ended last in it are read, through the index
on the time of the end. A bucket that has been over for a while is read once. So a new span costs `BUCKETS` short reads,
and a page that stays open two or three in `EVERY` seconds, however many messages there are.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from attrs import define, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import register_shared
from lanelog._facts import dashboard as facts
from lanelog.admin import Admin, HistoryInfo
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError

BUCKETS: Final = 60
SAMPLE: Final = 200
"""Messages of one bucket that are read: those that ended last in it."""
EVERY: Final = 15.0
"""Seconds for which an answer is kept."""
OVER: Final = timedelta(seconds=60)
"""A bucket is read again until its end is so long ago: rows are committed some time after the messages ended."""
WAIT: Final = 3.0
"""Seconds for which a page waits for a read. It is shown without, or with the last answer."""
AWAY: Final = 60.0
"""Seconds for which nothing is read after the database could not be asked."""
SPANS: Final = 50
"""Spans of groups that are kept in memory: those that were asked for last."""
_SKIPPED: Final = "skipped"


@frozen(kw_only=True)
class Percentiles:
    """The percentiles of one bucket's messages, in seconds."""

    p50: float
    p99: float


@frozen(kw_only=True)
class HandlerTimes:
    """The buckets of a span, the oldest first."""

    begin: datetime
    end: datetime
    """By the database's clock. The last bucket may end later."""
    width: float
    """Seconds of one bucket."""
    buckets: Sequence[Percentiles | None]
    """None: no message ended in it at its first attempt."""


def percentiles(found: Sequence[HistoryInfo]) -> Percentiles | None:
    """Return p50 and p99, each by its nearest rank, of the messages that left at their first attempt.

    Of the others, the time since their first attempt began holds the waits between attempts, too.
    """
    seconds = sorted(
        (each.finished_at - each.first_delivered_at).total_seconds()
        for each in found
        if each.attempts == 1 and each.first_delivered_at is not None and each.outcome != _SKIPPED
    )
    if not seconds:
        return None
    return Percentiles(p50=_rank(seconds, 0.5), p99=_rank(seconds, 0.99))


def _rank(ordered: Sequence[float], share: float) -> float:
    """Return the least value that at least this share does not exceed."""
    return max(0.0, ordered[math.ceil(share * len(ordered)) - 1])


@define(eq=False)
class _Span:
    """What is known of one group over one span. Its lock is held while somebody reads."""

    lock: threading.Lock = field(factory=threading.Lock)
    read: dict[int, Percentiles | None] = field(factory=dict)
    """The buckets that are over, by their number since 1970."""
    answer: HandlerTimes | None = None
    until: float = 0.0
    """When the answer is read again (monotonic)."""


@define(eq=False)
class HandlerHistory:
    """Reads the history of groups for charts, and keeps what it has read. Thread-safe.

    A read that fails leaves the last answer. A request that comes while a thread reads the same gets the last answer,
    too. Reads have threads of their own: with the database away, one takes as long as a publish may, and no page waits
    for that.
    """

    _admin: Admin
    _clock: Callable[[], float] = time.monotonic
    _wait: float = WAIT
    _spans: OrderedDict[tuple[GroupTopic, float], _Span] = field(init=False, factory=OrderedDict)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _away_until: float = field(init=False, default=0.0)
    """When it is asked again after the database was unavailable."""

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """Forget, in a forked child, what the parent's threads were reading."""
        self._lock = threading.Lock()
        self._spans = OrderedDict()

    def latest(self, at: GroupTopic, seconds: float) -> HandlerTimes | None:
        """Return the last seconds of a group. None: it has no history of them."""
        with self._lock:
            span = self._spans.setdefault((at, seconds), _Span())
            self._spans.move_to_end((at, seconds))
            while len(self._spans) > SPANS:
                self._spans.popitem(last=False)
        now = self._clock()
        if now >= span.until and now >= self._away_until and span.lock.acquire(blocking=False):
            reader = threading.Thread(
                target=self._refresh, args=(span, at, seconds), name="lanelog-dashboard-times", daemon=True
            )
            try:
                reader.start()
            except RuntimeError:  # the process has no thread left
                span.lock.release()
                raise
            reader.join(self._wait)
        return span.answer

    def _refresh(self, span: _Span, at: GroupTopic, seconds: float) -> None:
        """Read a span, whose lock is held, and release it."""
        try:
            span.answer = self._read(span, at, seconds)
        except ConfigurationError:  # the group has gone
            span.answer = None
        except LanelogError as exc:
            facts.sample_failed(error=str(exc))
            if isinstance(exc, DatabaseError):
                self._away_until = self._clock() + AWAY
        finally:
            span.until = self._clock() + EVERY
            span.lock.release()

    def _read(self, span: _Span, at: GroupTopic, seconds: float) -> HandlerTimes | None:
        now = self._admin.now()
        width = seconds / BUCKETS
        last = int(now.timestamp() // width)
        numbers = range(last - BUCKETS + 1, last + 1)
        begin = _moment(numbers[0], width)
        known = {number: each for number, each in span.read.items() if number in numbers}
        if not known and not self._admin.history(*_names(at), since=begin, limit=1):
            return None
        span.read = known
        fresh: dict[int, Percentiles | None] = {}
        for number in numbers:
            if number not in known:
                since, until = _moment(number, width), _moment(number + 1, width)
                found = percentiles(self._admin.history(*_names(at), since=since, until=until, limit=SAMPLE))
                (known if until <= now - OVER else fresh)[number] = found
        both = {**known, **fresh}
        return HandlerTimes(begin=begin, end=now, width=width, buckets=[both[number] for number in numbers])


def _moment(number: int, width: float) -> datetime:
    return datetime.fromtimestamp(number * width, UTC)


def _names(at: GroupTopic) -> tuple[str, str]:
    return at.topic, at.group
