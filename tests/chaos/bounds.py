"""Names what took too long, or moved without need, after what a server did: the checker's rules about time.

Owns the bounds; pure like the checker, which calls it. A bound is asked only where nothing else interferes: no other
fault, no operator, nobody who died shortly before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import inf
from typing import Final

from chaos.account import FENCING, History, Run
from chaos.history import Fault, Lane
from chaos.lives import real

MOVES_WITHIN: Final = 5.0
"""Seconds in which what is published after a failover begins, or what comes before it in its lane does."""

REPLACED_WITHIN: Final = 3.0
"""Seconds after a lease in which somebody else has the lanes of a host that vanished."""

ENOUGH_WITHIN: Final = 9.0
"""Seconds in which everything moves again that a lack of connections to work with had stopped."""

HANDLED: Final = 1.5
"""Seconds before a shortage in which a process that takes part begins messages of each group."""

BEFORE, AT_ONCE = 3.0, 1.0
"""Of what was published so shortly before a failover, nine tenths have begun at once: else the machine is too busy."""

STAYING: Final = frozenset({"freeze", "step", "revoke"})
"""The owners live, and their sessions: no lane moves."""

LACKING: Final = frozenset({"shortage", "alternate"})
"""Living processes have no connections that they can work with."""

CHANGING: Final = frozenset({"kill", "vanish", "stop", "term", "grow", "shrink"}) | LACKING
"""Lanes get other owners after these."""

ANEW: Final = frozenset({"server", "restarts", "promote", "restore"})
"""Another server, or the same one started again, grants locks after these."""

IDLE: Final = frozenset({"clock", "slow", "expiry", "snapshot", "copy", "interrupt", "fork"})
"""Nothing has to be waited for because of these."""

Late = tuple[str, Lane, Run | None, int | None, str, str]
"""Group, lane, the run if there is one, the offset if it is known, the id and what is wrong."""


def moved(history: History) -> Iterator[Late]:
    """A lane has another owner than before although nothing had happened to it."""
    for fault in history.faults:
        if fault.kind not in STAYING:
            continue
        for (group, lane), runs in history.whole.items():
            at = bisect_right(runs, fault.end, key=lambda run: run.at)
            if not 0 < at < len(runs):
                continue
            before, after = runs[at - 1], runs[at]
            if before.begin.process == after.begin.process or after.at > fault.end + history.settling:
                continue
            if _quiet(history, before.at, after.at, fault) and not _steered(history, group, lane, before.at, after.at):
                detail = f"{after} after {before}: {fault.kind} from {fault.start:.3f} to {fault.end:.3f} moves nothing"
                yield group, lane, after, after.begin.offset, after.begin.id, detail


def late(history: History) -> Iterator[Late]:
    """What was published after a failover does not move."""
    begun = min((run.at for run in history.runs.values()), default=0.0)
    for loss in history.lives.losses:
        # Whose lock the old server had granted nobody can tell: the lease of who died shortly before has to run out.
        # A fleet that has just changed is still sharing its lanes out.
        if loss.died < begun + 2 * history.lease or any(
            fault.kind in CHANGING and _near(history, fault, loss.died) for fault in history.faults
        ):
            continue
        until = _next(history, loss.opened)
        if not _keeps_up(history, loss.died, loss.opened):
            continue
        for (topic, key, name), publish in history.acknowledged.items():
            if not loss.opened < publish.at <= until - MOVES_WITHIN or publish.offset is None:
                continue
            for group in sorted(history.groups):
                if _steered(history, group, (topic, key), loss.held, publish.at + MOVES_WITHIN):
                    continue
                first = history.first_run(group, (topic, key), publish.offset, name)
                before = until if first is None else first.at
                due = max(publish.at, _moved_until(history, group, (topic, key), before)) + MOVES_WITHIN
                if due <= until and (first is None or first.at > due):
                    detail = f"published {publish.at - loss.opened:.3f} s after a {loss.kind}, begun "
                    detail += "never" if first is None else f"{first.at - publish.at:.3f} s later"
                    yield group, (topic, key), first, publish.offset, name, detail


def vanished(history: History) -> Iterator[Late]:
    """A host is gone without a word, and its lanes stand still for longer than a lease and a little."""
    bound = history.lease + REPLACED_WITHIN
    for fault in history.faults:
        if fault.kind != "vanish":
            continue
        until = _next(history, fault.end)
        if _slow(history, fault.start, fault.start + bound) or not _quiet(history, fault.start, fault.end, fault):
            continue
        for (group, lane), runs in history.whole.items():
            at = bisect_right(runs, fault.start, key=lambda run: run.at)
            if not 0 < at < len(runs) or not fault.met((runs[at - 1].begin.process,)):
                continue
            begin = runs[at].begin
            publish = history.acknowledged.get((begin.topic, begin.key, begin.id))
            due = max(fault.start, publish.at if publish else 0.0) + bound
            if begin.at > due and due <= until and not _steered(history, group, lane, fault.start, due):
                detail = f"{runs[at]}: {begin.at - due + bound:.3f} s after it had to move"
                yield group, lane, runs[at], begin.offset, begin.id, detail


def starved(history: History) -> Iterator[Late]:
    """There are connections to work with again, and a lane stands still in which something is to be done."""
    for fault in history.faults:
        if fault.kind not in LACKING:
            continue
        until = _next(history, fault.end)
        if not _keeps_up(history, fault.start, fault.end) or any(
            other is not fault and other.kind in CHANGING | ANEW and _near(history, other, fault.end)
            for other in history.faults
        ):
            continue
        for (topic, key, name), publish in history.acknowledged.items():
            if publish.offset is None:
                continue
            for group in sorted(history.groups):
                first = history.first_run(group, (topic, key), publish.offset, name)
                if first is None:
                    continue  # skipped, or it is missing at the end
                moved = _moved_until(history, group, (topic, key), first.at)
                due = max(fault.end, publish.at, moved) + ENOUGH_WITHIN
                if (
                    first.at > due <= until
                    and not _slow(history, fault.start, due)
                    and not _steered(history, group, (topic, key), fault.start, due)
                ):
                    detail = f"{first}: published at {publish.at:.3f}, there were connections from {fault.end:.3f}"
                    yield group, (topic, key), first, publish.offset, name, detail


def idle(history: History) -> Iterator[Late]:
    """There are connections to work with again, and a process that handled messages before does not come back."""
    for fault in history.faults:
        within = fault.end + ENOUGH_WITHIN
        if fault.kind not in LACKING or _next(history, fault.end) < within or _slow(history, fault.start, within):
            continue
        before, after = (
            {
                (run.begin.group, run.begin.process): run
                for run in history.runs.values()
                if since <= run.at < until and (run.died is None or run.died > within)
            }
            for since, until in ((fault.start - HANDLED, fault.start), (fault.end, within))
        )
        for group, process in sorted(before.keys() - after.keys()) if len(after) > 1 else ():
            begin = before[group, process].begin
            if _steered(history, group, (begin.topic, begin.key), fault.start, within):
                continue  # perhaps the whole group was paused
            detail = f"{process} had begun nothing {ENOUGH_WITHIN:g} s after there were connections at {fault.end:.3f}"
            yield group, (begin.topic, begin.key), None, None, "", detail


def _moved_until(history: History, group: str, lane: Lane, before: float) -> float:
    """When the last run of a lane was over that began before a time: one that does its lost tail again is moving."""
    runs = history.whole.get((group, (lane[0], real(lane[1]))), [])
    at = bisect_left(runs, before, key=lambda run: run.at)
    return runs[at - 1].over if at and runs[at - 1].over < inf else 0.0


def _keeps_up(history: History, died: float, opened: float) -> bool:
    """Whether the machine was quick enough before an outage, and after it, to be measured by seconds."""
    if _slow(history, opened, opened + MOVES_WITHIN):
        return False
    waits = [
        run.at - publish.at
        for (_, lane), runs in history.lanes.items()
        for run in runs
        if (publish := history.acknowledged.get((*lane, run.begin.id))) and run.at < died
        if died - BEFORE < publish.at
    ]
    return bool(waits) and sorted(waits)[int(len(waits) * 0.9)] < AT_ONCE


def _slow(history: History, since: float, until: float) -> bool:
    return any(fault.kind == "slow" and since <= fault.end and fault.start <= until for fault in history.faults)


def _next(history: History, after: float) -> float:
    """When the next fault comes that lanes may have to wait for."""
    return min((fault.start for fault in history.faults if fault.kind not in IDLE and fault.start > after), default=inf)


def _near(history: History, fault: Fault, at: float) -> bool:
    return fault.start <= at <= _over(history, fault)


def _over(history: History, fault: Fault) -> float:
    """When the fleet has shared its lanes out again after a fault.

    The lease of a host that vanished runs out first. If the server starts anew before that, it does so again from
    there: nobody can tell from a new server who holds a lock.
    """
    leases = (3 if fault.kind == "vanish" else 2) * history.lease
    over = fault.end + leases
    for other in sorted(history.faults, key=lambda each: each.start):
        if other.kind in ANEW and fault.end < other.start <= over:
            over = max(over, other.end + leases)
    return over


def _quiet(history: History, since: float, until: float, but: Fault) -> bool:
    """Whether nothing else happened, nor had consequences still: a fleet that changed shares its lanes out anew."""
    begun = min(run.at for run in history.runs.values())
    return since > begun + 2 * history.lease and not any(
        fault is not but and fault.kind not in IDLE and fault.start <= until and since <= _over(history, fault)
        for fault in history.faults
    )


def _steered(history: History, group: str, lane: Lane, since: float, until: float) -> bool:
    return any(
        steer.group == group
        and steer.verb in {*FENCING, "pause"}
        and steer.key in {None, lane[1]}
        and steer.start <= until
        and since <= max(steer.end, steer.until or 0.0) + history.settling
        for steer in history.steers
    )


LATE: Final = (late, vanished, starved, idle)
"""What is named when a lane or a process stands still for too long."""
