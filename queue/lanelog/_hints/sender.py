"""The publisher's side: it notifies the subscribers of a topic that lanes or messages were committed.

Owns who is notified, as the heartbeats say, and how often. It never waits for a subscriber and raises nothing.
`announce` is called after the commit, and sends at once to the endpoints that it knows. Once a second at most, such a
call also has them read anew. The scheduler's thread reads them, if it runs. A client without a scheduler reads them in
the publishing thread (`catch_up`), if no other publisher waits for that thread. The server ends a slow query.
Subscribers that this reading finds are notified of the last commit then. A publisher pays for what its hints make the
subscribers do, and leaves hints out when it has spent its share of the time. Polls find what is committed in between.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._database import register_shared, taking
from lanelog._facts.engine import hints as facts
from lanelog._hints.allowance import Allowance
from lanelog._hints.datagram import Hint, number_of
from lanelog._hints.host import own_host
from lanelog._hints.route import Target, deliver, target_of
from lanelog._stores.members import heartbeats
from lanelog.errors import LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lanelog._database import Database, Executor
    from lanelog._stores.members.heartbeats import WakeEndpoint


@define(eq=False)
class _Audience:
    """Who is notified of one topic."""

    targets: frozenset[Target] = frozenset()
    hinted_at: float = 0.0
    last: Hint | None = None  # for targets that the next reading finds new; None: nothing since the last one

    def remember(self, hint: Hint | None) -> None:
        """Keep this hint for the targets that the next reading finds new."""
        if hint is not None:
            self.last = hint.merged(self.last)


@define(eq=False)
class Sender:
    """Sends hints; usable by any thread."""

    _database: Database
    _own: Callable[[], WakeEndpoint]
    """The endpoint of this process's own receiver, which needs no hint."""
    _wake_reader: Callable[[], bool]
    """Makes a thread call `read_endpoints` soon. False: there is no such thread."""
    sent: int = field(default=0, init=False)
    lost: int = field(default=0, init=False)
    """Hints that could not be sent: the subscriber is gone, or has not read the earlier ones."""
    refresh_seconds: float = field(default=1.0, init=False)
    """Seconds between two readings of the endpoints."""
    read_seconds: float = field(default=0.1, init=False)
    """Seconds after which the server ends the reading in a publishing thread: the longest wait for a busy server."""
    forget_seconds: float = field(default=10.0, init=False)
    """Seconds after its last publish until a topic is no longer read, unless a hint waits for its targets."""
    most_topics: int = field(default=100, init=False)
    """The most topics that are remembered, those published to last."""
    hint_seconds: float = field(default=0.001, init=False)
    """A publisher pays so much for each hint: about what waking a subscriber and its poll cost the machine."""
    _audiences: dict[str, _Audience] = field(factory=dict, init=False)
    _grown: set[str] = field(factory=set, init=False)  # topics with lanes that no hint has announced yet
    _allowance: Allowance = field(
        factory=Allowance, init=False
    )  # two threads at once may forget to pay for one of them
    _of_new_lanes: Allowance = field(factory=Allowance, init=False)
    _refresh_at: float = field(default=0.0, init=False)
    _wanted: bool = field(default=False, init=False)  # the endpoints are to be read
    _by_publisher: bool = field(default=False, init=False)  # there was no thread to be woken for that
    _failing: bool = field(default=False, init=False)
    _refreshing: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """In a forked child: the thread that held the lock may not exist here, and the hints are the parent's."""
        self._refreshing = threading.Lock()
        self.sent = self.lost = 0

    def grown(self, topic: str) -> None:
        """The topic has new lanes, and their first messages are not committed yet. Meanwhile they can get an owner.

        If no hint can be sent now, the next one also announces the lanes.
        """
        audience, now = self._audiences.get(topic), time.monotonic()
        if audience is None or self._of_new_lanes.free_at(now) > now:
            self._grown.add(topic)
            return
        hint = Hint(number_of(topic), new_lanes=True, messages=False)
        self._send(audience.targets, hint, self._of_new_lanes)
        audience.remember(hint)

    def announce(self, topic: str) -> None:
        """Something was committed in the topic."""
        if not own_host() or self._database.tables_version < heartbeats.VERSION_WITH_WAKE_ENDPOINT:
            return
        new_lanes = topic in self._grown
        hint, now = Hint(number_of(topic), new_lanes), time.monotonic()
        audience = self._audiences.setdefault(topic, _Audience())
        audience.hinted_at = now
        # Hints of new lanes have their own account: usual ones must not spend it. A skipped one stays in `_grown`.
        allowance = self._of_new_lanes if new_lanes else self._allowance
        if allowance.free_at(now) <= now:
            self._grown.discard(topic)
            self._send(audience.targets, hint, allowance)
        audience.remember(hint)
        if now < self._refresh_at:
            return
        self._refresh_at = now + self.refresh_seconds
        self._wanted = True  # before the wake-up: the thread may run at once
        self._by_publisher = not self._wake_reader()

    def catch_up(self) -> None:
        """Read the endpoints if `announce` has asked for it, and no other thread does. Raises nothing.

        The caller may have to wait for the database, so no other publisher may be waiting for the caller.
        """
        if not self._by_publisher:
            return
        self._by_publisher = False
        try:
            with self._database.autocommit(wait=0.0) as cx:
                self.read_endpoints(cx, bounded=partial(self._database.facts().bounded, seconds=self.read_seconds))
        except LanelogError as error:
            self._unread(error)

    def read_endpoints(self, cx: Executor, *, bounded: Callable[[str], str] | None = None) -> None:
        """Read who wants hints, if `announce` has asked for it, and notify those that are new. Raises nothing.

        `bounded`: gives the query an end on the server.
        """
        if not self._wanted:
            return
        with taking(self._refreshing) as mine:
            if not mine:
                return
            try:
                self._wanted = False
                self._refresh(cx, time.monotonic(), bounded)
            except LanelogError as error:
                self._unread(error)

    def _unread(self, error: LanelogError) -> None:
        if not self._failing:
            facts.hints_places_unread(error=error)
        self._failing = True

    def _refresh(self, cx: Executor, now: float, bounded: Callable[[str], str] | None) -> None:
        # A copy: other threads may add a topic. If that comes between these lines, its next hint adds it again.
        known = sorted(self._audiences.copy().items(), key=lambda each: each[1].hinted_at, reverse=True)
        for topic, _ in known[self.most_topics :]:
            self._audiences.pop(topic, None)
        # A topic that is published to rarely, and soon after another one, would never be read by its own commits.
        since = now - self.forget_seconds
        recent = [each for each in known[: self.most_topics] if each[1].hinted_at > since or each[1].last is not None]
        if not recent:
            return
        hints = []
        for _, audience in recent:  # before the reading: a hint of a later commit waits for the next one
            hints.append(audience.last)
            audience.last = None
        own, networks = self._own(), self._database.config.wake_networks
        try:
            mariadb = self._database.facts().mariadb
            found = heartbeats.wake_endpoints(cx, [topic for topic, _ in recent], mariadb=mariadb, bounded=bounded)
        except LanelogError:
            for (_, audience), hint in zip(recent, hints, strict=True):
                audience.remember(hint)
            raise
        self._failing = False
        for (topic, audience), hint in zip(recent, hints, strict=True):
            before = audience.targets
            others = (endpoint for endpoint in found[topic] if endpoint.token != own.token)
            audience.targets = frozenset(
                each for endpoint in others if (each := target_of(endpoint, networks)) is not None
            )
            if hint is not None:
                self._send(audience.targets - before, hint, self._of_new_lanes if hint.new_lanes else self._allowance)

    def _send(self, targets: Collection[Target], hint: Hint, allowance: Allowance) -> None:
        if not targets:
            return
        sent = deliver(targets, hint)
        self.sent += sent
        self.lost += len(targets) - sent
        allowance.spend(time.monotonic(), self.hint_seconds * len(targets))
