"""Schedules: declare, list, pause, resume, remove and preview them.

Owns these transactions and the checks before them. Never publishes anything (`_engine.scheduling.recurring` and
`run_now` do).

Lock order: one row of `queue_schedules`, by its primary key; then a new row of `queue_audit`.

If the process dies before a COMMIT, nothing has happened. If it dies later, or the COMMIT is not answered, the
repetition finds it done. If two processes declare at once, perhaps of different versions, each sends one statement, and
the last writer wins. If a process sleeps between reading the clock and declaring, the times that passed meanwhile are
due and fire. None fires twice, because times up to the last fired one never fire again.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from attrs import evolve

from lanelog._base import cron as _cron
from lanelog._base.checks import Duration, check_integer, check_name
from lanelog._base.payloads.metadata import decode_metadata
from lanelog._log.append.draft import make_draft
from lanelog._log.append.middleware import publish_through
from lanelog._log.fire import zone_data
from lanelog._log.fire.catch_up import CatchUp
from lanelog._log.fire.occurrences import occurrence
from lanelog._log.fire.planned import cron_of, plan
from lanelog._log.fire.recurring import message_ids, metadata_of
from lanelog._log.lookup.known import clock, read, repeated
from lanelog._log.lookup.names import hint
from lanelog._stores.later import schedules
from lanelog._stores.later.schedules import ScheduleRow
from lanelog._stores.log.messages import largest_row, wire_bytes
from lanelog.admin.audit_entry import Act, Call
from lanelog.admin.lookup import open_lanes
from lanelog.admin.lookup.arguments import limit_of, when
from lanelog.admin.types.results import SchedulePaused, ScheduleRemoved, ScheduleResumed
from lanelog.admin.types.topology import ScheduleInfo
from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.message import Outgoing, Publication, utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._base.payloads.codec import Codec
    from lanelog._database import Database, Executor

NAME_MAX = 200
"""The most characters of a schedule's name: the name and a fire time must fit into a message's id."""
COUNT_MAX = 1000
FIRST_YEAR, LAST_YEAR = 1970, 9998


def declare(
    database: Database,
    name: str,
    expression: str,
    topic: str,
    key: str | None,
    payload: object,
    *,
    timezone: str,
    catch_up: str,
    metadata: Mapping[str, str] | None,
    ttl: Duration | None,
    codec: Codec | None,
) -> ScheduleInfo:
    """See `Client.schedule`."""
    check_schedule_name(name)
    check_name("topic", topic)
    outgoing = Outgoing(key, payload, metadata=metadata, ttl=ttl, codec=codec)
    declared = partial(_declare, database, name, expression, timezone, catch_up, topic)
    layers = database.config.middleware
    if layers:
        return publish_through(layers, Publication(topic, (outgoing,), name), lambda messages: declared(messages[0]))
    return declared(outgoing)


def _declare(
    database: Database, name: str, expression: str, timezone: str, catch_up: str, topic: str, outgoing: Outgoing
) -> ScheduleInfo:
    cron = _cron.parse(expression, timezone)
    if catch_up not in tuple(CatchUp):
        raise ConfigurationError(f"catch_up must be one of {', '.join(CatchUp)}, not {catch_up!r}")
    if (outgoing.id, outgoing.delay, outgoing.deliver_at) != (None, None, None):
        raise ConfigurationError("a middleware gave a schedule's message an id or a delay: the schedule decides both")
    longest = message_ids(name, timezone, evolve(occurrence(cron, 0), fold=1))[0]
    draft = make_draft(topic, evolve(outgoing, id=longest), database.config.codec, database.config.max_payload_bytes)
    whole = metadata_of(name, 0, draft.metadata)
    if wire_bytes(topic, draft.key, draft.id, len(draft.payload), whole) > largest_row(database.max_packet()):
        raise PayloadTooLarge(
            f"the payload has {len(draft.payload)} bytes, twice as many on the wire, and the server's "
            f"max_allowed_packet is {database.max_packet()}: raise it there, or publish a reference"
        )

    # Without a key, all messages of the schedule go to one open lane, so that they keep their order. The row names the
    # lane, because processes of older versions fire it, too.
    lane = draft.key if outgoing.key is not None else open_lanes.lane_of(database, topic, name)

    def once(cx: Executor) -> ScheduleRow:
        now = clock(cx)
        following = occurrence(cron, cron.after(now))
        row = ScheduleRow(
            name=name,
            expression=cron.expression,
            timezone=timezone,
            topic=topic,
            key=lane,
            payload=draft.payload,
            metadata=draft.metadata,
            ttl_ms=draft.timing.ttl_ms,
            catch_up=str(CatchUp(catch_up)),
            next_fire_at=following.at,
            next_local=following.row_form(timezone),
            tzdata=zone_data.version(timezone),
            expression_at=now,
        )
        schedules.declare(cx, row, tables=database.tables_version)
        return schedules.get(cx, name, tables=database.tables_version) or row  # it may have been removed meanwhile

    return _info(read(database, once, "declaring a schedule"))


def check_schedule_name(name: object) -> str:
    """Return a schedule's name. Raises ConfigurationError."""
    if isinstance(name, str) and not 0 < len(name) <= NAME_MAX:
        raise ConfigurationError(f"the name of a schedule must have 1 to {NAME_MAX} characters, not {len(name)}")
    return check_name("the name of a schedule", name)


def list_schedules(database: Database, limit: int) -> list[ScheduleInfo]:
    """See `Admin.schedules`."""
    return [
        _info(row)
        for row in read(database, schedules.by_name, "listing schedules", limit_of(limit), database.tables_version)
    ]


def preview(
    database: Database, expression: str, *, timezone: str, count: int, after: datetime | None
) -> list[datetime]:
    """See `Admin.preview_schedule`."""
    cron = _cron.parse(expression, timezone)
    check_integer("count", count, least=1, most=COUNT_MAX)
    begin = utc_from_ms(read(database, clock, "reading the clock")) if after is None else _checked_after(after)
    found = list(islice(cron.times(begin), count))
    if not found:
        raise ConfigurationError(f"the cron expression {expression!r} never fires")
    return found


def _checked_after(after: object) -> datetime:
    if not isinstance(after, datetime) or after.utcoffset() is None:
        raise ConfigurationError("after must be an aware datetime: add tzinfo=datetime.UTC")
    if not FIRST_YEAR < after.year < LAST_YEAR:
        raise ConfigurationError(f"after must be between the years {FIRST_YEAR} and {LAST_YEAR}")
    return after


def pause(call: Call, name: str, *, by: str, reason: str) -> SchedulePaused:
    """See `Admin.pause_schedule`."""
    check_schedule_name(name)
    call = call.but(by=by, reason=reason)
    act = Act(call, "pause_schedule", choice=f"schedule {name}")

    def once() -> SchedulePaused:
        with call.database.transaction(hasty=True) as cx:
            row = locked(cx, call.database, name)
            if not row.paused_at and not call.dry_run:
                schedules.pause(cx, name, row.now, call.actor.by, call.actor.reason)
                act.record(cx, topic=row.topic, key=row.key)
        return SchedulePaused(
            name=name,
            changed=not row.paused_at,
            paused_at=utc_from_ms(row.paused_at or row.now),
            by=row.paused_by if row.paused_at else call.actor.by,
            reason=row.pause_reason if row.paused_at else call.actor.reason,
            next_fire_at=utc_from_ms(row.next_fire_at),
            dry_run=call.dry_run,
        )

    return repeated(call.database, once, "pausing a schedule")


def resume(call: Call, name: str) -> ScheduleResumed:
    """See `Admin.resume_schedule`."""
    check_schedule_name(name)
    database = call.database
    act = Act(call, "resume_schedule", choice=f"schedule {name}")

    def once() -> ScheduleResumed:
        with database.transaction(hasty=True) as cx:
            row = locked(cx, database, name)
            next_fire_at = row.next_fire_at
            if row.paused_at:
                found = plan(row, cron_of(row))
                following = found.fired.following(found.cron, row.now)
                next_fire_at = following.at
                if not call.dry_run:
                    schedules.resume(cx, name, next_fire_at)
                    schedules.note_next(
                        cx,
                        name,
                        next_local=following.row_form(row.timezone),
                        tzdata=zone_data.version(row.timezone),
                        tables=database.tables_version,
                    )
                    act.record(cx, topic=row.topic, key=row.key)
        return ScheduleResumed(
            name=name,
            changed=bool(row.paused_at),
            paused_at=when(row.paused_at),
            by=row.paused_by,
            reason=row.pause_reason,
            next_fire_at=utc_from_ms(next_fire_at),
            dry_run=call.dry_run,
        )

    return repeated(database, once, "resuming a schedule")


def remove(call: Call, name: str) -> ScheduleRemoved:
    """See `Admin.remove_schedule`."""
    check_schedule_name(name)
    database = call.database
    act = Act(call, "remove_schedule", choice=f"schedule {name}")
    attempts: list[ScheduleRow] = []

    def once() -> ScheduleRow:
        with database.transaction(hasty=True) as cx:
            # After an attempt with an unanswered COMMIT: a missing row means that the attempt removed it.
            gone = bool(attempts) and schedules.lock(cx, name, tables=database.tables_version) is None
            row = attempts[0] if gone else locked(cx, database, name)
            attempts.append(row)
            if not call.dry_run and not gone:
                schedules.remove(cx, name)
                act.record(cx, topic=row.topic, key=row.key)
        return row

    row = repeated(database, once, "removing a schedule")
    return ScheduleRemoved(name=name, topic=row.topic, key=row.key, fired=row.fired, dry_run=call.dry_run)


def locked(cx: Executor, database: Database, name: str) -> ScheduleRow:
    """Lock and return a schedule. Refuse one that does not exist."""
    row = schedules.lock(cx, name, tables=database.tables_version)
    if row is None:
        raise no_schedule(cx, name)
    return row


def no_schedule(cx: Executor, name: str) -> ConfigurationError:
    """Return the refusal of an unknown schedule."""
    meant = hint(name, schedules.names(cx))
    return ConfigurationError(f"no schedule {name!r}: {meant}; `lanelog schedule list` lists those there are")


def _info(row: ScheduleRow) -> ScheduleInfo:
    return ScheduleInfo(
        name=row.name,
        expression=row.expression,
        timezone=row.timezone,
        topic=row.topic,
        key=row.key,
        payload=row.payload,
        metadata=decode_metadata(row.metadata),
        ttl=row.ttl_ms / 1000 if row.ttl_ms else None,
        catch_up=row.catch_up,
        next_fire_at=None if row.paused_at else utc_from_ms(row.next_fire_at),
        last_fire_at=when(row.last_fire_at),
        fired=row.fired,
        paused_at=when(row.paused_at),
        paused_by=row.paused_by,
        pause_reason=row.pause_reason,
        created_at=utc_from_ms(row.created_at),
        updated_at=utc_from_ms(row.updated_at),
    )
