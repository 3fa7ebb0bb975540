"""Run a schedule now: publish one message of it at once. Its next time stays.

Owns this transaction. Never advances a schedule (`_engine.scheduling.recurring` does).

Lock order: one row of `queue_schedules` → the lane's head → messages; then a new row of `queue_audit`. The scheduler
leaves out rows and heads that are locked, so neither waits for the other.

The id of the message is made of the name and a token. A repetition with the same token finds the id in the log, and
publishes nothing: after an unanswered COMMIT, after a double click, and if two do it at once, because the second one
waits for the row. As with every id, that holds until the message is collected. If the process dies before the COMMIT,
nothing has happened. If it dies later, the message is there. If it sleeps in the middle, the server ends the session
and rolls back; meanwhile the scheduler leaves this schedule out.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog._database import Lock
from lanelog._log.fire.recurring import metadata_of
from lanelog._log.lookup.known import read, repeated
from lanelog._stores.later import schedules
from lanelog._stores.log import messages, partitions
from lanelog._stores.log.messages import NewMessage
from lanelog.admin.audit_entry import Act, Call, Unanswered
from lanelog.admin.schedules.schedules import check_schedule_name, locked, no_schedule
from lanelog.admin.types.results import ScheduleRun
from lanelog.errors import ConfigurationError, DatabaseError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from lanelog._database import Executor
    from lanelog._log.append.appender import Appender
    from lanelog._stores.later.schedules import ScheduleRow

TOKEN_MAX: Final = 50
"""The most characters of a token. With the longest name, the id has room in its column."""
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOKEN_MAX}}}")


def _checked(token: object) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"token must be 1 to {TOKEN_MAX} letters, digits, dots, hyphens or underscores, not {token!r}"
        )
    return token


def id_of(name: str, token: str) -> str:
    """Return the id of the message of one run.

    No occurrence has it: there, a year follows the last `@`.
    """
    return f"{name}@run-{token}"


def run(call: Call, name: str, *, token: str | None, appender: Appender) -> ScheduleRun:
    """See `Admin.run_schedule`."""
    check_schedule_name(name)
    message_id = id_of(name, secrets.token_hex(8) if token is None else _checked(token))
    work = _Run(name, message_id, Act(call, "run_schedule", choice=f"schedule {name}"))
    if call.dry_run:
        return read(call.database, work.planned, "reading a schedule")
    done = repeated(call.database, work.attempt, "running a schedule", appender)
    if done.changed:
        appender.committed(done.topic)
    return done


@define(eq=False)
class _Run:
    """One call."""

    name: str
    id: str
    act: Act
    _unanswered: Unanswered = field(factory=Unanswered, init=False)

    def planned(self, cx: Executor) -> ScheduleRun:
        """Return what would be published."""
        row = self._read(cx)
        offset = messages.find_ids(cx, row.topic, [(row.key, self.id)]).get((row.key, self.id))
        return self._result(row, offset, changed=offset is None)

    def attempt(self, appender: Appender) -> ScheduleRun:
        """Publish the message, unless it is there."""
        with self.act.database.autocommit() as cx:
            before = self._read(cx)
        appender.ensure_lanes(before.topic, [before.key])
        with self._unanswered.attempt(), self.act.database.transaction(hasty=True) as cx:
            return self._publish(cx)

    def _publish(self, cx: Executor) -> ScheduleRun:
        row = locked(cx, self.act.database, self.name)
        heads = partitions.heads(cx, row.topic, [row.key], Lock.UPDATE)
        if row.key not in heads:
            raise DatabaseError("the schedule moved to another lane, or its lane was removed", retriable=True)
        found = messages.find_ids(cx, row.topic, [(row.key, self.id)]).get((row.key, self.id))
        if found is not None:
            return self._result(row, found, changed=self._unanswered.happened)
        offset = heads[row.key] + 1
        metadata = metadata_of(row.name, row.now, row.metadata)
        if partitions.advance(cx, row.topic, {row.key: 1}) != 1:
            raise DatabaseError("a lane vanished while its head was locked", retriable=True)
        message = NewMessage(row.key, offset, self.id, row.payload, metadata, row.ttl_ms)
        messages.insert(cx, row.topic, [message], self.act.database.max_packet())
        schedules.count_run(cx, row.name)
        self.act.record(cx, topic=row.topic, key=row.key, messages=1)
        return self._result(row, offset, changed=True)

    def _read(self, cx: Executor) -> ScheduleRow:
        row = schedules.get(cx, self.name, tables=self.act.database.tables_version)
        if row is None:
            raise no_schedule(cx, self.name)
        return row

    def _result(self, row: ScheduleRow, offset: int | None, *, changed: bool) -> ScheduleRun:
        return ScheduleRun(
            name=row.name,
            topic=row.topic,
            key=row.key,
            id=self.id,
            offset=offset,
            changed=changed,
            next_fire_at=None if row.paused_at else utc_from_ms(row.next_fire_at),
            dry_run=self.act.dry_run,
        )
