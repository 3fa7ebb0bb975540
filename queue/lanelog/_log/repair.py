"""Contradictions: a lane whose rows contradict each other is repaired, so that no message is lost.

They come from tables that were restored one by one, and from replicas that apply commits in another order. A watermark,
floor or settled row above the head would swallow the messages that are published up to it. A head below the log refuses
every publish, and so does one that is too great to count on, as another program or a damaged disk may leave it.

Owns the judgement (`judge`), the repair (`repair_lane`) and one search through a topic (`audit`). A search takes no
locks, so it finds suspects only: a lane that is purged and born again between two reads seems wrong, too. So
`repair_lane` reads again under locks before it decides.

Lock order: topic row S → floor X → head X → leases X → delivery → offsets. The topic row keeps out the purge and any
change of the groups. The floor keeps out collection and seek, the head publishers, and the leases every settlement. The
new epoch makes a running owner lose the lane, because its memory is wrong, too. All is one transaction: a process that
dies in it, or sleeps until the server drops the session, has changed nothing. If two processes do this at once, the
second waits for the floor, and finds nothing wrong. A COMMIT that was not answered may have changed the lane: it is
logged, and the error is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._base.places import GroupTopic, LaneId
from lanelog._database import Lock, codes
from lanelog._facts import database as facts
from lanelog._stores._counted import BEYOND_COUNTING
from lanelog._stores.consumers import deliveries, groups, offsets
from lanelog._stores.log import lane_rows, partitions
from lanelog._stores.log.lane_rows import LaneRows
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lanelog._database import Executor, Session

_HELD: Final = frozenset({codes.LOCK_WAIT_TIMEOUT, codes.DEADLOCK})

# Whether the server refuses the writes of ordinary accounts. Some accounts may write all the same (no table).
READ_ONLY = "SELECT @@GLOBAL.read_only"

SUSPECT_LANES: Final = 1000
"""How many suspect lanes one search examines. After a restore, all lanes may be suspect."""


@frozen(kw_only=True)
class Contradiction:
    """One thing that is wrong with a lane."""

    topic: str
    key: str
    group: str
    """The group whose rows are wrong. Empty: the lane's own rows, which all groups share."""
    problem: str
    offset: int
    """The wrong offset in the tables."""
    head: int
    """The right head."""


@frozen(kw_only=True)
class Judgement:
    """The right values of a lane's rows, and the wrong ones."""

    head: int
    floor: int
    lane: str = ""
    """The problem of head or floor. Empty: there is none."""
    lane_offset: int = 0
    rewound: dict[str, int] = field(factory=dict)
    """Groups whose watermark is above the head: group -> watermark."""
    swallowing: dict[str, int] = field(factory=dict)
    """Groups, the reserved one included, with delivery rows above the head: group -> the highest offset of these."""

    @property
    def groups(self) -> list[str]:
        """Every group that must lose the lane."""
        return sorted({*self.rewound, *self.swallowing} - {""}, key=str.encode)

    def contradictions(self, topic: str, key: str) -> list[Contradiction]:
        """One for the lane, and one for each group."""
        found = [("", self.lane, self.lane_offset)] if self.lane else []
        found += [(group, "watermark above the head", offset) for group, offset in sorted(self.rewound.items())]
        found += [
            (group, "delivery rows above the head", offset)
            for group, offset in sorted(self.swallowing.items())
            if group not in self.rewound
        ]
        return [
            Contradiction(topic=topic, key=key, group=group, problem=problem, offset=offset, head=self.head)
            for group, problem, offset in found
        ]


def judge(lane: LaneRows) -> Judgement | None:
    """Judge a lane. None: nothing is wrong, or there is no lane."""
    if lane.head is None and lane.floor is None and lane.last is None:
        return None
    ends = [_counted(lane.head), _counted(lane.floor)]
    if _end_is_lost(lane):
        ends += map(_counted, _reached(lane))  # an offset that was given out must not be given out again
    head = max(lane.last or 0, *(end or 0 for end in ends))
    # When the floor is missing, the new one must not release a stored message.
    floor = _counted(lane.floor)
    if floor is None:
        floor = head if lane.first is None else lane.first - 1
    problem, offset = _wrong_with_head(lane)
    judgement = Judgement(
        head=head,
        floor=floor,
        lane=problem,
        lane_offset=offset,
        rewound={group: acked for group, acked in lane.watermarks.items() if acked > head},
        swallowing={
            group: max(through for _, through in rows)
            for group, rows in lane.rows.items()
            if any(through > head for _, through in rows)
        },
    )
    return judgement if judgement.lane or judgement.rewound or judgement.swallowing else None


def _end_is_lost(lane: LaneRows) -> bool:
    """Whether neither head nor floor says how many offsets were given out."""
    return _counted(lane.head) is None and _counted(lane.floor) is None


def _reached(lane: LaneRows) -> Iterator[int]:
    """The offsets up to which the groups have settled messages."""
    yield from lane.watermarks.values()
    yield from (through for rows in lane.rows.values() for _, through in rows)


def _wrong_with_head(lane: LaneRows) -> tuple[str, int]:
    """The problem of a lane's own rows, and the offset that shows it."""
    if lane.head is None:
        return "no head", max(lane.floor or 0, lane.last or 0)
    if lane.last is not None and lane.last > lane.head:
        return "messages above the head", lane.last
    if lane.head >= BEYOND_COUNTING and (lane.last or 0) < BEYOND_COUNTING:
        return "too great a number for the head", lane.head
    if lane.floor is None:
        return "no floor", lane.head
    if lane.floor > lane.head:
        return "floor above the head", lane.floor
    return "", 0


def _counted(offset: int | None) -> int | None:
    """An offset, or None if it is beyond counting: it says nothing of what was given out or released."""
    return None if offset is None or offset >= BEYOND_COUNTING else offset


def examine(cx: Executor, topic: str, key: str) -> list[Contradiction]:
    """The contradictions of a lane. Changes nothing. `cx` must read all of it in one snapshot."""
    judgement = judge(lane_rows.read(cx, topic, key, list(groups.readers(cx, topic))))
    return [] if judgement is None else judgement.contradictions(topic, key)


def read_only(cx: Executor) -> bool:
    """Whether the server is read-only. Then nothing is repaired, even if this account may write."""
    row = cx.one(READ_ONLY)
    return row is not None and str(row[0]).upper() not in ("0", "OFF")


def repair_lane(session: Session, topic: str, key: str) -> list[Contradiction] | None:
    """Repair a lane if it is wrong, and log one ERROR event for each contradiction. Returns the contradictions.

    None: another transaction held the lane for too long, so the caller must try again. Raises DatabaseError on a
    read-only server: a replica gets the rows of its primary, perhaps later.
    """
    if read_only(session):
        raise DatabaseError(
            f"lane {key!r} of topic {topic!r} contradicts itself, and the server is read-only: it is not repaired here",
            code=codes.OPTION_PREVENTS,
            retriable=True,
        )
    if "" not in partitions.heads(session, topic, [""]):
        partitions.ensure_topic(session, topic)  # the topic's row was lost together with the heads
    found: list[Contradiction] = []
    try:
        # A user's transaction may hold the head for long. The loop that repairs tries again.
        with session.brief_lock_waits(), session.transaction() as cx:
            found = _repair(cx, topic, key)
    except DatabaseError as error:
        if error.outcome_unknown:
            _log(found)
        if error.code not in _HELD:
            raise
        return None
    _log(found)
    return found


def _repair(cx: Executor, topic: str, key: str) -> list[Contradiction]:
    topic_row = partitions.topic_row(cx, topic, Lock.SHARE)
    if topic_row is None:
        return []  # the topic row was deleted since: the next search finds the lane again
    readers = list(groups.readers(cx, topic))
    floor = offsets.floors(cx, topic, [key], Lock.UPDATE).get(key)  # against collection, seek and the lane's purge
    head = partitions.head(cx, topic, key, Lock.UPDATE)  # against publishers
    rows = lane_rows.read(cx, topic, key, readers)
    judgement = judge(rows)
    if judgement is None:
        return []
    if judged := readers if _end_is_lost(rows) else judgement.groups:
        # Every settlement that was under way is committed now, so the judgement is made again.
        lane_rows.lock_leases(cx, topic, key, judged)
        judgement = judge(lane_rows.read(cx, topic, key, judged))
        if judgement is None:
            return []
    if floor is None:
        offsets.create_floors(cx, topic, [key], judgement.floor)
    elif floor.floor >= BEYOND_COUNTING:
        offsets.rewind(cx, LaneId(topic=topic, group="", key=key), judgement.floor)
    if head is None:
        partitions.create_heads(cx, topic, [key], judgement.head)
    else:
        partitions.set_head(cx, topic, key, judgement.head)
    if judgement.groups:
        lanes = [LaneId(topic=topic, group=group, key=key) for group in judgement.groups]
        leases.take_away(cx, lanes, topic_row.first_epoch)
    _drop_rows(cx, topic, key, judgement)
    for group in sorted(judgement.rewound, key=str.encode):
        offsets.rewind(cx, LaneId(topic=topic, group=group, key=key), judgement.floor)
    return judgement.contradictions(topic, key)


def _drop_rows(cx: Executor, topic: str, key: str, judgement: Judgement) -> None:
    """Delete the delivery rows above the head. For a group that begins again at the floor, delete all its rows."""
    for group in sorted({*judgement.rewound, *judgement.swallowing}, key=str.encode):
        at = GroupTopic(topic=topic, group=group)
        rows = deliveries.load(cx, at, [key]).get(key, [])
        gone = [(key, row.offset) for row in rows if group in judgement.rewound or row.through > judgement.head]
        deliveries.delete(cx, at, gone)


def _log(found: Iterable[Contradiction]) -> None:
    for each in found:
        facts.lane_mended(
            topic=each.topic, key=each.key, group=each.group, problem=each.problem, offset=each.offset, head=each.head
        )


@frozen(kw_only=True)
class Audited:
    """The result of one search."""

    repaired: Sequence[Contradiction]
    busy: int
    """How many suspect lanes other transactions held for too long."""
    more: bool
    """Whether there may be more suspect lanes than this search examined."""


def audit(session: Session, topic: str) -> Audited:
    """Find suspect lanes, and repair those that are wrong. The search needs few statements, even for many lanes."""
    suspects = lane_rows.suspects(session, topic, list(groups.readers(session, topic)), SUSPECT_LANES)
    repaired: list[Contradiction] = []
    busy = 0
    for key in suspects:
        found = repair_lane(session, topic, key)
        if found is None:
            busy += 1
        else:
            repaired += found
    return Audited(repaired=repaired, busy=busy, more=len(suspects) == SUSPECT_LANES)
