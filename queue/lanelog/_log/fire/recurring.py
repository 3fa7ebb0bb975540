"""Recurring schedules: one transaction publishes the messages of all due times, and sets the next time.

Owns that transaction, and the one that sets schedules back after a clock was set back. Never decides when to poll (the
scheduler does), nor computes times (`cron` and `catch_up` do).

Lock order: schedules X, by name → heads X, by topic and key → messages. Schedules and heads are taken with SKIP LOCKED:
a locked schedule or lane is left for a later poll, and holds up no other.

If the process dies before the COMMIT, nothing was fired, and the next poll of any process fires it. If it dies later,
or the COMMIT is not answered, the row says which times were fired. If the row were lost, the ids of the messages, made
of name, wall-clock time and zone, would still show it. If the process sleeps in the middle, the server ends the silent
session and rolls back. If two processes do this at once, one skips the other's locked row, and finds a later next time
after the COMMIT. If two have different time zone data, the one that finds the row due fires the occurrence that it
names, and neither fires it again.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._base.checks import NAME_MAX
from lanelog._base.payloads.metadata import decode_metadata, encode_metadata
from lanelog._database import codes
from lanelog._facts.engine import scheduler as facts
from lanelog._log import repair
from lanelog._log.append.writing import AppendPlan, append
from lanelog._log.fire import zone_data
from lanelog._log.fire.catch_up import DueTimes, dues
from lanelog._log.fire.occurrences import Occurrence
from lanelog._log.fire.planned import CLOCK_BACK_MS, PlannedRow, correction, cron_of, plan, plan_due, wall
from lanelog._stores._points import fitting
from lanelog._stores.later import schedules
from lanelog._stores.later.schedules import ScheduleRow
from lanelog._stores.log import messages, partitions
from lanelog._stores.log.messages import NewMessage
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from lanelog._database import Database, Executor, Session
    from lanelog._log.append.appender import Appender

POLL_SCHEDULES: Final = 1000
TRANSACTION_SCHEDULES: Final = 100
TRANSACTION_MESSAGES: Final = 500
TRANSACTION_BYTES: Final = 8 * 1024 * 1024

FAULTY_SECONDS: Final = 60.0
"""Until this process tries a schedule again that failed for a reason of its own."""

SCHEDULE: Final = "lanelog.schedule"
FIRE_TIME: Final = "lanelog.fire_time"
"""The metadata of a message that a schedule has published: the schedule's name, and the moment it was fired for."""


def fire_time(ms: int) -> str:
    """The form of a moment in metadata, and in the ids of schedules in UTC: `2026-11-21T10:05:00Z`."""
    return utc_from_ms(ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata_of(name: str, ms: int, given: str | None) -> str | None:
    """The metadata of the message for one time, as JSON. Raises PayloadTooLarge."""
    return encode_metadata({**decode_metadata(given), SCHEDULE: name, FIRE_TIME: fire_time(ms)})


def message_ids(name: str, timezone: str, one: Occurrence) -> tuple[str, ...]:
    """The id of the message for one occurrence, and other ids that it may have in the log.

    The zone is part of it: after a move to another zone, the same wall-clock time comes again, and is another one.
    Versions before tables of version 6 made the id of the moment, in every zone. So is it where that id has no room.
    """
    of_moment = f"{name}@{fire_time(one.at)}"
    of_wall_clock = f"{name}@{one.id_form(timezone)}"
    return (of_moment,) if timezone == "UTC" or len(of_wall_clock) > NAME_MAX else (of_wall_clock, of_moment)


@frozen
class _Fire:
    """A schedule with the times to publish now."""

    row: ScheduleRow
    plan: PlannedRow
    dues: DueTimes


@define
class _Outcome:
    """The result of one transaction, and the work that it left."""

    published: dict[str, int] = field(factory=lambda: defaultdict(int))  # messages by topic
    missed: list[_Fire] = field(factory=list)
    differing: list[_Fire] = field(factory=list)  # schedules that were planned with other time zone data
    advanced: int = 0  # schedules that were moved to their next time
    behind: bool = False  # whether the next time of such a schedule is due, too
    cut: bool = False  # whether schedules were left, because the transaction was full
    missing: dict[str, set[str]] = field(factory=lambda: defaultdict(set))  # keys without a lane, by topic
    without_lane: list[str] = field(factory=list)  # the schedules of these keys


@define
class _Poll:
    """The schedules that are left to try, and the results so far."""

    todo: deque[Sequence[str]]
    lane_created: set[str] = field(factory=set)  # schedules whose lane was created in this poll
    repaired: set[str] = field(factory=set)  # schedules whose lane was repaired in this poll
    advanced: bool = False
    behind: bool = False
    failure: LanelogError | None = None


@define(eq=False)
class RecurringSchedules:
    """Fires due schedules. Remembers which schedules are faulty."""

    database: Database
    appender: Appender
    fired: int = 0  # messages published since this object was made
    held: bool = False  # whether the last call met due schedules that are not faulty: try again soon
    _faulty: dict[str, float] = field(factory=dict)  # name -> when it is tried again (monotonic)
    _differing: set[tuple[str, str]] = field(factory=set)  # zones and versions of their data that were logged

    def fire_due(self, session: Session, topics: Sequence[str] | None = None) -> bool:
        """Fire a bounded number of due schedules, of these topics or of all. The session must be in no transaction.

        True: more is due and can be fired at once. False: nothing more is due, or only schedules that must wait for an
        ordinary poll: their row or lane is locked, or they are faulty. Raises DatabaseError after all other schedules
        were tried.
        """
        now = time.monotonic()
        found = schedules.due(session, POLL_SCHEDULES)
        ready = [
            due for due in found if now >= self._faulty.get(due.name, 0.0) and (topics is None or due.topic in topics)
        ]
        sizes = [due.payload_bytes for due in ready]  # a transaction should not lock and read more at once
        chunks = fitting([due.name for due in ready], sizes, TRANSACTION_BYTES, most=TRANSACTION_SCHEDULES)
        poll = _Poll(deque(chunks))
        while poll.todo:
            names = poll.todo.popleft()
            try:
                self._fire(session, names, poll)
            except LanelogError as error:
                if not session.connected:
                    raise
                if len(names) == 1 and names[0] not in poll.repaired and self._repaired(session, names[0], error):
                    poll.repaired.add(names[0])
                    poll.todo.append(names)
                else:
                    self._failed(names, error, poll)
        self.held = any(due.name not in self._faulty for due in ready)
        if poll.failure is not None:
            raise poll.failure
        return poll.behind or (poll.advanced and len(found) == POLL_SCHEDULES)

    def set_back(self, session: Session, topics: Sequence[str] | None = None) -> None:
        """Correct schedules whose next time is too far ahead: the clock was ahead, and was set back.

        They would be silent until the clock is there again. Messages that were published for future times are in the
        log under their ids. They are published again only if they have been collected by then. If two processes do
        this at once, the row's lock decides. If the process dies before the COMMIT, the next poll does it.

        A next time that was planned with other time zone data is planned anew, too. No occurrence that was fired comes
        again, whatever moment this process expects it at.
        """
        for row in schedules.to_come(session, tables=self.database.tables_version):
            if topics is None or row.topic in topics:
                try:
                    if correction(row, cron_of(row)) is not None:
                        self._set_back(session, row.name)
                except ConfigurationError as error:  # another process may know this zone or expression
                    self._note_faulty(row.name, error)

    def _set_back(self, session: Session, name: str) -> None:
        tables = self.database.tables_version
        corrected = []
        with session.transaction() as cx:
            for row in schedules.try_lock(cx, [name], tables=tables):
                found = None if row.paused_at else correction(row, cron_of(row))
                if found is None:
                    continue
                planned = found.next
                # Where only the data differs, no noted time is forgotten: not even one in the seconds that a clock may
                # be behind.
                schedules.set_back(cx, name, planned.at, row.now if found.clock else row.now + CLOCK_BACK_MS)
                schedules.note_next(
                    cx,
                    name,
                    next_local=planned.row_form(row.timezone),
                    tzdata=zone_data.version(row.timezone),
                    tables=tables,
                )
                corrected.append((row, found))
        for row, found in corrected:
            if found.clock:
                facts.schedule_clock_went_back(
                    schedule=name, topic=row.topic, key=row.key, next_fire_at=fire_time(row.next_fire_at)
                )
            else:
                self._log_difference(row, plan(row, cron_of(row)).tzdata)

    def _log_difference(self, row: ScheduleRow, planned_with: str) -> None:
        """Log that the next time of a schedule was planned with other data. Once for each zone and version."""
        if (row.timezone, planned_with) not in self._differing:
            self._differing.add((row.timezone, planned_with))
            facts.schedule_tzdata_differs(
                schedule=row.name,
                topic=row.topic,
                key=row.key,
                timezone=row.timezone,
                next_fire_at=fire_time(row.next_fire_at),
                planned_with=planned_with or zone_data.UNKNOWN,
                tzdata=zone_data.version(row.timezone) or zone_data.UNKNOWN,
            )

    def _fire(self, session: Session, names: Sequence[str], poll: _Poll) -> None:
        outcome = self._transact(session, names)
        poll.advanced |= outcome.advanced > 0
        poll.behind |= outcome.behind or (outcome.cut and outcome.advanced > 0)
        if outcome.cut and not outcome.advanced:  # none of the planned ones was fired: try each alone
            poll.todo.extend([name] for name in names)
        elif outcome.without_lane and poll.lane_created.isdisjoint(outcome.without_lane):
            poll.lane_created.update(outcome.without_lane)
            for topic in sorted(outcome.missing):
                self.appender.ensure_lanes(topic, sorted(outcome.missing[topic]))
            poll.todo.append(outcome.without_lane)

    def _repaired(self, session: Session, name: str, error: LanelogError) -> bool:
        """Whether the error was a duplicate offset, and the lane was checked and repaired. Ids were read before."""
        taken = isinstance(error, DatabaseError) and error.code == codes.DUPLICATE
        row = schedules.get(session, name, tables=self.database.tables_version) if taken else None
        return row is not None and repair.repair_lane(session, row.topic, row.key) is not None

    def _failed(self, names: Sequence[str], error: LanelogError, poll: _Poll) -> None:
        """Note a failure. One schedule's fault, or a lock in its lane, must not stop the others."""
        own = not error.retriable
        if isinstance(error, DatabaseError) and error.code in codes.DENIED:
            poll.failure = error
            poll.todo.clear()
        elif len(names) > 1 and (own or (isinstance(error, DatabaseError) and error.code == codes.LOCK_WAIT_TIMEOUT)):
            poll.todo.extend([name] for name in names)
        elif own:
            self._note_faulty(names[0], error)
        else:
            poll.failure = poll.failure or error

    def _note_faulty(self, name: str, error: LanelogError) -> None:
        facts.schedule_faulty(schedule=name, error=error)
        self._faulty[name] = time.monotonic() + FAULTY_SECONDS

    def _transact(self, session: Session, names: Sequence[str]) -> _Outcome:
        outcome = _Outcome()
        # Lock order: schedules X, by name → heads X, by topic and key → messages.
        with session.transaction() as cx:
            by_topic: dict[str, list[_Fire]] = defaultdict(list)
            for fire in self._planned(cx, names, outcome):
                by_topic[fire.row.topic].append(fire)
            for topic in sorted(by_topic):
                self._publish(cx, topic, by_topic[topic], outcome)
        for topic, count in outcome.published.items():
            if count:
                self.fired += count
                self.appender.committed(topic)
        for fire in outcome.differing:
            self._log_difference(fire.row, fire.plan.tzdata)
        for fire in outcome.missed:
            facts.schedule_missed(
                schedule=fire.row.name,
                topic=fire.row.topic,
                key=fire.row.key,
                since=fire_time(fire.row.next_fire_at),
                catch_up=fire.row.catch_up,
                published=len(fire.dues.times),
            )
        return outcome

    def _planned(self, cx: Executor, names: Sequence[str], outcome: _Outcome) -> list[_Fire]:
        """Lock the schedules, and plan those that are still due."""
        planned: list[_Fire] = []
        left, size = TRANSACTION_MESSAGES, TRANSACTION_BYTES
        for row in schedules.try_lock(cx, names, tables=self.database.tables_version):
            if row.paused_at or row.next_fire_at > row.now:
                continue  # another process was faster
            if planned and (left <= 0 or size <= 0):
                outcome.cut = True
                break
            read = plan_due(row, cron_of(row))
            found = dues(
                read.cron,
                row.catch_up,
                first=read.next,
                since_ms=min(row.expression_at, row.now),
                fired=read.fired,
                now_ms=row.now,
                most=max(1, min(left, size // max(1, len(row.payload)))),
            )
            left -= len(found.times)
            size -= len(found.times) * len(row.payload)
            planned.append(_Fire(row, read, found))
        return planned

    def _publish(self, cx: Executor, topic: str, fires: Sequence[_Fire], outcome: _Outcome) -> None:
        """Append the messages of one topic's schedules, in the order of their times, and move the schedules on."""
        heads, busy, missing = partitions.lock_heads(cx, topic, {fire.row.key for fire in fires if fire.dues.times})
        outcome.missing[topic] |= missing
        outcome.without_lane += [fire.row.name for fire in fires if fire.row.key in missing]
        fires = [fire for fire in fires if fire.row.key not in missing | busy]
        wanted = sorted(
            ((one, fire.row) for fire in fires for one in fire.dues.times), key=lambda each: (each[0].at, each[1].name)
        )
        points = [
            (row.key, message_id) for one, row in wanted for message_id in message_ids(row.name, row.timezone, one)
        ]
        stored = messages.find_ids(cx, topic, points) if points else {}
        moves: dict[str, int] = defaultdict(int)
        rows = []
        for one, row in wanted:
            ids = message_ids(row.name, row.timezone, one)
            if any((row.key, message_id) in stored for message_id in ids):
                continue
            moves[row.key] += 1
            metadata = metadata_of(row.name, one.at, row.metadata)
            offset = heads[row.key] + moves[row.key]
            rows.append(NewMessage(row.key, offset, ids[0], row.payload, metadata, row.ttl_ms))
        append(cx, topic, AppendPlan(rows=rows, moves=moves), self.database.max_packet())
        outcome.published[topic] += len(rows)
        for fire in fires:
            times = fire.dues.times
            schedules.advance(
                cx,
                fire.row.name,
                next_fire_at=fire.dues.next.at,
                last_fire_at=times[-1].at if times else _last(fire.row),
                fired=len(times),
                wall=wall(fire.plan.cron, fire.dues.next, fire.dues.fired),
                tables=self.database.tables_version,
            )
            outcome.behind |= fire.dues.next.at <= fire.row.now
        outcome.advanced += len(fires)
        outcome.missed += [fire for fire in fires if fire.dues.missed]
        outcome.differing += [fire for fire in fires if fire.plan.differs]


def _last(row: ScheduleRow) -> int:
    """The latest time that was fired. A time in the future, from a clock that was set back, does not count."""
    return row.last_fire_at if row.last_fire_at <= row.now + CLOCK_BACK_MS else min(row.next_fire_at, row.now) - 1
