"""Pause, resume, skip and release, for a group, a lane or one message.

Owns these transactions. Never touches the log, nor another group.

A pause is a flag: owners read it, hand out nothing more, let handlers finish and give their lanes back. Skip and
release fence the owner, because its memory would contradict the tables: topic row S → groups S (skip alone) → floor S →
lease X → delivery → offsets → history (skip alone) → heartbeat (release alone), see `_log/take_away`. The owner's
deliveries in flight are delivered again, see `interrupt`.

If the process dies right before a COMMIT, nothing has happened. If it dies right after, or the COMMIT is not answered,
the repetition finds it done and returns `changed=False`. If two processes do this at once, the second waits for the row
of the first, and finds it done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from lanelog._database import Lock
from lanelog._log import interrupt, take_away
from lanelog._log.lookup import owners
from lanelog._log.lookup.known import PAGE, clock, no_group, no_lane, repeated, snapshot
from lanelog._stores._pause import RUNS, Pause
from lanelog._stores.consumers import deliveries, groups, history, offsets
from lanelog._stores.log import dead_letters
from lanelog._stores.members import heartbeats, leases
from lanelog.admin.audit_entry import Act, Call, Unanswered
from lanelog.admin.change.deletion_facts import passing
from lanelog.admin.lookup.arguments import REASON_MAX, check_text
from lanelog.admin.lookup.given import given_group, given_lane, given_offset
from lanelog.admin.totals import lane_totals, message_state
from lanelog.admin.types.results import Paused, Released, Resumed, Skipped
from lanelog.admin.types.topology import MessageState
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._base.places import GroupTopic, LaneId
    from lanelog._database import Executor
    from lanelog._stores.consumers.deliveries import DeliveryRow

# -- pause and resume --------------------------------------------------------------------------------------------------


def pause(call: Call, at: GroupTopic, *, key: str | None, by: str, reason: str) -> Paused:
    """See `Admin.pause`."""
    call = call.but(by=by, reason=reason)
    given_group(call.database, at, key)
    act = Act(call, "pause", topic=at.topic, group=at.group, key=key or "")
    wanted = Pause(1, call.actor.by, call.actor.reason)
    before, now = repeated(call.database, _set, "pausing", act, at, key, wanted)
    pause = before if before.at_ms else wanted._replace(at_ms=now)
    return Paused(
        topic=at.topic,
        group=at.group,
        key=key,
        changed=not before.at_ms,
        paused_at=utc_from_ms(pause.at_ms),
        by=pause.by,
        reason=pause.reason,
        lag=snapshot(call.database, _lag, "counting", at, key),
        dry_run=call.dry_run,
    )


def resume(call: Call, at: GroupTopic, *, key: str | None) -> Resumed:
    """See `Admin.resume`."""
    given_group(call.database, at, key)
    act = Act(call, "resume", topic=at.topic, group=at.group, key=key or "")
    before, _ = repeated(call.database, _set, "resuming", act, at, key, RUNS)
    return Resumed(
        topic=at.topic,
        group=at.group,
        key=key,
        changed=bool(before.at_ms),
        paused_at=utc_from_ms(before.at_ms) if before.at_ms else None,
        by=before.by,
        reason=before.reason,
        dry_run=call.dry_run,
    )


def _set(act: Act, at: GroupTopic, key: str | None, wanted: Pause) -> tuple[Pause, int]:
    """Set or end a pause in one transaction.

    Return the earlier pause, and the database's clock, at which a pause begins.
    """
    with act.database.transaction(hasty=True) as cx:
        # groups X → floor S → offsets; a group's pause locks the group's row alone. The locked floor keeps
        # the removal of the lane away, which would delete the flag.
        before = groups.lock_pause(cx, at)
        if before is None:
            raise no_group(at)
        floor = 0
        if key is not None:
            held = offsets.floors(cx, at.topic, [key], Lock.SHARE).get(key)
            if held is None:
                raise no_lane(at.topic, key)
            floor = held.floor
            before = offsets.lock_pause(cx, at.lane(key))
        now = clock(cx)
        if not act.dry_run and bool(before.at_ms) != bool(wanted.at_ms):
            pause = wanted._replace(at_ms=now) if wanted.at_ms else RUNS
            if key is None:
                groups.set_pause(cx, at, pause)
            else:
                groups.count_lane_pause(cx, at)
                offsets.set_pause(cx, at.lane(key), pause, floor)
            act.record(cx)
        return before, now


def _lag(cx: Executor, at: GroupTopic, key: str | None) -> int:
    if key is None:
        return lane_totals.total(cx, at).lag
    return sum(facts.lag for facts in lane_totals.load(cx, at.topic, [at.group], [key]).values())


# -- skip and release --------------------------------------------------------------------------------------------------


def skip(call: Call, lane: LaneId, offset: int, *, reason: str) -> Skipped:
    """See `Admin.skip`."""
    group, topic, key = lane.columns
    check_text("reason", reason, REASON_MAX, empty=False)
    given_offset(call.database, lane, offset)
    unanswered = Unanswered()
    choice = f"offset {offset}"
    act = Act(call.but(reason=reason), "skip", topic=topic, group=group, key=key, choice=choice)
    with passing(act) as tally:
        skipped = repeated(call.database, _skip, "skipping", act, lane, offset, unanswered, reason)
        passed = unanswered.committed(int(skipped.changed and not call.dry_run))
        tally.add(messages=passed, unsettled=passed)
    return skipped


def _skip(act: Act, lane: LaneId, offset: int, unanswered: Unanswered, reason: str) -> Skipped:
    at, topic, key = lane.of, lane.topic, lane.key
    with unanswered.attempt(), act.database.transaction(hasty=True) as cx:
        held = take_away.hold(cx, lane)
        standing = _standing(cx, lane, offset)
        changed = standing.state is not MessageState.COMPLETED
        if changed and not act.dry_run:
            unanswered.plan(1)
            void = held.take(cx)
            rows = deliveries.load(cx, at, [key]).get(key, [])
            _settle(cx, lane, offset, held.watermark, rows)
            offsets.unmark(cx, at, void)
            row = next((row for row in rows if row.offset <= offset <= row.through), None)
            history.skipped(
                cx,
                lane,
                offset,
                attempts=standing.attempts,
                first_age=None if row is None else row.first_age,
                owner=held.owner,
                reason=reason,
            )
            act.record(cx, messages=1)
        return Skipped(
            topic=topic,
            group=at.group,
            key=key,
            offset=offset,
            id=dead_letters.source_id(cx, topic, key, offset),
            changed=changed,
            state=standing.state,
            attempts=standing.attempts,
            reason=reason,
            owner=(held.owner or None) if changed else None,
            dry_run=act.dry_run,
        )


def _settle(cx: Executor, lane: LaneId, offset: int, watermark: int, rows: list[DeliveryRow]) -> None:
    """Settle one message: right after the watermark, by raising it over all settled ones; elsewhere, by a row."""
    reached = deliveries.advanced(rows, watermark)
    if offset != reached + 1:
        deliveries.settle(cx, lane, offset)
        return
    reached = deliveries.advanced([row for row in rows if row.acked], offset)
    deliveries.delete(cx, lane.of, [(lane.key, row.offset) for row in rows if row.through <= reached])
    offsets.raise_watermarks(cx, lane.of, {lane.key: reached})


def _standing(cx: Executor, lane: LaneId, offset: int) -> message_state.Standing:
    """Return where the message stands for the group before it is skipped, even if it has expired."""
    group, topic, key = lane.columns
    body = message_state.Body(key, offset, created_at=0, expires_at=0, target_group="")
    facts = lane_totals.load(cx, topic, [group], [key])[(group, key)]
    return message_state.judge(group, body, message_state.covering(cx, lane, offset), facts)


def release(call: Call, lane: LaneId) -> Released:
    """See `Admin.release`."""
    given_lane(call.database, lane)
    act = Act(call, "release", topic=lane.topic, group=lane.group, key=lane.key)
    others = snapshot(call.database, _others, "finding the owner's lanes", lane)
    for start in range(0, 0 if call.dry_run else len(others), PAGE):
        repeated(call.database, _release_others, "releasing", act, lane, others[start : start + PAGE])
    done = repeated(call.database, _release, "releasing", act, lane)
    return evolve(done, others=others)


def _others(cx: Executor, lane: LaneId) -> tuple[str, ...]:
    """Return the owner's other lanes, if the owner is gone."""
    gone = _gone(cx, lane)
    owned = [] if gone is None else leases.owned(cx, lane.of, gone)
    return tuple(each.key for each in owned if each.key != lane.key)


def _gone(cx: Executor, lane: LaneId) -> str | None:
    """Return the lane's owner, if it is gone."""
    held = leases.held(cx, lane)
    return held.owner if held is not None and held.owner and owners.load(cx, lane.of).gone(held.owner) else None


def _release_others(act: Act, lane: LaneId, keys: Sequence[str]) -> None:
    """Take a page of the other lanes of a lane's owner away, if it still is gone.

    The lane itself comes last. If this process dies before that, the owner still has the lane, and a repetition takes
    the rest. What was in flight counts as a crash, as it does when another member takes the lanes over.
    """
    at = lane.of
    with act.database.transaction(hasty=True) as cx:
        # floors S → leases X, as for one lane
        offsets.floors(cx, at.topic, keys, Lock.SHARE)
        gone = _gone(cx, lane)
        held = leases.lock_owners(cx, at, keys)
        taken = [(key, lease.epoch) for key, lease in held.items() if gone and lease.owner == gone]
        if gone and taken:
            leases.release(cx, at, gone, taken)
            act.record(cx)


def _release(act: Act, lane: LaneId) -> Released:
    at, key = lane.of, lane.key
    with act.database.transaction(hasty=True) as cx:
        # floor S → lease X → delivery → offsets → heartbeat: no lease row is born here.
        offsets.floors(cx, at.topic, [key], Lock.SHARE)
        held = leases.lock_owners(cx, at, [key]).get(key)
        owner = held.owner if held is not None else ""
        known = owners.load(cx, at)
        epoch = 0 if held is None else held.epoch + bool(owner)
        if held is not None and owner and not act.dry_run:
            take_away.lanes(cx, at, [key], held.epoch)
            void = interrupt.interrupt(cx, at, {key: held})
            offsets.unmark(cx, at, void)
            if known.gone(owner) and not leases.holds(cx, at, owner):
                # The others count it as a member as long as its lock is held, and would leave its share to it.
                heartbeats.deregister_dead(cx, at, owner, known.rows[owner].heartbeat_at, by="release")
            epoch = leases.lock_owners(cx, at, [key])[key].epoch  # another one, if the row's was beyond counting
            act.record(cx)
        return Released(
            topic=at.topic,
            group=at.group,
            key=key,
            changed=bool(owner),
            owner=owner or None,
            owner_state=known.state(owner) if owner else None,
            epoch=epoch,
            others=(),
            dry_run=act.dry_run,
        )
