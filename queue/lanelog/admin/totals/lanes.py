"""Lists of lanes, offsets and leases, as groups see them.

Owns the choice and the order of the lanes. The values of each lane come from `lane_totals`, `owners` and
`message_state`. Each list is read in one snapshot, held for milliseconds, so that watermark, delivery rows and lease of
a lane fit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lanelog._base.places import GroupTopic
from lanelog._log.lookup import owners as _owners
from lanelog._log.lookup.known import known_group, known_lane, known_topic, snapshot
from lanelog._log.lookup.names import readers
from lanelog._stores._counted import signed
from lanelog._stores._points import placeholders
from lanelog._stores.log import partitions
from lanelog._stores.members import leases
from lanelog.admin.lookup.arguments import check_names, limit_of, optional, when
from lanelog.admin.totals import ages, lane_totals, message_state
from lanelog.admin.totals.lane_totals import LANES, WATERMARK
from lanelog.admin.types.topology import LaneInfo, LeaseInfo, OffsetInfo
from lanelog.config import check_name
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lanelog._base.places import LaneId
    from lanelog._database import Database, Executor
    from lanelog._log.lookup.owners import Owners
    from lanelog.admin.totals.lane_totals import LaneFacts

ORDERS = ("age", "lag", "key")

# Keys with the most unsettled messages; messages settled ahead are added up lane by lane (all PRIMARY).
BY_LAG = f"""
SELECT p.partition_key FROM {LANES}
WHERE p.topic = %s AND p.partition_key <> ''
ORDER BY {signed("p.head_offset")} - {signed(WATERMARK)} - COALESCE((
  SELECT CAST(SUM({signed("d.through_offset")} + 1 - GREATEST({signed("d.message_offset")}, {signed(WATERMARK)} + 1))
         AS SIGNED)
  FROM queue_delivery_state d FORCE INDEX (PRIMARY)
  WHERE d.consumer_group = %s AND d.topic = p.topic AND d.partition_key = p.partition_key AND d.acked = 1
        AND d.through_offset > {WATERMARK}), 0) DESC, p.partition_key LIMIT %s
"""

# Keys in front of a key, the last one first (PRIMARY).
BY_KEY_BACK = """
SELECT partition_key FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic = %s AND partition_key > '' AND partition_key < %s ORDER BY partition_key DESC LIMIT %s
"""

_LEASE = "partition_key, leased_by, lease_epoch, leased_at FROM queue_partition_leases"

# Leases of a group, by key (PRIMARY).
LEASES = f"""SELECT {_LEASE} FORCE INDEX (PRIMARY)
WHERE consumer_group = %s AND topic = %s ORDER BY partition_key LIMIT %s
"""

# Leases in the name of certain owners, by key (by_owner).
LEASES_OF = f"""SELECT {_LEASE} FORCE INDEX (by_owner)
WHERE consumer_group = %s AND topic = %s AND leased_by IN ({{owners}}) ORDER BY partition_key LIMIT %s
"""


def lanes(
    database: Database,
    at: GroupTopic,
    *,
    order_by: str,
    limit: int,
    after: str = "",
    before: str = "",
    breadth: ages.Breadth = ages.USUAL,
) -> list[LaneInfo]:
    """See `Admin.lanes`."""
    check_names(at)
    limit_of(limit)
    if order_by not in ORDERS:
        raise ConfigurationError(f"order_by must be one of {', '.join(map(repr, ORDERS))}, not {order_by!r}")
    if (after or before) and order_by != "key":
        raise ConfigurationError("after and before need order_by='key': lanes move in the other orders")
    if after and before:
        raise ConfigurationError("after and before exclude each other: read on in one direction")

    def query(cx: Executor) -> list[LaneInfo]:
        paused = known_group(cx, at).paused
        if order_by == "age":
            keys = ages.oldest(cx, at, limit, breadth)
        elif order_by == "lag":
            keys = [key for (key,) in cx.query(BY_LAG, (at.group, at.topic, at.group, limit))]
        elif before:
            keys = [key for (key,) in cx.query(BY_KEY_BACK, (at.topic, before, limit))][::-1]
        else:
            keys = [key for key, _ in partitions.page(cx, at.topic, after, limit)]
        return _lanes(cx, at.topic, {at.group: keys}, [at.group] if paused else [])[at.group]

    return snapshot(database, query, "listing lanes")


def of_groups(
    database: Database, topic: str, chosen: Mapping[str, Sequence[str]], paused: Collection[str], *, most: int = 0
) -> dict[str, list[LaneInfo]]:
    """Return the lanes of the keys that are chosen for each of a few groups.

    A lane that is gone is left out. `paused`: the groups that are. `most`: fill the lanes of each group up to so many.
    """

    def query(cx: Executor) -> dict[str, list[LaneInfo]]:
        return _lanes(cx, topic, ages.filled(cx, topic, chosen, most) if most else chosen, paused)

    return snapshot(database, query, "reading lanes")


def lane(database: Database, at: LaneId) -> LaneInfo:
    """See `Admin.lane`."""
    check_names(at.of)
    check_name("key", at.key)

    def query(cx: Executor) -> LaneInfo:
        paused = known_group(cx, at.of).paused
        known_lane(cx, at.topic, at.key)
        (found,) = _lanes(cx, at.topic, {at.group: [at.key]}, [at.group] if paused else [])[at.group]
        return found

    return snapshot(database, query, "reading a lane")


def _lanes(
    cx: Executor, topic: str, chosen: Mapping[str, Sequence[str]], paused: Collection[str]
) -> dict[str, list[LaneInfo]]:
    facts = lane_totals.load_each(cx, topic, chosen)
    owners = _owners.load_each(cx, topic, list(chosen))
    firsts = message_state.firsts(cx, topic, facts)
    found: dict[str, list[LaneInfo]] = {group: [] for group in chosen}
    for (group, key), each in facts.items():
        first = firsts.get((group, key))
        found[group].append(_lane(topic, group, key, each, owners[group], first, group_paused=group in paused))
    return found


def _lane(
    topic: str,
    group: str,
    key: str,
    facts: LaneFacts,
    owners: Owners,
    first: message_state.First | None,
    *,
    group_paused: bool,
) -> LaneInfo:
    owner, offsets = facts.owner, facts.offsets
    in_flight, waiting = owners.handed_out(facts.in_flight, facts.waiting)
    return LaneInfo(
        topic=topic,
        group=group,
        key=key,
        watermark=facts.watermark,
        head=facts.head,
        floor=facts.floor,
        lag=facts.lag,
        acked_ahead=facts.sums.ahead,
        oldest_age=None if first is None or first.age_ms is None else first.age_ms / 1000,
        owner=owner or None,
        owner_state=owners.state(owner) if owner else None,
        owner_silent=owners.silent(owner),
        lease_left=owners.left(owner) if owner else None,
        lease_epoch=facts.epoch,
        in_flight=in_flight,
        waiting=waiting,
        state=None if first is None else first.standing.state,
        attempts=0 if first is None else first.standing.attempts,
        last_error=None if first is None else first.standing.last_error,
        next_attempt_in=None if first is None else first.standing.next_attempt_in,
        paused_at=when(offsets.paused_at),
        paused_by=offsets.paused_by,
        pause_reason=offsets.pause_reason,
        group_paused=group_paused,
    )


def offsets(database: Database, topic: str, group: str | None, key: str | None, limit: int) -> list[OffsetInfo]:
    """See `Admin.offsets`."""
    check_name("topic", topic)
    optional("group", group)
    optional("key", key)
    limit_of(limit)

    def query(cx: Executor) -> list[OffsetInfo]:
        groups = _groups_of(cx, topic, group)
        if key is not None:
            known_lane(cx, topic, key)
            keys = [key]
        else:
            # Every lane has a watermark for every group: this number of lanes is enough.
            lanes = -(-limit // max(1, len(groups)))
            keys = [found for found, _ in partitions.page(cx, topic, "", lanes)]
        facts = lane_totals.load(cx, topic, groups, keys)
        every = ((name, lane) for lane in keys for name in groups)
        return [_offset(topic, *at, facts[at]) for at in every if at in facts][:limit]

    return snapshot(database, query, "listing offsets")


def _offset(topic: str, group: str, key: str, facts: LaneFacts) -> OffsetInfo:
    offsets = facts.offsets
    return OffsetInfo(
        topic=topic,
        group=group,
        key=key,
        watermark=facts.watermark,
        head=facts.head,
        floor=facts.floor,
        deleted_through=facts.deleted_through,
        lag=facts.lag,
        acked_ahead=facts.sums.ahead,
        owner=facts.owner or None,
        marked_through=offsets.marked_through,
        marked_epoch=offsets.marked_epoch,
        marked_at=when(offsets.marked_at),
        paused_at=when(offsets.paused_at),
        updated_at=when(offsets.updated_at),
    )


def _groups_of(cx: Executor, topic: str, group: str | None) -> list[str]:
    if group is not None:
        known_group(cx, GroupTopic(topic=topic, group=group))
        return [group]
    known_topic(cx, topic)
    return readers(cx, topic).get(topic, [])


def list_leases(
    database: Database, topic: str | None, group: str | None, *, stale: bool, limit: int
) -> list[LeaseInfo]:
    """See `Admin.leases`. One snapshot for each topic and group."""
    optional("topic", topic)
    optional("group", group)
    limit_of(limit)

    def registered(cx: Executor) -> list[GroupTopic]:
        if topic is not None:
            return [GroupTopic(topic=topic, group=name) for name in _groups_of(cx, topic, group)]
        found = [GroupTopic(topic=each, group=name) for each, names in readers(cx).items() for name in names]
        chosen = [at for at in found if group in (None, at.group)]
        if group is not None and not chosen:
            raise ConfigurationError(f"no topic has a group {group!r}: `lanelog groups` lists those there are")
        return chosen

    found: list[LeaseInfo] = []
    for at in snapshot(database, registered, "listing groups"):
        if len(found) >= limit:
            break
        found += snapshot(database, _leases, "listing leases", at, limit - len(found), stale=stale)
    return found


def _leases(cx: Executor, at: GroupTopic, limit: int, *, stale: bool) -> list[LeaseInfo]:
    owners = _owners.load(cx, at)
    if stale:
        dead = [name for name in leases.counts(cx, at) if name and not owners.alive(name)]
        rows = _of(cx, at, dead, limit)
    else:
        rows = cx.query(LEASES, (*at.columns, limit))
    return [_lease(at, row, owners) for row in rows]


def _of(cx: Executor, at: GroupTopic, owners: Sequence[str], limit: int) -> list[tuple[Any, ...]]:
    if not owners:
        return []
    return cx.query(LEASES_OF.format(owners=placeholders(owners)), (*at.columns, *owners, limit))


def _lease(at: GroupTopic, row: tuple[Any, ...], owners: Owners) -> LeaseInfo:
    key, owner, epoch, leased_at = row
    beat = owners.rows.get(owner)
    return LeaseInfo(
        topic=at.topic,
        group=at.group,
        key=key,
        owner=owner or None,
        owner_state=owners.state(owner) if owner else None,
        epoch=epoch,
        leased_at=when(leased_at) if owner else None,
        heartbeat_at=when(beat.heartbeat_at) if owner and beat else None,
        lease_left=owners.left(owner) if owner else None,
    )
