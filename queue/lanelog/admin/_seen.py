"""The values that administration returns when it looks.

Owns their fields and units; no SQL, no behaviour but what follows from the fields. Made by the reading rooms of this
package, read by applications, the command line and the dashboard; import them from `lanelog.admin`.

Durations and ages are float seconds, times aware UTC datetimes of the database's clock, offsets and counts int. None
means "there is none", never "not looked at".
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lanelog.message import DeadLetter

# -- states ------------------------------------------------------------------------------------------------------------


class MessageState(StrEnum):
    """Where a message is in its life, for one group."""

    SCHEDULED = "scheduled"
    """Published, not due yet. Messages with a delay are yet to come: no verb returns it today."""
    PENDING = "pending"
    """Not handed to anybody yet."""
    PROCESSING = "processing"
    """Handed out by the present owner of the lane and not settled."""
    RETRYABLE = "retryable"
    """An attempt failed, timed out or died with its process; another one follows."""
    POSTPONED = "postponed"
    """Its handler postponed it; it starts again as attempt 1."""
    COMPLETED = "completed"
    """Settled: handled, or passed by this group (skipped, or meant for another group)."""
    FAILED = "failed"
    """Given up: a dead letter of this group exists."""
    EXPIRED = "expired"
    """Its `expires_at` passed before the group settled it: it is not delivered any more."""


class OwnerState(StrEnum):
    """What is known of a lane's owner or a group's member."""

    ALIVE = "alive"
    """Its heartbeat is valid."""
    DEAD = "dead"
    """Its process is gone: the lock that it holds at the server is free. Others take its lanes within seconds."""
    EXPIRED = "expired"
    """Its heartbeat ran out: others may take its lanes."""
    STOPPED = "stopped"
    """It ended in order and said so."""
    MISSING = "missing"
    """It holds a lease and has no heartbeat row: it counts as expired."""


# -- looking: topics, groups, members ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class TopicInfo:
    """One topic. Sums over its lanes; a lane that was purged counts no more."""

    topic: str
    lanes: int
    """Keys that have a lane."""
    messages: int
    """Messages in the log: offsets above what collection deleted, summed over lanes."""
    head: int
    """Heads of all lanes, summed: everything ever published to the lanes that exist."""
    floor: int
    """Floors of all lanes, summed: what every group is past and collection has released."""
    dead_letters: int
    """Dead letters in `dead_letter_topics` that are not settled; for a dead letter topic itself: those it holds."""
    groups: tuple[str, ...]
    """Registered groups, in order of their names."""
    dead_letter_topics: tuple[str, ...]
    """Topics that hold dead letters and whose name begins with this one's, and with no longer name of a topic."""
    holds_dead_letters: bool
    """Whether this is a dead letter topic."""
    newest_lane_at: datetime | None
    """When its youngest lane was created; None without lanes."""


@frozen(kw_only=True)
class GroupInfo:
    """One group on one topic."""

    topic: str
    group: str
    order: str
    """`strict`, `serial` or `concurrent`."""
    start: str
    """Where it began: `earliest`, `latest` or an instant in UTC."""
    retention: float
    """Seconds for which acked messages stay."""
    created_at: datetime
    paused_at: datetime | None
    """Since when an operator has paused the whole group; None: it runs."""
    paused_by: str
    pause_reason: str
    members: int
    """Subscribers that are alive."""
    lanes: int
    """Lanes of the topic."""
    owned_lanes: int
    """Lanes with an owner that is alive."""
    stale_lanes: int
    """Lanes whose owner is dead, expired, stopped or missing."""
    paused_lanes: int
    """Lanes paused one by one."""
    lagging_lanes: int
    """Lanes whose watermark is below their head."""
    lag: int
    """Messages not settled by this group, exactly, over all lanes."""
    oldest_age: float | None
    """Seconds since the oldest of the messages right behind a watermark was written; None: there is none. With more
    than 500 lanes lagging, of those 500 in which nothing was settled for longest."""
    waiting: int
    """Messages with a failed, postponed or crashed attempt that wait for the next one."""
    in_flight: int
    """Messages handed out and not settled, also by a dead owner whose lanes nobody took yet."""


@frozen(kw_only=True)
class MemberInfo:
    """One subscriber of a group: a process's subscription to a topic."""

    topic: str
    group: str
    name: str
    """Owner as leases name it: the subscription's name and a random incarnation."""
    state: OwnerState
    """Never `missing`."""
    lanes: int
    """Lanes leased to it."""
    heartbeat_at: datetime
    """Its last sign of life."""
    expires_at: datetime
    lease_left: float
    """Seconds until its leases may be taken by expiry; 0 when it expired or stopped."""
    stopped_at: datetime | None
    server_started_at: datetime | None
    """Start of the server that granted its liveness lock; None: it holds none."""


# -- looking: lanes ----------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class LaneInfo:
    """One lane (topic, key) as one group sees it."""

    topic: str
    group: str
    key: str
    watermark: int
    """Everything up to here is settled; the floor where the group has no row yet."""
    head: int
    """Highest offset published."""
    floor: int
    """Highest offset released for collection."""
    lag: int
    """Messages not settled: head - watermark - settled ahead of it."""
    acked_ahead: int
    """Messages above the watermark that are settled already."""
    oldest_age: float | None
    """Seconds since the message right behind the watermark was written; None: nothing is unsettled."""
    owner: str | None
    owner_state: OwnerState | None
    """None without an owner."""
    lease_left: float | None
    """Seconds until the owner's leases may be taken by expiry, 0 when they may; None without an owner."""
    lease_epoch: int
    """Fencing token of the lane's last owner; 0: it never had one."""
    in_flight: int
    """Messages that are handed out and not settled: under the run mark or a row, of the last epoch."""
    waiting: int
    """Messages that wait for another attempt."""
    state: MessageState | None
    """Of the message right behind the watermark, the one the others wait for; None when there is none."""
    attempts: int
    """Attempts started of that message."""
    last_error: str | None
    """How the last attempt of that message failed."""
    next_attempt_in: float | None
    """Seconds until that message is delivered again, 0 when it is due; None unless it waits."""
    paused_at: datetime | None
    """Since when an operator has paused this lane; None: it runs (see also `group_paused`)."""
    paused_by: str
    pause_reason: str
    group_paused: bool
    """Whether the whole group is paused."""


@frozen(kw_only=True)
class OffsetInfo:
    """A group's place in a lane: its offsets row, or the floor where it has none yet."""

    topic: str
    group: str
    key: str
    watermark: int
    head: int
    floor: int
    deleted_through: int
    """How far collection has deleted."""
    lag: int
    acked_ahead: int
    marked_through: int
    """The run mark: handed out up to here; equal to or below `watermark`: nothing is."""
    marked_epoch: int
    marked_at: datetime | None
    paused_at: datetime | None
    updated_at: datetime | None
    """When its row last changed; None: the group has no row for this lane."""


@frozen(kw_only=True)
class LeaseInfo:
    """Who may work a lane for a group."""

    topic: str
    group: str
    key: str
    owner: str | None
    """None: it was released, nobody has it."""
    owner_state: OwnerState | None
    epoch: int
    """Fencing token."""
    leased_at: datetime | None
    """When the owner got it; None without an owner."""
    heartbeat_at: datetime | None
    """The owner's last sign of life; None without an owner or a heartbeat row."""
    lease_left: float | None
    """Seconds until it may be taken by expiry, 0 when it may; None without an owner."""

    @property
    def stale(self) -> bool:
        """Whether it names an owner that is dead, expired, stopped or missing."""
        return self.owner is not None and self.owner_state is not OwnerState.ALIVE


# -- looking: messages -------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class GroupState:
    """Where one message is for one group."""

    group: str
    state: MessageState
    attempts: int
    """Attempts started since its last postponement, as far as the database still knows; 0 for a completed one."""
    postponed: int
    """How often its handler postponed it."""
    next_attempt_in: float | None
    """Seconds until it is delivered again, 0 when it is due; None unless retryable or postponed."""
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_error: str | None
    owner: str | None
    """Who has the lane; None: nobody."""
    paused: bool
    """Whether an operator paused the group or this lane."""
    dead_letter_topic: str | None
    """Where its dead letter is; None unless failed."""
    dead_letter_id: str | None
    """What `redrive(ids=…)` and `delete_dead_letters(ids=…)` take; None unless failed."""


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
    """When it was first published; a copy keeps it."""
    created_at: datetime
    """When this row was written."""
    expires_at: datetime | None
    target_group: str | None
    """The only group it is meant for (it was redriven); None: every group."""
    dead_letter: DeadLetter | None
    """Where it comes from, if it is a dead letter."""
    settled: bool
    """Whether it is a dead letter that was redriven or deleted and waits to be collected."""
    states: tuple[GroupState, ...] = ()
    """Per registered group, in order of their names; only `message()` fills it."""


@frozen(kw_only=True)
class HistoryInfo:
    """How one message left a group that keeps history."""

    topic: str
    group: str
    key: str
    offset: int
    id: str
    outcome: str
    """`success`, `rejected`, `failed`, `lock_expired`, `expired` or `skipped`."""
    attempts: int
    published_at: datetime
    first_delivered_at: datetime | None
    finished_at: datetime
    owner: str
    error: str | None


# -- looking: dead letters ---------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class DeadLetterInfo:
    """One dead letter that was neither redriven nor deleted; its payload: `message(dead_letter_topic, key, id=id)`."""

    dead_letter_topic: str
    key: str
    offset: int
    """Its offset in the dead letter topic."""
    id: str
    """Its id in the dead letter topic: what `ids=` of redrive and delete takes."""
    original_topic: str
    original_offset: int
    original_id: str
    group: str
    """Which group gave it up."""
    reason: str
    """First line of `last_error`, cut: what `dead_letter_reasons` groups by and `reason=` takes."""
    last_error: str
    failure_count: int
    """Attempts that failed."""
    failed_at: datetime
    published_at: datetime
    """When the original was first published."""
    payload_bytes: int


@frozen(kw_only=True)
class DeadLetterReason:
    """Dead letters of one group that failed for the same reason."""

    dead_letter_topic: str
    group: str
    reason: str
    """First line of their `last_error`, cut."""
    count: int
    keys: int
    """How many different keys are among them."""
    oldest_failed_at: datetime
    newest_failed_at: datetime
