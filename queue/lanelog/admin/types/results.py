"""The values that administration returns when it changes something, or with `dry_run` would have changed it.

Owns their fields and units; no SQL, no behaviour. Made by the changing rooms of this package and by `doctor`, read by
applications and the command line; import them from `lanelog.admin`. Units as in `topology`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lanelog.admin.types.topology import MessageState, OwnerState


@frozen(kw_only=True)
class Redriven:
    """What `redrive` put back."""

    topic: str
    """The dead letters' original topic."""
    group: str
    to_topic: str
    """Where they went: the original topic, unless another was given."""
    messages: int
    """Dead letters that are messages again."""
    keys: int
    """Keys among them."""
    missing: int
    """Given ids that are no dead letter of this group (any more): redriven or deleted before, or never there."""
    remaining: int
    """Chosen dead letters that are still there, because the call ended early; call again."""
    delay: float
    """Seconds for which they wait before they are delivered."""
    dry_run: bool


@frozen(kw_only=True)
class Deleted:
    """What `delete_dead_letters` settled; the rows leave with the next collection."""

    topic: str
    group: str
    messages: int
    keys: int
    missing: int
    """Given ids that are no dead letter of this group (any more)."""
    dry_run: bool


@frozen(kw_only=True)
class SoughtLane:
    """One lane of a `seek`."""

    key: str
    before: int
    """Its watermark before."""
    after: int
    """Its watermark now: the next message is the one behind it."""


@frozen(kw_only=True)
class Sought:
    """What `seek` moved."""

    topic: str
    group: str
    key: str | None
    """None: all lanes."""
    to: str
    """The target, as text: `earliest`, `latest`, an instant in UTC or an offset."""
    lanes: int
    """Lanes that were set."""
    again: int
    """Settled messages that will be delivered again."""
    passed: int
    """Unsettled messages that will not be delivered to this group."""
    clamped: int
    """Lanes whose target was not there, below the floor (collected) or beyond the head: set to the nearest place."""
    moved: tuple[SoughtLane, ...] = field(repr=False)
    """The lanes whose watermark changed, at most 1,000 of them, in key order."""
    dry_run: bool


@frozen(kw_only=True)
class Paused:
    """What `pause` paused."""

    topic: str
    group: str
    key: str | None
    """None: the whole group."""
    changed: bool
    """False: it was paused already (by, reason and since when are the old ones')."""
    paused_at: datetime
    by: str
    reason: str
    lag: int
    """Messages that wait until it is resumed."""
    dry_run: bool


@frozen(kw_only=True)
class Resumed:
    """What `resume` set going again."""

    topic: str
    group: str
    key: str | None
    changed: bool
    """False: it was not paused."""
    paused_at: datetime | None
    """Since when it had been paused."""
    by: str
    reason: str
    dry_run: bool


@frozen(kw_only=True)
class OpenLanes:
    """What `set_open_lanes` changed."""

    topic: str
    before: int
    """How many open lanes the topic had."""
    lanes: int
    """How many it has now."""
    changed: bool
    """False: it had as many."""
    dry_run: bool


@frozen(kw_only=True)
class Skipped:
    """What `skip` settled for one group."""

    topic: str
    group: str
    key: str
    offset: int
    id: str | None
    """The message's id; None: there is no message at this offset any more."""
    changed: bool
    """False: it was settled for this group already."""
    state: MessageState
    """What it was before."""
    attempts: int
    """Attempts started before."""
    reason: str
    owner: str | None
    """Whose lease was fenced off; None: nobody had the lane."""
    dry_run: bool


@frozen(kw_only=True)
class Released:
    """What `release` took away."""

    topic: str
    group: str
    key: str
    changed: bool
    """False: nobody had the lane."""
    owner: str | None
    """Who had it."""
    owner_state: OwnerState | None
    epoch: int
    """The new fencing token: everything written under a smaller one is refused."""
    dry_run: bool


@frozen(kw_only=True)
class GroupDeleted:
    """What `delete_group` removed, and what collection may delete because of it."""

    topic: str
    group: str
    lanes: int
    """Lanes in which it had a place."""
    lag: int
    """Messages that it had not settled and will not get any more."""
    members: int
    """Subscribers that were alive: their subscriptions become `failed`."""
    collectable: int
    """Messages that only this group held back and that collection will delete, once they are older than the retention
    of the groups that are left; 0 when no group is left, because then nothing is collected."""
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
    """Per group: messages among them that it had not settled and will not get any more."""
    remaining: int
    """Messages that are older and still there, because somebody held their lane; call again."""
    dry_run: bool


@frozen(kw_only=True)
class TopicDeleted:
    """What `delete_topic` removed."""

    topic: str
    lanes: int
    messages: int
    scheduled: int
    """Messages that were not due yet."""
    groups: tuple[str, ...]
    """Groups that were registered for it and are gone."""
    unsettled: Mapping[str, int]
    """Per group: messages that it had not settled."""
    dead_letter_topics: tuple[str, ...]
    """Its dead letter topics, which stay; delete them by their own names."""
    schedules: tuple[str, ...]
    """Schedules that publish to it, which stay and make it anew; remove them by their own names."""
    dry_run: bool


@frozen(kw_only=True)
class SchedulePaused:
    """What `pause_schedule` paused."""

    name: str
    changed: bool
    """False: it was paused already (by, reason and since when are the old ones')."""
    paused_at: datetime
    by: str
    reason: str
    next_fire_at: datetime
    """The time that would have been next."""
    dry_run: bool


@frozen(kw_only=True)
class ScheduleResumed:
    """What `resume_schedule` set going again."""

    name: str
    changed: bool
    """False: it was not paused."""
    paused_at: datetime | None
    """Since when it had been paused."""
    by: str
    reason: str
    next_fire_at: datetime
    """When it fires next; what it would have fired while it was paused is skipped."""
    dry_run: bool


@frozen(kw_only=True)
class ScheduleRemoved:
    """What `remove_schedule` removed; the messages it published stay."""

    name: str
    topic: str
    key: str
    fired: int
    """Messages it had published."""
    dry_run: bool


@frozen(kw_only=True)
class Maintained:
    """What `maintain` cleared up."""

    topics: tuple[str, ...]
    """Topics that were looked at."""
    mended: int
    """Contradictions between the tables that were mended."""
    appended: int
    """Delayed messages that were due and are in the log now."""
    expired: int
    """Messages that had expired where nobody consumes, and are dead letters now."""
    collected: int
    """Messages deleted that every group was past."""
    dead_letters: int
    """Dead letters deleted: redriven, deleted or past their retention."""
    lanes_purged: int
    """Drained lanes removed."""
    fired: int
    """Messages published for schedules that were due."""
    history: int
    """History rows past their retention that were deleted."""
    heartbeats: int
    """Heartbeat rows of subscribers long gone that were deleted."""
    failed: Mapping[str, str]
    """Per topic: the error that ended its turn; the others were done."""


@frozen(kw_only=True)
class Finding:
    """One check of `doctor`."""

    check: str
    """What was looked at: `reachable`, `version`, `clock`."""
    status: str
    """`ok`, `warning` or `error`."""
    detail: str
    """What was found, one line."""
    remedy: str
    """What to do about it, one line; empty when it is ok."""
