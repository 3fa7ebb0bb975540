"""Members whose workers all hang, and what workers do otherwise: judged from what their heartbeats say.

Owns these judgements, their sentences, and the command that ends such a process. Asks no database. A member whose
workers are busy for no longer than is normal there is no problem.
"""

from __future__ import annotations

import shlex
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Final

from lanelog._base.text import age, plural, shown
from lanelog.admin.operate.problem import Problem, Rank, command
from lanelog.admin.operate.problems import SLOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lanelog._process.workload import RunningHandler, Workload
    from lanelog.admin.types.topology import GroupInfo, MemberInfo

HUNG: Final = "hung"
"""The state of a member whose workers are all busy, while none has ended for longer than is normal there."""
STACKS: Final = 3
"""Different stacks that are shown of one member."""
FRAMES: Final = 6
"""The innermost frames that are shown of each; `lanelog members --stacks` shows all."""
_FIRST_OF_CONTAINER: Final = 1
"""The process that a container was made for. Signals from within do not end it."""


def members_hung(group: GroupInfo, workloads: Mapping[str, Workload]) -> list[Problem]:
    """Return the problems of a group's members that hang. `workloads`: what its living members do, by owner."""
    return [_problem(group.topic, group.group, owner, found) for owner, found in workloads.items() if found.hung]


def state_of(member: MemberInfo) -> str:
    """Return the state of a member in one word: hung, or what is known of its process."""
    return HUNG if member.workload is not None and member.workload.hung else str(member.state)


def hung_member(member: MemberInfo) -> Problem | None:
    """Return the problem of a member that hangs, as `status` has it. None: it does not hang."""
    found = member.workload
    return None if found is None or not found.hung else _problem(member.topic, member.group, member.name, found)


def normal_seconds(owner: str | None, workloads: Mapping[str, Workload]) -> float:
    """Return for how many seconds an attempt of an owner may run before it is called slow.

    Without end for an owner that hangs: its own problem says so.
    """
    found = None if owner is None else workloads.get(owner)
    if found is None:
        return SLOW
    return inf if found.hung else max(SLOW, found.patience)


def busy_words(workloads: Iterable[Workload]) -> str:
    """Return what the workers of a group do, in words."""
    found = list(workloads)
    return f"{sum(each.busy for each in found)} of {plural(sum(each.workers for each in found), 'worker')} busy"


def _problem(topic: str, group: str, owner: str, found: Workload) -> Problem:
    busy = f"{found.busy} of {plural(found.workers, 'worker')}"
    detail = (
        f"{busy} of {shown(owner.rpartition(':')[0])} are busy, none has ended for {age(found.quiet)}, which is longer "
        f"than is normal there ({age(found.patience)})"
    )
    remedy, to_run = "what the members do", command("members", topic, group)
    if found.pid == _FIRST_OF_CONTAINER:
        container = f"the container {shown(found.host)}"
        detail += f". End {container} without a grace period: SIGTERM alone waits for its handlers"
    elif not found.host.isprintable():  # a command is shown as it is
        detail += f". End process {found.pid} of the host {shown(found.host)} by SIGKILL"
    else:
        remedy = (
            f"to end its process {found.pid}, run this on the host or in the container {shown(found.host)} (SIGTERM "
            "alone waits for its handlers)"
        )
        to_run = f'[ "$(uname -n)" = {shlex.quote(found.host)} ] && kill -KILL {found.pid}'
    return Problem(
        rank=Rank.STUCK,
        what=HUNG,
        topic=topic,
        group=group,
        lasted=found.quiet,
        owner=owner,
        detail=detail,
        remedy=remedy,
        notes=tuple(_stacks(found.handlers)),
        command=to_run,
    )


def where_handlers_stand(handlers: Sequence[RunningHandler]) -> Iterator[str]:
    """Yield the lines of all of them, each with its whole stack."""
    for each in handlers:
        yield f"{_handler(each)}, for {age(each.seconds)}, at:"
        yield from (f"  {shown(line)}" for line in each.stack.splitlines())


def _stacks(handlers: Sequence[RunningHandler]) -> Iterator[str]:
    """Yield where handlers stand: those with the same stack together."""
    alike = [list(same) for _, same in groupby(sorted(handlers, key=_stack), key=_stack)]
    alike.sort(key=lambda same: -max(each.seconds for each in same))
    for same in alike[:STACKS]:
        first = max(same, key=lambda each: each.seconds)
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        yield f"{_handler(first)}{more}, for {age(first.seconds)}, at:"
        yield from (f"  {shown(line)}" for line in first.stack.splitlines()[-FRAMES:])
    if rest := alike[STACKS:]:
        yield f"{plural(len(rest), 'other stack')}"


def _handler(handler: RunningHandler) -> str:
    return f"{shown(handler.topic)} {shown(handler.key)} offset {handler.offset}"


def _stack(handler: RunningHandler) -> str:
    return handler.stack
