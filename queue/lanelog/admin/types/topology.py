"""The values of methods that read: topics, groups, members, lanes, leases, schedules.

Owns their fields and units. No SQL; only behaviour that follows from the fields. Import them from `lanelog.admin`.

Durations and ages are float seconds. Times are aware UTC datetimes of the database's clock. Offsets and counts are int.
None means "there is none", never "not read".
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import field, frozen

from lanelog._log.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lanelog._log.lookup.owners import LastMember, OwnerState
    from lanelog._process.workload import Workload


# -- states ------------------------------------------------------------------------------------------------------------


class MessageState(StrEnum):
    """Where a message stands for one group."""

    SCHEDULED = "scheduled"
    """Published, and not in the log yet. `Admin.scheduled` lists these."""
    PENDING = "pending"
    """Not handed out yet."""
    PROCESSING = "processing"
    """Handed out by the present owner of the lane and not settled."""
    RETRYABLE = "retryable"
    """An attempt failed, timed out, died with its process, or was ended by an operator; another one follows."""
    POSTPONED = "postponed"
    """Its handler postponed it; it starts again as attempt 1."""
    COMPLETED = "completed"
    """Settled: handled, skipped, or not for this group."""
    FAILED = "failed"
    """Dead-lettered: a dead letter of this group exists."""
    EXPIRED = "expired"
    """Its `expires_at` passed before a handler of the group had started: it is not delivered any more."""


# -- reading: topics, groups, members ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class TopicInfo:
    """One topic, with sums over its lanes. Removed lanes do not count."""

    topic: str
    lanes: int
    """Number of its lanes."""
    messages: int
    """Messages in the log: offsets that collection has not deleted, summed over lanes."""
    head: int
    """Heads of all lanes, summed: all messages that were ever published to these lanes."""
    floor: int
    """Floors of all lanes, summed: messages that were released for collection."""
    dead_letters: int
    """Unsettled dead letters in `dead_letter_topics`; of a dead letter topic: in itself."""
    groups: tuple[str, ...]
    """Registered groups, in order of their names."""
    dead_letter_topics: tuple[str, ...]
    """Topics that hold dead letters and whose name begins with this name, and with no longer name of a topic."""
    holds_dead_letters: bool
    """Whether this is a dead letter topic."""
    newest_lane_at: datetime | None
    """When its newest lane was created; None without lanes."""


@frozen(kw_only=True)
class GroupInfo:
    """One group on one topic."""

    topic: str
    group: str
    order: str
    """`strict`, `serial` or `concurrent`; of the jobs that are no subscribers: `archive` or `replay`."""
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
    """Members that are alive."""
    members_unchanged: float
    """Seconds for which no member is known to have gone.

    The least of: since the last sign of life of a member that is not alive, since the group was registered, since the
    server started.
    """
    last_members: tuple[LastMember, ...] = ()
    """Of a group without a living member: up to 3 that were there last, the latest first. Rows of members are deleted
    later."""
    members_telling: int = 0
    """Of the living members, those whose heartbeats say what their workers do.

    Others pull messages, or are of an older version. On tables older than version 6 none says it.
    """
    workers: int = 0
    """Workers of these members."""
    busy: int = 0
    """Workers of these members that were in a handler at the last heartbeat, or waited for a quarantined message."""
    lanes: int
    """Lanes of the topic."""
    owned_lanes: int
    """Lanes with a living owner."""
    stale_lanes: int
    """Lanes whose owner is dead, expired, stopped or missing."""
    paused_lanes: int
    """Lanes that were paused by themselves."""
    lagging_lanes: int
    """Lanes whose watermark is below their head."""
    head: int
    """Heads of all lanes, summed. `head - lag` rises by each message that the group settles."""
    lag: int
    """Messages not settled by this group, over all lanes; exact."""
    oldest_age: float | None
    """Seconds since the oldest of the messages right after a watermark was written; None: all is settled."""
    oldest_age_exact: bool
    """False: there may be an older message.

    More than 10,000 lanes lag, in all groups of one answer; then only 500 lanes are
    read for it, those in which nothing was settled for longest.
    """
    waiting: int
    """Messages that wait for the next attempt, after one that failed, crashed, was postponed or taken away."""
    in_flight: int
    """Messages handed out and not settled, also by a dead owner whose lanes are not taken yet.

    Without a living member none is: they wait.
    """


@frozen(kw_only=True)
class MemberInfo:
    """One member of a group: the subscription of one process to a topic."""

    topic: str
    group: str
    name: str
    """The owner as leases name it: the subscription's name and a random part."""
    state: OwnerState
    """What is known of it; never `missing`."""
    lanes: int
    """Lanes leased to it."""
    heartbeat_at: datetime
    """Its last sign of life."""
    expires_at: datetime
    lease_left: float
    """Seconds until its leases may be taken by expiry; 0 when it expired or stopped."""
    stopped_at: datetime | None
    """When it ended in order; None: it did not."""
    found_dead_by: str | None = None
    """The member that found it dead, at most 56 characters, or `release`. None: it lives, left, or is not found yet."""
    server_started_at: datetime | None
    """Start of the server that granted its liveness lock; None: it holds none."""
    workload: Workload | None = None
    """What its workers did at its last heartbeat.

    None: it pulls messages, it is not alive, its version is older, or the tables are older than version 6.
    """


# -- reading: lanes ----------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class LaneInfo:
    """One lane as one group sees it."""

    topic: str
    group: str
    key: str
    watermark: int
    """All messages up to this offset are settled. If the group has no row yet: the floor."""
    head: int
    """The highest offset published."""
    floor: int
    """The highest offset released for collection."""
    lag: int
    """Messages not settled: head - watermark - `acked_ahead`."""
    acked_ahead: int
    """Messages above the watermark that are settled."""
    oldest_age: float | None
    """Seconds since the first unsettled message was written; None: all is settled, or the log does not have it."""
    owner: str | None
    """The owner of its lease; None: it has none."""
    owner_state: OwnerState | None
    """None without an owner."""
    owner_silent: float | None
    """Seconds since the owner stopped, or since its last sign of life; None without an owner or its heartbeat row.

    A heartbeat row stays for at least ten minutes.
    """
    lease_left: float | None
    """Seconds until the owner's leases may be taken by expiry, 0 when they may; None without an owner."""
    lease_epoch: int
    """Epoch of the last owner's lease; 0: it never had one."""
    in_flight: int
    """Messages handed out and not settled, under the present epoch; 0 if the group has no living member."""
    waiting: int
    """Messages that wait for another attempt."""
    state: MessageState | None
    """Of the first unsettled message, for which the others wait; None: all is settled."""
    attempts: int
    """Attempts started of that message."""
    last_error: str | None
    """How the last attempt of that message failed, or that an operator ended it."""
    next_attempt_in: float | None
    """Seconds until that message is delivered again, 0 when it is due; None unless it waits."""
    paused_at: datetime | None
    """Since when an operator has paused this lane; None: it is not paused by itself (see `group_paused`)."""
    paused_by: str
    pause_reason: str
    group_paused: bool
    """Whether the whole group is paused."""

    @property
    def failed(self) -> bool:
        """Whether the last attempt of that message failed. One that an operator ended has not."""
        return self.last_error not in (None, "", INTERRUPTED)


@frozen(kw_only=True)
class OffsetInfo:
    """Where a group is in a lane: its offsets row, or the floor if it has none yet."""

    topic: str
    group: str
    key: str
    watermark: int
    head: int
    floor: int
    deleted_through: int
    """The highest offset that collection has deleted."""
    lag: int
    acked_ahead: int
    owner: str | None
    """The owner of the lane for this group; None: nobody."""
    marked_through: int
    """The run mark: offsets above `watermark` and up to here are handed out."""
    marked_epoch: int
    marked_at: datetime | None
    paused_at: datetime | None
    updated_at: datetime | None
    """When its row last changed; None: the group has no row for this lane."""


@frozen(kw_only=True)
class LeaseInfo:
    """The lease of one lane for a group."""

    topic: str
    group: str
    key: str
    owner: str | None
    """The owner; None: it was released."""
    owner_state: OwnerState | None
    epoch: int
    """The lease's epoch."""
    leased_at: datetime | None
    """When the owner got it; None without an owner."""
    heartbeat_at: datetime | None
    """The owner's last sign of life; None without an owner or its heartbeat row."""
    lease_left: float | None
    """Seconds until it may be taken by expiry, 0 when it may; None without an owner."""

    @property
    def stale(self) -> bool:
        """Whether its owner is dead, expired, stopped or missing."""
        return self.owner is not None and not (self.owner_state and self.owner_state.lives)


# -- reading: schedules ------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ScheduleInfo:
    """One schedule: a message that is published at every time of a cron expression."""

    name: str
    expression: str
    """Its cron expression."""
    timezone: str
    topic: str
    key: str
    payload: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(repr=False)
    """As declared. Each message also has `lanelog.schedule` and `lanelog.fire_time`."""
    ttl: float | None
    """Seconds in which each message may be delivered; None: no limit."""
    catch_up: str
    """`latest`, `all` or `none`."""
    next_fire_at: datetime | None
    """The earliest time that has not fired yet; None while it is paused."""
    last_fire_at: datetime | None
    """The latest time that has fired; None: none has."""
    fired: int
    """Messages published so far."""
    paused_at: datetime | None
    paused_by: str
    pause_reason: str
    created_at: datetime
    """When it was first declared."""
    updated_at: datetime
    """When it was last declared."""
