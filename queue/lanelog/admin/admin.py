"""The facade of administration: the names of its methods, and their documentation.

`Admin` holds no state of its own; each method calls the module that does the work. Modules that few methods need are
imported inside these methods: completion in a shell reads names alone, and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import define, evolve, field

from lanelog._base.places import GroupTopic, LaneId
from lanelog.admin.audit_entry import NOBODY, Act, Actor, Call
from lanelog.admin.dead_letters import listing
from lanelog.admin.lookup import completion
from lanelog.admin.lookup.arguments import decided, limit_of, unheard
from lanelog.admin.read import heads, members, messages
from lanelog.admin.schedules import scheduled
from lanelog.admin.totals import lanes, topics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import datetime

    from lanelog._base.checks import Duration
    from lanelog._database import Database
    from lanelog._log.append.appender import Appender
    from lanelog._log.repair import Contradiction
    from lanelog.admin.operate.figures import Figures, ServerFigures
    from lanelog.admin.operate.status import Status
    from lanelog.admin.types.messages import (
        DeadLetterCounts,
        DeadLetterInfo,
        DeadLetterPage,
        DeadLetterReason,
        HistoryInfo,
        MessageInfo,
        ScheduledInfo,
    )
    from lanelog.admin.types.results import (
        AuditInfo,
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
        Retried,
        SchedulePaused,
        ScheduleRemoved,
        ScheduleResumed,
        ScheduleRun,
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
    """Administration of one database. Get it as `client.admin`. Thread-safe; it holds no connection of its own.

    Methods that read take no locks. Methods that change say what they lock. In every list `limit` is 1 to 10,000.
    `dry_run=True` returns what a call would change, and changes nothing.

    Every method raises these errors; the methods list only what is special to them:

    * ConfigurationError: an argument is malformed, or a topic, group, lane or schedule does not exist. The message
      suggests names that exist. Nothing was changed then, except where `delete_topic` says so.
    * DatabaseError: the database does not answer for `publish_timeout` seconds, or the account lacks a privilege.
    * SchemaError: the tables are missing, or too old for the method.
    * ClosedError: the client was closed.

    Example:
        See what is wrong, then bring back the dead letters of one group::

            for problem in client.admin.status().problems:
                print(*problem.lines(), sep="; ")
            planned = client.admin.redrive("orders", "billing", all=True, dry_run=True)
            print(planned.messages, "dead letters would go back")
            client.admin.redrive("orders", "billing", all=True, rate=50, dry_run=False)
    """

    _database: Database
    _appender: Appender = field()
    _delayed: Callable[[], None] = field()
    """Called after a redrive with a delay, so that this process runs a scheduler."""
    _actor: Actor = field(default=NOBODY, kw_only=True)

    def __repr__(self) -> str:
        return f"<Admin of {self._database.config.safe_url()}>"

    # -- reading -------------------------------------------------------------------------------------------------------

    def status(self, topics: Collection[str] | None = None, *, since: Status | None = None) -> Status:
        """Find what is wrong, the worst first, each with a command that repairs it or shows more.

        The cost is bounded, however large the backlog is. Of each lagging group, the 100 lanes with the oldest messages
        are read. At most 1,000 topics and 1,000 groups are; the answer counts those that were left out. Dead letters
        are read for their reasons in 100 topics; of others, only their number is.

        A state that may pass by itself is no problem at first. A failing lane, and a lane or group without a living
        member, become one after 30 seconds. A running attempt and a backlog become one after 60 seconds, an archive or
        replay that no process runs after a day. Pauses, dead letters and contradictions between tables are shown at
        once.

        Where one key has at least half of the lag of a group that is behind, the problem names it, and says how many
        messages a second come in and go out. For that, this reads twice, two seconds apart, or compares with `since`.

        Args:
            topics: Read only these topics. None: at all, up to 1,000.
            since: An earlier answer. Where a lag has grown since then, its problem says by how many messages a second.

        Returns:
            The problems, and sums over the topics and groups that were read.
        """
        from lanelog.admin.operate import status

        return status.status(self._database, topics, since)

    def figures(self) -> Figures:
        """Return the figures of the log for a monitor, which judges them itself. `lanelog metrics` serves them.

        The cost is bounded as that of `status` is.

        Returns:
            Topics, groups, delayed messages, and what the server says of itself. What the account may not see, such as
            open transactions without the privilege PROCESS, is None.
        """
        from lanelog.admin.operate import figures

        return figures.figures(self._database)

    def server(self) -> ServerFigures:
        """Return what the server says of itself: open transactions, history, sizes of the tables. Reads no lanes.

        What the account may not see is None, or missing.
        """
        from lanelog.admin.operate import figures

        return figures.server_figures(self._database)

    def audit(self, topic: str | None = None, *, limit: int = 100) -> list[AuditInfo]:
        """Return what the methods that change something did, the last first: one entry for each of their transactions.

        Entries stay for a year at least. Tables of a version before 5 keep none: the list is empty then.

        Args:
            topic: Only what was done to this topic. None: all, also topics that are gone.
            limit: The most entries.
        """
        from lanelog.admin.read import audit

        return audit.audit(self._database, topic, limit)

    def lag(self, topic: str | None = None, group: str | None = None) -> list[GroupInfo]:
        """Return how far behind the groups are, as `groups` does. Refuse a group that is not registered.

        Args:
            topic: Only groups of this topic. None: of all topics.
            group: Only groups of this name. None: all.
        """
        return topics.lag(self._database, topic, group)

    def tail(
        self,
        topic: str,
        key: str | None = None,
        *,
        lines: int | None = None,
        follow: bool = False,
        interval: Duration = 0.5,
    ) -> Iterator[MessageInfo]:
        """Yield the last messages of a lane or of a topic, and with `follow` the messages published from then on.

        It settles nothing and registers no group. Topic and key are checked at the call, before the first message.

        Args:
            topic: The topic.
            key: The key of one lane. None: the first 10,000 lanes of the topic. Existing messages come in the
                order of insertion, new ones in the order of their lane.
            lines: How many messages from the end to begin with, 0 to 10,000. None: 10; but 0 without a key and with
                `follow`.
            follow: Wait for new messages, without end. Leave the loop to stop.
            interval: Seconds between two polls, at least 0.1.
        """
        from lanelog.admin.read import tail

        return tail.tail(self._database, topic, key, lines=lines, follow=follow, interval=interval)

    def topics(self, limit: int = 1000) -> list[TopicInfo]:
        """Return the topics, in order of their names."""
        return topics.topics(self._database, limit)

    def topic(self, topic: str) -> TopicInfo:
        """Return one topic: its lanes, messages, dead letters and groups."""
        return topics.topic(self._database, topic)

    def heads(self, topic: str, *, limit: int = 10_000) -> dict[str, int]:
        """Return the highest offset published in each lane, by key."""
        return heads.heads(self._database, topic, limit)

    def now(self) -> datetime:
        """Return the database's clock, an aware datetime in UTC. Administration shows no other clock's times."""
        return completion.now(self._database)

    def topic_names(self, beginning: str = "", *, limit: int = 100) -> list[str]:
        """Return the names of topics that begin with `beginning`, in their order."""
        return completion.topics(self._database, beginning, limit)

    def group_names(self, topic: str | None = None, beginning: str = "", *, limit: int = 100) -> list[str]:
        """Return the names of groups that begin with `beginning`, in their order. `topic` None: of all topics."""
        return completion.groups(self._database, topic, beginning, limit)

    def key_names(self, topic: str, beginning: str = "", *, limit: int = 100) -> list[str]:
        """Return the keys of a topic's lanes that begin with `beginning`, in their order."""
        return completion.keys(self._database, topic, beginning, limit)

    def groups(self, topic: str | None = None, group: str | None = None, *, limit: int = 1000) -> list[GroupInfo]:
        """Return the registered groups by topic and name, with their exact lag.

        It reads a few rows for each lane of the topic, and no backlog. Ten groups of a topic share these statements.

        Args:
            topic: Only groups of this topic. None: of all topics.
            group: Only groups of this name. None: all.
            limit: The most groups to return.
        """
        return topics.groups(self._database, topic, group=group, limit=limit_of(limit))

    def members(
        self,
        topic: str | None = None,
        group: str | None = None,
        *,
        limit: int = 1000,
        after: tuple[str, str, str] | None = None,
    ) -> list[MemberInfo]:
        """Return the members that have a heartbeat row, by group, topic and name. Stopped ones are among them.

        Args:
            topic: Only of this topic and `group`. None: of all groups of all topics; then `group` must be None, too.
            group: See `topic`.
            limit: The most members to return.
            after: Only members after this one: its topic, group and name. To read on, pass those of the last member of
                an answer.
        """
        return members.members(self._database, topic, group, limit=limit, after=after)

    def lanes(
        self,
        topic: str,
        group: str,
        *,
        order_by: Literal["age", "lag", "key"] = "age",
        limit: int = 100,
        after: str = "",
        before: str = "",
    ) -> list[LaneInfo]:
        """Return the lanes of a topic as a group sees them.

        Args:
            topic: The topic.
            group: The group.
            order_by: `"age"`: the oldest unsettled message first. `"lag"`: the most unsettled messages first. `"key"`:
                in order of the keys. For `"age"` only 500 lanes are compared, or `limit` if that is more: those in
                which nothing was settled for longest.
            limit: The most lanes to return.
            after: With `"key"`: only lanes whose keys come after this one. To read on, pass the last key of an answer.
            before: With `"key"`: the last `limit` lanes whose keys come before this one, in order of the keys. To read
                back, pass the first key of an answer.
        """
        at = GroupTopic(topic=topic, group=group)
        return lanes.lanes(self._database, at, order_by=order_by, limit=limit, after=after, before=before)

    def lane(self, topic: str, group: str, key: str) -> LaneInfo:
        """Return one lane as a group sees it."""
        return lanes.lane(self._database, LaneId(topic=topic, group=group, key=key))

    def offsets(
        self, topic: str, group: str | None = None, key: str | None = None, limit: int = 100
    ) -> list[OffsetInfo]:
        """Return watermarks by key and group.

        Args:
            topic: The topic.
            group: Only this group. None: all groups of the topic.
            key: Only this lane. None: all lanes.
            limit: The most watermarks to return.
        """
        return lanes.offsets(self._database, topic, group, key, limit)

    def leases(
        self, topic: str | None = None, group: str | None = None, *, stale: bool = False, limit: int = 100
    ) -> list[LeaseInfo]:
        """Return leases by topic, group and key.

        Args:
            topic: Only leases of this topic. None: of all topics.
            group: Only leases of this group. None: of all groups.
            stale: Only leases whose owner is dead, expired, stopped or missing.
            limit: The most leases to return.
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
        """Return one message and its state for every group, all of the same moment.

        Give exactly one of `id` and `offset`.

        Args:
            topic: The topic.
            key: The key of its lane.
            id: The id under which it was published.
            offset: Its offset in the lane.

        Returns:
            The message, or None if the lane does not hold it.
        """
        return messages.message(self._database, topic, key, message_id=id, offset=offset)

    def keys_of(self, topic: str, id: str, *, limit: int = 10_000) -> list[str]:  # noqa: A002 - the field's name
        """Return the keys of the lanes that hold a message with this id, for one whose key is not known.

        An id is unique in its lane only, so there may be several.

        Args:
            topic: The topic.
            id: The id under which it was published.
            limit: The most lanes to search, in key order, 1 to 10,000.
        """
        return messages.keys_of(self._database, topic, id, limit)

    def messages(self, topic: str, key: str, *, from_offset: int | None = None, limit: int = 100) -> list[MessageInfo]:
        """Return messages of a lane in offset order, without their states for groups.

        An answer ends early when payloads reach 16 MiB, but holds at least one message if there is one. To read on,
        pass the last offset + 1 as `from_offset`, until the answer is empty.

        Args:
            topic: The topic.
            key: The key of the lane.
            from_offset: The first offset to return. None: begin with the oldest message of the lane.
            limit: The most messages to return.
        """
        return messages.messages(self._database, topic, key, from_offset=from_offset, limit=limit)

    def history(
        self,
        topic: str,
        group: str,
        *,
        key: str | None = None,
        offset: int | None = None,
        id: str | None = None,  # noqa: A002 - the field's name
        outcome: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[HistoryInfo]:
        """Return how messages left a group that subscribes with `history=True`.

        With `key` the highest offset comes first, without it the message that finished last. `id` and `outcome` have no
        index: without `key`, `since` or `until` they read all the history of the group.

        Args:
            topic: The topic.
            group: The group.
            key: Only this lane. None: all lanes.
            offset: Only the message with this offset in the lane `key`. None: all.
            id: Only messages with this id.
            outcome: Only this outcome: `success`, `rejected`, `failed`, `lock_expired` (the last attempt timed out or
                crashed), `expired` or `skipped`.
            since: Only messages that finished then or later (aware datetime).
            until: Only messages that finished before then (aware datetime).
            limit: The most messages to return.
        """
        from lanelog.admin.read import history

        chosen = history.HistoryFilter(key=key, offset=offset, id=id, outcome=outcome, since=since, until=until)
        return history.history(self._database, GroupTopic(topic=topic, group=group), chosen, limit)

    def scheduled(self, topic: str, key: str | None = None, limit: int = 100) -> list[ScheduledInfo]:
        """Return messages that are not in the log yet, by key and id. A message may be due already.

        Args:
            topic: The topic.
            key: Only this key. None: all keys.
            limit: The most messages to return.
        """
        return scheduled.list_scheduled(self._database, topic, key, limit)

    def scheduled_counts(self) -> dict[str, int]:
        """Return the number of messages that are not in the log yet, by topic. Topics without any are left out."""
        return scheduled.counts(self._database)

    def open_lanes(self, topic: str) -> int:
        """Return over how many open lanes a topic spreads its messages without a key."""
        from lanelog.admin.lookup import open_lanes

        return open_lanes.open_lanes(self._database, topic)

    # -- changing ------------------------------------------------------------------------------------------------------

    def acting(self, by: str, reason: str = "") -> Admin:
        """Return the same administration for somebody: what its methods change stands in `audit` under this name.

        Example:
            An operator's tool that knows its user::

                client.admin.acting("ann", "the printer is back").resume("orders", "labels")

        Args:
            by: Who acts, up to 255 characters. `pause` takes it if it has no `by` of its own.
            reason: Why, up to 1,024 characters. `pause` and `skip` have an argument of their own for it.

        Raises:
            ConfigurationError: `by` or `reason` is no such text.
        """
        return evolve(self, actor=Actor.checked(by, reason))

    def _call(self, dry_run: bool) -> Call:  # noqa: FBT001 - as the caller gave it
        return Call(self._database, self._actor, dry_run)

    def _destroying(self, dry_run: bool) -> Call:  # noqa: FBT001 - as the caller gave it
        """Return the call of a method that cannot be taken back: it refuses what merely counts as false."""
        return self._call(decided(dry_run))

    def seek(
        self, topic: str, group: str, *, key: str | None = None, to: str | datetime | int, dry_run: bool
    ) -> Sought:
        """Set where a group goes on, in one lane or in all lanes.

        Settled messages after that offset are delivered again. The attempts of all messages after the new offset are
        forgotten. The owner of a lane loses it; a running member takes it again and goes on from there. A handler
        that was running is refused when it settles. Lanes that are created later begin at their floor.

        Locks floor, lease, delivery rows and offsets row of each lane, 200 lanes in one transaction. Repeat the call if
        it fails: lanes that were set already are set once more.

        Args:
            topic: The topic.
            group: The group.
            key: Only this lane. None: all lanes.
            to: `"earliest"` (the floor: the oldest messages that exist), `"latest"` (the head), an aware datetime (the
                first message written then or later), or, with `key`, the offset of the next message. A target below the
                floor or above the head becomes the nearest one; `Sought.clamped` counts that.
            dry_run: True: only show.
        """
        from lanelog.admin.change import seek

        return seek.seek(self._destroying(dry_run), GroupTopic(topic=topic, group=group), key=key, to=to)

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
        """Stop a group, or one of its lanes, from handing out messages, until `resume`.

        Every process obeys within a second. Running handlers finish and settle. Idle lanes are given back, and no
        member takes them. A pause of what is paused changes nothing, and returns the first pause.

        Args:
            topic: The topic.
            group: The group.
            key: Only this lane. None: the whole group.
            by: Who pauses it, at most 255 characters. `groups()` and `lanes()` show it.
            reason: Why, at most 1,024 characters. `groups()` and `lanes()` show it.
            dry_run: True: only show.
        """
        from lanelog.admin.change import pause_and_skip

        at = GroupTopic(topic=topic, group=group)
        return pause_and_skip.pause(self._call(dry_run), at, key=key, by=by, reason=reason)

    def resume(self, topic: str, group: str, *, key: str | None = None, dry_run: bool = False) -> Resumed:
        """End the pause of a group, or of one lane.

        A lane that was paused by itself stays paused when its group resumes.

        Args:
            topic: The topic.
            group: The group.
            key: Only this lane. None: the group.
            dry_run: True: only show.
        """
        from lanelog.admin.change import pause_and_skip

        return pause_and_skip.resume(self._call(dry_run), GroupTopic(topic=topic, group=group), key=key)

    def skip(self, topic: str, group: str, key: str, offset: int, *, reason: str, dry_run: bool) -> Skipped:
        """Settle one message for one group without handling it. The other groups still get it.

        The lane's owner is fenced, and may take the lane again. Each message of the lane that the owner is handling
        counts one attempt. Its ack is refused, and the message is delivered again, even after its last attempt. It
        counts as a crash only if the owner is dead. The skipped message is not delivered again. The history records it.

        Locks topic row, group, floor, lease, delivery rows and offsets row.

        Args:
            topic: The topic.
            group: The group.
            key: The key of the lane.
            offset: The offset of the message.
            reason: Why, 1 to 1,024 characters. The history shows it.
            dry_run: True: only show.

        Raises:
            ConfigurationError: The lane has no such offset yet, or as the class says.
        """
        from lanelog.admin.change import pause_and_skip

        lane = LaneId(topic=topic, group=group, key=key)
        return pause_and_skip.skip(self._destroying(dry_run), lane, offset, reason=reason)

    def retry(self, topic: str, group: str, key: str, offset: int | None = None, *, dry_run: bool) -> Retried:
        """Let messages that failed or were postponed wait no longer: they are handed out again at once.

        Use it after a fix. Attempts, errors and limits stay as they are; a message of which no attempt is left
        is a dead letter, and `redrive` brings it back. In strict and serial order the key goes on in its order.

        The lane's owner is fenced, and may take the lane again. Each message of the lane that the owner is handling
        counts one attempt. Its ack is refused, and the message is delivered again, even after its last attempt. It
        counts as a crash only if the owner is dead.

        Locks topic row, group, floor, lease, delivery rows and offsets row.

        Args:
            topic: The topic.
            group: The group.
            key: The key of the lane.
            offset: Only this message. None: all that wait in the lane.
            dry_run: True: only show.

        Raises:
            ConfigurationError: The lane has no such offset yet, or as the class says.
        """
        from lanelog.admin.change import retry

        return retry.retry(self._destroying(dry_run), LaneId(topic=topic, group=group, key=key), offset)

    def release(self, topic: str, group: str, key: str, *, dry_run: bool) -> Released:
        """Take a lane away from its owner by force. Any member may take it then.

        An owner whose heartbeat ran out more than 30 s ago loses all its lanes, and is no member any more. Otherwise
        the others would keep the lane for it, as long as a proxy holds its session. If it lives, its next heartbeat
        makes it a member again.

        Each message that the owner is handling counts one attempt. Its ack is refused, and the message is delivered
        again, even after its last attempt. It counts as a crash only if the owner is dead.

        Locks floors, leases, delivery rows, offsets row and heartbeat.

        Args:
            topic: The topic.
            group: The group.
            key: The key of the lane.
            dry_run: True: only show.
        """
        from lanelog.admin.change import pause_and_skip

        return pause_and_skip.release(self._destroying(dry_run), LaneId(topic=topic, group=group, key=key))

    def set_open_lanes(self, topic: str, lanes: int, *, dry_run: bool = False) -> OpenLanes:
        """Set the number of open lanes over which a topic spreads its messages without a key.

        Publishers follow within ten seconds; meanwhile no message is lost or out of order. If the number becomes
        smaller, the lanes above it are consumed until they are empty, and then removed like other idle lanes. Locks the
        topic row.

        An id may belong to another lane after the change. A message that is published before and again after it, with
        the same id, may then be stored twice.

        Args:
            topic: The topic.
            lanes: The number, 1 to 1,000. A topic begins with 64.
            dry_run: True: only show.

        Raises:
            SchemaError: The tables are older than version 3.
        """
        from lanelog.admin.change import open_lanes

        return open_lanes.set_open_lanes(self._call(dry_run), topic, lanes)

    def cancel_scheduled(
        self,
        topic: str,
        key: str | None,
        id: str,  # noqa: A002 - as message
        *,
        dry_run: bool = False,
    ) -> bool:
        """Take back a message that is not in the log yet; as `Client.cancel_scheduled`.

        Args:
            topic: The topic.
            key: The key as it was published, or as its receipt has it.
            id: The id of the message.
            dry_run: True: only say whether it waits.

        Returns:
            True: it will not be delivered. False: no such message waits; it may be in the log already.

        Raises:
            ConfigurationError: This thread has a transaction of lanelog open, or as the class says.
        """
        from lanelog._log.lookup import known

        known.read(self._database, known.known_topic, "finding the topic", topic)
        act = Act(self._call(dry_run), "cancel_scheduled", topic=topic, key=key or "", choice=f"id {id}")
        return scheduled.cancel(self._database, topic, key, id, act, dry_run=dry_run)

    # -- dead letters --------------------------------------------------------------------------------------------------

    def dead_letters(
        self,
        topic: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        key_prefix: str = "",
        after: tuple[str, str, int] | None = None,
        limit: int = 100,
    ) -> list[DeadLetterInfo]:
        """Return dead letters by dead letter topic, key and offset. Those redriven or deleted are left out.

        Args:
            topic: The original topic, or a dead letter topic.
            group: Only dead letters of this group. None: of all groups.
            reason: Only dead letters with this reason (`DeadLetterInfo.reason`), or with the reason of this short name
                (`DeadLetterReason.name`). None: with any. Dead letters are read until there are enough with the
                reason; `dead_letter_page` reads a bounded number.
            key_prefix: Only dead letters whose keys begin so. Empty: of all keys.
            after: Only dead letters after this dead letter topic, key and offset. To read on, pass those of the last
                one of an answer. None: from the first one on.
            limit: The most dead letters to return.
        """
        chosen = listing.Chosen(group=group, reason=reason, beginning=key_prefix, after=after)
        return listing.page(self._database, topic, chosen, limit=limit).letters

    def dead_letter_page(
        self,
        topic: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        key_prefix: str = "",
        after: tuple[str, str, int] | None = None,
        limit: int = 100,
        most: int = 20_000,
    ) -> DeadLetterPage:
        """Return dead letters as `dead_letters` does, and how far they were read.

        Args:
            topic: The original topic, or a dead letter topic.
            group: Only dead letters of this group. None: of all groups.
            reason: As for `dead_letters`. A short name of several reasons is refused if the page has two of them.
            key_prefix: As for `dead_letters`.
            after: As for `dead_letters`; `DeadLetterPage.after` is that of the next page.
            limit: The most dead letters to return.
            most: The most dead letters to read.
        """
        chosen = listing.Chosen(group=group, reason=reason, beginning=key_prefix, after=after)
        return listing.page(self._database, topic, chosen, limit=limit, most=most)

    def dead_letter_reasons(self, topic: str, group: str | None = None) -> list[DeadLetterReason]:
        """Count dead letters by group and reason, the most frequent first; at most 1,000 reasons.

        The reason is the first line of the error with `#` for each number and id. All dead letters of the topic are
        read, without their payloads; `count_dead_letters` reads a bounded number.

        Args:
            topic: The original topic, or a dead letter topic.
            group: Only dead letters of this group. None: of all groups.
        """
        return listing.counts(self._database, topic, group).reasons

    def count_dead_letters(self, topic: str, group: str | None = None, *, most: int = 100_000) -> DeadLetterCounts:
        """Count dead letters as `dead_letter_reasons` does, and say how many were read.

        Args:
            topic: The original topic, or a dead letter topic.
            group: Only dead letters of this group. None: of all groups.
            most: The most dead letters to read, the first by dead letter topic, key and offset.
        """
        return listing.counts(self._database, topic, group, most=most)

    def redrive(
        self,
        topic: str,
        group: str,
        *,
        ids: Collection[str] | None = None,
        reason: str | None = None,
        all: bool = False,  # noqa: A002 - reads as it should: redrive(…, all=True)
        key: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        rate: float | None = None,
        delay: Duration = 0.0,
        ttl: Duration | None = None,
        max_deliveries: int | None = None,
        to_topic: str | None = None,
        progress: Callable[[int], None] = unheard,
        dry_run: bool,
    ) -> Redriven:
        """Put dead letters of a group back into their original topic, for this group only and in the order of each key.

        Give exactly one of `ids`, `reason` and `all`. Each copy has an id of its own, keeps `published_at`, and has the
        first id as metadata `lanelog.original_id`. A copy that fails again becomes a dead letter again.

        A dead letter is settled in the transaction that writes its copy. So a repetition of the call adds nothing, even
        if the connection was lost. Locks the heads of the lanes it writes to. A lane whose head stays locked for
        `publish_timeout` seconds is left; `Redriven.remaining` counts its dead letters.

        Args:
            topic: The original topic, or a dead letter topic.
            group: The group that dead-lettered the messages.
            ids: Ids of the dead letters (`DeadLetterInfo.id`), or of their original messages.
            reason: All dead letters with this reason (`DeadLetterInfo.reason`), or with the reason of this short name
                (`DeadLetterReason.name`). A name of several reasons is refused with longer ones.
            all: True: all dead letters of the group.
            key: Of those only the dead letters of this key.
            since: Of those only what was dead-lettered then or later; an aware datetime.
            limit: The most dead letters to take, key by key, the oldest of each key first. A repetition takes the next.
            rate: The most messages a second. None: as fast as possible.
            delay: Seconds that the copies wait outside of the log first, as delayed messages do.
            ttl: Seconds in which a copy may be delivered, from now or from when it is due. None: no limit, whatever the
                original's was.
            max_deliveries: How often each copy may be delivered, if that is less than the subscription's own limit.
                None: as the subscription says.
            to_topic: Write to this topic instead. If the group is registered there, the copies are for this group only,
                otherwise for all groups of that topic.
            progress: Called after each batch, with the messages that this call has moved so far. What it raises ends
                the call there; what has moved stays.
            dry_run: True: only show.
        """
        from lanelog.admin.dead_letters import redrive
        from lanelog.admin.dead_letters.selection import choice

        at = GroupTopic(topic=topic, group=group)
        chosen = choice(ids, reason, everything=all, key=key, since=since, limit=limit)
        copies = redrive.Copies(rate=rate, delay=delay, ttl=ttl, max_deliveries=max_deliveries, to_topic=to_topic)
        call = self._destroying(dry_run)
        return redrive.redrive(call, at, chosen, copies, progress, self._appender, self._delayed)

    def delete_dead_letters(
        self,
        topic: str,
        group: str,
        *,
        ids: Collection[str] | None = None,
        reason: str | None = None,
        all: bool = False,  # noqa: A002 - as redrive
        key: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        progress: Callable[[int], None] = unheard,
        dry_run: bool,
    ) -> Deleted:
        """Settle dead letters of a group for ever. Give exactly one of `ids`, `reason` and `all`.

        Their rows stay until the next collection. Locks the floors of their lanes.

        Args:
            topic: The original topic, or a dead letter topic.
            group: The group that dead-lettered the messages.
            ids: Ids of the dead letters (`DeadLetterInfo.id`), or of their original messages.
            reason: As for `redrive`.
            all: True: all dead letters of the group.
            key: Of those only the dead letters of this key.
            since: Of those only what was dead-lettered then or later; an aware datetime.
            limit: The most dead letters to take, key by key, the oldest of each key first. A repetition takes the next.
            progress: As for `redrive`, with the dead letters that were settled.
            dry_run: True: only show.
        """
        from lanelog.admin.dead_letters import delete
        from lanelog.admin.dead_letters.selection import choice

        at = GroupTopic(topic=topic, group=group)
        chosen = choice(ids, reason, everything=all, key=key, since=since, limit=limit)
        return delete.delete_dead_letters(self._destroying(dry_run), at, chosen, progress)

    # -- schedules -----------------------------------------------------------------------------------------------------

    def schedules(self, limit: int = 1000) -> list[ScheduleInfo]:
        """Return the schedules, in order of their names."""
        from lanelog.admin.schedules import schedules

        return schedules.list_schedules(self._database, limit)

    def preview_schedule(
        self, expression: str, *, timezone: str = "UTC", count: int = 10, after: datetime | None = None
    ) -> list[datetime]:
        """Return the next times at which a cron expression fires.

        Args:
            expression: Five fields (minute hour day-of-month month day-of-week), or six with the second first.
            timezone: The IANA time zone of the expression, and of the times that are returned.
            count: How many times to return, 1 to 1,000. There are fewer if the next fifty years have fewer.
            after: The times are later than this aware datetime. None: later than the database's clock.

        Raises:
            ConfigurationError: The expression is malformed or never fires, or the time zone is unknown.
        """
        from lanelog.admin.schedules import schedules

        return schedules.preview(self._database, expression, timezone=timezone, count=count, after=after)

    def pause_schedule(self, name: str, *, by: str = "", reason: str = "", dry_run: bool = False) -> SchedulePaused:
        """Stop a schedule from publishing in every process, until `resume_schedule`.

        A new declaration does not end the pause. Waits for a transaction that is publishing for the schedule.

        Args:
            name: The schedule.
            by: Who pauses it, at most 255 characters. `schedules()` shows it.
            reason: Why, at most 1,024 characters. `schedules()` shows it.
            dry_run: True: only show.
        """
        from lanelog.admin.schedules import schedules

        return schedules.pause(self._call(dry_run), name, by=by, reason=reason)

    def resume_schedule(self, name: str, *, dry_run: bool = False) -> ScheduleResumed:
        """End the pause of a schedule. Times that passed during the pause are skipped, whatever `catch_up` says."""
        from lanelog.admin.schedules import schedules

        return schedules.resume(self._call(dry_run), name)

    def run_schedule(self, name: str, *, token: str | None = None, dry_run: bool = False) -> ScheduleRun:
        """Publish one message of a schedule at once. Its times stay as they are, and so does a pause.

        The message is that of the schedule, with the present moment as `lanelog.fire_time` in its metadata. Its id is
        `NAME@run-TOKEN`, which no occurrence of a schedule has. It counts in `ScheduleInfo.fired`. Locks the
        schedule's row and the head of its lane.

        Args:
            name: The schedule.
            token: Calls with the same token publish one message, as long as the log has it: for a form that may be
                sent twice. 1 to 50 letters, digits, dots, hyphens and underscores. None: a new one.
            dry_run: True: only show.
        """
        from lanelog.admin.schedules import run_now

        return run_now.run(self._call(dry_run), name, token=token, appender=self._appender)

    def remove_schedule(self, name: str, *, dry_run: bool = False) -> ScheduleRemoved:
        """Remove a schedule. The messages it published stay. A process that declares it again creates it anew."""
        from lanelog.admin.schedules import schedules

        return schedules.remove(self._call(dry_run), name)

    # -- deleting ------------------------------------------------------------------------------------------------------

    def delete_group(self, topic: str, group: str, *, evict: bool = False, dry_run: bool) -> GroupDeleted:
        """Delete a group and its offset in every lane. Collection does not wait for it any more.

        Refuses while a member is alive: one that has not stopped, and whose lock the server holds or whose heartbeat
        has not expired. If a member has no liveness lock, the call waits for a heartbeat, for the member's
        `lease_duration`. It refuses if that is more than a minute. Locks the topic row, the group and its rows.

        Args:
            topic: The topic.
            group: The group.
            evict: True: also while members live. Their subscriptions become `failed`, and a subscription registers the
                group again only with `recreate=True`. A group that had no living member is registered as any new one.
            dry_run: True: only show.

        Raises:
            ConfigurationError: A member lives, and `evict` is False; nothing was changed. Or as the class says.
        """
        from lanelog.admin.change import delete

        return delete.delete_group(self._destroying(dry_run), GroupTopic(topic=topic, group=group), evict=evict)

    def purge(self, topic: str, *, before: datetime | int, dry_run: bool) -> Purged:
        """Delete old messages of a topic, even if a group has not settled them.

        The watermarks of groups that are behind are raised in the same transaction, which takes the lanes from their
        owners. It locks topic row, floors, leases, delivery rows and offsets rows of 100 lanes at a time. A lane whose
        floor stays locked for `publish_timeout` seconds is left; `Purged.remaining` counts its messages.

        Args:
            topic: The topic.
            before: Delete messages written before this aware datetime; or, with an int, messages below this offset in
                every lane.
            dry_run: True: only show.
        """
        from lanelog.admin.change import purge_messages

        return purge_messages.purge(self._destroying(dry_run), topic, before=before)

    def delete_topic(self, topic: str, *, dry_run: bool) -> TopicDeleted:
        """Delete a topic: its groups, lanes, messages and scheduled messages.

        Its dead letter topics and schedules stay. If the topic is used again, its offsets and epochs go on above
        the old ones. A message that is published during or after the deletion creates a lane again; so does a
        schedule that publishes to the topic (`TopicDeleted.schedules`). Works in batches of lanes, one transaction
        each.

        Args:
            topic: The topic.
            dry_run: True: only show.

        Raises:
            ConfigurationError: A member of one of its groups is alive, or a group was registered before the deletion
                began: nothing was changed. Or a group was registered later: the groups are deleted, and the rows that
                were not deleted by then stay. Or as the class says.
        """
        from lanelog.admin.change import delete

        return delete.delete_topic(self._destroying(dry_run), topic)

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def maintain(self, *, topics: Collection[str] | None = None) -> Maintained:
        """Do one round of what subscribers do all the time.

        That is collection, retention, the removal of idle lanes, and all that is due.

        It is for topics that no process consumes. Messages that expired there become dead letters of each group that is
        not paused and has no living member. It is safe beside running subscribers, and may be called as often as
        wanted.

        Args:
            topics: Only these topics. None: all.

        Returns:
            What was done. An error that ends the round of one topic is in `Maintained.failed`; the other topics are
            done.

        Raises:
            DatabaseError: Nothing could be done at all, or as the class says.
        """
        from lanelog.admin.operate import maintain

        return maintain.maintain(self._database, topics=topics, appender=self._appender)

    def contradictions(self, *, limit: int = 100, heads: int | None = None) -> list[Contradiction]:
        """Return lanes whose tables contradict each other, as they may after one table was restored.

        Clients with running subscriptions repair them within `lease_duration`; `doctor(repair=True)` does it at once.
        `doctor` also finds messages that belong to no lane.

        Args:
            limit: The most contradictions to return.
            heads: In how many lanes of each topic to compare the head with the log, which costs a read for each lane.
                None: in all lanes.
        """
        from lanelog.admin.operate import repair

        return repair.listed(self._database, limit_of(limit), repair.Extent(heads=heads))

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        """Examine server, settings, privileges and tables: one finding for each check, with its remedy.

        Args:
            repair: True: first repair lanes whose tables contradict each other. Lost messages stay lost; the messages
                that exist are delivered, some of them perhaps again. False: change nothing.

        Returns:
            The findings. If the server cannot be reached, that is the only one.
        """
        from lanelog.admin.doctor import doctor

        return doctor.doctor(self._database, repair=repair)
