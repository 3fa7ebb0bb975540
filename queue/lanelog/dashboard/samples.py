"""The dashboard's own ring of samples: the state of each group over the last hours.

Owns the samples and the thread that takes them. Draws nothing (`charts` does). They live in this process alone: a
restart begins anew.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from attrs import define, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import register_shared
from lanelog._facts import dashboard as facts
from lanelog.admin import Status
from lanelog.errors import ClosedError, LanelogError

SPAN: Final = 6 * 3600
"""Seconds that the samples reach back."""
GROUPS: Final = 100
"""Groups of one sample: those that lag most."""


@frozen(kw_only=True)
class GroupSample:
    """One group at one moment."""

    head: int
    """Heads of all lanes, summed."""
    lag: int
    """Messages not settled."""
    oldest: float
    """Seconds since the oldest of them was written; 0 without any."""

    @property
    def settled(self) -> int:
        """Messages settled so far. It falls when the group goes back, and when lanes are removed."""
        return self.head - self.lag


@frozen(kw_only=True)
class Sample:
    """All groups at one moment."""

    at: datetime
    """By the database's clock."""
    groups: Mapping[GroupTopic, GroupSample]


@define(eq=False)
class Samples:
    """Takes a sample every `every` seconds, from the status that all pages share. Thread-safe.

    The thread begins with `start`, and again after a fork. It ends with `stop`, when the client was closed, or when the
    dashboard was forgotten. A read that fails leaves a gap.
    """

    _read: Callable[[], Status]
    _every: float
    _ring: deque[Sample] = field(init=False)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _stopped: threading.Event = field(init=False, factory=threading.Event)
    _thread: threading.Thread | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._ring = deque(maxlen=max(2, int(SPAN / self._every)))
        weakref.finalize(self, self._stopped.set)
        register_shared(self)

    def abandon(self) -> None:
        """Forget, in a forked child, the parent's thread. The samples are true of the database, and stay."""
        self._lock, self._thread = threading.Lock(), None

    def start(self) -> None:
        """Begin, unless the thread runs."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stopped.clear()
                self._thread = threading.Thread(
                    target=_take, args=(weakref.ref(self), self._stopped), name="lanelog-dashboard", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Take no more samples."""
        self._stopped.set()

    def latest(self, seconds: float) -> list[Sample]:
        """Return the samples of the last seconds, the oldest first."""
        with self._lock:
            found = list(self._ring)
        return [each for each in found if found[-1].at - each.at <= timedelta(seconds=seconds)]

    def rates(self) -> dict[GroupTopic, tuple[float, float]]:
        """Return what was published and what was settled in a second, by group, between the last two samples.

        A group that went back, or whose lanes were removed, settles nothing in that time.
        """
        with self._lock:
            if len(self._ring) < 2:  # noqa: PLR2004 - a rate needs two samples
                return {}
            before, after = self._ring[-2], self._ring[-1]
        seconds = (after.at - before.at).total_seconds()
        return {
            at: (
                max(0, now.head - before.groups[at].head) / seconds,
                max(0, now.settled - before.groups[at].settled) / seconds,
            )
            for at, now in after.groups.items()
            if at in before.groups
        }

    def add(self, status: Status) -> None:
        """Add a sample, unless this one is there already. After the server's clock was set back, begin anew."""
        worst = sorted(status.groups, key=lambda group: -group.lag)[:GROUPS]
        groups = {
            GroupTopic(topic=each.topic, group=each.group): GroupSample(
                head=each.head, lag=each.lag, oldest=each.oldest_age or 0.0
            )
            for each in worst
        }
        with self._lock:
            if self._ring and status.at < self._ring[-1].at:
                self._ring.clear()
            if not self._ring or status.at > self._ring[-1].at:
                self._ring.append(Sample(at=status.at, groups=groups))

    def take(self) -> float:
        """Take one sample. Return the seconds until the next. Raises ClosedError: the client was closed."""
        try:
            self.add(self._read())
        except ClosedError:
            raise
        except LanelogError as exc:
            facts.sample_failed(error=str(exc))
        return self._every


def _take(of: weakref.ref[Samples], stopped: threading.Event) -> None:
    """Take samples, without keeping them alive."""
    while not stopped.is_set():
        samples = of()
        if samples is None:
            return
        try:
            pause = samples.take()
        except ClosedError:
            return
        del samples
        stopped.wait(pause)
