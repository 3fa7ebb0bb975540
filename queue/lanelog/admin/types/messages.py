"""Values about messages: states, scheduled messages, history and dead letters. Times are aware UTC.

Owns these values. Units are as in `topology`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lanelog.admin.types.topology import MessageState
    from lanelog.message import DeadLetter


@frozen(kw_only=True)
class GroupState:
    """Where one message stands for one group."""

    group: str
    state: MessageState
    attempts: int
    """Attempts started since its last postponement, as far as the database still knows; 0 for a completed one."""
    postponed: int
    """How often its handler postponed it."""
    next_attempt_in: float | None
    """Seconds until it is delivered again, 0 when it is due; None unless it is retryable or postponed."""
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_error: str | None
    owner: str | None
    """The owner of the lane; None: it has none."""
    paused: bool
    """Whether an operator paused the group or this lane."""
    dead_letter_topic: str | None
    """The topic of its dead letter; None unless it failed."""
    dead_letter_id: str | None
    """The id that `redrive(ids=…)` and `delete_dead_letters(ids=…)` take; None unless it failed."""


@frozen(kw_only=True)
class MessageInfo:
    """One message of the log."""

    topic: str
    key: str
    offset: int
    id: str
    payload: bytes = field(repr=False)
    payload_bytes: int
    metadata: Mapping[str, str] = field(repr=False)
    published_at: datetime
    """When it was first published. A redriven copy keeps it."""
    created_at: datetime
    """When this row was written."""
    expires_at: datetime | None
    """When it expires; None: never."""
    target_group: str | None
    """The only group it is for, because it was redriven; None: every group."""
    dead_letter: DeadLetter | None
    """Its origin, if it is a dead letter; otherwise None."""
    settled: bool
    """Whether it is a dead letter that was redriven or deleted and waits for collection."""
    states: tuple[GroupState, ...] = ()
    """One for each registered group, in order of their names. Only `message()` fills it."""


@frozen(kw_only=True)
class ScheduledInfo:
    """One message that is not in the log yet."""

    topic: str
    key: str
    id: str
    payload_bytes: int
    metadata: Mapping[str, str] = field(repr=False)
    published_at: datetime
    deliver_at: datetime
    """When it is due."""
    due_in: float
    """Seconds until then, 0 when it is due."""
    ttl: float | None
    """Seconds from `deliver_at` after which no handler starts on it any more; None: no limit."""


@frozen(kw_only=True)
class HistoryInfo:
    """How one message left a group that keeps history."""

    topic: str
    group: str
    key: str
    offset: int
    id: str
    outcome: str
    """`success`, `rejected`, `failed`, `lock_expired` (the last attempt timed out or crashed), `expired` or
    `skipped`."""
    attempts: int
    published_at: datetime
    first_delivered_at: datetime | None
    finished_at: datetime
    owner: str
    error: str | None
    """The error of the last attempt, or the reason of a skip; None if there is none."""


@frozen(kw_only=True)
class DeadLetterInfo:
    """One dead letter that was neither redriven nor deleted.

    `message(dead_letter_topic, key, id=id)` returns its payload.
    """

    dead_letter_topic: str
    key: str
    offset: int
    """Its offset in the dead letter topic."""
    id: str
    """Its id in the dead letter topic: `ids=` of redrive and delete takes it."""
    original_topic: str
    original_offset: int
    original_id: str
    """The id under which the message was first published."""
    group: str
    """The group that dead-lettered it."""
    reason: str
    """First line of `last_error` with `#` for each number and id, cut to 200 characters: dead letters are counted by
    it, and `reason=` takes it."""
    last_error: str
    failure_count: int
    """Attempts that were made, also those that an operator ended."""
    failed_at: datetime
    published_at: datetime
    """When the original message was first published."""
    payload_bytes: int


@frozen(kw_only=True)
class DeadLetterReason:
    """Dead letters of one group that failed for the same reason."""

    dead_letter_topic: str
    group: str
    reason: str
    """First line of their `last_error` with `#` for each number and id, cut to 200 characters. Empty: no error."""
    name: str
    """Short name of the reason, made from its text alone: `r-4f2a`. `reason=` takes it, too. Of two reasons of one
    answer whose names would be equal, both have longer ones."""
    count: int
    keys: int
    """How many different keys are among them."""
    oldest_failed_at: datetime
    newest_failed_at: datetime


@frozen(kw_only=True)
class DeadLetterCounts:
    """Dead letters of a topic, counted by group and reason."""

    reasons: list[DeadLetterReason]
    """The most frequent first; at most 1,000."""
    looked: int
    """How many dead letters were read."""
    complete: bool
    """False: there may be more dead letters, which were not read, or more reasons."""


@frozen(kw_only=True)
class DeadLetterPage:
    """Some dead letters of a topic, and how far they were read."""

    letters: list[DeadLetterInfo]
    looked: int
    """How many dead letters were read, those that were not chosen among them."""
    after: tuple[str, str, int] | None
    """Dead letter topic, key and offset of the last one that was read: `after=` goes on after it. None: there are no
    more."""
