"""Administration: look into the log and steer it, without writing SQL. `client.admin` is the one `Admin` of a client.

`Admin` is a facade without state: its methods have the public names and documentation, the rooms of this package do the
work and are the only place with these queries. `status`, `tail`, `topics`, `lanes`, `messages` and `listing` look;
`redrive`, `scheduled`, `delete`, `seek`, `pause_and_skip`, `purge_messages`, `delete` and `maintain` change; `doctor`
examines the server.

**Looking** never locks, walks no backlog, and every list has a limit. What one answer says of one lane belongs together
(one statement, or one snapshot); a list of lanes of a busy topic is true lane by lane, and a moment old.

**Changing** is one transaction for every step that must hold together, fenced by the lane's epoch, repeated after
errors that may pass, and harmless to repeat. Every verb returns what it changed; with `dry_run=True` it returns what it
would change and changes nothing. What destroys or delivers again takes `dry_run` without a default: the caller decides.

Every method raises ConfigurationError for a topic, group or key that does not exist (naming what is there) and for
malformed arguments, before anything is changed; DatabaseError when the database does not answer or privileges are
missing; SchemaError when the tables are missing; ClosedError when the client was closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import define, field

from lanelog.admin.dead_letters.verbs import Letters
from lanelog.admin.lookup import completion
from lanelog.admin.lookup.arguments import decided, limit_of
from lanelog.admin.read import heads as _heads
from lanelog.admin.read import lanes as _lanes
from lanelog.admin.read import messages as _messages
from lanelog.admin.read import topics as _topics
from lanelog.admin.schedules import scheduled as _scheduled
from lanelog.admin.schedules.verbs import Recurring
from lanelog.admin.views import (
    Contradiction,
    DeadLetterInfo,
    DeadLetterReason,
    Deleted,
    Finding,
    GroupDeleted,
    GroupInfo,
    GroupState,
    HistoryInfo,
    LaneInfo,
    LeaseInfo,
    Maintained,
    MemberInfo,
    MessageInfo,
    MessageState,
    OffsetInfo,
    OpenLanes,
    OwnerState,
    Paused,
    Problem,
    Purged,
    Rank,
    Redriven,
    Released,
    Resumed,
    ScheduledInfo,
    ScheduleInfo,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    Skipped,
    Sought,
    SoughtLane,
    Status,
    TopicDeleted,
    TopicInfo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import datetime

    from lanelog._checks import Duration
    from lanelog._database import Database

__all__ = [
    "Admin",
    "Contradiction",
    "DeadLetterInfo",
    "DeadLetterReason",
    "Deleted",
    "Finding",
    "GroupDeleted",
    "GroupInfo",
    "GroupState",
    "HistoryInfo",
    "LaneInfo",
    "LeaseInfo",
    "Maintained",
    "MemberInfo",
    "MessageInfo",
    "MessageState",
    "OffsetInfo",
    "OpenLanes",
    "OwnerState",
    "Paused",
    "Problem",
    "Purged",
    "Rank",
    "Redriven",
    "Released",
    "Resumed",
    "ScheduleInfo",
    "SchedulePaused",
    "ScheduleRemoved",
    "ScheduleResumed",
    "ScheduledInfo",
    "Skipped",
    "Sought",
    "SoughtLane",
    "Status",
    "TopicDeleted",
    "TopicInfo",
]


@define(eq=False, repr=False)
class Admin(Letters, Recurring):
    """Administration of one database; get it as `client.admin`. Thread-safe, holds no connection of its own."""

    _database: Database
    _ensure_lanes: Callable[[str, Sequence[str]], None] = field()
    """Creates the lanes of a topic that are missing; what is redriven may come back to a purged one."""
    _published: Callable[[str], None] = field()
    """Told the topic after a redrive, so that this process's own fetchers look at once."""
    _delayed: Callable[[], None] = field()
    """Told after a redrive with a delay, so that somebody in this process looks after it."""

    def __repr__(self) -> str:
        return f"<Admin of {self._database.config.safe_url()}>"

    # -- looking -------------------------------------------------------------------------------------------------------

    def status(self, topics: Collection[str] | None = None, *, since: Status | None = None) -> Status:
        """The ten-second view: what is wrong, the worst first, each with the command that mends it. Locks nothing.

        `topics`: only these; None: all. `since`: an earlier answer; where a lag has grown since then, its problem says
        by how much. What has lasted for less than 30 s, as after a restart, is no problem yet. Bounded however large
        the backlog is: of each lagging group the 100 lanes with the oldest messages are looked at.
        """
        from lanelog.admin.read import status as _status

        return _status.status(self, self._database, topics, since)

    def lag(self, topic: str | None = None, group: str | None = None) -> list[GroupInfo]:
        """How far behind the groups are: of all topics, of one, or one group alone; as `groups`. Locks nothing."""
        return _topics.lag(self._database, topic, group)

    def tail(
        self, topic: str, key: str | None = None, *, lines: int = 10, follow: bool = False, interval: Duration = 0.5
    ) -> Iterator[MessageInfo]:
        """The last `lines` (0 to 10,000) messages of a lane, and with `follow` what is published from then on.

        Without `key`: what is published to the whole topic from now on (needs `follow`), over its first 10,000 lanes,
        each in its own order. `interval`: seconds between looks, 0.1 or more. With `follow` the iterator waits for
        ever; leave the loop to end it. Settles nothing, and locks nothing.
        """
        from lanelog.admin.read import tail as _tail

        return _tail.tail(self, topic, key, lines=lines, follow=follow, interval=interval)

    def topics(self, limit: int = 1000) -> list[TopicInfo]:
        """The topics, in order of their names, at most `limit` (1 to 10,000). Locks nothing."""
        return _topics.topics(self._database, limit)

    def topic(self, topic: str) -> TopicInfo:
        """One topic: its lanes, what they hold, its dead letters and groups. Locks nothing."""
        return _topics.topic(self._database, topic)

    def heads(self, topic: str, *, limit: int = 10_000) -> dict[str, int]:
        """The highest offset published in each lane, by key, at most `limit` (1 to 10,000) of them. Locks nothing."""
        return _heads.heads(self._database, topic, limit)

    def now(self) -> datetime:
        """The database's clock, which every time that administration shows was taken from."""
        return completion.now(self._database)

    def topic_names(self, beginning: str = "", *, limit: int = 100) -> list[str]:
        """Names of topics that begin so, in their order, at most `limit` (1 to 10,000). Locks nothing."""
        return completion.topics(self._database, beginning, limit)

    def group_names(self, topic: str | None = None, beginning: str = "", *, limit: int = 100) -> list[str]:
        """Names of groups of a topic, or of all, that begin so, at most `limit` (1 to 10,000). Locks nothing."""
        return completion.groups(self._database, topic, beginning, limit)

    def key_names(self, topic: str, beginning: str = "", *, limit: int = 100) -> list[str]:
        """Keys of a topic's lanes that begin so, in their order, at most `limit` (1 to 10,000). Locks nothing."""
        return completion.keys(self._database, topic, beginning, limit)

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """The registered groups of a topic, or of all, by topic and name, at most 1,000; with exact lag. Locks nothing.

        Reads a few rows per lane of the topic and none of the backlog.
        """
        return _topics.groups(self._database, topic)

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        """The subscribers of a group that have a heartbeat row, the stopped ones too, by name. Locks nothing."""
        return _topics.members(self._database, topic, group)

    def lanes(
        self, topic: str, group: str, *, order_by: Literal["age", "lag", "key"] = "age", limit: int = 100
    ) -> list[LaneInfo]:
        """The lanes of a topic as a group sees them, at most `limit` (1 to 10,000). Locks nothing.

        `order_by`: "age" (the oldest unsettled message first), "lag" (the most unsettled messages first) or "key". By
        age, 500 lanes are compared, or `limit` if that is more: those in which nothing was settled for longest.
        """
        return _lanes.lanes(self._database, topic, group, order_by=order_by, limit=limit)

    def offsets(
        self, topic: str, group: str | None = None, key: str | None = None, limit: int = 100
    ) -> list[OffsetInfo]:
        """Watermarks by key and group, at most `limit` (1 to 10,000), of one group or key if given. Locks nothing."""
        return _lanes.offsets(self._database, topic, group, key, limit)

    def leases(
        self, topic: str | None = None, group: str | None = None, *, stale: bool = False, limit: int = 100
    ) -> list[LeaseInfo]:
        """Leases by topic, group and key, at most `limit` (1 to 10,000). Locks nothing.

        `stale`: only those in the name of an owner that is dead, expired, stopped or missing.
        """
        return _lanes.list_leases(self._database, topic, group, stale=stale, limit=limit)

    def message(
        self,
        topic: str,
        key: str,
        *,
        id: str | None = None,  # noqa: A002 - the field's name
        offset: int | None = None,
    ) -> MessageInfo | None:
        """One message by its id or its offset, with its state for every group; None when the log has none.

        Exactly one of `id` and `offset`. Locks nothing; everything it says was true at the same moment.
        """
        return _messages.message(self._database, topic, key, message_id=id, offset=offset)

    def messages(self, topic: str, key: str, *, from_offset: int | None = None, limit: int = 100) -> list[MessageInfo]:
        """Messages of a lane in offset order from `from_offset` (None: the oldest there is), without group states.

        At most `limit` (1 to 10,000), and fewer when their payloads exceed 16 MiB, but one at least if there is one; go
        on from the last one's offset + 1 until the answer is empty. Locks nothing.
        """
        return _messages.messages(self._database, topic, key, from_offset=from_offset, limit=limit)

    def history(
        self,
        topic: str,
        group: str,
        *,
        key: str | None = None,
        id: str | None = None,  # noqa: A002 - the field's name
        outcome: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[HistoryInfo]:
        """How messages left a group that subscribes with `history=True`, at most `limit` (1 to 10,000). Locks nothing.

        Without `key` the latest finished first; with it that lane by offset, the highest first. Only those with this
        `id`, this `outcome` (`success`, `rejected`, `failed`, `lock_expired`, `expired` or `skipped`), or finished at
        `since` or later and before `until` (aware datetimes). `id` and `outcome` have no index: without `key` or times
        they read all the history that the group has kept. Raises ConfigurationError, DatabaseError.
        """
        from lanelog.admin.read import history as _history

        return _history.history(
            self._database, topic, group, key=key, id=id, outcome=outcome, since=since, until=until, limit=limit
        )

    def scheduled(self, topic: str, key: str | None = None, limit: int = 100) -> list[ScheduledInfo]:
        """Messages that are not due yet, of one key if given, by key and id, at most `limit` (1 to 10,000).

        Locks nothing. One that is due, but not in the log yet, is among them.
        """
        return _scheduled.list_scheduled(self._database, topic, key, limit)

    def open_lanes(self, topic: str) -> int:
        """Over how many open lanes a topic's messages without a key are spread. Locks nothing."""
        from lanelog.admin.lookup import open_lanes as _open

        return _open.open_lanes(self._database, topic)

    # -- steering ------------------------------------------------------------------------------------------------------

    def seek(
        self, topic: str, group: str, *, key: str | None = None, to: str | datetime | int, dry_run: bool
    ) -> Sought:
        """Set where a group goes on, in one lane or in all: what was settled behind it is delivered again.

        `to`: "earliest" (the floor: the oldest messages there are), "latest" (the head), an aware datetime (the first
        message written then or later) or, with `key`, the offset of the next message; what lies below the floor or
        beyond the head becomes the nearest place (`Sought.clamped`). Lanes that come later begin at their floor, as
        always. Every attempt behind the new place is forgotten. Running workers lose the lane, take it again and go on
        from there by themselves; what their handlers had running is refused when it settles. Locks floor, lease,
        delivery rows and offset of a lane, a bounded number of lanes at a time.
        """
        from lanelog.admin.change import seek as _seek

        return _seek.seek(self._database, topic, group, key=key, to=to, dry_run=decided(dry_run))

    def pause(
        self,
        topic: str,
        group: str,
        *,
        key: str | None = None,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
    ) -> Paused:
        """Let a group, or one of its lanes, hand out nothing more until `resume`; in every process, within a second.

        Handlers that run finish and settle; idle lanes are given back, and taken by nobody until then. `by` and
        `reason` are shown by `groups()` and `lanes()`; at most 255 and 1,024 characters.
        """
        from lanelog.admin.change import pause_and_skip

        return pause_and_skip.pause(self._database, topic, group, key=key, by=by, reason=reason, dry_run=dry_run)

    def resume(self, topic: str, group: str, *, key: str | None = None, dry_run: bool = False) -> Resumed:
        """Take a pause back: of the group, or of one lane. Lanes paused one by one stay so when the group resumes."""
        from lanelog.admin.change import pause_and_skip

        return pause_and_skip.resume(self._database, topic, group, key=key, dry_run=dry_run)

    def skip(self, topic: str, group: str, key: str, offset: int, *, reason: str, dry_run: bool) -> Skipped:
        """Settle one message for one group without handling it; recorded in the history, the log keeps it for others.

        Fences the lane's owner, who may take it again: what it has in flight there counts an attempt, is refused when
        it settles, and is delivered again but for this message, also if that was the last attempt. It is no crash
        unless the owner is dead.
        """
        from lanelog.admin.change import pause_and_skip

        return pause_and_skip.skip(self._database, topic, group, key, offset, reason=reason, dry_run=decided(dry_run))

    def release(self, topic: str, group: str, key: str, *, dry_run: bool) -> Released:
        """Take a lane away from its owner by force; any member may take it then.

        An attempt that runs there now counts, is refused when it settles, and is delivered again, also if it was the
        last one. It is no crash unless the owner is dead.
        """
        from lanelog.admin.change import pause_and_skip

        return pause_and_skip.release(self._database, topic, group, key, dry_run=decided(dry_run))

    def set_open_lanes(self, topic: str, lanes: int, *, dry_run: bool = False) -> OpenLanes:
        """Spread a topic's messages without a key over so many open lanes (1 to 1,000; 64 unless changed).

        Publishers follow within ten seconds, and nothing that is published meanwhile is lost or out of turn. Of a
        smaller number, lanes that are too many are consumed until they are empty, and then purged like any idle lane.
        An id may belong to another lane afterwards: a message published before the change and again, with the same id,
        after it, may be stored twice. Locks the topic row. Raises SchemaError before version 3 of the tables.
        """
        from lanelog.admin.lookup import open_lanes as _open

        return _open.set_open_lanes(self._database, topic, lanes, dry_run=dry_run)

    def cancel_scheduled(
        self,
        topic: str,
        key: str | None,
        id: str,  # noqa: A002 - as message
        *,
        dry_run: bool = False,
    ) -> bool:
        """Take back a message that is not due yet; as `Client.cancel_scheduled`.

        True: it will not be delivered. False: there is none, or it was due and is in the log already.
        """
        from lanelog.admin.lookup import known

        known.read(self._database, known.known_topic, "looking for the topic", topic)
        return _scheduled.cancel(self._database, topic, key, id, dry_run=dry_run)

    # -- removing ------------------------------------------------------------------------------------------------------

    def delete_group(self, topic: str, group: str, *, dry_run: bool) -> GroupDeleted:
        """Forget a group and its place in every lane: collection waits for it no more.

        Subscriptions that still run fail; they do not register it again by themselves. Locks the topic row, the group
        and its rows.
        """
        from lanelog.admin.change import delete

        return delete.delete_group(self._database, topic, group, dry_run=decided(dry_run))

    def purge(self, topic: str, *, before: datetime | int, dry_run: bool) -> Purged:
        """Delete messages written before an aware datetime, whether or not every group has settled them.

        Or, in every lane, those with a smaller offset than `before`. Watermarks behind them are raised in the same
        fenced transaction. Bounded batches of lanes, one transaction each; a lane whose floor somebody holds is left
        after `publish_timeout`, see `Purged.remaining`.
        """
        from lanelog.admin.change import purge_messages

        return purge_messages.purge(self._database, topic, before=before, dry_run=decided(dry_run))

    def delete_topic(self, topic: str, *, dry_run: bool) -> TopicDeleted:
        """Delete a topic: its groups, lanes and messages. Its dead letter topics stay, and so do schedules.

        Refused while a member of one of its groups is alive. Offsets and fencing tokens go on above the old ones if it
        comes back; what is published meanwhile makes lanes again, and so does the next fire of a schedule that
        publishes to it (`TopicDeleted.schedules`). Bounded batches, one transaction each.
        """
        from lanelog.admin.change import delete

        return delete.delete_topic(self._database, topic, dry_run=decided(dry_run))

    # -- keeping -------------------------------------------------------------------------------------------------------

    def maintain(self, *, topics: Collection[str] | None = None) -> Maintained:
        """Do once what subscribers do all the time: collection, retention, purges; for topics that nobody consumes.

        What has expired there goes to the dead letters of each group that is not paused and has no living member.

        `topics`: only these; None: all. Safe beside running subscribers, and as often as wanted.
        """
        from lanelog.admin.operate import maintain as _maintain

        return _maintain.maintain(
            self._database, topics=topics, ensure_lanes=self._ensure_lanes, published=self._published
        )

    def contradictions(self, *, limit: int = 100, heads: int | None = None) -> list[Contradiction]:
        """Lanes whose tables cannot all be true, as after a restore of one table; `doctor` finds some more.

        Running subscribers' clients mend them within their `lease_duration`, `doctor(repair=True)` at once. At most
        `limit` of them, 1 to 10000. Whether a head is behind its log costs a read from the disk for each lane: with
        `heads`, that is asked of so many lanes of each topic only.
        """
        from lanelog.admin.operate import repair as _repair

        return _repair.listed(self._database, limit_of(limit), heads=heads)

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        """Examine server, settings, privileges and tables; one finding for each check, with its remedy.

        Changes nothing unless `repair`: then lanes whose tables contradict each other are mended first. What is lost
        stays lost; what is there is delivered, some of it perhaps again.
        """
        from lanelog.admin.operate import doctor as _doctor

        return _doctor.doctor(self._database, repair=repair)
