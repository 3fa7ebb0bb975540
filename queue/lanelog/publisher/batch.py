"""The transactions of group commit: lock heads, place the waiting threads' messages, insert, commit.

Owns these transactions, for threads that share one. A crash before the COMMIT publishes nothing; after it, everything.
Lanes that are locked or missing are left out. Never waits for a head unless its caller asks for that. Missing lanes are
created between transactions, never in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from attrs import define, frozen

from lanelog._database import Database, Lock, codes
from lanelog._log.append import unknown_outcome
from lanelog._log.append.draft import SCHEDULED, Draft
from lanelog._log.append.lanes import LaneCreator
from lanelog._log.append.placing import note_attempt, write
from lanelog._stores.log import partitions
from lanelog.message import Receipt
from lanelog.publisher import packet
from lanelog.publisher.line import Waiter

Choose = Callable[[Mapping[str, int]], Sequence[Waiter]]
"""Takes the heads that the transaction has locked, by key. Returns the members whose messages it is to write."""


@frozen
class _Left:
    """The keys whose heads a transaction did not get."""

    busy: set[str]
    """Another transaction has locked the head."""
    missing: set[str]
    """There is no such lane."""


def _fits(member: Waiter) -> bool:
    return packet.fits(member.draft, member.deadline - time.monotonic())


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
        """Commit the messages of the members that `choose` returns. Return the keys whose heads others have locked.

        A transaction is repeated after a retriable error, until `deadline` (monotonic). `persist`: after a lock
        time-out, too. `wait`: it waits for locked heads. `alone`: the member, if the batch has no other. A member that
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

    def _attempt(self, topic: str, keys: set[str], choose: Choose, *, wait: bool, alone: Waiter | None) -> _Left:
        if alone is not None and alone.waiting and _fits(alone) and self._send(alone):
            return _Left(set(), set())
        return self._transact(topic, keys, choose, wait=wait)

    def _send(self, member: Waiter) -> bool:
        """Publish a member's message in one packet. Return whether it was committed."""
        draft = member.draft
        began = unknown_outcome.now()
        try:
            offset = packet.publish(self._database, draft)
            if offset is not None:
                self._settle([member], [Receipt(offset, draft.id, duplicate=False, key=draft.key)])
        except BaseException as exc:
            # Its offset is not known. With SCHEDULED, a message with this id counts as this one at any offset.
            note_attempt([draft], [Receipt(SCHEDULED, draft.id, duplicate=False, key=draft.key)], exc, began)
            draft.sent_at = draft.doubted_at
            raise
        if member.receipt is None:
            return False
        self._announce(draft.topic, [member.receipt])
        return True

    @staticmethod
    def _settle(members: Sequence[Waiter], receipts: Sequence[Receipt]) -> None:
        """Give committed members their receipts. An interrupt may come between two: the rest is noted as in doubt."""
        for member, receipt in zip(members, receipts, strict=True):
            member.receipt = receipt
            member.signal.set()

    def _transact(self, topic: str, keys: set[str], choose: Choose, *, wait: bool) -> _Left:
        # heads X, in key order -> messages -> scheduled
        drafts: list[Draft] = []
        receipts: list[Receipt] = []
        members: Sequence[Waiter] = ()
        began = unknown_outcome.now()
        try:
            with self._database.transaction() as transaction:
                heads = partitions.heads(transaction, topic, keys, Lock.UPDATE if wait else Lock.FREE)
                absent = keys - heads.keys()
                existing = set(partitions.heads(transaction, topic, absent)) if absent else set()
                members = choose(heads) if heads else ()
                if members:
                    drafts += [member.draft for member in members]
                    write(transaction, topic, drafts, heads, receipts)
            self._settle(members, receipts)
        except BaseException as exc:
            note_attempt(drafts, receipts, exc, began)
            raise
        if members:
            self._announce(topic, receipts)
        return _Left(existing, absent - existing)
