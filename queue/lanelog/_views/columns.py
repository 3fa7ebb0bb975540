"""The columns of topics, groups, members, lanes, offsets and leases.

Owns their heads, ranks and colours. A number has the same head in every table (ACKED is the watermark); the words are
those of the glossary.
"""

from __future__ import annotations

from lanelog._base.text import NOTHING, age, plural
from lanelog._views.column import Column, Tone, count, error, name, seconds, text, time, when, word
from lanelog.admin import GroupInfo, LaneInfo, MemberInfo, OwnerState
from lanelog.admin.operate.hung import HUNG, state_of
from lanelog.admin.operate.problems import SLOW

_old = when(lambda each: (each.oldest_age or 0) > SLOW, Tone.WARN)
_nobody = when(lambda each: each.lag and not each.members and each.paused_at is None, Tone.BAD)
_gone = when(lambda each: each.owner_state is not None and not each.owner_state.lives, Tone.BAD)


def oldest_of(group: GroupInfo) -> str:
    """Return the age of a group's oldest message, or a lower bound of it."""
    return age(group.oldest_age, exact=group.oldest_age_exact)


def paused_of(group: GroupInfo) -> str:
    """Return what an operator has paused."""
    if group.paused_at is not None:
        return "all"
    return plural(group.paused_lanes, "lane") if group.paused_lanes else NOTHING


def lease_of(lane: LaneInfo) -> str:
    """Return the time left of a lane's lease, or what is wrong with it."""
    if lane.group_paused or lane.paused_at is not None:
        return "paused"
    if lane.owner_state is None or lane.owner_state.lives:
        return age(lane.lease_left)
    return str(lane.owner_state)


def busy_of(member: MemberInfo) -> str:
    """Return how many of a member's workers are busy: `3/4`. Nothing: it has none, or its heartbeat does not say it."""
    if member.workload is None or not member.workload.workers:
        return NOTHING
    return f"{member.workload.busy}/{member.workload.workers}"


def pool_waits_of(member: MemberInfo) -> int | None:
    """Return how often threads of a member's client waited for a connection. None: its heartbeat does not say it."""
    return None if member.workload is None else member.workload.pool_waits


def busy_in(group: GroupInfo) -> str:
    """Return how many workers of a group are busy: `3/4`. Nothing: no heartbeat says it."""
    return f"{group.busy}/{group.workers}" if group.members_telling else NOTHING


def quiet_of(member: MemberInfo) -> float | None:
    """Return for how long none of a member's workers has ended. None: not all are busy, or it is not known."""
    found = member.workload
    return found.quiet if found is not None and found.all_busy else None


def _is_hung(member: MemberInfo) -> bool:
    return state_of(member) == HUNG


def _lease_tone(lane: LaneInfo) -> Tone | None:
    if lane.group_paused or lane.paused_at is not None:
        return Tone.WARN
    return _gone(lane)


def _oldest(rank: int) -> Column:
    return Column(head="OLDEST", get=oldest_of, show=str, rank=rank, right=True, tone=_old)


def _members(rank: int) -> Column:
    return count("MEMBERS", "members", rank=rank, tone=_nobody)


TOPICS = (
    name("TOPIC", "topic"),
    count("LANES", "lanes", rank=3),
    count("MESSAGES", "messages", rank=1),
    count("HEAD", "head", rank=6),
    count("FLOOR", "floor", rank=7),
    count("DEAD-LETTERS", "dead_letters", rank=2, tone=when(lambda each: each.dead_letters, Tone.BAD)),
    time("NEWEST-LANE", "newest_lane_at", rank=5),
    name("GROUPS", lambda each: " ".join(each.groups), rank=4),
)

GROUPS = (
    name("TOPIC", "topic"),
    name("GROUP", "group"),
    word("ORDER", "order", rank=7),
    _members(rank=2),
    count("LANES", "lanes", rank=6),
    count("OWNED", "owned_lanes", rank=5),
    count("STALE", "stale_lanes", rank=4, tone=when(lambda each: each.stale_lanes, Tone.BAD)),
    count("LAG", "lag", tone=_nobody),
    _oldest(rank=1),
    word("PAUSED", paused_of, rank=3, tone=when(lambda each: each.paused_at or each.paused_lanes, Tone.WARN)),
    name("START", "start", rank=8),
    word("BUSY", busy_in, rank=3),
)

LAG = (
    name("TOPIC", "topic"),
    name("GROUP", "group"),
    count("LANES", "lanes", rank=6),
    count("LAGGING", "lagging_lanes", rank=4),
    count("LAG", "lag", tone=_nobody),
    _oldest(rank=1),
    count("IN-FLIGHT", "in_flight", rank=5),
    count("WAITING", "waiting", rank=3, tone=when(lambda each: each.waiting, Tone.WARN)),
    _members(rank=2),
)

STATUS = tuple(column for column in LAG if column.head != "LANES")

MEMBERS = (
    name("MEMBER", "name"),
    word(
        "STATE",
        state_of,
        tone=when(lambda each: _is_hung(each) or each.state in {OwnerState.DEAD, OwnerState.EXPIRED}, Tone.BAD),
    ),
    count("LANES", "lanes", rank=1),
    word("BUSY", busy_of, rank=1, tone=when(_is_hung, Tone.BAD)),
    seconds("LEASE", "lease_left", rank=3),
    time("HEARTBEAT", "heartbeat_at", rank=2),
)

POOL_WAITS = count("POOL-WAITS", pool_waits_of, rank=1, tone=when(lambda each: bool(pool_waits_of(each)), Tone.WARN))
"""How often threads waited for a connection, if some did."""

OF_ALL = (name("TOPIC", "topic"), name("GROUP", "group"))
"""Before them, where members of all groups are listed."""

NONE_ENDED = seconds("NONE-ENDED", quiet_of, rank=4, tone=when(_is_hung, Tone.BAD))
"""Since when no worker has ended, if all workers of some member are busy."""

FOUND_DEAD = error("FOUND-BY", "found_dead_by", rank=5)
"""Who found members dead, if they did."""

_failing = when(lambda each: each.failed, Tone.BAD)

LANES = (
    name("KEY", "key"),
    count("ACKED", "watermark", rank=5),
    count("HEAD", "head", rank=6),
    count("LAG", "lag"),
    seconds("OLDEST", "oldest_age", rank=1, tone=_old),
    name("OWNER", "owner", rank=7),
    word("LEASE", lease_of, rank=4, tone=_lease_tone),
    count("ATTEMPTS", lambda each: each.attempts or None, rank=2, tone=_failing),
    error("ERROR", "last_error", rank=1, tone=_failing),
)

OFFSETS = (
    name("KEY", "key"),
    name("GROUP", "group"),
    count("ACKED", "watermark"),
    count("HEAD", "head", rank=1),
    count("LAG", "lag"),
    count("HANDED-OUT", lambda each: max(each.marked_through, each.watermark), rank=3),
    count("FLOOR", "floor", rank=4),
    time("UPDATED", "updated_at", rank=2),
)

AUDIT = (
    time("WHEN", "at"),
    word("VERB", "verb"),
    name("TOPIC", "topic"),
    name("GROUP", "group", rank=3),
    name("KEY", "key", rank=4),
    text("CHOICE", "choice", rank=5),
    count("MESSAGES", "messages", rank=6),
    name("BY", "by"),
    text("REASON", "reason", rank=1),
    name("ACCOUNT", "account", rank=7),
    name("PROCESS", "process", rank=8),
)

LEASES = (
    name("TOPIC", "topic", rank=2),
    name("GROUP", "group", rank=1),
    name("KEY", "key"),
    name("OWNER", "owner"),
    word("STATE", "owner_state", tone=_gone),
    seconds("LEASE", "lease_left", rank=3),
    count("EPOCH", "epoch", rank=5),
    time("SINCE", "leased_at", rank=4),
)
