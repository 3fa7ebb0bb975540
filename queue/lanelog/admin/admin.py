"""The one `Admin` of a client: what administration can do, its names and its documentation.

`Admin` is a facade without state; each method calls the room that does the work. Rooms that only some callers need are
imported when they are needed: completion in a shell looks at names alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import define, field

from lanelog.admin.dead_letters import listing
from lanelog.admin.lookup import completion
from lanelog.admin.lookup.arguments import decided, limit_of
from lanelog.admin.read import heads, lanes, messages, topics
from lanelog.admin.schedules import scheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import datetime

    from lanelog._checks import Duration
    from lanelog._database import Database
    from lanelog._engine.contradictions import Contradiction
    from lanelog.admin.operate.status import Status
    from lanelog.admin.types.messages import (
        DeadLetterInfo,
        DeadLetterReason,
        HistoryInfo,
        MessageInfo,
        ScheduledInfo,
    )
    from lanelog.admin.types.results import (
        Deleted,
        Finding,
        GroupDeleted,
        Maintained,
        OpenLanes,
        Paused,
        Purged,
        Redriven,
        Released,
        Resumed,
        SchedulePaused,
        ScheduleRemoved,
        ScheduleResumed,
        Skipped,
        Sought,
        TopicDeleted,
    )
    from lanelog.admin.types.topology import (
        GroupInfo,
        LaneInfo,
        LeaseInfo,
        MemberInfo,
        OffsetInfo,
        ScheduleInfo,
        TopicInfo,
    )


@define(eq=False, repr=False)
class Admin:
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
        from lanelog.admin.operate import status

        return status.status(self._database, topics, since)

    def lag(self, topic: str | None = None, group: str | None = None) -> list[GroupInfo]:
        """How far behind the groups are: of all topics, of one, or one group alone; as `groups`. Locks nothing."""
        return topics.lag(self._database, topic, group)

    def tail(
        self, topic: str, key: str | None = None, *, lines: int = 10, follow: bool = False, interval: Duration = 0.5
    ) -> Iterator[MessageInfo]:
        """The last `lines` (0 to 10,000) messages of a lane, and with `follow` what is published from then on.

        Without `key`: what is published to the whole topic from now on (needs `follow`), over its first 10,000 lanes,
        each in its own order. `interval`: seconds between looks, 0.1 or more. With `follow` the iterator waits for
        ever; leave the loop to end it. Settles nothing, and locks nothing.
        """
        from lanelog.admin.read import tail

        return tail.tail(self._database, topic, key, lines=lines, follow=follow, interval=interval)

    def topics(self, limit: int = 1000) -> list[TopicInfo]:
        """The topics, in order of their names, at most `limit` (1 to 10,000). Locks nothing."""
        return topics.topics(self._database, limit)

    def topic(self, topic: str) -> TopicInfo:
        """One topic: its lanes, what they hold, its dead letters and groups. Locks nothing."""
        return topics.topic(self._database, topic)

    def heads(self, topic: str, *, limit: int = 10_000) -> dict[str, int]:
        """The highest offset published in each lane, by key, at most `limit` (1 to 10,000) of them. Locks nothing."""
        return heads.heads(self._database, topic, limit)

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
        return topics.groups(self._database, topic)

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        """The subscribers of a group that have a heartbeat row, the stopped ones too, by name. Locks nothing."""
        return topics.members(self._database, topic, group)

    def lanes(
        self, topic: str, group: str, *, order_by: Literal["age", "lag", "key"] = "age", limit: int = 100
    ) -> list[LaneInfo]:
        """The lanes of a topic as a group sees them, at most `limit` (1 to 10,000). Locks nothing.

        `order_by`: "age" (the oldest unsettled message first), "lag" (the most unsettled messages first) or "key". By
        age, 500 lanes are compared, or `limit` if that is more: those in which nothing was settled for longest.
        """
        return lanes.lanes(self._database, topic, group, order_by=order_by, limit=limit)

    def offsets(
        self, topic: str, group: str | None = None, key: str | None = None, limit: int = 100
    ) -> list[OffsetInfo]:
        """Watermarks by key and group, at most `limit` (1 to 10,000), of one group or key if given. Locks nothing."""
        return lanes.offsets(self._database, topic, group, key, limit)

    def leases(
        self, topic: str | None = None, group: str | None = None, *, stale: bool = False, limit: int = 100
    ) -> list[LeaseInfo]:
        """Leases by topic, group and key, at most `limit` (1 to 10,000). Locks nothing.

        `stale`: only those in the name of an owner that is dead, expired, stopped or missing.
        """
        return lanes.list_leases(self._database, topic, group, stale=stale, limit=limit)

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
        return messages.message(self._database, topic, key, message_id=id, offset=offset)

    def messages(self, topic: str, key: str, *, from_offset: int | None = None, limit: int = 100) -> list[MessageInfo]:
        """Messages of a lane in offset order from `from_offset` (None: the oldest there is), without group states.

        At most `limit` (1 to 10,000), and fewer when their payloads exceed 16 MiB, but one at least if there is one; go
        on from the last one's offset + 1 until the answer is empty. Locks nothing.
        """
        return messages.messages(self._database, topic, key, from_offset=from_offset, limit=limit)

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
        from lanelog.admin.read import history

        return history.history(
            self._database, topic, group, key=key, id=id, outcome=outcome, since=since, until=until, limit=limit
        )

    def scheduled(self, topic: str, key: str | None = None, limit: int = 100) -> list[ScheduledInfo]:
        """Messages that are not due yet, of one key if given, by key and id, at most `limit` (1 to 10,000).

        Locks nothing. One that is due, but not in the log yet, is among them.
        """
        return scheduled.list_scheduled(self._database, topic, key, limit)

    def open_lanes(self, topic: str) -> int:
        """Over how many open lanes a topic's messages without a key are spread. Locks nothing."""
        from lanelog.admin.lookup import open_lanes

        return open_lanes.open_lanes(self._database, topic)

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
        from lanelog.admin.change import seek

        return seek.seek(self._database, topic, group, key=key, to=to, dry_run=decided(dry_run))

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
        from lanelog.admin.lookup import open_lanes

        return open_lanes.set_open_lanes(self._database, topic, lanes, dry_run=dry_run)

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
        return scheduled.cancel(self._database, topic, key, id, dry_run=dry_run)

    # -- dead letters --------------------------------------------------------------------------------------------------

    def dead_letters(self, topic: str, group: str | None = None, *, limit: int = 100) -> list[DeadLetterInfo]:
        """Dead letters of a topic, of one group if given, by key and offset, at most `limit` (1 to 10,000).

        `topic` is the original topic or a dead letter topic's own name. Those redriven or deleted are left out. Locks
        nothing.
        """
        return listing.dead_letters(self._database, topic, group, limit=limit)

    def dead_letter_reasons(self, topic: str, group: str | None = None) -> list[DeadLetterReason]:
        """The same dead letters counted by group and reason (the first line of the error), the most frequent first.

        Reads every dead letter of the topic, but no payload; at most 1,000 reasons. Locks nothing.
        """
        return listing.dead_letter_reasons(self._database, topic, group)

    def redrive(
        self,
        topic: str,
        group: str,
        *,
        ids: Collection[str] | None = None,
        reason: str | None = None,
        all: bool = False,  # noqa: A002 - reads as it should: redrive(…, all=True)
        rate: float | None = None,
        delay: Duration = 0.0,
        ttl: Duration | None = None,
        max_deliveries: int | None = None,
        to_topic: str | None = None,
        dry_run: bool,
    ) -> Redriven:
        """Put a group's dead letters back into their original topic, for this group only and in per-key order.

        Exactly one choice: `ids` (of the dead letters, see `DeadLetterInfo.id`, or of their original messages),
        `reason` (see `DeadLetterInfo.reason`) or `all`. `rate`: at most so many messages a second. `delay`: for how
        long they wait first, outside the log, as delayed messages do. `ttl`: for how long they may be delivered, from
        now or from when they are due (None: for ever, whatever the original's was). `max_deliveries`: how often each
        may be delivered, if that is less than the subscription's own. `to_topic`: another topic than the original, for
        all of its groups unless this group is registered there, and then for it alone.
        The copies have ids of their own, keep `published_at`, and the first id as metadata `lanelog.original_id`; one
        that fails again is dead-lettered again.

        Each dead letter is settled in the transaction that writes its copy, so that repeating the call, also after a
        lost connection, adds nothing. Locks the heads of the lanes it writes to; a lane that somebody holds is left for
        later, see `Redriven.remaining`.
        """
        from lanelog.admin.dead_letters import redrive

        return redrive.redrive(
            self._database,
            topic,
            group,
            ids=ids,
            reason=reason,
            everything=all,
            rate=rate,
            delay=delay,
            ttl=ttl,
            max_deliveries=max_deliveries,
            to_topic=to_topic,
            dry_run=decided(dry_run),
            ensure_lanes=self._ensure_lanes,
            published=self._published,
            wake_scheduler=self._delayed,
        )

    def delete_dead_letters(
        self,
        topic: str,
        group: str,
        *,
        ids: Collection[str] | None = None,
        reason: str | None = None,
        all: bool = False,  # noqa: A002 - as redrive
        dry_run: bool,
    ) -> Deleted:
        """Settle a group's dead letters for ever; the choice as in `redrive`. Their rows leave with collection."""
        from lanelog.admin.dead_letters import delete

        return delete.delete_dead_letters(
            self._database, topic, group, ids=ids, reason=reason, everything=all, dry_run=decided(dry_run)
        )

    # -- schedules -----------------------------------------------------------------------------------------------------

    def schedules(self, limit: int = 1000) -> list[ScheduleInfo]:
        """The schedules in order of their names, at most `limit` (1 to 10,000). Locks nothing."""
        from lanelog.admin.schedules import schedules

        return schedules.list_schedules(self._database, limit)

    def preview_schedule(
        self, expression: str, *, timezone: str = "UTC", count: int = 10, after: datetime | None = None
    ) -> list[datetime]:
        """When a cron expression would fire: the next `count` times (1 to 1,000), aware, in that time zone.

        Later than `after`, an aware datetime; None: than the database's clock says it is. Fewer where there are no more
        within fifty years. Raises ConfigurationError for a bad expression, an unknown zone, and what never fires.
        """
        from lanelog.admin.schedules import schedules

        return schedules.preview(self._database, expression, timezone=timezone, count=count, after=after)

    def pause_schedule(self, name: str, *, by: str = "", reason: str = "", dry_run: bool = False) -> SchedulePaused:
        """Let a schedule publish nothing more until `resume_schedule`, in whatever process.

        Declaring it again does not end the pause. `by` and `reason` are shown by `schedules()`; at most 255 and 1,024
        characters. Waits for a transaction that is publishing for it just now.
        """
        from lanelog.admin.schedules import schedules

        return schedules.pause(self._database, name, by=by, reason=reason, dry_run=dry_run)

    def resume_schedule(self, name: str, *, dry_run: bool = False) -> ScheduleResumed:
        """Take a pause back. What would have been published meanwhile is skipped, whatever `catch_up` says."""
        from lanelog.admin.schedules import schedules

        return schedules.resume(self._database, name, dry_run=dry_run)

    def remove_schedule(self, name: str, *, dry_run: bool = False) -> ScheduleRemoved:
        """Remove a schedule; what it published stays. A process that declares it makes it anew."""
        from lanelog.admin.schedules import schedules

        return schedules.remove(self._database, name, dry_run=dry_run)

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
        from lanelog.admin.operate import maintain

        return maintain.maintain(
            self._database, topics=topics, ensure_lanes=self._ensure_lanes, published=self._published
        )

    def contradictions(self, *, limit: int = 100, heads: int | None = None) -> list[Contradiction]:
        """Lanes whose tables cannot all be true, as after a restore of one table; `doctor` finds some more.

        Running subscribers' clients mend them within their `lease_duration`, `doctor(repair=True)` at once. At most
        `limit` of them, 1 to 10000. Whether a head is behind its log costs a read from the disk for each lane: with
        `heads`, that is asked of so many lanes of each topic only.
        """
        from lanelog.admin.operate import repair

        return repair.listed(self._database, limit_of(limit), heads=heads)

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        """Examine server, settings, privileges and tables; one finding for each check, with its remedy.

        Changes nothing unless `repair`: then lanes whose tables contradict each other are mended first. What is lost
        stays lost; what is there is delivered, some of it perhaps again.
        """
        from lanelog.admin.operate import doctor

        return doctor.doctor(self._database, repair=repair)
