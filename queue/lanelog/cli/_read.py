"""The verbs that look: topics, groups, members, lanes, lag, offsets, leases.

Owns their columns, which are named as Kafka's tools name them; changes nothing. Registered by `_main`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from lanelog.admin import OwnerState
from lanelog.cli._output import NOTHING, Answer, Table, age, moment, number, shown
from lanelog.cli._verbs import alarms, limit_option, monitored, reading

if TYPE_CHECKING:
    from lanelog.admin import Admin, GroupInfo, LaneInfo


@click.command()
@limit_option
@reading
def topics(admin: Admin, *, limit: int) -> Answer:
    """List the topics, and what they hold."""
    found = admin.topics(limit)
    heads = ("TOPIC", "LANES", "MESSAGES", "LOG-END-OFFSETS", "FLOORS", "DEAD-LETTERS", "NEWEST-LANE", "GROUPS")
    rows = [
        [
            shown(each.topic),
            str(each.lanes),
            str(each.messages),
            str(each.head),
            str(each.floor),
            str(each.dead_letters),
            moment(each.newest_lane_at),
            shown(" ".join(each.groups)),
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, heads[1:6]))


@click.command()
@click.argument("topic", required=False)
@monitored
@reading
def groups(admin: Admin, *, topic: str | None, max_lag: int | None, max_age: float | None) -> Answer:
    """List the consumer groups of TOPIC, or of all topics."""
    found = admin.groups(topic)
    heads = ("TOPIC", "GROUP", "ORDER", "MEMBERS", "LANES", "OWNED", "STALE", "LAG", "OLDEST-AGE", "PAUSED", "START")
    rows = [
        [
            shown(each.topic),
            shown(each.group),
            each.order,
            str(each.members),
            str(each.lanes),
            str(each.owned_lanes),
            str(each.stale_lanes),
            str(each.lag),
            age(each.oldest_age, exact=each.oldest_age_exact),
            _paused(each),
            each.start,
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, heads[3:9]), alarms=alarms(_measured(found), max_lag, max_age))


def _paused(group: GroupInfo) -> str:
    if group.paused_at is not None:
        return "all"
    return f"{group.paused_lanes} lanes" if group.paused_lanes else NOTHING


def _measured(found: list[GroupInfo]) -> list[tuple[str, int, float | None]]:
    return [(f"{shown(each.topic)} {shown(each.group)}", each.lag, each.oldest_age) for each in found]


@click.command()
@click.argument("topic")
@click.argument("group")
@reading
def members(admin: Admin, *, topic: str, group: str) -> Answer:
    """List the subscribers of GROUP on TOPIC, alive or not."""
    found = admin.members(topic, group)
    heads = ("TOPIC", "GROUP", "MEMBER", "STATE", "LANES", "LEASE", "HEARTBEAT")
    rows = [
        [
            shown(each.topic),
            shown(each.group),
            shown(each.name),
            each.state.value,
            str(each.lanes),
            age(each.lease_left),
            moment(each.heartbeat_at),
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, ("LANES", "LEASE")))


LANE_HEADS = (
    "TOPIC",
    "KEY",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "OLDEST-AGE",
    "OWNER",
    "LEASE",
    "ATTEMPTS",
    "LAST-ERROR",
)
LANE_NUMBERS = (*LANE_HEADS[2:6], "ATTEMPTS")


@click.command()
@click.argument("topic")
@click.argument("group")
@click.option(
    "--by",
    "order_by",
    type=click.Choice(["age", "lag", "key"]),
    default="age",
    show_default=True,
    help="The oldest message first, the greatest lag first, or by key.",
)
@limit_option
@monitored
@reading
def lanes(
    admin: Admin,
    *,
    topic: str,
    group: str,
    order_by: Literal["age", "lag", "key"],
    limit: int,
    max_lag: int | None,
    max_age: float | None,
) -> Answer:
    """List the lanes of TOPIC as GROUP sees them; a row's attempts and error are those of its first unsettled message.

    LEASE is how long the owner may be silent before others take the lane, or what is wrong with it.
    """
    found = admin.lanes(topic, group, order_by=order_by, limit=limit)
    measured = [(f"{shown(each.topic)} {shown(each.key)}", each.lag, each.oldest_age) for each in found]
    return Answer(
        data=found,
        table=Table(LANE_HEADS, [_lane_row(each) for each in found], LANE_NUMBERS),
        alarms=alarms(measured, max_lag, max_age),
    )


def _lane_row(lane: LaneInfo) -> list[str]:
    return [
        shown(lane.topic),
        shown(lane.key),
        str(lane.watermark),
        str(lane.head),
        str(lane.lag),
        age(lane.oldest_age),
        shown(lane.owner),
        lease_of(lane),
        number(lane.attempts or None),
        shown(lane.last_error),
    ]


def lease_of(lane: LaneInfo) -> str:
    """How safe a lane is with its owner: the time left, or what is the matter."""
    if lane.group_paused or lane.paused_at is not None:
        return "paused"
    if lane.owner_state in (None, OwnerState.ALIVE):
        return age(lane.lease_left)
    return str(lane.owner_state)


@click.command()
@click.argument("topic", required=False)
@click.argument("group", required=False)
@monitored
@reading
def lag(admin: Admin, *, topic: str | None, group: str | None, max_lag: int | None, max_age: float | None) -> Answer:
    """Say how far behind the groups are: of all topics, of TOPIC, or only GROUP; `lanes --by lag` says where."""
    found = admin.lag(topic, group)
    heads = ("TOPIC", "GROUP", "LANES", "LAGGING", "LAG", "OLDEST-AGE", "IN-FLIGHT", "WAITING", "MEMBERS")
    rows = [
        [
            shown(each.topic),
            shown(each.group),
            str(each.lanes),
            str(each.lagging_lanes),
            str(each.lag),
            age(each.oldest_age, exact=each.oldest_age_exact),
            str(each.in_flight),
            str(each.waiting),
            str(each.members),
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, heads[2:]), alarms=alarms(_measured(found), max_lag, max_age))


@click.command()
@click.argument("topic")
@click.argument("group", required=False)
@click.option("--key", help="Only this lane.")
@limit_option
@reading
def offsets(admin: Admin, *, topic: str, group: str | None, key: str | None, limit: int) -> Answer:
    """List where the groups are in the lanes of TOPIC."""
    found = admin.offsets(topic, group, key, limit)
    heads = ("TOPIC", "KEY", "GROUP", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "HANDED-OUT", "FLOOR", "UPDATED")
    rows = [
        [
            shown(each.topic),
            shown(each.key),
            shown(each.group),
            str(each.watermark),
            str(each.head),
            str(each.lag),
            str(max(each.marked_through, each.watermark)),
            str(each.floor),
            moment(each.updated_at),
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, heads[3:8]))


@click.command()
@click.argument("topic", required=False)
@click.argument("group", required=False)
@click.option("--stale", is_flag=True, help="Only those in the name of an owner that is dead, expired or gone.")
@limit_option
@reading
def leases(admin: Admin, *, topic: str | None, group: str | None, stale: bool, limit: int) -> Answer:
    """List who may work which lane."""
    found = admin.leases(topic, group, stale=stale, limit=limit)
    heads = ("TOPIC", "GROUP", "KEY", "OWNER", "STATE", "LEASE", "EPOCH", "SINCE")
    rows = [
        [
            shown(each.topic),
            shown(each.group),
            shown(each.key),
            shown(each.owner),
            str(each.owner_state or NOTHING),
            age(each.lease_left),
            str(each.epoch),
            moment(each.leased_at),
        ]
        for each in found
    ]
    return Answer(data=found, table=Table(heads, rows, ("LEASE", "EPOCH")))


VERBS = (topics, groups, members, lanes, lag, offsets, leases)
