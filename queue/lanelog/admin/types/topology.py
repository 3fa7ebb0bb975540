"""The values that administration returns when it looks.

Owns their fields and units; no SQL, no behaviour but what follows from the fields. Made by the reading rooms of this
package, read by applications and the command line; import them from `lanelog.admin`.

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


# -- states ------------------------------------------------------------------------------------------------------------


class MessageState(StrEnum):
    """Where a message is in its life, for one group."""

    SCHEDULED = "scheduled"
    """Published, not due yet: `Admin.scheduled` lists these, which are in no group's lane so far."""
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
    """Its `expires_at` passed before a handler of the group had started: it is not delivered any more."""


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
    """`strict`, `serial` or `concurrent`; `archive` or `replay`: these jobs, which are no subscribers."""
    start: str
    """Where it began: `earliest`, `latest` or an instant in UTC. Of an archive's group: the archive's identity."""
    retention: float
    """Seconds for which acked messages stay."""
    created_at: datetime
    paused_at: datetime | None
    """Since when an operator has paused the whole group; None: it runs."""
    paused_by: str
    pause_reason: str
    members: int
    """Subscribers that are alive."""
    members_unchanged: float
    """Seconds for which no member is known to have gone: since the last one that is not alive stopped or gave its last
    sign of life, since the group was registered, or since the server started, whichever is the least."""
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
    """Seconds since the oldest of the messages right behind a watermark was written; None: there is none."""
    oldest_age_exact: bool
    """False: there may be an older one. So many lanes lag, more than 10,000 in all groups of one answer, that only the
    500 were looked into in which nothing was settled for longest."""
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
    owner_silent: float | None
    """Seconds since the owner stopped, or gave its last sign of life; None without an owner or its row, which stays for
    ten minutes."""
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


# -- looking: schedules ------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ScheduleInfo:
    """One schedule: a message that is published again and again."""

    name: str
    expression: str
    """Its cron expression."""
    timezone: str
    topic: str
    key: str
    payload: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(repr=False)
    """As declared; each message also has `lanelog.schedule` and `lanelog.fire_time`."""
    ttl: float | None
    """Seconds that each message may be delivered for."""
    catch_up: str
    """`latest`, `all` or `none`."""
    next_fire_at: datetime | None
    """The earliest time that is not fired yet; None while it is paused."""
    last_fire_at: datetime | None
    """The latest time that a message was published for."""
    fired: int
    """Messages published so far."""
    paused_at: datetime | None
    paused_by: str
    pause_reason: str
    created_at: datetime
    """When it was first declared."""
    updated_at: datetime
    """When it was declared last."""
