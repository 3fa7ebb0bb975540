"""Publishing in a caller's transaction: the messages are visible if and only if the caller commits.

Owns the statements inside that transaction. Never commits, never retries and never creates a lane on the caller's
connection. Lanes are created before, on another connection: later the creation would wait for the gap lock that the
caller's search for the missing lane has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field

from lanelog._database import (
    SERVER,
    Database,
    ForeignExecutor,
    Lock,
    OpenTransaction,
    TransactionGone,
    codes,
    driver_connection,
    find_open,
)
from lanelog._log.append.draft import SCHEDULED, Draft
from lanelog._log.append.lanes import LaneCreator
from lanelog._log.append.writing import append, give_offsets
from lanelog._stores.later import scheduled
from lanelog._stores.log import messages, partitions
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, SchemaError
from lanelog.message import Receipt
from lanelog.publisher.lock_report import Locked


@define(eq=False)
class CallerWriter:
    """Publishes on callers' connections. Thread-safe, if each connection is used by one thread at a time."""

    _database: Database
    _lanes: LaneCreator
    _locked: Locked
    _server: tuple[Any, ...] | None = field(default=None, init=False)
    """The server of this client when it was last asked for."""
    _same: WeakKeyDictionary[Any, int] = field(factory=WeakKeyDictionary, init=False)
    """Connections to that server, and their sessions' numbers: one that has connected anew is asked again."""

    def publish(self, connection: Any, topic: str, drafts: Sequence[Draft], deadline: float) -> list[Receipt]:
        """Append the drafts in the caller's open transaction. Return one receipt for each. `deadline` is monotonic.

        The lanes stay locked until the caller commits or rolls back. After an error nothing of this call is left in the
        transaction. The transaction may go on, unless the error says that all of it is gone. If no transaction is open,
        ConfigurationError is raised before anything is written. The statements name our database, so another one of the
        same server may be the connection's current one.

        `connection` may also be what an ORM, a pool or a tracer has around it (`driver_connection`).
        """
        connection = driver_connection(connection)
        entry = find_open(connection)
        if entry is not None and entry.lost is not None:
            raise DatabaseError(f"this transaction is over: {entry.lost}", retriable=True) from entry.lost
        cx = ForeignExecutor(
            connection, self._database.config.database, ours=entry is not None and entry.database is self._database
        )
        try:
            receipts = self._publish(cx, entry, topic, drafts, deadline)
        except LanelogError:
            raise
        except BaseException:
            # An interrupt, or an error of the driver's own: it may refuse a text at the insert, when the heads have
            # moved. A caller that catches it and commits would leave a hole.
            cx.undo_interrupted()
            raise
        if entry is not None:
            if any(receipt.offset for receipt in receipts):
                entry.topics.add(topic)
            entry.scheduled |= any(draft.timing.scheduled for draft in drafts)
        return receipts

    def _publish(
        self, cx: ForeignExecutor, entry: OpenTransaction | None, topic: str, drafts: Sequence[Draft], deadline: float
    ) -> list[Receipt]:
        cx.check_not_acked()
        cx.begin()
        cx.check_texts(text for draft in drafts for text in (topic, *draft.key_and_id, draft.metadata or ""))
        keys = {draft.key for draft in drafts}
        # On another connection: the caller's snapshot may be old. And before the caller holds a lock on our tables.
        self._lanes.ensure(topic, keys, deadline=deadline)
        try:
            receipts = self._write(cx, topic, drafts, deadline)
            cx.finish()
        except DatabaseError as exc:
            # This transaction may hold some of several lanes. The server would then name its own connection.
            keys = {draft.key for draft in drafts}  # read again: some drafts may have stepped aside
            error = self._locked.explained(cx.undo(exc), topic, keys, ask=len(keys) == 1)
            if exc.code == codes.NO_SUCH_DATABASE:
                raise self._elsewhere(exc) from exc
            if entry is not None and isinstance(error, TransactionGone):
                entry.lost = error
            if error is exc:
                raise
            raise error from exc
        except SchemaError as exc:
            raise self._elsewhere(exc) from exc
        except LanelogError:
            cx.undo_quietly()
            raise
        return receipts

    def _elsewhere(self, exc: LanelogError) -> ConfigurationError:
        """Return the error for a connection that does not see the tables, although our own connection sees them."""
        return ConfigurationError(
            f"the connection's server has no tables of lanelog in {self._database.config.database!r}: connect to the "
            f"server of this client ({exc})"
        )

    def _write(self, cx: ForeignExecutor, topic: str, drafts: Sequence[Draft], deadline: float) -> list[Receipt]:
        # heads X, in key order, then free open lanes without a wait -> messages -> scheduled
        max_packet = self._database.max_packet()
        heads = self._heads(cx, topic, drafts, deadline)
        # On the other connection, which sees all committed rows. No lock is needed: while we hold the heads, no other
        # transaction can add an id to these lanes. The insert meets the ids that this transaction itself has published.
        given = [draft.key_and_id for draft in drafts if draft.given]
        stored = self._lanes.find_ids(topic, given, deadline=deadline) if given else {}
        try:
            return append(cx, topic, give_offsets(drafts, heads, stored), max_packet)
        except DatabaseError as exc:
            if exc.code != codes.DUPLICATE:
                raise
            cx.execute("ROLLBACK TO SAVEPOINT lanelog_caller")
            # Only now it is looked up here. Under REPEATABLE READ, a locking read of an id that is not there locks a
            # gap, and two callers on neighbouring lanes would wait for each other.
            asked = [draft for draft in drafts if draft.given and draft.key_and_id not in stored]
            found = self._find_here(cx, topic, asked)
            if not found:
                raise
        heads = self._heads(cx, topic, drafts, deadline)
        return append(cx, topic, give_offsets(drafts, heads, {**stored, **found}), max_packet)

    @staticmethod
    def _find_here(cx: ForeignExecutor, topic: str, drafts: Sequence[Draft]) -> dict[tuple[str, str], int]:
        """Find the ids in the table of the failed insert: the log, or the schedule for messages with a delay."""
        waiting = [draft.key_and_id for draft in drafts if draft.timing.scheduled]
        at_once = [draft.key_and_id for draft in drafts if not draft.timing.scheduled]
        found = messages.find_in_log(cx, topic, at_once, Lock.SHARE) if at_once else {}
        if waiting:
            found |= dict.fromkeys(scheduled.find_shared(cx, topic, waiting), SCHEDULED)
        return found

    def _heads(self, cx: ForeignExecutor, topic: str, drafts: Sequence[Draft], deadline: float) -> Mapping[str, int]:
        """Lock the heads, with a wait. A message for any open lane waits for none as long as one is free.

        Otherwise callers that publish such messages in any order could wait for each other in a circle.
        """
        anywhere = [draft for draft in drafts if draft.anywhere]
        fixed = {draft.key for draft in drafts if not draft.anywhere}
        heads = partitions.heads(cx, topic, fixed, Lock.UPDATE)
        busy: set[str] = set()
        asked = {draft.key for draft in anywhere} - heads.keys()
        while asked:
            heads |= partitions.heads(cx, topic, asked, Lock.FREE)
            busy |= asked - heads.keys()
            left = [draft for draft in anywhere if draft.key not in heads]
            moved = [draft for draft in left if draft.step_aside(busy)]
            asked = {draft.key for draft in moved} - heads.keys()
        keys = {draft.key for draft in drafts}
        heads |= partitions.heads(cx, topic, keys - heads.keys(), Lock.UPDATE)
        self._check_server(cx, deadline)
        if not keys <= heads.keys():
            if len(heads) < len(keys):
                cx.check_limit(len(keys))
                raise DatabaseError(
                    "a lane is not there, although it was a moment ago: it was purged just now; roll back and repeat "
                    "the transaction",
                    retriable=True,
                )
            raise ConfigurationError("the connection gives text back otherwise than it was sent: open it with utf8mb4")
        return heads

    def _check_server(self, cx: ForeignExecutor, deadline: float) -> None:
        """Raise ConfigurationError if the connection is to another server than this client's, as a copy of it.

        It asks in the transaction that has locked the heads: a proxy sends a SELECT outside of one to any replica.
        """
        if cx.ours:
            return
        session = cx.session  # it was just answered, so the driver's connection is open
        if session is not None and self._same.get(cx.raw) == session:
            return
        here, mine = cx.one(SERVER), self._server
        if here is None:
            return
        if mine is None or here[0] != mine[0]:
            # The client may have met another server since. All connections of the pool may wait for a head that this
            # transaction holds, so another one is asked.
            mine = self._server = self._lanes.ask(SERVER, deadline=deadline)
        if mine is not None and here[0] != mine[0]:
            theirs, ours = (f"{host}:{port} (server_id {number})" for _, host, port, number in (here, mine))
            raise ConfigurationError(
                f"the connection is to another server than this client: to {theirs}, not to {ours}; publish with a "
                "client that connects where your transaction is"
            )
        if session is not None:
            self._same[cx.raw] = session
