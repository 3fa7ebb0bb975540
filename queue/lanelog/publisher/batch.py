"""The transactions of group commit: lock heads, give offsets, insert, commit.

Owns these transactions, for threads that share one. A crash before the COMMIT publishes nothing; after it, everything.
Lanes that are locked or missing are left out. Never waits for a head unless its caller asks for that. Missing lanes are
created between transactions, never in one.

A message that is alone is published in one round trip: lock, insert, advance and COMMIT travel in one packet. That
never waits for a head. If the head is locked or missing, nothing is written, and an ordinary transaction follows. A new
id needs no look-up, so the whole transaction can be sent before the offset is known. A packet that the network delays
may run after its message was repeated. The repeated message has the same id, so the late packet's insert fails, and
nothing is stored twice. A copy that was collected meanwhile would not stop it: see `unknown_outcome.refuse_outdated`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define, frozen

from lanelog._database import GRACE, LATEST, Database, codes
from lanelog._log.append.draft import SCHEDULED, Draft
from lanelog._log.append.lanes import LaneCreator
from lanelog._log.append.writing import note_attempt, write
from lanelog._process import asleep
from lanelog._stores.log import messages, partitions
from lanelog.errors import DatabaseError
from lanelog.message import Receipt
from lanelog.publisher.topic_queue import Waiter

Choose = Callable[[Mapping[str, int]], Sequence[Waiter]]
"""Takes the heads that the transaction has locked, by key. Returns the waiters whose messages it is to write."""

_LARGEST_ALONE: Final = 16 * 1024
"""The most bytes of a message that travels in one packet. For a longer one, the round trips cost little beside it."""


@frozen
class _NotLocked:
    """The keys whose heads a transaction did not get."""

    busy: set[str]
    """Another transaction has locked the head."""
    missing: set[str]
    """There is no such lane."""


def fits_a_packet(draft: Draft, left: float) -> bool:
    """Whether a message may be published in one packet. Its id must be new, and it must be short and without a delay.

    `left`: the seconds until its publish_timeout. Then its caller learns of an unknown outcome. By then no packet may
    be on its way any more: the caller's own repetition would not know of it.
    """
    return (
        not draft.needs_lookup
        and not draft.timing.scheduled
        and draft.wire_bytes <= _LARGEST_ALONE
        and left + GRACE >= LATEST
    )


def send(database: Database, draft: Draft) -> int | None:
    """Publish a message in one packet. Return its offset when it is committed. Raises DatabaseError.

    None: nothing was written. The head is locked or missing, or the server takes one statement at a time.
    """
    insert = messages.insert_next(
        draft.topic,
        draft.key,
        message_id=draft.id,
        payload=draft.payload,
        metadata=draft.metadata,
        ttl_ms=draft.timing.ttl_ms,
    )
    try:
        around = partitions.around_next(draft.topic, draft.key, insert)
        return database.commit_at_once(around, noted=partitions.NOTED_OFFSET)
    except DatabaseError as exc:
        if exc.code == codes.NULL_REFUSED:
            return None
        raise


@define(eq=False)
class BatchWriter:
    """Commits batches. Thread-safe."""

    _database: Database
    _lanes: LaneCreator
    _announce: Callable[[str, Sequence[Receipt]], None]

    def commit(
        self,
        topic: str,
        keys: set[str],
        choose: Choose,
        *,
        wait: bool,
        persist: bool,
        deadline: float,
        alone: Waiter | None = None,
    ) -> set[str]:
        """Commit the messages of the waiters that `choose` returns. Return the keys whose heads others have locked.

        A transaction is repeated after a retriable error, until `deadline` (monotonic). `persist`: after a lock
        time-out, too. `wait`: it waits for locked heads. `alone`: the waiter, if the batch has no other. A waiter that
        is known to be committed has its receipt when this returns or raises.
        """
        busy: set[str] = set()
        while keys:
            left = self._database.retry(
                lambda wanted=keys: self._attempt(topic, wanted, choose, wait=wait, alone=alone),  # type: ignore[misc]
                deadline=deadline,
                what="publishing",
                unless=() if persist else (codes.LOCK_WAIT_TIMEOUT,),
            )
            busy |= left.busy
            if left.missing:
                self._lanes.create(topic, left.missing, deadline=deadline)
            keys = left.missing
        return busy

    def _attempt(self, topic: str, keys: set[str], choose: Choose, *, wait: bool, alone: Waiter | None) -> _NotLocked:
        if alone is not None and alone.waiting and fits_a_packet(alone.draft, alone.deadline - time.monotonic()):
            self._send(alone)
            if alone.receipt is not None:
                self._announce(topic, [alone.receipt])
                return _NotLocked(set(), set())
        return self._transact(topic, keys, choose, wait=wait)

    def _send(self, waiter: Waiter) -> None:
        """Publish a waiter's message in one packet. If it was committed, the waiter has its receipt."""
        draft = waiter.draft
        began = asleep.now()
        try:
            offset = send(self._database, draft)
            if offset is not None:
                self._settle([waiter], [Receipt(offset, draft.id, duplicate=False, key=draft.key)])
        except BaseException as exc:
            # Its offset is not known. With SCHEDULED, a message with this id counts as this one at any offset.
            note_attempt([draft], [Receipt(SCHEDULED, draft.id, duplicate=False, key=draft.key)], exc, began)
            draft.sent_at = draft.unknown_since
            raise

    @staticmethod
    def _settle(waiters: Sequence[Waiter], receipts: Sequence[Receipt]) -> None:
        """Give committed waiters their receipts. An interrupt may come between two: the rest is of unknown outcome."""
        for waiter, receipt in zip(waiters, receipts, strict=True):
            waiter.receipt = receipt
            waiter.signal.set()

    def _transact(self, topic: str, keys: set[str], choose: Choose, *, wait: bool) -> _NotLocked:
        # heads X, in key order -> messages -> scheduled
        drafts: list[Draft] = []
        receipts: list[Receipt] = []
        waiters: Sequence[Waiter] = ()
        began = asleep.now()
        try:
            with self._database.transaction() as transaction:
                heads, busy, missing = partitions.lock_heads(transaction, topic, keys, keys if wait else set())
                waiters = choose(heads) if heads else ()
                if waiters:
                    drafts += [waiter.draft for waiter in waiters]
                    write(transaction, topic, drafts, heads, receipts)
            self._settle(waiters, receipts)
        except BaseException as exc:
            note_attempt(drafts, receipts, exc, began)
            raise
        if waiters:
            self._announce(topic, receipts)
        return _NotLocked(busy, missing)
