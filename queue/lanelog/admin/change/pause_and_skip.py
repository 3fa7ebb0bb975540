"""Pause, resume, skip and release: steering a group, a lane or one message of it.

Owns these transactions; never touches the log, nor another group. Called by `Admin`.

A pause is a flag: the owners read it, hand out nothing more, let handlers finish and give the lanes back. Skip and
release fence the owner, because memory and tables would disagree otherwise: topic row S → groups S (skip alone) → floor
S → lease X → delivery → offsets → history (skip alone), see `lease_takeover`; what the owner had in flight there is
delivered again, see `interrupt`.

Dies right before a COMMIT: nothing has happened. Right after, or with an unanswered COMMIT: the repetition finds it
done and returns `changed=False`. Two at once: the second waits for the first's row and finds it done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._checks import check_integer, check_name
from lanelog._database import NOW_MS
from lanelog._stores.deliveries import Deliveries
from lanelog._stores.history import History
from lanelog._stores.moves import Moves
from lanelog._stores.offsets import Offsets
from lanelog.admin.change import interrupt, lease_takeover
from lanelog.admin.change.told import Act, Unanswered, passing
from lanelog.admin.lookup.arguments import BY_MAX, REASON_MAX, check_text
from lanelog.admin.lookup.known import known_group, known_lane, no_group, no_lane, read, repeated
from lanelog.admin.read import lane_totals, owners
from lanelog.admin.types.results import Paused, Released, Resumed, Skipped
from lanelog.admin.types.topology import MessageState
from lanelog.errors import ConfigurationError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lanelog._database import Database, Executor
    from lanelog._stores.deliveries import DeliveryRow
    from lanelog._stores.offsets import OffsetsRow

# The flag of a group, locked to be changed (PRIMARY).
LOCK_GROUP = """SELECT paused_at, paused_by, pause_reason FROM queue_groups FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s FOR UPDATE"""

# Pause a group, or take it back (PRIMARY; the row is locked).
FLAG_GROUP = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET paused_at = %s, paused_by = %s, pause_reason = %s
WHERE consumer_group = %s AND topic = %s"""

# The flag of one lane (PRIMARY).
LOCK_LANE = """SELECT paused_at, paused_by, pause_reason FROM queue_offsets FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s AND partition_key = %s FOR UPDATE"""

# Pause one lane, or take it back; a group that has no row there gets one, at the floor where it would begin (PRIMARY).
FLAG_LANE = f"""
INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, paused_at, paused_by,
       pause_reason, updated_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, {NOW_MS})
ON DUPLICATE KEY UPDATE paused_at = VALUES(paused_at), paused_by = VALUES(paused_by),
       pause_reason = VALUES(pause_reason), updated_at = VALUES(updated_at)
"""

# Tell the members that a lane of theirs was paused or resumed (PRIMARY; the row is locked).
NOTE_LANE = """UPDATE queue_groups FORCE INDEX (PRIMARY) SET lane_pauses = lane_pauses + 1
WHERE consumer_group = %s AND topic = %s"""

NOW = f"SELECT {NOW_MS}"
MAX_OFFSET = 1 << 62

Flag = tuple[int, str, str]
"""When (milliseconds, 0: it runs), by whom and why something was paused."""

RUNS: Flag = (0, "", "")


# -- pause and resume --------------------------------------------------------------------------------------------------


def pause(
    database: Database, topic: str, group: str, *, key: str | None, by: str, reason: str, dry_run: bool
) -> Paused:
    """See `Admin.pause`."""
    check_text("by", by, BY_MAX)
    check_text("reason", reason, REASON_MAX)
    _check(database, topic, group, key)
    before, now = repeated(database, _set, "pausing", database, topic, group, key, (1, by, reason), dry_run=dry_run)
    flag = before if before[0] else (now, by, reason)
    return Paused(
        topic=topic,
        group=group,
        key=key,
        changed=not before[0],
        paused_at=utc_from_ms(flag[0]),
        by=flag[1],
        reason=flag[2],
        lag=repeated(database, _lag, "counting", database, topic, group, key),
        dry_run=dry_run,
    )


def resume(database: Database, topic: str, group: str, *, key: str | None, dry_run: bool) -> Resumed:
    """See `Admin.resume`."""
    _check(database, topic, group, key)
    before, _ = repeated(database, _set, "resuming", database, topic, group, key, RUNS, dry_run=dry_run)
    return Resumed(
        topic=topic,
        group=group,
        key=key,
        changed=bool(before[0]),
        paused_at=utc_from_ms(before[0]) if before[0] else None,
        by=before[1],
        reason=before[2],
        dry_run=dry_run,
    )


def _check(database: Database, topic: str, group: str, key: str | None) -> None:
    check_name("topic", topic)
    check_name("group", group)
    if key is not None:
        check_name("key", key)
    read(database, known_group, "looking for the group", topic, group)
    if key is not None:
        read(database, known_lane, "looking for the lane", topic, key)


def _set(
    database: Database,
    topic: str,
    group: str,
    key: str | None,
    wanted: Flag,
    *,
    dry_run: bool,
) -> tuple[Flag, int]:
    """One transaction; the flag as it was, and the database's clock, which is when a pause begins."""
    with database.transaction() as cx:
        # groups X → floor S → offsets; a group's pause takes its row alone. The floor keeps the purge of the lane away,
        # which would take the flag with it.
        before = _flag(cx, LOCK_GROUP, group, topic)
        if before is None:
            raise no_group(topic, group)
        floor = 0
        if key is not None:
            held = lease_takeover.share_floors(cx, topic, [key]).get(key)
            if held is None:
                raise no_lane(topic, key)
            floor = held.floor
            before = _flag(cx, LOCK_LANE, group, topic, key) or RUNS
        found = cx.one(NOW)
        now = int(found[0]) if found else 0
        if not dry_run and bool(before[0]) != bool(wanted[0]):
            flag = (now, *wanted[1:]) if wanted[0] else RUNS
            if key is None:
                cx.execute(FLAG_GROUP, (*flag, group, topic))
            else:
                cx.execute(NOTE_LANE, (group, topic))
                cx.execute(FLAG_LANE, (group, topic, key, floor, floor, *flag))
        return before, now


def _lag(database: Database, topic: str, group: str, key: str | None) -> int:
    with database.snapshot() as cx:
        if key is None:
            return lane_totals.total(cx, topic, group).lag
        return sum(facts.lag for facts in lane_totals.load(cx, topic, [group], [key]).values())


def _flag(cx: Executor, sql: str, *args: str) -> Flag | None:
    row = cx.one(sql, args)
    return None if row is None else (int(row[0]), str(row[1]), str(row[2]))


# -- skip and release --------------------------------------------------------------------------------------------------


def skip(database: Database, topic: str, group: str, key: str, offset: int, *, reason: str, dry_run: bool) -> Skipped:
    """See `Admin.skip`."""
    check_name("key", key)
    check_integer("offset", offset, least=1, most=MAX_OFFSET)
    check_text("reason", reason, REASON_MAX, empty=False)
    _check(database, topic, group, key)
    head = read(database, known_lane, "looking for the lane", topic, key)
    if offset > head:
        raise ConfigurationError(f"lane {key!r} of topic {topic!r} ends at offset {head}: there is no message {offset}")
    unanswered = Unanswered()

    def attempt() -> Skipped:
        with unanswered.attempt():
            return _skip(database, topic, group, key, offset, unanswered, reason=reason, dry_run=dry_run)

    with passing(database, Act(verb="skip", topic=topic, group=group, key=key, why=reason)) as tally:
        skipped = repeated(database, attempt, "skipping")
        passed = unanswered.committed(int(skipped.changed and not dry_run))
        tally.add(messages=passed, unsettled=passed)
    return skipped


def _skip(
    database: Database,
    topic: str,
    group: str,
    key: str,
    offset: int,
    unanswered: Unanswered,
    *,
    reason: str,
    dry_run: bool,
) -> Skipped:
    with database.transaction() as cx:
        epoch = lease_takeover.begin(cx, topic, group)
        floor = lease_takeover.share_floors(cx, topic, [key]).get(key)
        if floor is None:
            raise no_lane(topic, key)
        held = lease_takeover.lock_leases(cx, topic, group, [key]).get(key)
        place = Offsets().load(cx, group, topic, [key]).get((group, key))
        rows = Deliveries().load(cx, group, topic, [key]).get(key, [])
        watermark = max(floor.floor, place.offset_acked if place else 0)
        state, attempts = _state(offset, watermark, place, rows, held)
        changed = state is not MessageState.COMPLETED
        if changed and not dry_run:
            unanswered.plan(1)
            lease_takeover.take_away(cx, topic, group, [key], epoch)
            void = interrupt.interrupt(cx, topic, group, {} if held is None else {key: held})
            rows = Deliveries().load(cx, group, topic, [key]).get(key, [])
            _settle(cx, topic, group, key, offset, watermark, rows)
            interrupt.unmark(cx, topic, group, void)
            row = next((row for row in rows if row.offset <= offset <= row.through), None)
            History().skipped(
                cx,
                group,
                topic,
                key,
                offset,
                attempts=attempts,
                first_age=None if row is None else row.first_age,
                owner=held.owner if held is not None else "",
                reason=reason,
            )
        return Skipped(
            topic=topic,
            group=group,
            key=key,
            offset=offset,
            id=Moves().source_id(cx, topic, key, offset),
            changed=changed,
            state=state,
            attempts=attempts,
            reason=reason,
            owner=(held.owner or None) if held and changed else None,
            dry_run=dry_run,
        )


def _settle(
    cx: Executor, topic: str, group: str, key: str, offset: int, watermark: int, rows: list[DeliveryRow]
) -> None:
    """The next one raises the watermark, over what is settled ahead of it; any other gets an acked row."""
    reached = lease_takeover.advanced(rows, watermark)
    if offset != reached + 1:
        Deliveries().settle(cx, group, topic, key, offset)
        return
    reached = lease_takeover.advanced([row for row in rows if row.acked], offset)
    Deliveries().delete(cx, group, topic, [(key, row.offset) for row in rows if row.through <= reached])
    lease_takeover.raise_watermarks(cx, topic, group, {key: reached})


def _state(
    offset: int, watermark: int, place: OffsetsRow | None, rows: Iterable[DeliveryRow], held: lease_takeover.Held | None
) -> tuple[MessageState, int]:
    """What the message is for the group before it is skipped, and the attempts that were started."""
    row = next((row for row in rows if row.offset <= offset <= row.through), None)
    if offset <= watermark or (row is not None and row.acked):
        return MessageState.COMPLETED, 0
    if row is not None:
        if row.lease_epoch and held is not None and held.owner and row.lease_epoch == held.epoch:
            return MessageState.PROCESSING, row.retry_count
        if row.retry_count:
            return MessageState.RETRYABLE, row.retry_count
        return (MessageState.POSTPONED if row.postponed else MessageState.PENDING), 0
    if place is not None and offset <= place.marked_through:
        mine = held is not None and bool(held.owner) and place.marked_epoch == held.epoch
        return (MessageState.PROCESSING if mine else MessageState.RETRYABLE), 1
    return MessageState.PENDING, 0


def release(database: Database, topic: str, group: str, key: str, *, dry_run: bool) -> Released:
    """See `Admin.release`."""
    check_name("key", key)
    _check(database, topic, group, key)
    return repeated(database, _release, "releasing", database, topic, group, key, dry_run=dry_run)


def _release(database: Database, topic: str, group: str, key: str, *, dry_run: bool) -> Released:
    with database.transaction() as cx:
        # floor S → lease X → delivery → offsets: no lease row is born here.
        lease_takeover.share_floors(cx, topic, [key])
        held = lease_takeover.lock_leases(cx, topic, group, [key]).get(key)
        owned = held is not None and bool(held.owner)
        if held is not None and owned and not dry_run:
            lease_takeover.take_away(cx, topic, group, [key], held.epoch + 1)
            void = interrupt.interrupt(cx, topic, group, {key: held})
            interrupt.unmark(cx, topic, group, void)
        return Released(
            topic=topic,
            group=group,
            key=key,
            changed=owned,
            owner=held.owner if held is not None and owned else None,
            owner_state=owners.load(cx, group, topic).state(held.owner) if held is not None and owned else None,
            epoch=0 if held is None else held.epoch + owned,
            dry_run=dry_run,
        )
