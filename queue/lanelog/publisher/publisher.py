"""The one object of publishing: checks what the caller gives, and hands it to one of three writers.

The writers are group commit, `bulk` and `caller`. It owns the transaction that it lends to user code, and reports what
was committed. It never decides an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from attrs import define, field

from lanelog._base.checks import Duration
from lanelog._base.payloads.codec import Codec
from lanelog._database import Database, find_open, open_in_this_thread, own_transaction
from lanelog._facts import publisher as facts
from lanelog._log.append.draft import SCHEDULED, Draft, make_draft
from lanelog._log.append.lanes import LaneCreator
from lanelog._log.append.middleware import publish_through
from lanelog._stores.log.messages import largest_row
from lanelog.config import check_name
from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.measures import Meter, new
from lanelog.message import Outgoing, Publication, Receipt
from lanelog.publisher.announcements import Announcements
from lanelog.publisher.batch import BatchWriter
from lanelog.publisher.bulk import BulkWriter
from lanelog.publisher.caller import CallerWriter
from lanelog.publisher.group import GroupCommit
from lanelog.publisher.lock_report import Locked
from lanelog.publisher.lock_waiters import LockWaiters
from lanelog.publisher.open_lane_routing import OpenLaneRouting

_PAIR = 2


@define(eq=False)
class Publisher:
    """Publishes to one database. Thread-safe."""

    _database: Database
    _announcements: Announcements = field(factory=Announcements, repr=False)
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

    def publish(
        self,
        topic: str,
        key: str | None,
        payload: object,
        *,
        id: str | None = None,  # noqa: A002 - the public name
        metadata: Mapping[str, str] | None = None,
        codec: Codec | None = None,
        connection: Any = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        ttl: Duration | None = None,
    ) -> Receipt:
        """See `Client.publish`."""
        check_name("topic", topic)
        outgoing = Outgoing(key, payload, id, metadata, delay, deliver_at, ttl, codec)
        if self.meter.observers:
            return self.meter.publishing(
                topic, lambda: self._publish_through(topic, outgoing, connection), lambda receipt: new([receipt])
            )
        return self._publish_through(topic, outgoing, connection)

    def _publish_through(self, topic: str, outgoing: Outgoing, connection: Any) -> Receipt:
        layers = self._database.config.middleware
        if layers:
            return publish_through(
                layers,
                Publication(topic, (outgoing,)),
                lambda messages: [self._publish_one(topic, messages[0], connection)],
            )[0]
        return self._publish_one(topic, outgoing, connection)

    def _publish_one(self, topic: str, outgoing: Outgoing, connection: Any) -> Receipt:
        config = self._database.config
        draft = make_draft(topic, outgoing, config.codec, config.max_payload_bytes)
        if connection is not None:
            return self._publish_in(connection, topic, [draft])[0]
        self._refuse_to_wait_for_itself()
        with self._database.limited() as deadline:
            self._prepare(topic, [draft], deadline)
            receipt = self._group.publish(draft, deadline)
        _report(self._announcements.catch_up)
        return receipt

    def publish_many(
        self,
        topic: str,
        items: Iterable[Outgoing | tuple[str | None, object]],
        *,
        connection: Any = None,
        codec: Codec | None = None,
        target_group: str = "",
    ) -> list[Receipt]:
        """See `Client.publish_many`. `target_group`: only this group gets the messages; the other groups pass them."""
        check_name("topic", topic)
        if self.meter.observers:
            return self.meter.publishing(
                topic, lambda: self._publish_all(topic, items, connection, codec, target_group), new
            )
        return self._publish_all(topic, items, connection, codec, target_group)

    def _publish_all(
        self,
        topic: str,
        items: Iterable[Outgoing | tuple[str | None, object]],
        connection: Any,
        codec: Codec | None,
        target_group: str,
    ) -> list[Receipt]:
        layers = self._database.config.middleware
        if layers:
            outgoing = [_outgoing(item) for item in _items(items)]
            if not outgoing:
                return []
            return publish_through(
                layers,
                Publication(topic, outgoing),
                lambda messages: self._publish_items(topic, messages, connection, codec, target_group),
            )
        return self._publish_items(topic, _items(items), connection, codec, target_group)

    def _publish_items(
        self, topic: str, items: Iterable[object], connection: Any, codec: Codec | None, target_group: str
    ) -> list[Receipt]:
        config = self._database.config
        codec = config.codec if codec is None else codec
        drafts = [make_draft(topic, _outgoing(item), codec, config.max_payload_bytes) for item in items]
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
            receipts = self._bulk.publish(topic, drafts, deadline)
        _report(self._announcements.catch_up)
        return receipts

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """See `Client.transaction`. DatabaseError: the transaction ended inside the block, say by a commit there."""
        self._admit()  # now: the block may hold the only connection
        with (
            self._database.transaction(guarded=True) as transaction,
            own_transaction(self._database, transaction.raw) as entry,
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

        Too large a packet would look like a lost connection.
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


def _items(items: object) -> Iterable[object]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise ConfigurationError(f"publish_many takes a list of messages, not {type(items).__name__}")
    return items


def _outgoing(item: object) -> Outgoing:
    if isinstance(item, Outgoing):
        return item
    if not isinstance(item, tuple) or len(item) != _PAIR:
        raise ConfigurationError(f"a message must be (key, payload) or lanelog.Outgoing, not {type(item).__name__}")
    key, payload = item
    return Outgoing(key, payload)
