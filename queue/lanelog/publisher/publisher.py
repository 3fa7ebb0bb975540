"""The one object of publishing: checks what the caller gives, and hands it to one of three writers.

The writers are group commit, `bulk` and `caller`. It owns the transaction that it lends to user code, and reports what
was committed. It never decides an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from attrs import define, field

from lanelog._base.payloads.codec import Codec
from lanelog._database import Database, find_open, open_in_this_thread, own_transaction
from lanelog._facts import publisher as facts
from lanelog._log.append.draft import SCHEDULED, Draft, as_outgoing, make_draft
from lanelog._log.append.lanes import LaneCreator
from lanelog._log.append.middleware import publish_through
from lanelog._stores.log.messages import largest_row
from lanelog.config import check_name
from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.measures import Meter, new
from lanelog.message import Outgoing, Publication, Receipt
from lanelog.publisher.announcements import Announcements, NoAnnouncements
from lanelog.publisher.batch import BatchWriter
from lanelog.publisher.bulk import BulkWriter
from lanelog.publisher.caller import CallerWriter
from lanelog.publisher.group import GroupCommit
from lanelog.publisher.lock_report import Locked
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.open_lane_routing import OpenLaneRouting

Commit = Callable[[str, Sequence[Draft], float], list[Receipt]]
"""Commits the drafts of a topic until a deadline (monotonic). Returns one receipt for each."""


@define(eq=False)
class Publisher:
    """Publishes to one database. Thread-safe."""

    _database: Database
    _announcements: Announcements = field(factory=NoAnnouncements, repr=False)
    meter: Meter = field(factory=Meter, repr=False)
    lanes: LaneCreator = field(init=False)
    _routing: OpenLaneRouting = field(init=False, repr=False)
    _group: GroupCommit = field(init=False, repr=False)
    _bulk: BulkWriter = field(init=False, repr=False)
    _caller: CallerWriter = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        gate = LockWaiters(self._database.config.pool_size // 2)
        self.lanes = LaneCreator(self._database, self._announcements.grown)
        self._routing = OpenLaneRouting(self.lanes)
        locked = Locked(self._database)
        writer = BatchWriter(self._database, self.lanes, self._announce)
        self._group = GroupCommit(self._database, writer, gate, locked)
        self._bulk = BulkWriter(self._database, self.lanes, gate, locked, self._announce)
        self._caller = CallerWriter(self._database, self.lanes, locked)

    def publish(self, topic: str, outgoing: Outgoing, connection: Any = None) -> Receipt:
        """See `Client.publish`."""
        return self._publish(topic, (outgoing,), connection, self._commit_one)[0]

    def publish_many(
        self,
        topic: str,
        items: Iterable[Outgoing | tuple[str | None, object]],
        *,
        connection: Any = None,
        codec: Codec | None = None,
        target_group: str = "",
    ) -> list[Receipt]:
        """See `Client.publish_many`. `target_group`: only this group gets the messages."""
        return self._publish(topic, _checked(items), connection, self._bulk.publish, codec, target_group)

    def check(self, topic: str, outgoing: Outgoing) -> None:
        """Raise what `publish` would raise for this message before any SQL."""
        check_name("topic", topic)
        make_draft(topic, outgoing, self._database.config.codec, self._database.config.max_payload_bytes)

    def _publish(
        self,
        topic: str,
        items: Iterable[object],
        connection: Any,
        commit: Commit,
        codec: Codec | None = None,
        target_group: str = "",
    ) -> list[Receipt]:
        check_name("topic", topic)
        write = partial(self._write, topic, connection, commit, codec, target_group)
        if self.meter.observers:
            return self.meter.publishing(topic, lambda: self._through_layers(topic, items, write), new)
        return self._through_layers(topic, items, write)

    def _through_layers(
        self, topic: str, items: Iterable[object], write: Callable[[Iterable[object]], list[Receipt]]
    ) -> list[Receipt]:
        """Call the middleware, if there is any, unless there is no message."""
        layers = self._database.config.middleware
        messages = tuple(map(as_outgoing, items)) if layers else ()
        return publish_through(layers, Publication(topic, messages), write) if messages else write(items)

    def _write(
        self,
        topic: str,
        connection: Any,
        commit: Commit,
        codec: Codec | None,
        target_group: str,
        items: Iterable[object],
    ) -> list[Receipt]:
        config = self._database.config
        codec = config.codec if codec is None else codec
        drafts = [make_draft(topic, each, codec, config.max_payload_bytes) for each in items]
        if not drafts:
            return []
        if target_group:
            for draft in drafts:
                draft.target_group = target_group
        if connection is not None:
            return self._publish_in(connection, topic, drafts)
        self._refuse_to_wait_for_itself()
        with self._database.limited() as deadline:
            self._prepare(topic, drafts, deadline)
            receipts = commit(topic, drafts, deadline)
        _report(self._announcements.catch_up)
        return receipts

    def _commit_one(self, _topic: str, drafts: Sequence[Draft], deadline: float) -> list[Receipt]:
        return [self._group.publish(drafts[0], deadline)]

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """See `Client.transaction`. DatabaseError: the transaction ended inside the block, say by a commit there."""
        self._admit()  # now: the block may hold the only connection
        with (
            self._database.transaction(guarded=True) as transaction,
            own_transaction(
                self._database, transaction.raw, block="client.transaction()", instead="publish(connection=)"
            ) as entry,
        ):
            yield transaction.raw
            if entry.lost is not None:
                raise entry.lost
        for topic in entry.topics:
            _report(self._announcements.committed, topic=topic)
        if entry.scheduled:
            _report(self._announcements.scheduled)
        _report(self._announcements.catch_up)

    def close(self) -> None:
        """Close the connections that do not belong to the pool."""
        self.lanes.close()

    def _publish_in(self, connection: Any, topic: str, drafts: Sequence[Draft]) -> list[Receipt]:
        """Publish in the caller's transaction. We learn of its end only if it is one of ours."""
        with self._database.limited() as deadline:
            self._prepare(topic, drafts, deadline)
            receipts = self._caller.publish(connection, topic, drafts, deadline)
        if find_open(connection) is None and any(draft.timing.scheduled for draft in drafts):
            _report(partial(self._announcements.scheduled, committed=False))
        return receipts

    def _prepare(self, topic: str, drafts: Sequence[Draft], deadline: float) -> None:
        """Do what needs the database before the transaction. It uses a connection of our own.

        Too large a packet would seem to be a lost connection.
        """
        self._admit()
        limit = largest_row(self._database.max_packet())
        unordered = []
        for draft in drafts:
            if draft.unordered:
                unordered.append(draft)
            if draft.wire_bytes > limit:
                raise PayloadTooLarge(
                    f"the payload has {len(draft.payload)} bytes, twice as many on the wire, and the server's "
                    f"max_allowed_packet is {self._database.max_packet()}: raise it there, or publish a reference"
                )
        if unordered:
            self._routing.route(topic, unordered, deadline=deadline)

    def _admit(self) -> None:
        """Check once in a process that the tables admit this version. Not within a caller's transaction."""
        if not self._database.tables_version:
            deadline = self._database.deadline()
            what = "reading the tables' version"
            from lanelog import migrations

            self._database.retry(lambda: migrations.admit(self._database), deadline=deadline, what=what)

    def _refuse_to_wait_for_itself(self) -> None:
        if open_in_this_thread(self._database):
            raise ConfigurationError(
                "this thread has a transaction of lanelog open: publish with connection= to be part of it; without, "
                "publish would wait for a lane that the transaction itself may have locked"
            )

    def _announce(self, topic: str, receipts: Sequence[Receipt]) -> None:
        if any(receipt.offset != SCHEDULED for receipt in receipts):
            _report(self._announcements.committed, topic=topic)
        if any(receipt.offset == SCHEDULED for receipt in receipts):
            _report(self._announcements.scheduled)


def _report(announce: Callable[..., None], **about: str) -> None:
    """Announce a commit. The message is committed, so its publisher must not get an error from here."""
    try:
        announce(**about)
    except Exception:  # noqa: BLE001 - it is logged with its traceback
        facts.publish_notification_failed(exc_info=True, **about)


def _checked(items: object) -> Iterator[object]:
    """Yield what `publish_many` was given. It is checked when it is read: observers count the mistake."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise ConfigurationError(f"publish_many takes a list of messages, not {type(items).__name__}")
    yield from items
