"""A lane that is loaded again on another connection: what it takes over of the one in memory.

Owns this choice. Never asks the database: the caller has read the ids of the messages, and which are settled. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve

from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.lane.run import Attempt, State

if TYPE_CHECKING:
    from collections.abc import Container

    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.lane.writes import DeadLetterWrite


class Orphans(NamedTuple):
    """What has no message any more."""

    attempts: list[Attempt]
    waiters: list[FlushWaiter]


def unproven(lane: Lane, old: Lane) -> set[int]:
    """Offsets that `old` holds as settled by a transaction of their own, and that this lane's rows do not show.

    The COMMIT may be lost with its server, and the effect or the dead letter with it. Or it came after the rows
    were read. Only a locking read decides.
    """
    progress = old.progress
    known = progress.buffer if progress.writing is None else {*progress.buffer, *progress.writing.buffer}
    return {offset for offset in progress.durable if offset in known and not lane._state.passed(offset)}


def carry_over(lane: Lane, old: Lane, ids: dict[int, str], proven: Container[int] = ()) -> Orphans:
    """Keep the running and buffered messages of `old`, where the log of the new connection still has the same ones.

    A server that crashed, or that lacks the last commits of the one before, can give an offset to another message.
    So only (offset, id) proves that it is the same message. A message that a transaction of its own has settled is
    kept only if it is `proven` on this server. Otherwise it is delivered, or dead-lettered, again.
    """
    if old.progress.writing is not None:
        old.progress.unwritten(old.progress.writing)
    old.dispatch.recall()
    orphans = Orphans([], [])
    for offset, attempt in old._state.running.items():
        dead_letter = old._state.dead_letters.get(offset)
        if ids.get(offset) == attempt.row.id and not lane._state.passed(offset):
            _keep_running(lane, attempt, dead_letter)
        else:
            attempt.move(State.SUPERSEDED)
            orphans.attempts.append(attempt)
            orphans.waiters.extend(() if dead_letter is None else dead_letter.waiters)
    # After this lane's rows were read, a flush on its way may have committed its mark, and a handler's transaction
    # its row.
    lane.progress.marked = max(lane.progress.marked, old.progress.marked)
    lane.progress.dirty.update(dict.fromkeys(old.progress.stored.keys() - lane.progress.stored.keys()))
    lane.progress.stored.update(old.progress.stored)
    _keep_runs(lane, old, ids)
    _keep_settled(lane, old, ids, proven)
    _keep_waiting(lane, old, ids)
    lane.progress.waiters += old.progress.waiters
    lane._state.closing = old._state.closing
    old.abandon()
    return orphans


def _keep_runs(lane: Lane, old: Lane, ids: dict[int, str]) -> None:
    for run in old._state.runs:
        run.term = lane.term
        lane._state.runs += (run,)
    for run in old.progress.runs:  # after the recall, only acked-first runs are left: they must run, or are lost
        if all(ids.get(attempt.offset) == attempt.row.id for attempt in run.attempts):
            run.term = lane.term
            lane.progress.runs += (run,)
        else:
            run.recall()  # the server has another message there, so a late answer to a flush must not send it out


def _keep_settled(lane: Lane, old: Lane, ids: dict[int, str], proven: Container[int]) -> None:
    for offset, message_id in old.progress.buffer.items():
        if ids.get(offset) != message_id or lane._state.passed(offset) or offset in lane._state.running:
            continue
        if offset in old.progress.durable:
            if offset not in proven:
                continue
            lane.progress.durable[offset] = None
        lane._state.waiting.pop(offset, None)
        lane.progress.settle(offset, message_id)
    lane.progress.left += tuple(row for row in old.progress.left if ids.get(row.offset) == row.id)


def _keep_waiting(lane: Lane, old: Lane, ids: dict[int, str]) -> None:
    """Keep messages that were taken back or have failed. A row of such a message may still say that it runs."""
    for offset in old._state.waiting.keys() & old.progress.dirty.keys():
        wait = old._state.waiting[offset]
        same = ids.get(offset) == wait.id if wait.id else offset in lane._state.waiting
        if same and not lane._state.passed(offset) and offset not in lane._state.running:
            lane._state.waiting[offset] = evolve(wait, body=None)
            lane.progress.dirty[offset] = None


def _keep_running(lane: Lane, attempt: Attempt, dead_letter: DeadLetterWrite | None) -> None:
    offset = attempt.offset
    lane._state.waiting.pop(offset, None)
    lane._state.running[offset] = attempt
    attempt.term = lane.term
    lane._state.started_top = max(lane._state.started_top, offset)
    if attempt.number > 1:
        lane.progress.dirty[offset] = None
    lane._state.budget.take(attempt.row)
    if dead_letter is not None:
        lane._state.dead_letters[offset] = dead_letter
        dead_letter.term = lane.term


def vouched(lane: Lane) -> dict[int, str]:
    """The offsets and ids that a reload must find unchanged: running, waiting and settled ones not yet written."""
    progress = lane.progress
    unwritten = progress.dirty.keys() if progress.writing is None else {*progress.dirty, *progress.writing.offsets}
    known = {offset: attempt.row.id for offset, attempt in lane._state.running.items()}
    known.update({o: wait.id for o, wait in lane._state.waiting.items() if wait.id and o in unwritten})
    known.update(progress.buffer)
    if progress.writing is not None:
        known.update(progress.writing.buffer)
    return known
