"""`publish_many`: one transaction for any number of messages and keys, all or none.

Owns that transaction. A crash before its COMMIT publishes nothing. It waits first, in key order, for heads that were
locked at the last try. Then it takes the others with SKIP LOCKED. So it never holds a free head while it waits for one
that is known to be busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attrs import define, frozen

from lanelog._base.backoff import OF_TRANSACTIONS
from lanelog._database import Database
from lanelog._log.append.draft import Draft
from lanelog._log.append.lanes import LaneCreator
from lanelog._log.append.writing import note_attempt, write
from lanelog._process import asleep
from lanelog._stores.log import partitions
from lanelog.errors import DatabaseError
from lanelog.message import Receipt
from lanelog.publisher.lock_report import Locked, lanes
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.topic_queue import Wakeup


@frozen(kw_only=True)
class _Result:
    """The receipts, or the busy and the missing lanes."""

    receipts: list[Receipt]
    busy: set[str]
    missing: set[str]


@define(eq=False)
class BulkWriter:
    """Commits many messages at once. Thread-safe."""

    _database: Database
    _lanes: LaneCreator
    _gate: LockWaiters
    _locked: Locked
    _announce: Callable[[str, Sequence[Receipt]], None]

    def publish(self, topic: str, drafts: Sequence[Draft], deadline: float) -> list[Receipt]:
        """Return one receipt for each draft when all are committed, until `deadline` (monotonic).

        After a DatabaseError none is committed, unless its `outcome_unknown` is true.
        """
        try:
            return self._publish(topic, drafts, deadline)
        except DatabaseError as exc:
            # The last transaction has committed nothing. An earlier one may have, and no later one got far enough to
            # query its ids.
            exc.outcome_unknown = exc.outcome_unknown or _unknown_outcome(drafts)
            raise

    def _publish(self, topic: str, drafts: Sequence[Draft], deadline: float) -> list[Receipt]:
        busy: set[str] = set()
        refused = 0
        while True:
            with self._gate.enter([(topic, key) for key in busy]) as waits:
                # The server's wait must end in time, too.
                first = busy if waits and deadline - time.monotonic() > self._database.lock_wait else set()
                try:
                    result = self._database.retry(
                        lambda first=first: self._transact(topic, drafts, first),  # type: ignore[misc]
                        deadline=deadline,
                        what="publishing many",
                    )
                except DatabaseError as exc:
                    raise self._locked.explained(exc, topic, first or {draft.key for draft in drafts}) from exc
            if result.receipts:
                self._announce(topic, result.receipts)
                return result.receipts
            if time.monotonic() >= deadline:
                busy = result.busy or result.missing
                said = "it is unknown whether the messages were" if _unknown_outcome(drafts) else "no message was"
                raise DatabaseError(
                    f"{said} committed within publish_timeout ({self._database.config.publish_timeout:g} s): "
                    f"{lanes(topic, busy)} locked by others{self._locked.holder(topic, busy)}",
                    retriable=True,
                )
            if result.missing:
                self._lanes.create(topic, result.missing, deadline=deadline)
            if busy and not first:
                refused += 1
                Wakeup().wait(OF_TRANSACTIONS.after(refused))
            busy |= result.busy
            for draft in drafts:
                if draft.key in busy:
                    draft.step_aside(busy)
            busy &= {draft.key for draft in drafts}

    def _transact(self, topic: str, drafts: Sequence[Draft], first: set[str]) -> _Result:
        # heads X: first the busy ones, in key order, with a wait; then the others without -> messages -> scheduled
        receipts: list[Receipt] = []
        keys = {draft.key for draft in drafts}
        began = asleep.now()
        try:
            with self._database.transaction() as transaction:
                heads, busy, missing = partitions.lock_heads(transaction, topic, keys, first)
                if busy or missing:
                    return _Result(receipts=[], busy=busy, missing=missing)
                write(transaction, topic, drafts, heads, receipts)
        except BaseException as exc:
            note_attempt(drafts, receipts, exc, began)
            raise
        return _Result(receipts=receipts, busy=set(), missing=set())


def _unknown_outcome(drafts: Sequence[Draft]) -> bool:
    """Whether a COMMIT of theirs was not answered."""
    return any(draft.tried is not None for draft in drafts)
