"""What is counted and timed in a client, for those who measure it: `lanelog.metrics` and `lanelog.instruments` do.

Owns the counters, the way from the engine to the observers, and the rule of which labels become `other`. Knows no
monitoring system. With no observer nothing is timed: each caller checks once whether there is one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

from attrs import define, evolve, field, fields, frozen

from lanelog._base.places import GroupTopic
from lanelog._facts import client as facts

T = TypeVar("T")

Labels = tuple[str, ...]

OTHER: Final = "other"
"""The label of what was added up. A topic or group of this name is added to it."""


@define
class Handlings:
    """How long calls of handlers have taken, in seconds; pulled messages: from the pull to the settlement."""

    seconds: list[float] = field(factory=list)
    """The duration of each call, with any outcome."""
    waits: list[float] = field(factory=list)
    """The wait of each first attempt from the publish to the beginning, by this machine's clock and the database's.
    Never below 0."""
    totals: list[float] = field(factory=list)
    """The time of each message that is done, from the publish to the end."""
    errors: dict[int, str] = field(factory=dict)
    """The types of the exceptions with which handlers failed, by the index of the call in `seconds`."""

    def add(
        self, number: int, published_ms: int, seconds: float, since: float, *, done: bool, error: str | None = None
    ) -> None:
        """Add an attempt that has ended.

        Args:
            number: The number of the attempt.
            published_ms: When the message was published, in milliseconds of the database's clock.
            seconds: For how long it has run.
            since: When it began, in seconds of this machine's clock.
            done: Whether nothing is left to do for the message.
            error: The type of the exception with which its handler failed. None: there was none, or it was `Postpone`.
        """
        if error is not None:
            self.errors[len(self.seconds)] = error
        wait = since - published_ms / 1000
        if wait < 0:
            wait = 0.0
        self.seconds.append(seconds)
        if number == 1:
            self.waits.append(wait)
        if done:
            self.totals.append(wait + seconds)


class Observer(Protocol):
    """Receives events, in the threads in which they happen. Some of these hold a lock: be quick, never wait.

    An exception is logged, and changes nothing.
    """

    def handled(self, topic: str, group: str, handlings: Handlings) -> None:
        """Handlers have ended, with any outcome: those of one run, which takes some milliseconds."""

    def published(self, topic: str, messages: int, seconds: float, error: str | None) -> None:
        """A publish has ended.

        Args:
            topic: The topic.
            messages: New messages. Those with an id that was there are not among them.
            seconds: How long it took. In a transaction of the caller, its commit is not part of it.
            error: The type of the exception. None: there was none.
        """

    def flushed(self, topic: str, group: str, lanes: int) -> None:
        """A transaction has written the progress of `lanes` lanes."""


@define(eq=False)
class Counters:
    """What happened since the start. They change under the member's lock, or in the one thread that counts them."""

    handled: int = 0
    """Attempts whose outcome was decided."""
    acked: int = 0
    """Attempts that ended with an ack."""
    retried: int = 0
    """Attempts that failed, where another one follows."""
    postponed: int = 0
    """Attempts that ended with `postpone` or `Postpone`."""
    dead_lettered: int = 0
    """Messages that became dead letters, expired ones included."""
    timed_out: int = 0
    """Attempts that reached `visibility_timeout`. They count as `retried` or `dead_lettered`, too."""
    refused: int = 0
    """Settlements that came too late: the lane was lost, or the attempt had timed out."""
    expired: int = 0
    """Messages whose time was over before a handler began. Those with a dead letter count as `dead_lettered`, too."""
    taken_over: int = 0
    """Lanes of members that were gone."""
    lost: int = 0
    """Lanes that others had taken, or that were given back after an error."""

    def add(self, other: Counters) -> None:
        """Add another one's counts."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COUNTED: Final = tuple(each.name for each in fields(Counters))


@frozen(kw_only=True)
class GroupMeasures:
    """One topic and group in this process."""

    topic: str
    group: str
    counters: Counters
    """Since the client was made, over all its subscriptions."""
    lanes: int
    """Lanes that this process owns."""
    running: int
    """Messages in handlers, or in the user's hands."""
    waiting: int
    """Messages that wait for their next attempt."""


@frozen(kw_only=True)
class LoopMeasures:
    """One background loop."""

    name: str
    turns: int
    """How often it has run since the client was made."""
    age: float | None
    """Seconds since its last run began. None: it has not run yet."""


@frozen(kw_only=True)
class Measures:
    """A client at one moment."""

    groups: tuple[GroupMeasures, ...]
    """One for each topic and group that this client has subscribed."""
    loops: tuple[LoopMeasures, ...]
    """The background loops. Empty before the first subscription starts."""
    prefetched: int
    """Messages in memory, those that handlers work on included."""
    prefetched_bytes: int
    """Bytes of their payloads."""
    hints: int
    """Hints that reached subscriptions which still run."""
    hints_sent: int
    """Hints that this client has sent to subscribers of other processes."""
    hints_lost: int
    """Hints that it could not send: the subscriber is gone, or has not read the earlier ones."""
    hints_heard: int
    """Hints that came from other processes. Several subscriptions may take one."""
    pool_waits: int
    """How often a thread had to wait for a connection of the pool."""


@define(eq=False)
class Meter:
    """The observers of one client, and the counters of its members."""

    observers: tuple[Observer, ...] = field(default=(), init=False)
    """Replaced, not changed: the engine reads it without a lock."""
    _running: dict[Counters, GroupTopic] = field(factory=dict, init=False)
    _ended: dict[GroupTopic, Counters] = field(factory=dict, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def observe(self, observer: Observer) -> None:
        """See `Client.observe`."""
        with self._lock:
            self.observers = (*self.observers, observer)

    def count(self, at: GroupTopic, counters: Counters) -> None:
        """A member begins to count."""
        with self._lock:
            self._running[counters] = at

    def ended(self, counters: Counters) -> None:
        """A member has ended. Its counts stay."""
        with self._lock:
            at = self._running.pop(counters, None)
            if at is not None:
                self._ended.setdefault(at, Counters()).add(counters)

    def forget_inherited(self) -> None:
        """In a forked child: its parent's members are not here, and the thread that held the lock may be missing."""
        self._lock = threading.Lock()
        self._running, self._ended = {}, {}

    def totals(self) -> dict[GroupTopic, Counters]:
        """Return the counts by topic and group."""
        with self._lock:
            found = {at: evolve(counters) for at, counters in self._ended.items()}
            for counters, at in self._running.items():
                found.setdefault(at, Counters()).add(counters)
            return found

    def handled(self, at: GroupTopic, handlings: Handlings) -> None:
        """Notify the observers of handlers that have ended."""
        self._notify(lambda observer: observer.handled(at.topic, at.group, handlings))

    def flushed(self, at: GroupTopic, lanes: int) -> None:
        """Notify the observers of a flush."""
        self._notify(lambda observer: observer.flushed(at.topic, at.group, lanes))

    def publishing(self, topic: str, publish: Callable[[], T], count: Callable[[T], int]) -> T:
        """Publish, and notify the observers."""
        began = time.perf_counter()
        try:
            result = publish()
        except BaseException as error:
            self._published(topic, 0, time.perf_counter() - began, type(error).__name__)
            raise
        self._published(topic, count(result), time.perf_counter() - began, None)
        return result

    def _published(self, topic: str, messages: int, seconds: float, error: str | None) -> None:
        self._notify(lambda observer: observer.published(topic, messages, seconds, error))

    def _notify(self, notify: Callable[[Observer], None]) -> None:
        for each in self.observers:
            try:
                notify(each)
            except Exception:  # noqa: BLE001 - it is logged with its traceback
                facts.observer_failed(exc_info=True)


def new(receipts: Sequence[object]) -> int:
    """How many of these receipts are of new messages."""
    return sum(not getattr(receipt, "duplicate", False) for receipt in receipts)


def capped(labels: Labels, known: Collection[Labels], most: int) -> Labels:
    """Where something is counted: under its own labels, or with others if there are too many."""
    others = (OTHER,) * len(labels)
    return labels if len(known) < most - (others not in known) else others
