"""Gives drafts (messages that are not written yet) their offsets, and writes them.

`give_offsets` finds the duplicates, and what to append or to schedule.

Never opens or repeats a transaction. Its callers, the publisher and recurring schedules, lock the heads before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import field, frozen

from lanelog._database import Executor, Transaction, codes
from lanelog._log.append.draft import SCHEDULED, Draft
from lanelog._log.append.unknown_outcome import refuse_outdated
from lanelog._stores.later import scheduled
from lanelog._stores.later.scheduled import NewScheduled
from lanelog._stores.log import messages, partitions
from lanelog._stores.log.messages import NewMessage
from lanelog.errors import DatabaseError, LanelogError
from lanelog.message import Receipt

_KEYS_NAMED: Final = 3


@frozen(kw_only=True)
class AppendPlan:
    """The plan of one transaction: its rows, the moves of heads, and the receipts."""

    rows: list[NewMessage] = field(factory=list)
    scheduled: list[NewScheduled] = field(factory=list)
    """Messages that wait outside of the log. They take no offsets."""
    moves: Mapping[str, int]
    """The number of offsets by which the head of each key moves."""
    receipts: list[Receipt] = field(factory=list)
    """One for each draft, in their order."""


def give_offsets(
    drafts: Sequence[Draft], heads: Mapping[str, int], stored: Mapping[tuple[str, str], int]
) -> AppendPlan:
    """Give the drafts of one topic, in their order, the offsets after `heads`. Return the plan.

    `stored` has the offsets of the ids that are stored already. A message with a delay is scheduled. Until it is due,
    its offset is SCHEDULED, in its receipt and in `stored`. A duplicate takes no offset. A draft that was stored by an
    earlier attempt of its own is no duplicate, and keeps that offset.
    """
    moves: dict[str, int] = {}
    plan = AppendPlan(moves=moves)
    given: dict[tuple[str, str], int] = {}
    for draft in drafts:
        if not (draft.needs_lookup or draft.timing.scheduled):  # nearly all are like this, and a new id is no duplicate
            offset = _append(plan, moves, heads, draft)
            plan.receipts.append(Receipt(offset, draft.id, duplicate=False, key=draft.key))
            continue
        at = draft.key_and_id
        known = stored.get(at)
        if known is not None:
            offset, duplicate = known, draft.given and (not draft.is_own(known) or at in given)
        elif at in given:
            offset, duplicate = given[at], True
        elif draft.timing.scheduled:
            offset, duplicate = SCHEDULED, False
            plan.scheduled.append(_waiting(draft, len(plan.scheduled)))
        else:
            offset, duplicate = _append(plan, moves, heads, draft), False
        given.setdefault(at, offset)
        plan.receipts.append(Receipt(offset, draft.id, duplicate, draft.key))
    return plan


def _append(plan: AppendPlan, moves: dict[str, int], heads: Mapping[str, int], draft: Draft) -> int:
    """Give a draft the next offset of its lane."""
    key = draft.key
    moves[key] = moved = moves.get(key, 0) + 1
    offset = heads[key] + moved
    plan.rows.append(
        NewMessage(key, offset, draft.id, draft.payload, draft.metadata, draft.timing.ttl_ms, draft.target_group)
    )
    return offset


def _waiting(draft: Draft, number: int) -> NewScheduled:
    timing = draft.timing
    return NewScheduled(
        key=draft.key,
        id=draft.id,
        payload=draft.payload,
        metadata=draft.metadata,
        due_ms=timing.delay_ms if timing.due_at_ms is None else timing.due_at_ms,
        relative=timing.due_at_ms is None,
        ttl_ms=timing.ttl_ms,
        seq=number,
    )


def write(
    cx: Transaction, topic: str, drafts: Sequence[Draft], heads: Mapping[str, int], receipts: list[Receipt]
) -> None:
    """Look up the drafts that may be stored already, and write the others. Put one receipt for each into `receipts`.

    The receipts are there before anything can be committed. Where it can, it commits in one packet with the rows, and
    otherwise leaves that to the caller. Raises DatabaseError, also where `unknown_outcome` forbids to write one again.
    """
    asked = [draft.key_and_id for draft in drafts if draft.needs_lookup]
    stored = messages.find_ids(cx, topic, asked) if asked else {}
    if asked:
        refuse_outdated(cx, topic, [draft for draft in drafts if draft.repeated and draft.key_and_id not in stored])
    plan = give_offsets(drafts, heads, stored)
    receipts += plan.receipts
    if plan.scheduled or not plan.rows or not _commit(cx, topic, plan):
        append(cx, topic, plan, cx.max_packet)


def _commit(cx: Transaction, topic: str, plan: AppendPlan) -> bool:
    """Advance the heads, insert the rows and COMMIT in one packet. False: nothing was sent. Raises DatabaseError.

    A packet that the network keeps holds the heads meanwhile, as a COMMIT does: a repetition of its messages waits for
    them, and then reads the ids.
    """
    if not cx.takes_packets():
        return False
    advances = partitions.advance_and_note(topic, plan.moves)
    room = messages.largest_row(cx.max_packet) - sum(map(messages.longest, advances))
    insert = messages.insert_noted(topic, plan.rows, room)
    if insert is None:
        return False
    with _explained(topic, plan):
        try:
            cx.commit_with([*advances, insert])
        except DatabaseError as exc:
            if exc.code == codes.NULL_REFUSED:
                raise _vanished() from exc
            raise
    return True


def append(cx: Executor, topic: str, plan: AppendPlan, max_packet: int) -> list[Receipt]:
    """Advance the heads, then insert the rows. Return the receipts. Raises DatabaseError.

    The heads come first: the number of those that moved shows whether all lanes are still there.
    """
    if plan.rows:
        if partitions.advance(cx, topic, plan.moves) != len(plan.moves):
            raise _vanished()
        with _explained(topic, plan):
            messages.insert(cx, topic, plan.rows, max_packet)
    if plan.scheduled:
        scheduled.insert(cx, topic, plan.scheduled, max_packet)
    return plan.receipts


@contextmanager
def _explained(topic: str, plan: AppendPlan) -> Iterator[None]:
    """Explain the error of an insert whose offsets were there before."""
    try:
        yield
    except DatabaseError as exc:
        # MySQL writes the table's name before PRIMARY. A second row with the same id is refused by another index.
        if exc.code == codes.DUPLICATE and "PRIMARY'" in str(exc):
            raise _taken(topic, plan, exc) from exc
        raise


def _vanished() -> DatabaseError:
    return DatabaseError("a lane vanished while its head was locked: the transaction must be repeated", retriable=True)


def _taken(topic: str, plan: AppendPlan, error: DatabaseError) -> DatabaseError:
    """Return the error for an offset that was there before it was given out: the head is below rows of its lane."""
    keys = ", ".join(map(repr, sorted(plan.moves)[:_KEYS_NAMED]))
    return DatabaseError(
        f"topic {topic!r}: a head of the keys to publish under ({keys}) is below messages of its lane, as after a "
        "restore of single tables, and nothing was published; a running subscriber's client repairs it within its "
        f"lease_duration, `lanelog doctor --repair` at once ({error})",
        code=error.code,
    )


def note_attempt(drafts: Sequence[Draft], receipts: Sequence[Receipt], error: BaseException, began: float) -> None:
    """Note a failed attempt in its drafts. From now on their ids are looked up.

    After a COMMIT without an answer, a message that is found at the offset of its receipt is our own. `began`: when
    (`asleep.now`) the transaction began. The age of its messages counts from a later time.
    """
    for draft in drafts:
        draft.repeated = True
    if isinstance(error, LanelogError) and not (isinstance(error, DatabaseError) and error.outcome_unknown):
        return
    # The receipts are there before the rows are sent. So an error that is no LanelogError may have interrupted COMMIT,
    # or struck after it.
    for draft, receipt in zip(drafts, receipts, strict=False):
        if not receipt.duplicate:
            draft.tried = receipt.offset
            if draft.unknown_since is None:
                draft.unknown_since = began
