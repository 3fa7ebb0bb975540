"""Seek: set where a group goes on in its lanes.

Owns the choice of the new watermarks, and the transactions that set them. Never deletes a message.

One transaction for each page of lanes: topic row S → groups S → floors S → leases X → delivery → offsets, see
`_log/take_away`. It takes the lanes away from their owners, deletes the delivery rows, and sets watermark and run mark.
So the next owner finds a lane in which nothing is in flight, and nothing is settled after the new offset. A settlement
of the former owner either commits first, and is undone, or finds another epoch, and is refused.

If the process dies right before a COMMIT, nothing of that page has happened. If it dies right after or between two
pages, or the COMMIT is not answered, some lanes are set. The same seek again sets the others, and sets the first ones
once more ("latest": to the head of that time). If two processes seek at once, the later one stands, lane by lane.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._base.checks import aware, check_name
from lanelog._database import Lock
from lanelog._log import take_away
from lanelog._log.lookup.known import known_group, known_lane, pages, read, repeated
from lanelog._log.register import last_before
from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.log import partitions
from lanelog.admin.audit_entry import Act, Call, Unanswered
from lanelog.admin.change.deletion_facts import passing
from lanelog.admin.lookup.arguments import check_names, milliseconds
from lanelog.admin.types.results import Sought, SoughtLane
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._database import Database, Executor
    from lanelog._stores.consumers.deliveries import DeliveryRow

LANES_A_TRANSACTION = 200
"""Lanes that one transaction takes away. Their owners' flushes wait for it."""

MOVED_SHOWN = 1000
MAX_OFFSET = 1 << 62


@frozen(kw_only=True)
class _Move:
    """One lane's part of a seek."""

    key: str
    before: int
    after: int
    clamped: bool
    again: int
    passed: int
    rows: tuple[int, ...]  # offsets of the delivery rows to delete


def seek(call: Call, at: GroupTopic, *, key: str | None, to: str | datetime | int) -> Sought:
    """See `Admin.seek`."""
    database = call.database
    check_names(at)
    target, text = _target(to, key)
    if key is not None:
        check_name("key", key)
    read(database, known_group, "finding the group", at)
    act = Act(call, "seek", topic=at.topic, group=at.group, key=key or "", choice=f"to {text}")
    counted, moved = Counter[str](), list[SoughtLane]()
    with passing(act) as tally:
        for keys in _pages(database, at.topic, key):
            targets = _targets(database, at.topic, keys, target)
            unanswered = Unanswered()
            moves = repeated(database, _page, "seeking", act, at, targets, unanswered)
            if key is not None and not moves:
                raise ConfigurationError(
                    f"lane {key!r} of topic {at.topic!r} was removed meanwhile: nothing is left in it"
                )
            again, passed = sum(move.again for move in moves), sum(move.passed for move in moves)
            counted.update(lanes=len(moves), again=again, passed=passed, clamped=sum(move.clamped for move in moves))
            changed = [move for move in moves if move.before != move.after][: MOVED_SHOWN - len(moved)]
            moved += [SoughtLane(key=move.key, before=move.before, after=move.after) for move in changed]
            if not call.dry_run:
                passed = unanswered.committed(passed)
                tally.add(messages=passed, unsettled=passed)
    return Sought(
        topic=at.topic,
        group=at.group,
        key=key,
        to=text,
        lanes=counted["lanes"],
        again=counted["again"],
        passed=counted["passed"],
        clamped=counted["clamped"],
        moved=tuple(moved),
        dry_run=call.dry_run,
    )


def _target(to: object, key: str | None) -> tuple[str | int | datetime, str]:
    """Return the checked target, and its text."""
    if isinstance(to, str) and to in ("earliest", "latest"):
        return to, to
    if isinstance(to, datetime):
        moment = aware("to", to)
        return moment, moment.isoformat()
    if isinstance(to, int) and not isinstance(to, bool):
        if key is None:
            raise ConfigurationError("an offset is of one lane: give its key")
        if not 1 <= to <= MAX_OFFSET:
            raise ConfigurationError(f"offsets begin at 1: to={to} is none")
        return to, str(to)
    raise ConfigurationError(f"to must be 'earliest', 'latest', an aware datetime or an offset (int), not {to!r}")


def _pages(database: Database, topic: str, key: str | None) -> Iterator[Sequence[str]]:
    if key is not None:
        read(database, known_lane, "finding the lane", topic, key)
        yield [key]
        return
    for page in pages(database, topic, LANES_A_TRANSACTION):
        yield [lane for lane, _ in page]


def _targets(
    database: Database, topic: str, keys: Sequence[str], target: str | int | datetime
) -> Mapping[str, int | None]:
    """Return the wanted watermark of each lane, before floor and head bound it.

    None: the head at the time of the change.

    An instant is searched before anything is locked: messages that are published meanwhile are written later.
    """
    if isinstance(target, datetime):
        return read(database, instants, "finding an instant", topic, keys, milliseconds(target))
    if isinstance(target, int):
        return dict.fromkeys(keys, target - 1)
    return dict.fromkeys(keys, None if target == "latest" else -1)


def instants(cx: Executor, topic: str, keys: Sequence[str], start_ms: int) -> dict[str, int]:
    """Return the last offset written before an instant, by key. For a lane that is gone: 0."""
    heads = partitions.heads(cx, topic, keys)
    floors = offsets.floors(cx, topic, keys)
    found = dict.fromkeys(keys, 0)
    for key in keys:
        floor = floors.get(key)
        if key in heads and floor is not None:
            found[key] = last_before(cx, topic, key, floor.floor, heads[key], start_ms)
    return found


def _page(act: Act, at: GroupTopic, targets: Mapping[str, int | None], unanswered: Unanswered) -> list[_Move]:
    """Seek in one page of lanes, in one transaction. A lane without a floor has been removed and is left out."""
    with unanswered.attempt(), act.database.transaction(hasty=True) as cx:
        epoch = 0 if act.dry_run else take_away.begin(cx, at)
        rows = offsets.floors(cx, at.topic, targets, Lock.NONE if act.dry_run else Lock.SHARE)
        floors = {key: row.floor for key, row in rows.items()}
        if not act.dry_run:
            take_away.lanes(cx, at, floors, epoch)
        moves = _plan(cx, at, floors, targets)
        if not act.dry_run:
            passed = sum(move.passed for move in moves)
            unanswered.plan(passed)
            # No other transaction can write these rows now: it would have to share-lock the leases first.
            deliveries.delete(cx, at, [(move.key, offset) for move in moves for offset in move.rows])
            offsets.move_watermarks(cx, at, {move.key: move.after for move in moves})
            if moves:
                act.record(cx, messages=passed)
    return moves


def _plan(cx: Executor, at: GroupTopic, floors: Mapping[str, int], targets: Mapping[str, int | None]) -> list[_Move]:
    keys = list(floors)
    heads = partitions.heads(cx, at.topic, keys)
    marks = offsets.load(cx, at, keys)
    rows = deliveries.load(cx, at, keys)
    return [
        _move(
            key,
            floor=floors[key],
            head=heads[key],
            acked=marks[(at.group, key)].offset_acked if (at.group, key) in marks else 0,
            rows=rows.get(key, ()),
            wanted=targets[key],
        )
        for key in keys
        if key in heads
    ]


def _move(key: str, *, floor: int, head: int, acked: int, rows: Sequence[DeliveryRow], wanted: int | None) -> _Move:
    before = max(acked, floor)
    after = head if wanted is None else min(max(wanted, floor), head)
    return _Move(
        key=key,
        before=before,
        after=after,
        clamped=wanted is not None and wanted >= 0 and wanted != after,
        again=max(0, before - after) + take_away.settled_between(rows, max(before, after), head),
        passed=max(0, after - before) - take_away.settled_between(rows, before, after),
        rows=tuple(row.offset for row in rows),
    )
