"""The values of methods that change something, or with `dry_run` would change it.

Owns their fields and units. No SQL, no behaviour. Import them from `lanelog.admin`. Units are as in `topology`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lanelog._log.lookup.owners import OwnerState
    from lanelog.admin.types.topology import MessageState


@frozen(kw_only=True)
class Redriven:
    """What `redrive` put back. With `dry_run`: what it would put back; so for all values of this module."""

    topic: str
    """The dead letters' original topic."""
    group: str
    to_topic: str
    """The topic they went to: the original one, unless another was given."""
    messages: int
    """Dead letters that were put back."""
    keys: int
    """Different keys among them."""
    missing: int
    """Given ids that name no dead letter of this group: redriven or deleted before, or never one."""
    remaining: int
    """Chosen dead letters that were left because their lanes stayed locked; call again."""
    delay: float
    """Seconds that the copies wait before they go into the log."""
    dry_run: bool


@frozen(kw_only=True)
class Deleted:
    """What `delete_dead_letters` settled. The rows stay until the next collection."""

    topic: str
    group: str
    messages: int
    keys: int
    missing: int
    """Given ids that name no dead letter of this group: redriven or deleted before, or never one."""
    dry_run: bool


@frozen(kw_only=True)
class SoughtLane:
    """One lane of a `seek`."""

    key: str
    before: int
    """Its earlier watermark."""
    after: int
    """Its new watermark. The next message has the offset above it."""


@frozen(kw_only=True)
class Sought:
    """What `seek` moved."""

    topic: str
    group: str
    key: str | None
    """The one lane; None: all lanes."""
    to: str
    """The target, as text: `earliest`, `latest`, an instant in UTC or an offset."""
    lanes: int
    """Lanes that were set."""
    again: int
    """Settled messages that will be delivered again."""
    passed: int
    """Unsettled messages that will not be delivered to this group."""
    clamped: int
    """Lanes whose target is below the floor (collected) or above the head: they were set to the nearest offset."""
    moved: tuple[SoughtLane, ...] = field(repr=False)
    """The lanes whose watermark changed, at most 1,000 of them, in key order."""
    dry_run: bool


@frozen(kw_only=True)
class AuditInfo:
    """What one transaction of a method did. A call that takes several has an entry for each."""

    at: datetime
    call: str
    """The same for all entries of a call."""
    verb: str
    """The name of the method of `Admin`, such as `skip`."""
    topic: str | None
    group: str | None
    key: str | None
    choice: str
    """What was chosen besides names, such as `offset 7` or `to latest`."""
    messages: int
    """Messages that it skipped, deleted or redrove."""
    by: str
    """Who did it, as the caller said: `Admin.acting`, or the login name of the user of the command line."""
    reason: str
    account: str
    """The account at the server."""
    process: str
    """Machine and process id, as `host:pid`."""


@frozen(kw_only=True)
class Paused:
    """What `pause` paused."""

    topic: str
    group: str
    key: str | None
    """The one lane; None: the whole group."""
    changed: bool
    """False: it was paused already; `paused_at`, `by` and `reason` are those of the earlier pause."""
    paused_at: datetime
    by: str
    reason: str
    lag: int
    """Messages that wait until it is resumed."""
    dry_run: bool


@frozen(kw_only=True)
class Resumed:
    """What `resume` ended."""

    topic: str
    group: str
    key: str | None
    changed: bool
    """False: it was not paused."""
    paused_at: datetime | None
    """Since when it had been paused; None: it was not."""
    by: str
    reason: str
    dry_run: bool


@frozen(kw_only=True)
class OpenLanes:
    """What `set_open_lanes` changed."""

    topic: str
    before: int
    """The earlier number of open lanes."""
    lanes: int
    """The new number of open lanes."""
    changed: bool
    """False: the number was the same."""
    dry_run: bool


@frozen(kw_only=True)
class Skipped:
    """What `skip` settled for one group."""

    topic: str
    group: str
    key: str
    offset: int
    id: str | None
    """The message's id; None: the log does not hold this offset any more."""
    changed: bool
    """False: it was settled for this group already."""
    state: MessageState
    """Its state before."""
    attempts: int
    """Attempts that had started."""
    reason: str
    owner: str | None
    """The owner that was fenced; None: the lane had none, or nothing was changed."""
    dry_run: bool


@frozen(kw_only=True)
class Retried:
    """What `retry` made due."""

    topic: str
    group: str
    key: str
    changed: bool
    """False: nothing waited there for its next attempt."""
    offsets: tuple[int, ...]
    """The messages that wait no longer, in order."""
    messages: int
    """How many they are."""
    owner: str | None
    """The owner that lost the lane, or None. It may take the lane again."""
    dry_run: bool


@frozen(kw_only=True)
class Released:
    """What `release` took away."""

    topic: str
    group: str
    key: str
    changed: bool
    """False: the lane had no owner."""
    owner: str | None
    """The owner that lost the lane."""
    owner_state: OwnerState | None
    epoch: int
    """The new epoch of the lease. Writes under a smaller one are refused."""
    others: tuple[str, ...]
    """Keys of the other lanes that the owner lost, too: all that it had, if it has long given no sign of life."""
    dry_run: bool


@frozen(kw_only=True)
class GroupDeleted:
    """What `delete_group` deleted, and what collection may delete because of it."""

    topic: str
    group: str
    lanes: int
    """Lanes in which it had a row."""
    lag: int
    """Messages that it had not settled and will not get any more."""
    members: int
    """Members that were alive. Their subscriptions become `failed`."""
    collectable: int
    """Messages that only this group held back.

    Collection deletes them once they are older than the retention of the other
    groups. 0 when no group is left: then nothing is collected.
    """
    groups_left: tuple[str, ...]
    dry_run: bool


@frozen(kw_only=True)
class Purged:
    """What `purge` deleted."""

    topic: str
    before: datetime | int
    """The instant, or the offset in every lane."""
    messages: int
    """Messages deleted."""
    lanes: int
    """Lanes they were in."""
    unsettled: Mapping[str, int]
    """By group: messages among them that it had not settled and does not get any more."""
    remaining: int
    """Messages that should be deleted and are still there, because their lane's floor was locked; call again."""
    dry_run: bool


@frozen(kw_only=True)
class TopicDeleted:
    """What `delete_topic` deleted."""

    topic: str
    lanes: int
    messages: int
    scheduled: int
    """Messages that were not due yet."""
    groups: tuple[str, ...]
    """Groups that were registered for it."""
    unsettled: Mapping[str, int]
    """By group: messages that it had not settled."""
    dead_letter_topics: tuple[str, ...]
    """Its dead letter topics. They stay; delete them by their own names."""
    schedules: tuple[str, ...]
    """Schedules that publish to it. They stay, and create its lanes again; remove them by their own names."""
    dry_run: bool


@frozen(kw_only=True)
class SchedulePaused:
    """What `pause_schedule` paused."""

    name: str
    changed: bool
    """False: it was paused already; `paused_at`, `by` and `reason` are those of the earlier pause."""
    paused_at: datetime
    by: str
    reason: str
    next_fire_at: datetime
    """The time at which it would fire next."""
    dry_run: bool


@frozen(kw_only=True)
class ScheduleResumed:
    """What `resume_schedule` ended."""

    name: str
    changed: bool
    """False: it was not paused."""
    paused_at: datetime | None
    """Since when it had been paused; None: it was not."""
    by: str
    reason: str
    next_fire_at: datetime
    """When it fires next. Times during the pause are skipped."""
    dry_run: bool


@frozen(kw_only=True)
class ScheduleRun:
    """What `run_schedule` published."""

    name: str
    topic: str
    key: str
    id: str
    """The message's id: the schedule's name, `@run-` and the token."""
    offset: int | None
    """Its offset in the lane. None: it would be published, and this is a dry run."""
    changed: bool
    """False: a call with the same token has published it before."""
    next_fire_at: datetime | None
    """When the schedule fires next. The run does not move it. None: it is paused."""
    dry_run: bool


@frozen(kw_only=True)
class ScheduleRemoved:
    """What `remove_schedule` removed. The messages that it published stay."""

    name: str
    topic: str
    key: str
    fired: int
    """Messages that it had published."""
    dry_run: bool


@frozen(kw_only=True)
class Maintained:
    """What one round of `maintain` did."""

    topics: tuple[str, ...]
    """Topics that the round was for."""
    mended: int
    """Contradictions between the tables that were repaired."""
    appended: int
    """Delayed messages that were due and are in the log now."""
    expired: int
    """Messages that expired for a group without members: settled, and dead letters if the group keeps any."""
    collected: int
    """Messages deleted that every group had settled."""
    dead_letters: int
    """Dead letters deleted: redriven, deleted or older than their retention."""
    lanes_purged: int
    """Drained and idle lanes removed."""
    fired: int
    """Messages published for schedules that were due."""
    history: int
    """History rows older than their retention that were deleted."""
    heartbeats: int
    """Heartbeat rows deleted, of members that left or fell silent at least ten minutes ago."""
    failed: Mapping[str, str]
    """By topic: the error that ended the work on it; the other topics are done.

    Schedules have the key `(schedules)`.
    """


@frozen(kw_only=True)
class Finding:
    """One check of `doctor`."""

    check: str
    """The name of the check: `reachable`, `version`, `clock`, …"""
    status: str
    """`ok`, `warning` or `error`."""
    detail: str
    """What it found, in one line."""
    remedy: str
    """What to do about it, in one line; empty if the status is `ok`."""
