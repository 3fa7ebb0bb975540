"""Redrive: dead letters become messages again, for the group that gave them up and for no other.

Owns these transactions. Never reads a payload into this process.

Lock order: groups S → floors S of the dead letters' lanes → heads X of the target lanes → the dead letters' delivery
rows → messages, or scheduled messages. A locked head is skipped. All dead letters of its key wait then, so that their
order is kept. One transaction inserts the rows that settle a batch of dead letters (group '') and their copies, and
moves the heads. The locked floors keep collection away until then: a dead letter that the transaction sees is not
deleted before its row is there.

If the process dies right before the COMMIT, nothing of the batch has happened. If it dies right after, or the COMMIT is
not answered, the repetition finds the dead letters settled, and counts those that bear the mark of this call. If it
dies between two batches, whole batches are done. If two processes redrive at once, the second waits for a head or meets
the first's row (1062), and reads again. A settled dead letter is never redriven again, and a collected one does not
exist.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._base.checks import Duration, check_integer, check_name, check_number
from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._log.append.timing import make_timing
from lanelog._log.lookup.known import known_group, known_topic, no_group, read, repeated
from lanelog._stores._points import fitting
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.later import scheduled
from lanelog._stores.log import dead_letters, partitions
from lanelog.admin.audit_entry import Act, Call, Unanswered
from lanelog.admin.dead_letters import selection
from lanelog.admin.lookup.arguments import check_names
from lanelog.admin.types.results import Redriven
from lanelog.errors import ConfigurationError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._log.append.appender import Appender
    from lanelog._log.append.timing import Timing
    from lanelog.admin.dead_letters.selection import Choice, Letter

    Points = Sequence[tuple[str, int]]

MAX_DELIVERIES = 1_000_000

BATCH = 500
BATCH_BYTES = 8 * 1024 * 1024
"""The most payload bytes of one transaction; a larger message goes alone. `BATCH` is the most messages."""

RATED_BATCH = 0.1
"""Seconds: with a rate, a batch holds what may go in this time."""

HEAD_HELD = 0.02
"""Seconds before a lane whose head is locked is tried again."""


@frozen(kw_only=True)
class Copies:
    """What the copies of redriven dead letters are like. The fields are those of `Admin.redrive`."""

    rate: float | None
    delay: Duration
    ttl: Duration | None
    max_deliveries: int | None
    to_topic: str | None

    def timing(self) -> Timing:
        """Check the options. Return when the copies are due and how long they live."""
        if self.rate is not None:
            check_number("rate", self.rate, above=True)
        if self.max_deliveries is not None:
            check_integer("max_deliveries", self.max_deliveries, least=1, most=MAX_DELIVERIES)
        if self.to_topic is not None:
            check_name("to_topic", self.to_topic)
        return make_timing(self.delay, None, self.ttl)


def redrive(
    call: Call,
    at: GroupTopic,
    chosen: Choice,
    copies: Copies,
    progress: Callable[[int], None],
    appender: Appender,
    wake_scheduler: Callable[[], None],
) -> Redriven:
    """See `Admin.redrive`."""
    database, dry_run, to_topic = call.database, call.dry_run, copies.to_topic
    check_names(at)
    timing = copies.timing()
    original, dead_topics = selection.dead_topics(database, at.topic)
    at = GroupTopic(topic=original, group=at.group)
    if to_topic in dead_topics:
        raise ConfigurationError(f"to_topic={to_topic!r} holds these dead letters: they would come back where they are")
    chosen = selection.resolved(database, dead_topics, at, chosen)
    recorded = selection.recorded(chosen, to_topic)
    work = _Redrive(
        act=Act(call, "redrive", topic=at.topic, group=at.group, choice=recorded),
        at=at,
        target=at if to_topic is None else GroupTopic(topic=to_topic, group=at.group),
        copies=copies,
        timing=timing,
        appender=appender,
        progress=progress,
    )
    read(database, work.check_target, "finding the group")
    try:
        for found in selection.letters(database, dead_topics, at, chosen):
            work.choose(chosen, found)
            if not dry_run:
                work.put_back(found)
        if not dry_run:
            work.finish()
    finally:  # what has moved is there, even if the rest failed
        if work.moved:
            (wake_scheduler if timing.delay_ms else partial(appender.committed, work.target.topic))()
    return work.result(chosen)


@define(eq=False, kw_only=True)
class _Redrive:
    """One call, from batch to batch."""

    act: Act
    at: GroupTopic  # with the original topic
    target: GroupTopic  # with the topic that the copies go to
    copies: Copies
    timing: Timing
    appender: Appender
    progress: Callable[[int], None]
    chosen: int = 0
    moved: int = 0
    keys: set[str] = field(factory=set)
    named: set[str] = field(factory=set)
    held: dict[tuple[str, str], deque[Letter]] = field(factory=dict)
    """The dead letters that wait for a locked head, in order, by dead letter topic and key."""
    _not_before: float = 0.0
    _pause: Event = field(factory=Event)

    @property
    def by(self) -> str:
        """The mark of this call in the rows that settle dead letters."""
        return f"redriven by call {self.act.id}"

    @property
    def home(self) -> bool:
        """Whether the copies go back to the original topic: then the group must be registered there."""
        return self.copies.to_topic is None

    def check_target(self, cx: Executor) -> None:
        """Refuse a target topic or a group that does not exist."""
        if self.home:
            known_group(cx, self.target)
            return
        known_topic(cx, self.target.topic)
        self.target_group(cx)

    def target_group(self, cx: Executor) -> str:
        """Lock and return the only group that the copies are for; '' for every group, if it is not registered there."""
        if groups.lock_shared(cx, self.target) is not None:
            return self.target.group
        if self.home:
            raise no_group(self.target)
        if self.copies.max_deliveries is not None:
            raise ConfigurationError(
                f"max_deliveries is for group {self.target.group!r} alone, "
                f"which is not registered for topic {self.target.topic!r}"
            )
        return ""

    def choose(self, choice: Choice, letters: Sequence[Letter]) -> None:
        """Count chosen dead letters."""
        self.chosen += len(letters)
        self.keys.update(letter.key for letter in letters)
        for letter in letters:
            self.named.update(choice.named(letter))

    def put_back(self, letters: Sequence[Letter]) -> None:
        """Redrive dead letters of one dead letter topic, given in order. Those that cannot go now are held."""
        free = []
        for letter in letters:
            waiting = self.held.get((letter.dead_topic, letter.key))
            if waiting is None:
                free.append(letter)
            else:
                waiting.append(letter)
        for batch in self._batches(free):
            going = [letter for letter in batch if (letter.dead_topic, letter.key) not in self.held]
            busy = self._move(going) if going else set()
            for letter in batch:
                lane = (letter.dead_topic, letter.key)
                if letter.key in busy or lane in self.held:
                    self.held.setdefault(lane, deque()).append(letter)

    def finish(self) -> None:
        """Try again what is held, until nothing is, or until nothing has moved for `publish_timeout` seconds."""
        patience = self.act.database.config.publish_timeout
        until = time.monotonic() + patience
        while self.held and time.monotonic() < until:
            before = self.moved
            held, self.held = self.held, {}
            for dead_topic in sorted({dead_topic for dead_topic, _ in held}):
                lanes = sorted(lane for lane in held if lane[0] == dead_topic)
                self.put_back([letter for lane in lanes for letter in held[lane]])
            if self.moved > before:
                until = time.monotonic() + patience
            elif self.held:
                self._pause.wait(HEAD_HELD)

    def result(self, choice: Choice) -> Redriven:
        """Return what was done, or what would be done."""
        return Redriven(
            topic=self.at.topic,
            group=self.at.group,
            to_topic=self.target.topic,
            messages=self.chosen if self.act.dry_run else self.moved,
            keys=len(self.keys),
            missing=0 if choice.ids is None else len(choice.ids - self.named),
            remaining=sum(len(waiting) for waiting in self.held.values()),
            delay=self.timing.delay_ms / 1000,
            dry_run=self.act.dry_run,
        )

    def _batches(self, letters: Sequence[Letter]) -> Iterator[Sequence[Letter]]:
        most = BATCH if self.copies.rate is None else max(1, min(BATCH, int(self.copies.rate * RATED_BATCH)))
        return fitting(letters, [letter.payload_bytes for letter in letters], BATCH_BYTES, most=most)

    def _move(self, letters: Sequence[Letter]) -> set[str]:
        """Redrive one batch. Return the keys whose heads are locked."""
        if self.copies.rate is not None:
            wait = self._not_before - time.monotonic()
            if wait > 0:
                self._pause.wait(wait)
        keys = sorted({letter.key for letter in letters})
        repeated(self.act.database, self.appender.ensure_lanes, "creating lanes", self.target.topic, keys)
        moved, busy = repeated(self.act.database, self._attempt, "redriving", letters, keys, Unanswered())
        self.moved += moved
        if self.copies.rate is not None:
            self._not_before = max(self._not_before, time.monotonic()) + moved / self.copies.rate
        self.progress(self.moved)
        return busy

    def _attempt(self, letters: Sequence[Letter], keys: Sequence[str], unanswered: Unanswered) -> tuple[int, set[str]]:
        with selection.settling(), unanswered.attempt(), self.act.database.transaction(hasty=True) as cx:
            return self._transaction(cx, letters, keys, may_be_done=unanswered.happened)

    def _transaction(
        self, cx: Executor, letters: Sequence[Letter], keys: Sequence[str], *, may_be_done: bool
    ) -> tuple[int, set[str]]:
        dead_topic = letters[0].dead_topic
        for_group = self.target_group(cx)
        floors = offsets.floors(cx, dead_topic, keys, Lock.SHARE)
        if may_be_done:
            points = [(letter.key, letter.offset) for letter in letters]
            done = deliveries.letters_settled_by(cx, dead_topic, points, self.by)
            if done:  # the COMMIT succeeded. It left the rest of the batch: its lane was locked, or it was settled
                return len(done), {key for key, _ in set(points) - done}
        heads = partitions.heads(cx, self.target.topic, keys, Lock.FREE)
        points = [
            (letter.key, letter.offset)
            for letter in letters
            if letter.key in heads and letter.key in floors and letter.offset > floors[letter.key].floor
        ]
        points = selection.unsettled(cx, dead_topic, points)
        busy = set(keys) - heads.keys()
        if not points:
            return 0, busy
        deliveries.settle_letters(cx, dead_topic, points, self.by)
        copied, moved = self._copy(cx, dead_topic, points, for_group, heads)
        if copied != len(points) or not moved:
            raise LanelogError(
                f"{copied} of {len(points)} dead letters of {dead_topic!r} were copied: nothing was changed"
            )
        self.act.record(cx, messages=copied)
        return copied, busy

    def _copy(
        self, cx: Executor, dead_topic: str, points: Points, for_group: str, heads: Mapping[str, int]
    ) -> tuple[int, bool]:
        """Copy to the ends of the lanes, or with a delay to the scheduled messages, with the heads locked all the same.

        Return the number of copies, and whether every head was moved that had to be.
        """
        target, cap, ttl_ms = self.target.topic, self.copies.max_deliveries or 0, self.timing.ttl_ms
        if delay_ms := self.timing.delay_ms:
            copied = scheduled.redrive(
                cx, dead_topic, points, target=target, cap=cap, delay_ms=delay_ms, ttl_ms=ttl_ms, for_group=for_group
            )
            return copied, True
        copied = dead_letters.redrive(
            cx, dead_topic, points, heads, target=target, cap=cap, ttl_ms=ttl_ms, for_group=for_group
        )
        counts = Counter(key for key, _ in points)
        return copied, partitions.advance(cx, target, counts) == len(counts)
