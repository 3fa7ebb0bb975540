"""The commands that read: topics, groups, members, lanes, lag, offsets, leases, audit.

Owns which values they ask for, and the lines above and below the table; `_views` has the columns. Changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from lanelog._base.places import GroupTopic
from lanelog._base.text import ago, shown
from lanelog._views import columns
from lanelog.admin.operate.hung import where_handlers_stand
from lanelog.cli.command import options
from lanelog.cli.command.bounds import Measured, MonitorBounds, bounding_letters, measured, monitored
from lanelog.cli.command.pattern import TOPICS_MAX, groups_of, topics_of
from lanelog.cli.command.verbs import reading
from lanelog.cli.output import totals
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lanelog.admin import Admin, GroupInfo, MemberInfo, TopicInfo


@options.command("topics", "topics orders", "topics --json")
@click.argument("topic", metavar="[NAME]", required=False)
@options.limit
@reading
def topics(admin: Admin, *, topic: str | None, limit: int) -> Answer:
    """List the topics, and what they hold; or describe the topic NAME."""
    if topic is not None:
        return _described(admin.topic(topic), admin.now())
    found = admin.topics(limit)
    return Answer(
        data=found,
        summary=totals.topics(found),
        table=Table(columns.TOPICS, found, admin.now()),
        total=totals.messages(found, limit),
        nothing="no topic: a topic is there once something is published to it, or a group subscribes",
    )


def _described(topic: TopicInfo, now: datetime) -> Answer:
    of = "dead letter topic" if topic.holds_dead_letters else "topic"
    about = [
        (of, shown(topic.topic)),
        ("lanes", f"{topic.lanes:,}, the newest {ago(topic.newest_lane_at, now)}" if topic.lanes else "0"),
        ("messages", f"{topic.messages:,} in the log, of {topic.head:,} published"),
        ("dead letters", f"{topic.dead_letters:,}"),
        ("  they lie in", ", ".join(map(shown, topic.dead_letter_topics))),
        ("groups", ", ".join(map(shown, topic.groups)) or "none: nobody reads it, and nothing is collected"),
    ]
    if topic.holds_dead_letters:
        about.pop()  # no group reads one
    width = max(len(head) for head, _ in about) + 2
    return Answer(data=topic, lines=[f"{head:<{width}}{text}" for head, text in about if text])


@options.command("groups", "groups 'orders*' --watch")
@click.argument("topic", required=False)
@monitored
@reading
def groups(admin: Admin, *, topic: str | None, bounds: MonitorBounds) -> Answer:
    """List the consumer groups of TOPIC, or of all topics. TOPIC may be a pattern such as 'orders*'."""
    named = groups_of(admin, topic, bounded=bounds.given)
    found = named.found
    return Answer(
        data=found,
        summary=totals.groups(found),
        table=Table(columns.GROUPS, found, admin.now()),
        total=totals.lag(found),
        nothing=totals.no_groups(topic),
        alarms=bounds.alarms(measured(found), left_out=named.left_out),
        left_out="" if bounds.given else named.left_out,
    )


@options.command("members", "members orders billing --stacks")
@options.arguments("[topic]", "[group]")
@click.option("--stacks", is_flag=True, help="Show the stacks of handlers that have run for 10 s.")
@options.limit
@reading
def members(admin: Admin, *, topic: str | None, group: str | None, stacks: bool, limit: int) -> Answer:
    """List the members of GROUP on TOPIC, or of all groups, alive or not, and how many of their workers are busy.

    NONE-ENDED: if all workers are busy, the time since a handler last ended. POOL-WAITS, if there were any: how often
    threads of the member's client have waited for a connection; the event pool.too_small names the pool_size to set.
    """
    found = admin.members(topic, group, limit=limit)
    waits = (columns.POOL_WAITS,) if any(map(columns.pool_waits_of, found)) else ()
    finders = (columns.FOUND_DEAD,) if any(each.found_dead_by for each in found) else ()
    quiet = (columns.NONE_ENDED,) if any(columns.quiet_of(each) is not None for each in found) else ()
    where = "all groups" if topic is None else totals.where(topic, group)
    every = (*(columns.OF_ALL if topic is None else ()), *columns.MEMBERS, *quiet, *waits, *finders)
    return Answer(
        data=found,
        summary=f"{where}: {totals.members(found)}",
        table=Table(every, found, admin.now()),
        total=totals.lanes_of_members(found, limit),
        nothing=f"{where}: no member; nobody has subscribed, or its heartbeat was deleted",
        lines=_stacks(found) if stacks else (),
    )


def _stacks(found: Sequence[MemberInfo]) -> list[str]:
    """Return where the handlers of members stand."""
    lines: list[str] = []
    for each in found:
        if each.workload is not None and each.workload.handlers:
            lines += ["", f"{shown(each.name)} of {totals.where(each.topic, each.group)}:"]
            lines += [f"  {line}" for line in where_handlers_stand(each.workload.handlers)]
    return lines or ["", "no handler has run for 10 s"]


@options.command("lanes orders billing --by lag", "lanes orders billing --limit 10 --watch")
@options.arguments("topic", "group")
@click.option(
    "--by",
    "order_by",
    type=click.Choice(["age", "lag", "key"]),
    default="age",
    show_default=True,
    help="The oldest message first, the greatest lag first, or by key.",
)
@options.limit
@monitored
@reading
def lanes(
    admin: Admin, *, topic: str, group: str, order_by: Literal["age", "lag", "key"], limit: int, bounds: MonitorBounds
) -> Answer:
    """List the lanes of TOPIC as GROUP sees them; a row's attempts and error are those of its first unsettled message.

    ACKED is the watermark: all messages up to this offset are settled. LEASE is how long the owner may be silent before
    others take the lane, or what is wrong with it.
    """
    found = admin.lanes(topic, group, order_by=order_by, limit=limit)
    cut = len(found) >= limit  # the worst lane may be beyond it
    max_age = bounds.max_age
    judged = {each.key: each for each in found}
    if cut and bounds.max_lag is not None:
        judged.update((each.key, each) for each in admin.lanes(topic, group, order_by="lag", limit=1))
    if cut and max_age is not None:
        judged.update((each.key, each) for each in admin.lanes(topic, group, order_by="age", limit=1))
    bounded = [
        Measured(f"{shown(each.topic)} {shown(each.key)}", each.lag, each.oldest_age) for each in judged.values()
    ]
    if cut and max_age is not None and not any((each.oldest or 0) > max_age for each in bounded):
        # To find the lane with the oldest message, not all lanes are compared. The age of the group is exact, or says
        # that it is not.
        bounded += [each._replace(lag=0) for each in measured(admin.lag(topic, group))]
    where = totals.where(topic, group)
    return Answer(
        data=found,
        summary=f"{where}: {totals.lanes(found)}",
        table=Table(columns.LANES, found, admin.now()),
        total=totals.lag_of_lanes(found, limit),
        nothing=f"{where}: no lane; nothing is published to this topic yet, or all of it is collected",
        alarms=bounds.alarms(bounded),
    )


@options.command("lag orders --max-lag 10000 --max-age 300", "lag orders billing --sql")
@options.arguments("[topic]", "[group]")
@click.option("--sql", is_flag=True, help="Print a SQL statement instead: its one number is GROUP's lag on TOPIC.")
@bounding_letters
@monitored
@reading
def lag(admin: Admin, *, topic: str | None, group: str | None, sql: bool, bounds: MonitorBounds) -> Answer:
    """Say how far behind the groups are: of all topics, of TOPIC, or only GROUP; `lanes --by lag` says where.

    TOPIC and GROUP may be patterns such as 'orders*'. --max-dead-letters is for each dead letter topic, for TOPIC, or
    for GROUP alone. Redriven and deleted dead letters do not count.
    """
    if sql and bounds.given:
        raise click.UsageError("--sql prints a statement and measures nothing: leave out the bounds")
    named = groups_of(admin, topic, group, bounded=bounds.given)
    found, left_out = named.found, named.left_out
    if sql:
        return _lag_sql(found)
    dying: list[str] = []
    if bounds.max_dead_letters is not None:
        dying, unseen = _dying(admin, topic, group, found, bounds.max_dead_letters)
        left_out = left_out or unseen
    return Answer(
        data=found,
        summary=totals.groups(found),
        table=Table(columns.LAG, found, admin.now()),
        total=totals.lag(found),
        nothing=totals.no_groups(topic),
        alarms=bounds.alarms(measured(found), dying=dying, left_out=left_out),
        left_out="" if bounds.given else left_out,
    )


def _lag_sql(found: Sequence[GroupInfo]) -> Answer:
    from lanelog.admin.read.lag_statement import lag_statement

    if len(found) != 1:
        raise click.UsageError("--sql is for one group: name TOPIC and GROUP")
    statement = lag_statement(GroupTopic(topic=found[0].topic, group=found[0].group))
    return Answer(data={"sql": statement}, lines=statement.splitlines())


def _dying(
    admin: Admin, topic: str | None, group: str | None, found: list[GroupInfo], bound: int
) -> tuple[list[str], str]:
    """Return the names with more than `bound` dead letters, the most first, and what was not read.

    For a group, no more dead letters are read than the bound needs. Without a topic, each dead letter topic is read by
    itself: it may outlive its original topic.
    """
    if group is not None:
        over_bound = [
            f"{shown(each.topic)} {shown(each.group)}"
            for each in found
            if len(admin.dead_letters(each.topic, each.group, limit=bound + 1)) > bound
        ]
        return over_bound, ""
    names = topics_of(admin, topic)
    left_out = names.left_out
    if names.topics is None:
        there = admin.topics(TOPICS_MAX + 1)
        left_out = f"only the first {TOPICS_MAX:,} topics were read" if len(there) > TOPICS_MAX else ""
        read_topics = [each for each in there if each.holds_dead_letters]
    else:
        read_topics = [admin.topic(name) for name in names.topics]
    over = sorted((each for each in read_topics if each.dead_letters > bound), key=lambda each: -each.dead_letters)
    return [shown(each.topic) for each in over], left_out


@options.command("offsets orders billing --key ann")
@options.arguments("topic", "[group]")
@options.key
@options.limit
@reading
def offsets(admin: Admin, *, topic: str, group: str | None, key: str | None, limit: int) -> Answer:
    """List where the groups are in the lanes of TOPIC."""
    found = admin.offsets(topic, group, key, limit)
    where = totals.where(topic, group, key)
    return Answer(
        data=found,
        summary=f"{where}: acked through, published through, and what is between them",
        table=Table(columns.OFFSETS, found, admin.now()),
        total=totals.lag_of_lanes(found, limit, "row"),
        nothing=f"{where}: no offsets to show; the topic has no lane yet, or no group that reads it",
    )


@options.command("leases orders billing", "leases --stale")
@options.arguments("[topic]", "[group]")
@click.option("--stale", is_flag=True, help="Only those in the name of an owner that is dead, expired or gone.")
@options.limit
@reading
def leases(admin: Admin, *, topic: str | None, group: str | None, stale: bool, limit: int) -> Answer:
    """List which owner may work which lane."""
    found = admin.leases(topic, group, stale=stale, limit=limit)
    return Answer(
        data=found,
        summary=totals.leases(found),
        table=Table(columns.LEASES, found, admin.now()),
        total=totals.listed(found, "lease", limit),
        nothing="no stale lease: every owner is alive" if stale else "no lease: nobody has taken a lane yet",
    )


@options.command("audit", "audit orders --limit 20")
@click.argument("topic", required=False)
@options.limit
@reading
def audit(admin: Admin, *, topic: str | None, limit: int) -> Answer:
    """List what operators did to TOPIC, or to all topics, the last first: who, when, what and why."""
    found = admin.audit(topic, limit=limit)
    return Answer(
        data=found,
        table=Table(columns.AUDIT, found, admin.now()),
        total=totals.listed(found, "change", limit) + ", the last first",
        nothing="no change in the last year",
    )
