"""What is wrong, judged from what administration shows: since when, which owner has it, and what brings work back.

Owns these judgements, as plain functions of values. Asks no database, and changes nothing. A command that it names
destroys nothing, and redelivers nothing before it has shown what it would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from lanelog._base.text import age, moment, plural, shown, summary
from lanelog._log.lookup.owners import GRACE
from lanelog._stores import _counted as counted
from lanelog.admin.operate.problem import BEHIND, FAILING, HEAD_LOCKED, OWNER_GONE, Problem, Rank, command
from lanelog.admin.types.topology import MessageState

if TYPE_CHECKING:
    from lanelog._log.repair import Contradiction
    from lanelog._process.workload import OpenAck
    from lanelog.admin.operate.held_heads import HeldHead
    from lanelog.admin.operate.writes import Unwritten
    from lanelog.admin.types.messages import DeadLetterReason
    from lanelog.admin.types.topology import GroupInfo, LaneInfo, TopicInfo

SLOW: Final = 60.0
"""Seconds after which a running attempt, or a backlog, is reported."""
JOB_RESTS: Final = 86_400.0
"""Seconds for which an archive or a replay may be behind while no process runs it: an archive often runs once a day."""
ALIKE: Final = 10.0
"""Seconds between two ages that are as good as the same."""
HELD: Final = 5.0
"""Seconds after which a transaction is reported that publishers wait for: as long as one of their waits."""
REASONS: Final = 3
"""Reasons of dead letters that are shown for each topic; `dlq list --reasons` shows all."""


_JOBS: Final = {
    "archive": (Rank.BEHIND, "not archived", "run `lanelog archive`"),
    "replay": (Rank.BEHIND, "replay unfinished", "run the same `lanelog replay` again"),
}
"""By order of the group: jobs that read the log, are no subscribers, and take no lanes."""


# -- groups ------------------------------------------------------------------------------------------------------------


def of_server(why: Unwritten) -> Problem:
    """Return the problem of a server whose heartbeats say nothing."""
    return Problem(
        rank=Rank.SERVER,
        what=why.what,
        topic="",
        group="",
        lasted=why.seconds,
        detail=f"{why.detail}; nothing is said about members here",
        remedy="to see more",
        command="lanelog doctor",
    )


def of_group(group: GroupInfo, growth: float | None, *, believed: bool = True, busy: str = "") -> list[Problem]:
    """Return what is wrong with a group as a whole.

    Args:
        group: The group.
        growth: Messages a second by which its lag grows. None: not known.
        believed: Whether heartbeats say who lives. If not, nothing is concluded from them.
        busy: What its workers do, in words. Empty: not known.
    """
    names = (group.topic, group.group)

    if group.paused_at is not None:
        detail = f"by {shown(group.paused_by)}: {shown(group.pause_reason)}; {plural(group.lag, 'message')} waiting"
        paused = partial(Problem, rank=Rank.PAUSED, what="paused", topic=group.topic, group=group.group)
        since, to_run = moment(group.paused_at), command("resume", *names)
        return [paused(since=since, detail=detail, remedy="to go on", command=to_run)]

    def problem(rank: Rank, what: str, detail: str, remedy: str, to_run: str) -> list[Problem]:
        lasted = group.last_members[0].silent if group.last_members else None
        found = partial(Problem, topic=group.topic, group=group.group, seconds=group.oldest_age, lasted=lasted)
        return [found(rank=rank, what=what, detail=detail, remedy=remedy, command=to_run)]

    if (
        not believed
        or not group.lag
        or (group.order in _JOBS and (group.members or (group.oldest_age or 0) <= JOB_RESTS))
    ):
        return []
    behind = f"{plural(group.lag, 'message')} in {plural(group.lagging_lanes, 'lane')}"
    if growth is not None and growth > 0:
        behind += f", growing by {growth:.1f}/s"
    if group.order in _JOBS:
        rank, what, go_on = _JOBS[group.order]
        detail = f"{behind} held back from collection; {_last(group)}; {go_on}"
        return problem(rank, what, detail, "who ran it", command("members", *names))
    if not group.members:
        if group.members_unchanged <= GRACE:
            return []
        detail = f"{behind}; {_last(group)}; start its subscribers again"
        return problem(Rank.NOBODY, "nobody consumes", detail, "who they were", command("members", *names))
    if (group.oldest_age or 0) <= SLOW:
        return []
    detail = f"{behind}, {plural(group.members, 'member')}{busy and f', {busy}'}"
    return problem(Rank.BEHIND, BEHIND, detail, "where it is", command("lanes", *names, options=["--by", "lag"]))


def _last(group: GroupInfo) -> str:
    """Return who was there last, and since when they have been gone. The name of a member begins with its host."""
    if not group.last_members:
        return "who was there last is not known any more"
    return "last there: " + ", ".join(
        f"{shown(each.name)} ({each.state}, gone for {age(each.silent)})" for each in group.last_members
    )


# -- lanes -------------------------------------------------------------------------------------------------------------


def of_lane(
    lane: LaneInfo, group: GroupInfo, running: float | None, *, believed: bool = True, normal: float = SLOW
) -> Problem | None:
    """Return what is wrong with a lane, unless its group's problem says it.

    Args:
        lane: The lane.
        group: Its group.
        running: Seconds that its attempt in flight has run. None: none is in flight, or it is young.
        believed: As for `of_group`.
        normal: Seconds that an attempt of its owner may run.
    """
    if group.order in _JOBS or lane.group_paused or (not lane.lag and lane.paused_at is None):
        return None
    offset = lane.watermark + 1 if lane.lag else None
    names = (lane.topic, lane.group, lane.key)

    here = partial(Problem, topic=lane.topic, group=lane.group, key=lane.key, owner=lane.owner)
    problem = partial(here, offset=offset, seconds=lane.oldest_age)
    stuck = partial(problem, rank=Rank.STUCK)
    if lane.paused_at is not None:
        return problem(
            rank=Rank.PAUSED,
            what="paused",
            detail=f"by {shown(lane.paused_by)}: {shown(lane.pause_reason)}; {plural(lane.lag, 'message')} waiting",
            remedy="to go on",
            command=command("resume", lane.topic, lane.group, options=["--key", lane.key]),
            since=moment(lane.paused_at),
        )
    if not believed or not group.members or _may_pass(lane, group):
        return None
    if lane.owner_state is not None and not lane.owner_state.lives:
        detail = f"its owner is {lane.owner_state}, and others have not taken the lane yet"
        to_run, lasted = command("release", *names), lane.owner_silent
        return stuck(what=OWNER_GONE, detail=detail, remedy="to free all its lanes", command=to_run, lasted=lasted)
    if lane.state is MessageState.RETRYABLE and lane.attempts and lane.failed:
        return _failing(lane, stuck)
    if lane.state is MessageState.PROCESSING and running is not None and running > normal:
        detail = f"attempt {lane.attempts} has been running for {age(running)}"
        to_run = command("release", *names)
        return stuck(what="slow", detail=detail, remedy="to have another worker try", command=to_run, lasted=running)
    return _of_lease(lane, group, stuck)


def _failing(lane: LaneInfo, stuck: Callable[..., Problem]) -> Problem:
    """Return the problem of a lane whose first message failed. `problem` makes it."""
    due = "is due" if not lane.next_attempt_in else f"in {age(lane.next_attempt_in)}"
    return stuck(
        what=FAILING,
        detail=f"attempt {lane.attempts} failed: {shown(summary(lane.last_error))}; the next {due}",
        remedy="when the cause is repaired, at once",
        command=command("retry", lane.topic, lane.group, lane.key),
        cause=summary(lane.last_error),
        command_for_all=command("retry", lane.topic, lane.group, options=["--all"]),
    )


def _of_lease(lane: LaneInfo, group: GroupInfo, stuck: Callable[..., Problem]) -> Problem | None:
    """Return what is wrong with a lane's lease, if nothing else is wrong with the lane. `problem` makes it."""
    members = command("members", lane.topic, lane.group)
    if lane.lease_epoch >= counted.BEYOND_COUNTING:
        if lane.owner is None:
            then, to_run = "the next owner of this version replaces it, one of", members
        else:
            then, to_run = "to replace it", command("release", lane.topic, lane.group, lane.key)
        detail = (
            f"its lease_epoch is {lane.lease_epoch}, which lanelog never writes; members of the version before this "
            f"one may stand still by it, with all their lanes"
        )
        return stuck(what="absurd epoch", detail=detail, remedy=then, command=to_run)
    if lane.owner is None:
        detail = f"{plural(group.members, 'member')}, and none has taken the lane"
        return stuck(what="no owner", detail=detail, remedy="what they say of themselves", command=members)
    return None


def lanes_may_be_wrong(group: GroupInfo, *, believed: bool = True) -> bool:
    """Return whether `of_lane` may find something in a lane of the group: if not, no lane need be read.

    A lane is never older than its group. Where the group's age is a lower bound, it says nothing about its lanes.
    """
    if group.order in _JOBS or group.paused_at is not None:
        return False
    if group.paused_lanes:
        return True
    if not believed or not group.members or not group.lag:
        return False
    return group.stale_lanes > 0 or not group.oldest_age_exact or (group.oldest_age or 0) > GRACE


def _may_pass(lane: LaneInfo, group: GroupInfo) -> bool:
    """Return whether the lane's state is so young that it is likely to pass by itself, as when a worker restarts."""
    if lane.owner_state is not None and not lane.owner_state.lives:
        return lane.owner_silent is not None and lane.owner_silent <= GRACE
    if lane.owner is None and group.members_unchanged <= GRACE:
        return True
    return (lane.oldest_age or 0) <= GRACE


def of_contradiction(wrong: Contradiction) -> Problem:
    """Return the problem of tables that contradict each other.

    Messages published there may be lost for groups, or refused.
    """
    return Problem(
        rank=Rank.STUCK,
        what="contradiction",
        topic=wrong.topic,
        group=wrong.group,
        key=wrong.key,
        offset=wrong.offset,
        detail=f"{wrong.problem}, which is at {wrong.head}: a table was restored, or lost rows",
        remedy="what repairs it",
        command="lanelog doctor",
    )


def of_held_head(held: HeldHead) -> Problem | None:
    """Return the problem of a lane whose head a transaction has locked, unless that is young."""
    if held.seconds < HELD:
        return None
    by = f"Connection {held.connection}" + (f" ({held.account})" if held.account else "")
    if held.key:
        locked = "this key. Publishes of the key wait for it and time out"
    else:
        locked = (
            "the topic's own row. The first publish under a key, members that take lanes and administration may wait "
            "for it"
        )
    return Problem(
        rank=Rank.STUCK,
        what=HEAD_LOCKED,
        topic=held.topic,
        group="",
        key=held.key or None,
        lasted=held.seconds,
        detail=f"{by} has an open transaction that has locked {locked}. Commit it, roll it back, or "
        f"`KILL {held.connection}`",
        remedy="then check again",
        cause=by,
        command=command("status", held.topic),
    )


def of_open_ack(group: str, ack: OpenAck, account: str | None) -> Problem:
    """Return the problem of a message that is acked in a transaction which nobody has ended.

    `account`: that of the connection, as `user@host`. None: the asking account may not see it.
    """
    by = f"Connection {ack.connection}" if ack.connection else "A connection"
    by += f" ({account})" if account else ""
    end = "Commit it or roll it back" + (f", or `KILL {ack.connection}`" if ack.connection else "")
    return Problem(
        rank=Rank.STUCK,
        what="ack open",
        topic=ack.topic,
        group=group,
        key=ack.key,
        offset=ack.offset,
        lasted=ack.seconds,
        detail=f"{by} has acked it in a transaction that is still open. {end}",
        remedy="then check again",
        cause=by,
        command=command("status", ack.topic),
    )


# -- dead letters ------------------------------------------------------------------------------------------------------


def of_letters(topic: TopicInfo, reasons: Iterable[DeadLetterReason] | None) -> list[Problem]:
    """Return the dead letters of a topic, by their most frequent reasons. None: there are too many to read."""
    problem = partial(Problem, rank=Rank.DEAD_LETTERS, what="dead letters", topic=topic.topic)
    every = partial(problem, group="", command=command("dlq list", topic.topic, options=["--reasons"]))
    if reasons is None:
        return [every(detail=plural(topic.dead_letters, "dead letter"), remedy="why")]
    counted = sorted(reasons, key=lambda each: -each.count)
    found = []
    for each in counted[:REASONS]:
        to_run = command("dlq redrive", topic.topic, each.group, options=["--reason", each.name])
        found.append(
            problem(
                group=each.group,
                detail=f"{plural(each.count, 'message')}: {shown(each.reason)}",
                remedy="when that is repaired",
                command=to_run,
                since=moment(each.oldest_failed_at),
                reason=each.name,
            )
        )
    rest = sum(each.count for each in counted[REASONS:])
    if rest:
        found.append(every(detail=f"{plural(rest, 'message')} for other reasons", remedy="all reasons"))
    return found


def oldest_first(seconds: float | None) -> int:
    """Return the sort key of an age. Ages come from several snapshots: if they are alike, names decide."""
    return -int((seconds or 0) / ALIKE)


def worst_first(found: Iterable[Problem]) -> list[Problem]:
    """Sort by rank, and the oldest of each rank first."""

    def order(each: Problem) -> tuple[int, int, str, str, str]:
        seconds = each.lasted if each.seconds is None else each.seconds
        return each.rank, oldest_first(seconds), each.topic, each.group, each.key or ""

    return sorted(found, key=order)
