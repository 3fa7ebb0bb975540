"""Redrive: dead letters become messages again, for the group that gave them up and for nobody else.

Owns these transactions; never reads a payload into this process. Called by `Admin`.

Lock order: groups S → floors S of the dead letters' lanes → heads X of the lanes they go to (those that somebody holds
are left for later, with everything of their key, so that order is kept) → the dead letters' delivery rows → messages.
A batch inserts the rows that settle its dead letters (group '') and their copies and moves the heads in one
transaction. The floors keep collection away: a dead letter that is there stays there until its row stands beside it.

Dies right before the COMMIT: nothing of the batch has happened. Right after, or with an unanswered COMMIT: the dead
letters are settled, the repetition does not find them any more (and does not count them). In the middle: whole batches
are done. Two redrives at once: the second waits for a head or meets the first's row (1062), and looks again. A dead
letter that was settled is never redriven again, and once collected it is not there.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Event
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._checks import check_name, check_number
from lanelog._database import NOW_MS
from lanelog._stores.groups import Groups
from lanelog._stores.partitions import Partitions
from lanelog.admin import _chosen, _fence
from lanelog.admin._known import known_group, known_topic, no_group, read, repeated
from lanelog.admin.views import Redriven
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from lanelog._database import Database, Executor
    from lanelog.admin._chosen import Choice, Letter

# Dead letters as messages again, behind the heads given by key and in their order (PRIMARY). The id is a new one,
# because a dead letter's id and offset come together only once.
COPY = f"""
INSERT INTO queue_messages (topic, partition_key, `offset`, id, payload, payload_bytes, metadata, created_at,
       published_at, target_group)
SELECT %s, m.partition_key,
       CASE m.partition_key {{cases}} END + ROW_NUMBER() OVER (PARTITION BY m.partition_key ORDER BY m.`offset`),
       CONCAT('rd-', SHA2(CONCAT(m.id, CHAR(31 USING utf8mb4), m.`offset`), 256)), m.payload, m.payload_bytes,
       m.metadata, {NOW_MS}, m.published_at, %s
FROM queue_messages m FORCE INDEX (PRIMARY)
WHERE m.topic = %s AND (m.partition_key, m.`offset`) IN ({{points}})
"""

BATCH = 500
BATCH_BYTES = 8 * 1024 * 1024
"""The most messages and payload bytes of one transaction, as far as one message alone is not more."""

RATED_BATCH = 0.1
"""With a rate, a batch is what may go in so many seconds."""

HEAD_HELD = 0.02
"""Seconds before a lane whose head somebody holds is tried again."""


def redrive(
    database: Database,
    topic: str,
    group: str,
    *,
    ids: Collection[str] | None,
    reason: str | None,
    everything: bool,
    rate: float | None,
    to_topic: str | None,
    dry_run: bool,
    ensure_lanes: Callable[[str, Sequence[str]], None],
    published: Callable[[str], None],
) -> Redriven:
    """See `Admin.redrive`."""
    check_name("topic", topic)
    check_name("group", group)
    chosen = _chosen.choice(ids, reason, everything=everything)
    if rate is not None:
        check_number("rate", rate, above=True)
    if to_topic is not None:
        check_name("to_topic", to_topic)
    original, dead_topics = _chosen.dead_topics(database, topic)
    if to_topic in dead_topics:
        raise ConfigurationError(
            f"to_topic={to_topic!r} holds these dead letters: they would come back to where they are"
        )
    if to_topic is None:
        read(database, known_group, "looking for the group", original, group)
    else:
        read(database, known_topic, "looking for the topic", to_topic)
    work = _Redrive(
        database, original, group, original if to_topic is None else to_topic, to_topic is None, rate, ensure_lanes
    )
    for dead_topic in dead_topics:
        for found in _chosen.letters(database, dead_topic, original, group):
            taken = [letter for letter in found if chosen.takes(letter)]
            work.choose(chosen, taken)
            if not dry_run:
                work.put_back(taken)
    if not dry_run:
        work.finish()
    if work.moved:
        published(work.target)
    return Redriven(
        topic=original,
        group=group,
        to_topic=work.target,
        messages=work.chosen if dry_run else work.moved,
        keys=len(work.keys),
        missing=0 if chosen.ids is None else len(chosen.ids - work.named),
        remaining=sum(len(waiting) for waiting in work.held.values()),
        dry_run=dry_run,
    )


def _target_group(cx: Executor, topic: str, group: str, *, strict: bool) -> str:
    """The only group that the copies are for; '' for every group, where this one is not registered."""
    if Groups().lock_shared(cx, group, topic) is not None:
        return group
    if strict:
        raise no_group(topic, group)
    return ""


@define(eq=False)
class _Redrive:
    """One call, from batch to batch."""

    database: Database
    topic: str
    group: str
    target: str
    home: bool  # the target is the original topic, where the group must be registered
    rate: float | None
    ensure_lanes: Callable[[str, Sequence[str]], None]
    chosen: int = 0
    moved: int = 0
    keys: set[str] = field(factory=set)
    named: set[str] = field(factory=set)
    held: dict[tuple[str, str], deque[Letter]] = field(factory=dict)
    """What waits for a head that somebody holds, and whatever of the same lane comes behind it."""
    _not_before: float = 0.0
    _pause: Event = field(factory=Event)

    def choose(self, choice: Choice, letters: Sequence[Letter]) -> None:
        """Count what was chosen."""
        self.chosen += len(letters)
        self.keys.update(letter.key for letter in letters)
        for letter in letters:
            self.named.update(choice.named(letter))

    def put_back(self, letters: Sequence[Letter]) -> None:
        """Redrive these, which belong to one dead letter topic and are in order; what cannot go now is held."""
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
                place = (letter.dead_topic, letter.key)
                if letter.key in busy or place in self.held:
                    self.held.setdefault(place, deque()).append(letter)

    def finish(self) -> None:
        """Try what is held again, until nothing is or nothing has moved for `publish_timeout`."""
        patience = self.database.config.publish_timeout
        until = time.monotonic() + patience
        while self.held and time.monotonic() < until:
            before = self.moved
            held, self.held = self.held, {}
            for dead_topic in sorted({dead_topic for dead_topic, _ in held}):
                lanes = sorted(place for place in held if place[0] == dead_topic)
                self.put_back([letter for place in lanes for letter in held[place]])
            if self.moved > before:
                until = time.monotonic() + patience
            elif self.held:
                self._pause.wait(HEAD_HELD)

    def _batches(self, letters: Sequence[Letter]) -> Iterator[list[Letter]]:
        most = BATCH if self.rate is None else max(1, min(BATCH, int(self.rate * RATED_BATCH)))
        batch: list[Letter] = []
        size = 0
        for letter in letters:
            if batch and (len(batch) == most or size + letter.payload_bytes > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(letter)
            size += letter.payload_bytes
        if batch:
            yield batch

    def _move(self, letters: Sequence[Letter]) -> set[str]:
        """One batch; the keys whose heads somebody holds."""
        if self.rate is not None:
            wait = self._not_before - time.monotonic()
            if wait > 0:
                self._pause.wait(wait)
        keys = sorted({letter.key for letter in letters})
        repeated(self.database, self.ensure_lanes, "creating lanes", self.target, keys)
        moved, busy = repeated(self.database, self._attempt, "redriving", letters, keys)
        self.moved += moved
        if self.rate is not None:
            self._not_before = max(self._not_before, time.monotonic()) + moved / self.rate
        return busy

    def _attempt(self, letters: Sequence[Letter], keys: Sequence[str]) -> tuple[int, set[str]]:
        try:
            with self.database.transaction() as cx:
                return self._transaction(cx, letters, keys)
        except DatabaseError as error:
            raise _chosen.settled_meanwhile(error) from error

    def _transaction(self, cx: Executor, letters: Sequence[Letter], keys: Sequence[str]) -> tuple[int, set[str]]:
        dead_topic = letters[0].dead_topic
        for_group = _target_group(cx, self.target, self.group, strict=self.home)
        floors = _fence.share_floors(cx, dead_topic, keys)
        heads = Partitions().lock_heads(cx, self.target, keys, wait=False)
        points = [
            (letter.key, letter.offset)
            for letter in letters
            if letter.key in heads and letter.key in floors and letter.offset > floors[letter.key].floor
        ]
        points = _chosen.unsettled(cx, dead_topic, points)
        busy = set(keys) - heads.keys()
        if not points:
            return 0, busy
        _chosen.settle(cx, dead_topic, points)
        counts: dict[str, int] = {}
        for key, _ in points:
            counts[key] = counts.get(key, 0) + 1
        bases = [value for key in counts for value in (key, heads[key])]
        sql = COPY.format(cases="WHEN %s THEN %s " * len(counts), points=",".join(["(%s, %s)"] * len(points)))
        flat = [value for point in points for value in point]
        copied = cx.execute(sql, (self.target, *bases, for_group, dead_topic, *flat))
        moved = Partitions().advance(cx, self.target, counts)
        if copied != len(points) or moved != len(counts):
            raise LanelogError(
                f"{copied} of {len(points)} dead letters of {dead_topic!r} were copied: nothing was changed"
            )
        return copied, busy
