"""The choice of dead letters to redrive or delete, and reading them in order.

Owns the choice, and the reading of dead letters in bounded pieces, without payloads. Never decides in which transaction
they are settled. Another call may settle a dead letter that `letters` yielded, so callers read again under their locks.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from lanelog._base.checks import aware, check_integer
from lanelog._base.reasons import is_name, is_named, names_of, reason_of
from lanelog._base.text import moment, shown
from lanelog._database import codes
from lanelog._log.lookup.known import PAGE, known_topic, pages, read
from lanelog._log.lookup.names import dead_letter_topics, names
from lanelog._stores._points import chunked, placeholders, points, united
from lanelog._stores.consumers import offsets
from lanelog.admin.lookup.arguments import check_list, milliseconds, optional
from lanelog.admin.read.messages import SETTLING
from lanelog.errors import ConfigurationError, DatabaseError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from lanelog._base.places import GroupTopic
    from lanelog._database import Database, Executor

_LETTER = """m.partition_key, m.`offset`, m.id, m.payload_bytes, LEFT(m.last_error, 1000),
       JSON_UNQUOTE(JSON_EXTRACT(m.metadata, '$."lanelog.original_id"')), m.failed_at
FROM queue_messages m"""

# Dead letters of one group in a bounded piece of a lane that are not settled yet (both PRIMARY); many pieces are joined
# by UNION ALL.
LETTERS = f"""(SELECT {_LETTER} FORCE INDEX (PRIMARY) {SETTLING}
 WHERE m.topic = %s AND m.partition_key = %s AND m.`offset` > %s AND m.`offset` <= %s
       AND m.failed_group = %s AND m.original_topic = %s AND d.message_offset IS NULL)"""

# Dead letters of one group by their own ids in some lanes that are not settled yet (by_id; PRIMARY).
BY_ID = f"""
SELECT {_LETTER} FORCE INDEX (by_id) {SETTLING}
WHERE m.topic = %s AND m.partition_key IN ({{keys}}) AND m.id IN ({{ids}})
      AND m.failed_group = %s AND m.original_topic = %s AND d.message_offset IS NULL
"""

# Which of some dead letters are there and not settled (both PRIMARY).
UNSETTLED = f"""
SELECT m.partition_key, m.`offset` FROM queue_messages m FORCE INDEX (PRIMARY) {SETTLING}
WHERE m.topic = %s AND (m.partition_key, m.`offset`) IN ({{points}}) AND d.message_offset IS NULL
"""

OWN_ID = re.compile("dl-[0-9a-f]{64}")
"""The form of a dead letter's own id, see `derived_id`."""

OFFSETS_A_READ = 2000
POINTS_A_READ = 1000
LANES_A_READ = 50
LIMIT_MAX = 1_000_000_000

_REASONS_SHOWN, _REASON_SHOWN = 5, 60
"""Reasons that the refusal of a name lists, and characters of each."""


@frozen
class Letter:
    """One dead letter, without its payload."""

    dead_topic: str
    key: str
    offset: int
    id: str
    payload_bytes: int
    reason: str
    original_id: str | None
    failed_at: int


@frozen
class Choice:
    """Which dead letters: those with these ids (their own, or of their original messages), with this reason, or all."""

    ids: frozenset[str] | None
    reason: str | None
    """The text of the reason, or until `resolved` its short name."""
    key: str | None = None
    """Only the dead letters of this key."""
    since: int = 0
    """Only the dead letters of this time or later, in epoch milliseconds."""
    limit: int | None = None
    """The most dead letters that are chosen. None: all."""

    @property
    def own_ids(self) -> tuple[str, ...]:
        """The ids, if all of them have the form of dead letters' own ids."""
        ids = self.ids or ()
        return tuple(sorted(ids)) if all(OWN_ID.fullmatch(each) for each in ids) else ()

    def takes(self, letter: Letter) -> bool:
        """Return whether the dead letter is chosen."""
        if self.key not in {None, letter.key} or letter.failed_at < self.since:
            return False
        if self.ids is not None:
            return letter.id in self.ids or letter.original_id in self.ids
        return self.reason is None or letter.reason == self.reason

    def named(self, letter: Letter) -> Iterable[str]:
        """Return the given ids that name the dead letter."""
        return () if self.ids is None else self.ids & {letter.id, letter.original_id or ""}


def choice(
    ids: Iterable[str] | None,
    reason: str | None,
    *,
    everything: bool,
    key: str | None = None,
    since: datetime | None = None,
    limit: int | None = None,
) -> Choice:
    """Check the arguments, of which exactly one of the first three is given, and return the choice."""
    if not isinstance(everything, bool):
        raise ConfigurationError(f"all must be True or False, not {type(everything).__name__}")
    if (ids is not None) + (reason is not None) + everything != 1:
        raise ConfigurationError("choose the dead letters by exactly one of ids=…, reason=… and all=True")
    if reason is not None:
        check_reason(reason)
    chosen = None if ids is None else frozenset(check_list("ids", "id", ids))
    if limit is not None:
        check_integer("limit", limit, least=1, most=LIMIT_MAX)
    begin = 0 if since is None else milliseconds(aware("since", since))
    return Choice(chosen, reason, optional("key", key), begin, limit)


def check_reason(reason: str) -> None:
    """Refuse what is neither a reason nor the short name of one.

    An error as it was logged is refused, and not taken for its reason: who means one of 800 must not get them all.
    """
    if not isinstance(reason, str):
        raise ConfigurationError(f"reason must be a str, not {type(reason).__name__}")
    text = reason_of(reason)
    if not is_name(reason) and text != reason:
        name = names_of([text])[text]
        raise ConfigurationError(f"reasons have # for numbers and ids: those like this one are {text!r}, or {name}")


def meant(reasons: Iterable[str], given: str) -> str:
    """Return the one of some reasons that a reason or a short name means; what was given, if it is none of them.

    Refuses a name of several ones. A reason may have the form of a name: then that is ambiguous, too.
    """
    if not is_name(given):
        return given
    found = sorted({reason for reason in reasons if reason == given or is_named(reason, given)})
    if len(found) > 1:
        names = names_of(found)
        longer = ", ".join(f"{names[reason]} ({shown(reason, _REASON_SHOWN)})" for reason in found[:_REASONS_SHOWN])
        more = ", …" if len(found) > _REASONS_SHOWN else ""
        raise ConfigurationError(f"{given} is the name of {len(found)} reasons: give a longer one, {longer}{more}")
    return found[0] if found else given


def resolved(database: Database, dead_topics: Sequence[str], at: GroupTopic, chosen: Choice) -> Choice:
    """Return the choice with the text of its reason, instead of a short name.

    All dead letters of the group are read before the first one is taken: a second reason of the name may be the last
    one's. A dead letter that comes later is taken if its reason has that text.
    """
    if chosen.reason is None or not is_name(chosen.reason):
        return chosen
    every = letters(database, dead_topics, at, Choice(None, None))
    reasons = {letter.reason for found in every for letter in found}
    return evolve(chosen, reason=meant(reasons, chosen.reason))


def recorded(chosen: Choice, to_topic: str | None = None) -> str:
    """Return a choice, as the audit records it."""
    parts = ["ids" if chosen.ids is not None else "all" if chosen.reason is None else f"reason {chosen.reason}"]
    parts += [] if chosen.key is None else [f"key {chosen.key}"]
    parts += [f"since {moment(utc_from_ms(chosen.since))}"] if chosen.since else []
    parts += [] if chosen.limit is None else [f"at most {chosen.limit}"]
    parts += [] if to_topic is None else [f"to topic {to_topic}"]
    return ", ".join(parts)


def holders(cx: Executor, topic: str) -> tuple[list[str], str]:
    """Return the topics that hold a topic's dead letters, and the original topic that these must have ('': any).

    For an original topic, its dead letter topics. For a dead letter topic, itself.
    """
    known_topic(cx, topic)
    found = names(cx, topic)
    if dict(found)[topic]:
        return [topic], ""
    return list(dead_letter_topics([topic], found)[topic]), topic


def originals(cx: Executor) -> dict[str, str]:
    """Return the original topic of each dead letter topic."""
    there = names(cx)
    plain = [topic for topic, holds_letters in there if not holds_letters]
    return {dead: topic for topic, found in dead_letter_topics(plain, there).items() for dead in found}


def dead_topics(database: Database, topic: str) -> tuple[str, tuple[str, ...]]:
    """Return the original topic and its dead letter topics, for the name of either."""
    where, original = read(database, holders, "finding dead letter topics", topic)
    original = original or read(database, originals, "finding dead letter topics").get(topic, "")
    if not original:
        raise ConfigurationError(f"{topic!r} holds dead letters, but the topic that they came from is not there")
    return original, tuple(where)


def letters(database: Database, dead_topics: Sequence[str], at: GroupTopic, choice: Choice) -> Iterator[list[Letter]]:
    """Yield the chosen unsettled dead letters of a group, some at a time; those of one key in their order.

    With a limit it is the first ones of each key, so their order is kept.

    `at`: the group and its original topic.

    An empty list says that the group has dead letters which are not chosen. Ids in the form of dead letters' own are
    looked up. If one is not found, it may be the id of an original message. For such ids all dead letters of the group
    are read.
    """
    if choice.ids is not None and not choice.ids:
        return
    left = choice.limit
    for found in _every(database, dead_topics, at, choice):
        yield found[:left]
        if left is not None:
            left -= len(found[:left])
            if not left:
                return


def _every(database: Database, dead_topics: Sequence[str], at: GroupTopic, choice: Choice) -> Iterator[list[Letter]]:
    own = choice.own_ids
    if own:
        named: set[str] = set()
        for dead_topic in dead_topics:
            for found in _some(database, dead_topic, at, own, choice.key):
                taken = [letter for letter in found if choice.takes(letter)]
                named.update(name for letter in taken for name in choice.named(letter))
                yield taken
        choice = evolve(choice, ids=frozenset(own) - named)
        if not choice.ids:
            return
    for dead_topic in dead_topics:
        for found in _some(database, dead_topic, at, (), choice.key):
            yield [letter for letter in found if choice.takes(letter)]


def _some(
    database: Database, dead_topic: str, at: GroupTopic, own: Sequence[str], only: str | None
) -> Iterator[list[Letter]]:
    """Yield the group's dead letters in one dead letter topic; with `own`, perhaps only those with these ids.

    `only`: the one lane to read. None: all.
    """
    for page in pages(database, dead_topic, PAGE):
        floors = read(database, offsets.floors, "reading floors", dead_topic, [key for key, _ in page])
        held = [(key, floors[key].floor, head) for key, head in page if key in floors and only in {None, key}]
        if own and len(own) * len(held) < sum(head - floor for _, floor, head in held):
            keys = [key for key, _, _ in held]
            for some in chunked(keys, max(1, POINTS_A_READ // len(own))):
                found = read(database, _by_id, "reading dead letters", dead_topic, at, some, own)
                if found:
                    yield found
            continue
        for pieces in _pieces(held):
            found = read(database, _read, "reading dead letters", dead_topic, at, pieces)
            if found:
                yield found


def _pieces(lanes: Iterable[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int]]]:
    """Yield (key, behind, through) in key order, cut so that one read covers a bounded number of lanes and messages."""
    taken: list[tuple[str, int, int]] = []
    room = OFFSETS_A_READ
    for key, floor, head in lanes:
        at = floor
        while at < head:
            through = min(head, at + room)
            taken.append((key, at, through))
            room -= through - at
            at = through
            if room == 0 or len(taken) == LANES_A_READ:
                yield taken
                taken, room = [], OFFSETS_A_READ
    if taken:
        yield taken


def _read(cx: Executor, dead_topic: str, at: GroupTopic, pieces: Sequence[tuple[str, int, int]]) -> list[Letter]:
    return _letters(dead_topic, united(cx, LETTERS, [(dead_topic, *piece, *at.columns) for piece in pieces]))


def _by_id(cx: Executor, dead_topic: str, at: GroupTopic, keys: Sequence[str], ids: Sequence[str]) -> list[Letter]:
    sql = BY_ID.format(keys=placeholders(keys), ids=placeholders(ids))
    return _letters(dead_topic, cx.query(sql, (dead_topic, *keys, *ids, *at.columns)))


def _letters(dead_topic: str, rows: Iterable[tuple[Any, ...]]) -> list[Letter]:
    found = [
        Letter(dead_topic, key, offset, message_id, size, reason_of(error), original, failed_at)
        for key, offset, message_id, size, error, original, failed_at in rows
    ]
    found.sort(key=lambda letter: (letter.key, letter.offset))
    return found


def unsettled(cx: Executor, dead_topic: str, offsets: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those of the dead letters (key, offset) that exist and are not settled, in order."""
    return sorted((key, offset) for key, offset in points(cx, UNSETTLED, offsets, before=[dead_topic]))


@contextmanager
def settling() -> Iterator[None]:
    """Run an attempt that settles dead letters. A duplicate means: settled since the read. It may be retried."""
    try:
        yield
    except DatabaseError as error:
        if error.code != codes.DUPLICATE:
            raise
        message = "a dead letter was settled meanwhile"
        raise DatabaseError(message, code=codes.DUPLICATE, retriable=True) from error
