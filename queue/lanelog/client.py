"""The client: the one object an application makes, and through which everything else is reached.

Owns the database, the publisher and the subscriptions, and their common end; it does none of their work.
`lanelog.connect` makes it.

What a process that only publishes never needs (engine, administration, migrations) is imported where it is first used:
`import lanelog` must stay light.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Self, overload

from attrs import define, field

from lanelog import _unstarted
from lanelog._checks import check_timeout, refuse_bare
from lanelog._database import Database
from lanelog._database.fork import register_shared
from lanelog._hints.sender import Sender
from lanelog._signals import ending_by_signal
from lanelog._stores.heartbeats import NOWHERE, WakePlace
from lanelog._telemetry import get_logger
from lanelog.config import ConnectConfig, SubscriptionConfig, check_handler, check_name, check_retention
from lanelog.errors import ClosedError, ConfigurationError
from lanelog.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Unpack

    from lanelog._checks import Duration
    from lanelog._codec import Codec
    from lanelog._engine.engine import Engine
    from lanelog._subscription import SubscriptionCore
    from lanelog.admin import Admin
    from lanelog.admin.types.topology import ScheduleInfo
    from lanelog.deliveries import Deliveries
    from lanelog.message import Outgoing, Receipt
    from lanelog.options import (
        AsyncHandler,
        AsyncHandlersAreNotSupported,
        ConnectOptions,
        Handler,
        Register,
        SubscriptionOptions,
    )
    from lanelog.subscriber import Subscription

LOOK_FOR_SIGNALS = 0.5
"""Seconds between two looks: a signal handler runs in the main thread between them."""
LAST_WRITES = 5.0
"""Seconds that what was decided gets to be committed, and the leases to be released, when `drain_timeout` is over."""

log = get_logger("client")


def connect(url: str | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """Make a client for the database at `url`, or at LANELOG_URL; no I/O happens here.

    `url` is `mysql://user:password@host:3306/database`, with `?unix_socket=…` or `&ssl_ca=…` as needed; SQLAlchemy's
    `mysql+pymysql://` and `mysql+mysqldb://` are the same and choose the driver. For the options see `ConnectOptions`.
    Raises ConfigurationError.
    """
    try:
        config = ConnectConfig.from_url(url, **options)
    finally:
        del url  # error trackers show the locals of every frame
    return Client(config)


@define(eq=False)
class _Announcements:
    """Tells the loops of this process, and those of others, what was published.

    The loops must not keep the client alive, so it knows the client weakly.
    """

    client: weakref.ref[Client]
    engine: Engine | None = None
    hints: Sender | None = None

    def __call__(self, topic: str) -> None:
        if self.engine is not None:
            self.engine.announce(topic)
        if self.hints is not None:
            self.hints.tell(topic)

    def own_place(self) -> WakePlace:
        """Where this process itself is told."""
        return NOWHERE if self.engine is None else self.engine.context.receiver.place

    def scheduled(self, *, committed: bool = True) -> None:
        """Something with a time of its own was written: from now on somebody in this process looks after it."""
        client = self.client()
        if client is not None:
            client._start_scheduler(committed=committed)  # noqa: SLF001 - a part of the client

    def abandon(self) -> None:
        """In a forked child: threads did not come along, and locks may be held by nobody."""
        client = self.client()
        if client is not None:
            client._forget_inherited()  # noqa: SLF001 - a part of the client


@define(eq=False, repr=False)
class Client:
    """Publishes, subscribes, and ends both; a context manager that closes it. Thread-safe.

    After a fork the child's copy publishes on connections of its own; subscriptions of the parent raise ClosedError
    there.
    """

    config: ConnectConfig
    _database: Database = field(init=False)
    _publisher: Publisher = field(init=False)
    _engine: Engine | None = field(default=None, init=False)
    _admin: Admin | None = field(default=None, init=False)
    _subscriptions: list[SubscriptionCore] = field(factory=list, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _hurried: bool = field(default=False, init=False)  # by a second Ctrl-C: nothing is waited for any more
    _ended: threading.Event = field(factory=threading.Event, init=False)  # whoever closed it first has done so
    _closer: int = field(default=0, init=False)  # that thread
    _announcements: _Announcements = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._database = Database(self.config)
        self._announcements = _Announcements(weakref.ref(self))
        self._publisher = Publisher(self._database, self._announcements, self._announcements.scheduled)
        if self.config.wake:
            self._announcements.hints = hints = Sender(self._database, self._announcements.own_place)
            self._publisher.lanes.created = hints.grown
        register_shared(self._announcements)

    def _forget_inherited(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        if self._closed:
            self._ended.set()  # who was closing it is not here
        self._engine = self._announcements.engine = None
        self._subscriptions = []

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._subscriptions)} subscriptions"
        return f"<Client of {self.config.safe_url()}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        running = [s for s in getattr(self, "_subscriptions", ()) if s.state in ("running", "paused")]
        engine = getattr(self, "_engine", None)
        if (running or (engine is not None and engine.scheduling)) and not getattr(self, "_closed", True):
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    # -- the database --------------------------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Create or upgrade the tables; what was done, in words. Raises DatabaseError, SchemaError.

        Idempotent, and safe when many processes do it at once and while others work.
        """
        from lanelog import migrations

        return migrations.migrate(self._database)

    def ping(self) -> None:
        """Check that the database answers and has tables that this version can work on, which may be older or newer.

        Raises DatabaseError, SchemaError.
        """
        from lanelog import migrations

        migrations.check(self._database)

    @property
    def admin(self) -> Admin:
        """See it and steer it: topics, lanes, messages, dead letters; pause, seek, redrive. See `lanelog.admin`."""
        from lanelog.admin import Admin

        if self._admin is None:
            self._admin = Admin(
                self._database, self._publisher.ensure_lanes, self._announcements, self._announcements.scheduled
            )
        return self._admin

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        key: str | None,
        payload: object,
        *,
        id: str | None = None,  # noqa: A002 - the field's name
        metadata: Mapping[str, str] | None = None,
        codec: Codec | None = None,
        connection: object | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        ttl: Duration | None = None,
    ) -> Receipt:
        """Append one message to the lane of `key`; it is durable and visible when this returns.

        `key` None: the message needs no order. It goes to one of the topic's open lanes (64, see
        `admin.set_open_lanes`), which any number of processes share evenly; an `id` always to the same one of them, as
        long as their number stays. The receipt's `key` is the lane's.

        `payload`: bytes, which are stored as they are; all else goes through `codec` or the client's, if there is one,
        and otherwise a str becomes UTF-8, and dict, list, number, datetime, Decimal, UUID, Enum, attrs class or
        dataclass JSON. `metadata` `content-type` says which, for `message.decode()`. A FutureWarning tells of JSON
        that would come back different: tuples, and keys that are no str.

        `id` makes it idempotent within (topic, key): a second publish returns the first one's offset as a duplicate.
        `connection`, an open DB-API connection in a transaction, makes it part of that transaction: visible if and only
        if the caller commits; the lane is locked until then, so publish last.

        `delay` (from now) or `deliver_at` (an aware datetime): it waits outside of the log, holding back nothing, and
        goes to the end of its lane when it is due, at most ten years from now; one that is due already goes there at
        once. Until then its receipt's offset is 0, its id counts as taken, and `cancel_scheduled` takes it back.
        `ttl`: how long after the publish, or after it was due, a handler may start on it. Durations are seconds or a
        timedelta. All three by the database's clock. From the first such message on the client has one more thread and
        connection, until `close()`.

        Raises ConfigurationError and PayloadTooLarge before anything is written, DatabaseError after `publish_timeout`
        seconds without success; repeating it with the same id is safe.
        """
        return self._publisher.publish(
            topic,
            key,
            payload,
            id=id,
            metadata=metadata,
            codec=codec,
            connection=connection,
            delay=delay,
            deliver_at=deliver_at,
            ttl=ttl,
        )

    def publish_many(
        self,
        topic: str,
        items: Iterable[tuple[str | None, object] | Outgoing],
        *,
        codec: Codec | None = None,
        connection: object | None = None,
    ) -> list[Receipt]:
        """Append many messages in one transaction, all or nothing; receipts in the order of `items`.

        Items are (key, payload) pairs or `Outgoing`; otherwise as `publish`. Those without a key (None) share as many
        open lanes as there are messages for.
        """
        return self._publisher.publish_many(topic, items, codec=codec, connection=connection)

    def cancel_scheduled(self, topic: str, key: str | None, id: str) -> bool:  # noqa: A002 - the field's name
        """Take back a message that is not due yet. True: it will not be delivered.

        False: there is none, or it was due and is in the log already. `key`: as it was published, or its receipt's.
        Raises ConfigurationError (also where this thread has a transaction of lanelog open, which it would wait for)
        and DatabaseError.
        """
        from lanelog.admin.schedules.scheduled import cancel

        return cancel(self._database, topic, key, id)

    def schedule(
        self,
        name: str,
        expression: str,
        topic: str,
        key: str | None,
        payload: object,
        *,
        timezone: str = "UTC",
        catch_up: str = "latest",
        metadata: Mapping[str, str] | None = None,
        ttl: Duration | None = None,
        codec: Codec | None = None,
    ) -> ScheduleInfo:
        """Declare a message that is published at every time a cron expression names, once, by whichever process.

        To be called by every process that starts: declared again, the schedule goes on where it is, with the payload,
        `catch_up` and all else of the last one who declared it. With a changed expression or `timezone` it counts from
        now; the oldest time that was due by then is still published. It stays until `admin.remove_schedule`, and pauses
        by `admin.pause_schedule`. It is no part of a transaction that the caller has open.

        `name`: 1 to 200 characters. `expression`: five fields, minute hour day-of-month month day-of-week, or six with
        the second first, in an IANA time zone. Where clocks change, a fixed time of day fires once on each day (at the
        end of the gap, or at the first of the two); what has a `*` for minute or hour follows the clock on the wall.
        The id of each message is `name@2026-11-21T10:05:00Z`; its metadata has `lanelog.schedule` and
        `lanelog.fire_time` besides what is given. `ttl`: seconds or a timedelta, from the publishing. `key` None: they
        go to one open lane, the same one each time, so that one run does not overtake the one before.

        `catch_up` says what is published of times at which no process was there: the most recent one (`"latest"`), each
        of them (`"all"`) or nothing (`"none"`). Nothing is missed as long as the oldest time that is due is late by no
        more than the schedule's period, at least 5 and at most 60 seconds: then all that is due is published.

        From now on the client has one more thread and connection, until `close()`. Raises ConfigurationError and
        PayloadTooLarge before anything is written, DatabaseError after `publish_timeout` seconds without success.
        """
        from lanelog.admin.schedules.schedules import declare

        declared = declare(
            self._database,
            name,
            expression,
            topic,
            key,
            payload,
            timezone=timezone,
            catch_up=catch_up,
            metadata=metadata,
            ttl=ttl,
            codec=codec,
        )
        try:
            self._announcements.scheduled()
        except Exception:  # noqa: BLE001 - it is committed: nothing that happens here may make the caller believe otherwise
            log.bind(schedule=name).exception("publish.notification_failed", exc_info=True)
        return declared

    def transaction(self) -> AbstractContextManager[Any]:
        """Give a DB-API connection with an open transaction: COMMIT at the end of the block, ROLLBACK if it raises.

        Pass it as `connection=` to publish along with the block's own writes.
        """
        return self._publisher.transaction()

    # -- subscribing ---------------------------------------------------------------------------------------------------

    # A checker says that this coroutine is never awaited, or has no method: the mistake, at the call that makes it.
    @overload
    def subscribe(  # type: ignore[overload-overlap]
        self,
        topic: str | Sequence[str],
        group: str,
        handler: AsyncHandler,
        **options: Unpack[SubscriptionOptions],
    ) -> Coroutine[Any, Any, AsyncHandlersAreNotSupported]: ...

    @overload
    def subscribe(
        self, topic: str | Sequence[str], group: str, handler: Handler, **options: Unpack[SubscriptionOptions]
    ) -> Subscription: ...

    def subscribe(
        self, topic: str | Sequence[str], group: str, handler: Handler, **options: Unpack[SubscriptionOptions]
    ) -> Any:
        """Register the group, start handling, and return the running subscription.

        `handler(message)` acks by returning; what raising means is decided by `ack_policy` and `retry`. For the options
        see `SubscriptionOptions`. Raises ConfigurationError, also for a handler that is async or cannot take one
        argument, DatabaseError, SchemaError.
        """
        from lanelog.subscriber import Subscription

        core = self._register(topic, group, check_handler(handler), options)
        try:
            core.start()
        except BaseException:
            self._subscriptions.remove(core)  # it never began: run() must not try it again
            raise
        return Subscription(core)

    @refuse_bare
    def subscriber(self, topic: str | Sequence[str], group: str, **options: Unpack[SubscriptionOptions]) -> Register:
        """Decorate a handler to be started by `run()` or `start()`; nothing is sent to the database before.

        Options and errors as with `subscribe`; the errors are raised where the handler is decorated.
        """

        def register(handler: Any) -> Any:
            subscription = self._register(topic, group, check_handler(handler), options)
            database, what = self._database, f"a handler of group {subscription.group!r}"
            _unstarted.remember(self, lambda: database.tried, what, _unstarted.CallSite.of_caller())
            return handler

        return register

    def deliveries(
        self,
        topic: str | Sequence[str],
        group: str,
        *,
        timeout: Duration | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> Deliveries:
        """Iterate over messages that the caller settles; ends after a `timeout` without one (None: never).

        Otherwise as `subscribe`; `visibility_timeout` runs for every message until it is settled or extended.
        """
        from lanelog.deliveries import Deliveries

        return Deliveries(self._register(topic, group, None, options), timeout)

    def _register(
        self,
        topic: str | Sequence[str],
        group: str,
        handler: Handler | None,
        options: SubscriptionOptions,
    ) -> SubscriptionCore:
        from lanelog._subscription import SubscriptionCore, checked_topics

        config = SubscriptionConfig.from_options(**options)
        check_retention(config.retention, self.config.publish_timeout)
        topics = checked_topics(topic, config)
        check_name("group", group)
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self!r} is closed: connect again")
            subscription = SubscriptionCore(group, topics, config, handler, self._made_engine())
            self._subscriptions = [s for s in self._subscriptions if s.state != "stopped"]
            self._subscriptions.append(subscription)
        return subscription

    def _made_engine(self) -> Engine:
        """The engine, made at its first use; the lock is held."""
        from lanelog._engine.engine import Engine

        if self._engine is None:
            self._engine = Engine(self._database, self._publisher.ensure_lanes, self._announcements)
            self._announcements.engine = self._engine
        return self._engine

    def _start_scheduler(self, *, committed: bool) -> None:
        with self._lock:
            engine = None if self._closed else self._made_engine()
        if engine is not None:
            engine.schedule(committed=committed)

    def start(self) -> None:
        """Start every registered subscription that does not run yet."""
        for subscription in list(self._subscriptions):
            if subscription.state == "new" and subscription.handler is not None:
                subscription.start()

    def run(self, *, drain_timeout: Duration | None = None) -> None:
        """Start every registered subscription and block until SIGTERM, SIGINT or `close()`; then drain and return.

        Draining waits for running handlers, and for a database that is away, `drain_timeout` seconds at most (None: as
        long as it takes); every 5 s an event `subscription.waited` says for what. Whatever handler runs when that time
        is over is cut off: its message goes back with an attempt that does not count, not even as a crash, and whoever
        takes the lane over has it at once; each is a WARNING `handler.cut_off`. Its thread goes on until the process
        ends, which should follow at once, and can settle nothing. Under `AckPolicy.ACK_FIRST` that message is lost. The
        last writes take 5 more seconds at most; if the database is away for longer, the leases run out by themselves,
        and what ran is taken for a crash.

        A second SIGINT (Ctrl-C), a second or more after the first signal, does not wait: it raises SystemExit(130), so
        that the program ends without a traceback, and `close()` waits no longer either. Where the application had a
        SIGINT handler of its own before this call, that one is called instead. Raises ConfigurationError, and what made
        a subscription fail, after draining the others. Signals are handled only in the main thread.
        """
        if not any(s.handler is not None for s in self._subscriptions):
            raise ConfigurationError("nothing to run: register a handler with @client.subscriber(topic, group) first")
        stop = threading.Event()
        patience = check_timeout("drain_timeout", drain_timeout)
        with ending_by_signal(stop.set, self._hurry):
            self.start()
            subscriptions = [s for s in self._subscriptions if s.state != "stopped"]
            for subscription in subscriptions:
                subscription.on_failure(stop.set)
            while not stop.wait(LOOK_FOR_SIGNALS) and not self._closed:
                pass
            if not self._drain(subscriptions, patience):
                for subscription in subscriptions:
                    subscription.cut_off()
                self._drain(subscriptions, LAST_WRITES)
        for subscription in subscriptions:
            if subscription.failure is not None:
                raise subscription.failure

    def _hurry(self) -> None:
        self._hurried = True

    @staticmethod
    def _drain(subscriptions: Sequence[SubscriptionCore], timeout: float | None) -> bool:
        for subscription in subscriptions:
            subscription.ask_to_stop()
        until = None if timeout is None else time.monotonic() + timeout
        ended = [s.stop(None if until is None else max(0.0, until - time.monotonic())) for s in subscriptions]
        return all(ended)

    def close(self, timeout: Duration | None = 30.0) -> bool:
        """Stop every subscription, waiting at most `timeout` for handlers, and close all connections.

        A pulled message that is not settled is waited for as well, as long as somebody holds it: it may be in another
        thread. Close its iterator, or leave its block, to give it back at once.
        A handler that still runs then keeps its lane, and the connections that protect it, until it ends; False.
        Called again, it waits for the first call's outcome in the same way.
        """
        allowed = 0.0 if self._hurried else check_timeout("timeout", timeout)
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                self._closer = threading.get_ident()
            engine, subscriptions = self._engine, list(self._subscriptions)
        if not first:
            # From a signal handler that interrupted the first call: that one cannot go on before this returns.
            return self._ended.wait(0.0 if self._closer == threading.get_ident() else allowed)
        drained = False
        try:
            drained = engine is None or self._drain(subscriptions, allowed)
        finally:
            if engine is not None and not drained:  # also when a signal has interrupted the wait
                self._closer = 0
                threading.Thread(
                    target=self._finish_later, args=(engine, subscriptions), name="lanelog-closing", daemon=True
                ).start()
        if drained:
            self._finish(engine)
        return drained

    def _finish(self, engine: Engine | None) -> None:
        try:
            if engine is not None:
                engine.close()
            self._publisher.close()
            self._database.close()
        finally:
            self._ended.set()

    def _finish_later(self, engine: Engine, subscriptions: Sequence[SubscriptionCore]) -> None:
        self._drain(subscriptions, None)
        self._finish(engine)
