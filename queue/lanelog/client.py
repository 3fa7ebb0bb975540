"""The client: the one object that an application makes. It leads to everything else.

Owns the database, the publisher, the subscriptions, and their common end. Does none of their work.

A process that only publishes needs no engine, administration or migrations. They are imported at their first use,
because `import lanelog` must stay light.
"""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self, overload
from weakref import WeakMethod

from attrs import define, field

from lanelog._base.checks import check_timeout, refuse_bare
from lanelog._client import unstarted
from lanelog._client.announcements import ClientAnnouncements
from lanelog._client.reachable import Reachable
from lanelog._client.signals import ending_by_signal
from lanelog._database import Database, register_shared
from lanelog._facts import client as facts
from lanelog._log.append.appender import Appender
from lanelog._process.ending import ending, quiet_at_the_end
from lanelog.config import (
    ConnectConfig,
    SubscriptionConfig,
    check_handler,
    check_name,
    check_pulled,
    check_retention,
)
from lanelog.errors import ClosedError, ConfigurationError
from lanelog.measures import Meter
from lanelog.message import Outgoing
from lanelog.notices import Notices
from lanelog.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Unpack

    from lanelog._base.checks import Duration
    from lanelog._base.payloads.codec import Codec
    from lanelog._client.subscription import SubscriptionCore
    from lanelog._engine.engine import Engine
    from lanelog.admin import Admin
    from lanelog.admin.types.topology import ScheduleInfo
    from lanelog.deliveries import Deliveries
    from lanelog.health import Health
    from lanelog.measures import Measures, Observer
    from lanelog.message import Receipt
    from lanelog.notices import Listener, Notice, NoticeName
    from lanelog.options import (
        AsyncHandler,
        AsyncHandlersAreNotSupported,
        BatchHandler,
        ConnectOptions,
        Handler,
        Register,
        SubscriptionOptions,
    )
    from lanelog.subscriber import Subscription

SIGNAL_WAIT_SECONDS = 0.5
"""Of one wait. A signal handler runs in the main thread between two waits."""
AFTER_DRAIN = 5.0
"""Seconds for the last commits and the release of the leases, after `drain_timeout`."""


def connect(url: str | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """Make a client. It does no I/O yet.

    Args:
        url: `mysql://user:password@host:3306/database`, with `?unix_socket=…` or `?ssl_ca=…` where needed.
            `mysql+pymysql://` and `mysql+mysqldb://`, as SQLAlchemy writes them, choose the driver. None: the URL in
            the environment variable LANELOG_URL.
        **options: See `ConnectOptions`.

    Returns:
        The client. Use it as a context manager, or call `close()`.

    Raises:
        ConfigurationError: There is no URL, or the URL or an option is not valid.

    Example::

        with lanelog.connect("mysql://app:secret@127.0.0.1:3306/shop") as client:
            client.ping()
    """
    try:
        config = ConnectConfig.from_url(url, **options)
    finally:
        del url, options  # error trackers show the locals of every frame
    return Client(config)


def _check_tables(database: Database) -> None:
    from lanelog import migrations

    migrations.check(database)


@define(eq=False, repr=False)
class Client:
    """Publishes, subscribes and administers. A context manager, which closes it. Thread-safe.

    After a fork the child's copy publishes on its own connections. There, the parent's subscriptions raise ClosedError.
    """

    config: ConnectConfig
    _database: Database = field(init=False)
    _publisher: Publisher = field(init=False)
    _appender: Appender = field(init=False)
    _admin: Admin | None = field(default=None, init=False)
    _subscriptions: list[SubscriptionCore] = field(factory=list, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _hurried: bool = field(default=False, init=False)  # after a second Ctrl-C, close() does not wait
    _ended: threading.Event = field(factory=threading.Event, init=False)  # set when the first close() has ended
    _closer: int = field(default=0, init=False)  # the thread of the first close()
    _supervised: bool = field(
        default=False, init=False
    )  # by `lanelog worker`: it runs what it can without evicted groups
    _announcements: ClientAnnouncements = field(init=False)
    _notices: Notices = field(factory=Notices, init=False)
    _meter: Meter = field(factory=Meter, init=False)
    _reachable: Reachable = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._database = Database(self.config)
        made_engine, forget = WeakMethod(self._engine_unless_closed), WeakMethod(self._forget_inherited)
        self._announcements = ClientAnnouncements(self._database, made_engine, forget)
        self._reachable = Reachable(partial(_check_tables, self._database))
        self._publisher = Publisher(self._database, self._announcements, self._meter)
        self._appender = Appender(self._publisher.lanes, self._announcements.appended)
        register_shared(self._announcements)

    def _forget_inherited(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        if self._closed:
            self._ended.set()  # the thread that was closing it is not in this process
        self._notices = Notices()
        self._meter.forget_inherited()
        self._reachable.forget_inherited()
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

    @quiet_at_the_end
    def __del__(self) -> None:
        running = [s for s in getattr(self, "_subscriptions", ()) if s.state in ("running", "paused")]
        engine = getattr(self, "_engine", None)
        if (running or (engine is not None and engine.scheduling)) and not getattr(self, "_closed", True):
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    @property
    def _engine(self) -> Engine | None:
        return self._announcements.engine

    # -- the database --------------------------------------------------------------------------------------------------

    def migrate(self, *, procedures: bool = False) -> list[str]:
        """Create or upgrade the tables.

        Idempotent. Many processes may do it at once, and others may work meanwhile.

        Args:
            procedures: Also create `lanelog_publish` and `lanelog_append`, with which plain SQL publishes. Once they
                are there, every call renews them.

        Returns:
            What was done, in words.

        Raises:
            ConfigurationError: The server locks no rows, ignores what a session sets, or takes no routine from this
                account.
            DatabaseError: The database refused a statement, or could not be reached.
            SchemaError: The tables cannot be upgraded by this version.
        """
        from lanelog import migrations

        return migrations.migrate(self._database, procedures=procedures)

    def ping(self) -> None:
        """Check that the database answers, and that this version can work on its tables. They may be older or newer.

        Raises:
            DatabaseError: The database could not be reached, or refused a statement.
            SchemaError: The tables are missing, or this version cannot work on them.
        """
        _check_tables(self._database)

    @property
    def admin(self) -> Admin:
        """Administration: it shows topics, lanes, messages and dead letters; it pauses, seeks and redrives."""
        from lanelog.admin import Admin

        if self._admin is None:
            self._admin = Admin(self._database, self._appender, self._announcements.scheduled)
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
        """Append one message to the lane of `key`. Without `connection`, it is committed when this returns.

        A message with a delay waits outside of the log and holds nothing back. When it is due, it goes to the end of
        its lane. Until then the offset in its receipt is 0, its id is taken, and `cancel_scheduled` takes it back. The
        database's clock decides. From the first message with a delay on, the client has one more thread and connection.

        Args:
            topic: The topic, 1 to 255 characters.
            key: The unit of order, 1 to 255 characters. None: the message needs no order and goes to one of the topic's
                open lanes, which all members of a group share. `admin.set_open_lanes` sets their number. Default: 64.
            payload: Bytes are stored unchanged. A codec, if there is one, encodes anything else. Without a codec a str
                becomes UTF-8, and a dict, list, number, datetime, date, Decimal, UUID, Enum, attrs class or dataclass
                becomes JSON. The metadata `content-type` says which, for `message.decode()`. A FutureWarning names a
                value that JSON would give back different, such as a tuple, or a key that is not a str.
            id: Makes the publish idempotent within topic and key, until the first message is collected. Without a key,
                an id keeps its open lane as long as the number of open lanes stays. None: a new id.
            metadata: Names and texts that travel with the message, at most 65,535 bytes as JSON.
            codec: Encodes this payload. None: the client's codec.
            connection: An open DB-API connection within a transaction, a `Connection` or `Session` of SQLAlchemy, or
                Django's connection inside `atomic()`. Wrappers of pools and tracers make no difference. The message is
                visible if and only if the caller commits. The lane is locked until then, so publish last.
            delay: The time until the message is due, in seconds or as a timedelta, at most ten years.
            deliver_at: The time when the message is due, an aware datetime, at most ten years from now. Before now: it
                is due at once. Give this or `delay`, not both.
            ttl: The time after the publish, or after it was due, in which a handler may start on the message. Seconds
                or a timedelta, at most ten years. None: without end.

        Returns:
            The receipt: offset, id, key of the lane, and whether the id was there before. A duplicate has the offset of
            the first message.

        Raises:
            ConfigurationError: An argument is not valid. Or this thread has a transaction of this client open, and
                `connection` is missing. Nothing was written.
            PayloadTooLarge: The payload or the metadata is too large. Nothing was written.
            SchemaError: The tables are missing, or this version cannot work on them.
            DatabaseError: The database refused the message, or it was not committed within `publish_timeout`. If
                `outcome_unknown` is true, it may have been committed. A repetition with the same id is safe for the
                longest retention of the topic's groups.

        Example::

            receipt = client.publish("orders", "customer-17", {"order": 4711}, id="order-4711")
        """
        outgoing = Outgoing(key, payload, id, metadata, delay, deliver_at, ttl, codec)
        return self._publisher.publish(topic, outgoing, connection)

    def publish_many(
        self,
        topic: str,
        items: Iterable[tuple[str | None, object] | Outgoing],
        *,
        codec: Codec | None = None,
        connection: object | None = None,
    ) -> list[Receipt]:
        """Append many messages in one transaction, all or none.

        Args:
            topic: The topic of all of them.
            items: Pairs (key, payload), or `Outgoing`. Without any, nothing happens. Messages without a key (None) go
                to open lanes, about eight to a lane.
            codec: Encodes their payloads, unless an `Outgoing` has its own. None: the client's codec.
            connection: As for `publish`.

        Returns:
            One receipt for each item, in the order of `items`.

        Raises:
            LanelogError: As `publish`.
        """
        return self._publisher.publish_many(topic, items, codec=codec, connection=connection)

    def cancel_scheduled(self, topic: str, key: str | None, id: str) -> bool:  # noqa: A002 - the field's name
        """Take back a message that is not due yet.

        Args:
            topic: The topic.
            key: The key that it was published under, or the key in its receipt.
            id: The message's id.

        Returns:
            True: it will not be delivered. False: there is no such message, or it was due and is in the log already.

        Raises:
            ConfigurationError: An argument is not valid. Or this thread has a transaction of lanelog open: the call
                would wait for it.
            DatabaseError: The database refused a statement, or could not be reached.
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
        """Declare a recurring message. One process publishes it, once for each time that a cron expression names.

        Every process may declare it when it starts. A schedule that is declared again goes on where it is, with the
        arguments of the last declaration. With another expression or time zone it counts from now. The oldest time that
        was due by then is still published. The schedule stays until `admin.remove_schedule`. The declaration is no part
        of a transaction that the caller has open.

        Each message has the id `name@2026-11-21T10:05:00Z`, or with another zone than UTC
        `name@2026-11-21T11:05:00[Europe/Berlin]`: the time on the wall clock and the zone, with `[fold=1]` after the
        second of two equal times. Its metadata has `lanelog.schedule` and `lanelog.fire_time`, in UTC, besides the
        given ones. From the declaration on, the client has one more thread and connection.

        Args:
            name: The schedule's name, 1 to 200 characters.
            expression: Five fields, minute hour day-of-month month day-of-week, or six with the second first. When
                clocks change, a fixed time of day fires once that day: a skipped time at the end of the gap, a repeated
                time at its first occurrence. An expression whose minute or hour begins with `*` follows the clock on
                the wall.
            topic: The topic.
            key: The key. None: all messages of the schedule go to the same open lane, so that one run does not overtake
                the run before.
            payload: As for `publish`.
            timezone: The IANA name of the expression's time zone.
            catch_up: What is published of times that were missed: the most recent one (`"latest"`), each of them
                (`"all"`), or nothing (`"none"`). A run that is at most one period late (at least 5 and at most 60
                s) is published normally. If the oldest due time is later than that, `catch_up` decides.
            metadata: As for `publish`.
            ttl: The time after publication in which a handler may start on the message. Seconds or a timedelta. None:
                without end.
            codec: Encodes the payload. None: the client's codec.

        Returns:
            The schedule as it is now.

        Raises:
            ConfigurationError: An argument is not valid. Nothing was written.
            PayloadTooLarge: The payload or the metadata is too large. Nothing was written.
            DatabaseError: The database refused it, or it was not committed within `publish_timeout`.
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
        except Exception:  # noqa: BLE001 - it is committed, so the caller must not get an error
            facts.publish_notification_failed(schedule=name, exc_info=True)
        return declared

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager that gives a DB-API connection with an open transaction.

        The end of the block commits. An exception in the block rolls back. Pass the connection to `publish` as
        `connection=`: the messages are committed together with the block's own writes.

        Raises:
            DatabaseError: When the block begins or ends: the database refused the transaction, or it ended inside the
                block. If `outcome_unknown` is true, it may have been committed.
        """
        return self._publisher.transaction()

    # -- subscribing ---------------------------------------------------------------------------------------------------

    # For an async handler a type checker reports the mistake at this call: the coroutine is never awaited.
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
        self,
        topic: str | Sequence[str],
        group: str,
        handler: Handler | BatchHandler,
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription: ...

    def subscribe(
        self,
        topic: str | Sequence[str],
        group: str,
        handler: Handler | BatchHandler,
        **options: Unpack[SubscriptionOptions],
    ) -> Any:
        """Register the group, and start to handle its messages in threads of this process.

        Args:
            topic: The topic, or several.
            group: The consumer group, 1 to 255 characters.
            handler: A plain function that takes a `Message`. Its return acks. The options `ack_policy` and `retry`
                decide what an exception means.
            **options: See `SubscriptionOptions`.

        Returns:
            The running subscription.

        Raises:
            ConfigurationError: A name or an option is not valid, the group has another order, or the handler is async
                or cannot take one argument.
            ClosedError: The client is closed.
            SchemaError: The tables are missing, or this version cannot work on them.
            DatabaseError: The group could not be registered within `publish_timeout`.

        Example::

            def handle(message: lanelog.Message) -> None:
                print(message.key, message.offset, message.decode())

            with client.subscribe("orders", "billing", handler=handle):
                threading.Event().wait()
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
        """Decorate a handler. `run()` or `start()` starts it. Nothing is sent to the database before.

        Args:
            topic: The topic, or several.
            group: The consumer group, 1 to 255 characters.
            **options: See `SubscriptionOptions`.

        Returns:
            The decorator. It gives the handler back unchanged.

        Raises:
            ConfigurationError: As `subscribe`, where the handler is decorated.
            ClosedError: The client is closed.
        """

        def register(handler: Any) -> Any:
            subscription = self._register(topic, group, check_handler(handler), options)
            database, what = self._database, f"a handler of group {subscription.group!r}"
            unstarted.remember(self, lambda: database.tried, what, unstarted.CallSite.of_caller())
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
        """Return an iterator over messages that the caller settles.

        It registers the group and starts at its first message, or where its block begins. `visibility_timeout` runs for
        each message until it is settled or extended.

        Args:
            topic: The topic, or several.
            group: The consumer group, 1 to 255 characters.
            timeout: The iterator ends after this time without a message. Seconds or a timedelta. None: never.
            **options: See `SubscriptionOptions`.

        Returns:
            The iterator, which is a context manager, too.

        Raises:
            ConfigurationError: A name or an option is not valid.
            ClosedError: The client is closed.
        """
        from lanelog.deliveries import Deliveries

        return Deliveries(self._register(topic, group, None, options), timeout)

    def _register(
        self,
        topic: str | Sequence[str],
        group: str,
        handler: Handler | BatchHandler | None,
        options: SubscriptionOptions,
    ) -> SubscriptionCore:
        from lanelog._client.subscription import SubscriptionCore, checked_topics

        config = SubscriptionConfig.from_options(**options)
        if handler is None:
            check_pulled(config)
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
        """Return the engine, made at its first use. The caller holds the lock."""
        from lanelog._engine.engine import Engine

        if self._announcements.engine is None:
            self._announcements.engine = Engine(
                self._database,
                self._appender,
                self._notices,
                meter=self._meter,
                read_endpoints=self._announcements.read_endpoints,
            )
        return self._announcements.engine

    def _engine_unless_closed(self) -> Engine | None:
        with self._lock:
            return None if self._closed else self._made_engine()

    def on(self, name: NoticeName, call: Callable[[Notice], object]) -> Listener:
        """Call a function whenever the engine of this process sees or does something: a notice of this name.

        The functions run one after the other in a thread of their own, which starts with the first of them. They do not
        delay handlers. When 1,000 notices wait, new ones are dropped and counted. Notices of one lane come in order,
        each at most once, and only while this process lives. Do not rely on notices: `admin.dead_letters`,
        `admin.history` and `admin.status` have the facts. `close()` waits 5 s for those that are left.

        Args:
            name: `"retried"`, `"dead_lettered"`, `"dropped"`, `"expired"`, `"timed_out"`, `"handler_slow"`,
                `"lease_lost"`, `"lanes_taken_over"`, `"group_paused"`, `"group_resumed"` or `"subscription_failed"`.
            call: Takes a `lanelog.notices.Notice`. An exception is logged. After a fork, a child has none.

        Returns:
            The listener. `stop()` ends it; `dropped` counts what it has missed.

        Raises:
            ConfigurationError: There is no such name, or `call` cannot be called.
            ClosedError: The client is closed.
        """
        return self._notices.on(name, call)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The observers that are notified of each handler, publish and flush."""
        return self._meter.observers

    def observe(self, observer: Observer) -> None:
        """Notify an observer of each handler, publish and flush from now on. `lanelog.metrics.observe` is one.

        Args:
            observer: An object with the methods of `lanelog.measures.Observer`.
        """
        self._meter.observe(observer)

    def measures(self) -> Measures:
        """Return what this process holds now, and what it has done since the client was made. Asks no database."""
        from lanelog._client.measured import measured

        sender = self._announcements.hints
        return measured(self._meter, self._engine, list(self._subscriptions), self._database.waits, sender)

    def health(self) -> Health:
        """Say whether the background loops of this process run, and whether it can work.

        It answers while the database does not. Where a subscription runs, its loops know whether the database answers,
        and this asks it nothing. A client that only publishes has no such loop: this asks the database as `ping()`
        does, at most once in 5 s, and waits for the answer for 1 s at most.

        Returns:
            Each loop with the age of its last pass, the heartbeats, the database and the subscriptions. `live` and
            `ready` sum up for probes.
        """
        from lanelog._client import subscription_facts
        from lanelog._engine.loop_health import UNASKED
        from lanelog.health import Health

        engine = self._engine
        publishes_only = engine is None and not self._subscriptions
        unasked = self._reachable.health() if publishes_only else UNASKED
        return Health(
            loops=engine.loops_health() if engine else (),
            heartbeats=engine.heartbeats_health() if engine else (),
            database=engine.database_health() if engine else unasked,
            connections=engine.connections_health() if engine else (),
            tables=self._database.tables_version,
            subscriptions=tuple(
                subscription_facts.health(each.members, state, each.failure)
                for each in list(self._subscriptions)
                if (state := each.state) != "stopped"
            ),
            publishes_only=publishes_only,
        )

    def start(self) -> None:
        """Start every decorated handler that does not run yet.

        Raises:
            LanelogError: As `subscribe`.
        """
        for subscription in list(self._subscriptions):
            if subscription.state == "new" and subscription.handler is not None:
                (subscription.start_unless_evicted if self._supervised else subscription.start)()

    def run(
        self, *, drain_timeout: Duration | None = None, health: str | None = None, workers: int | None = None
    ) -> None:
        """Start every decorated handler. Block until SIGTERM, SIGINT, `close()` or a failure. Then drain and return.

        The drain waits for running handlers, and for a database that is unavailable. Every 5 s an event
        `subscription.waited` says what it waits for.

        A handler that still runs after `drain_timeout` is cut off, with a WARNING `handler.cut_off`. Its message goes
        back with an attempt that does not count, and the next owner of the lane has it at once. Under
        `AckPolicy.ACK_FIRST` the message is lost. The handler's thread can settle nothing more. It goes on until the
        process ends, which should follow at once. The last writes take 5 more seconds at most. If the database is
        unavailable for longer, the leases expire, and the attempts that ran count as crashed.

        A second SIGINT (Ctrl-C), a second or more after the first signal, does not wait. It raises SystemExit(130), so
        that the program ends without a traceback, and `close()` does not wait either. If the application had set its
        own SIGINT handler before this call, that handler is called instead. Signals are handled only in the main
        thread.

        Args:
            drain_timeout: How long the drain may take, in seconds or as a timedelta. None: as long as it takes.
            health: `HOST:PORT`, where /livez and /readyz are served until this returns. Everyone who reaches the
                address may ask. None: nowhere.
            workers: Handler threads of each decorated handler that does not run yet. None: as it was decorated.

        Raises:
            ConfigurationError: No handler is registered, `health` cannot be listened at, or as `subscribe`.
            BaseException: A subscription failed. It is the error that made it fail, raised after the others have
                drained.
        """
        if not any(s.handler is not None for s in self._subscriptions):
            raise ConfigurationError("nothing to run: register a handler with @client.subscriber(topic, group) first")
        if workers is not None:
            self._subscriptions = [each.with_options(workers=workers) for each in self._subscriptions]
        patience = check_timeout("drain_timeout", drain_timeout)
        with ending_by_signal(self._hurry) as ending, self._probed(health):
            self.start()
            subscriptions = [s for s in self._subscriptions if s.state != "stopped"]
            if not subscriptions and not ending.wait(0):
                raise ConfigurationError("every group of this client was evicted: no handler is left to run")
            for subscription in subscriptions:
                subscription.on_failure(ending.ask)
            while not ending.wait(SIGNAL_WAIT_SECONDS) and not self._closed:
                pass
            if not self._drain(subscriptions, patience):
                for subscription in subscriptions:
                    subscription.cut_off()
                self._drain(subscriptions, AFTER_DRAIN)
        for subscription in subscriptions:
            if subscription.failure is not None:
                raise subscription.failure

    def _probed(self, address: str | None) -> AbstractContextManager[str]:
        """What serves the probes inside a block. Without an address, no HTTP server is imported."""
        if address is None:
            return nullcontext("")
        from lanelog._process.probes import serving

        return serving(address, lambda: self.health().dying, lambda: self.health().lacking)

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
        """Stop every subscription, and close all connections.

        It waits for running handlers. It also waits for a pulled message that is not settled, as long as the program
        has a reference to it: another thread may work on it. To give such a message back at once, close its iterator or
        leave its block. A handler that still runs after `timeout` keeps its lane, and the connections that protect the
        lane, until it ends. A second call waits for the outcome of the first in the same way.

        Args:
            timeout: How long to wait, in seconds or as a timedelta. None: as long as it takes.

        Returns:
            True: everything has ended. False: a handler still runs.
        """
        allowed = 0.0 if self._hurried else check_timeout("timeout", timeout)
        with self._lock:
            first, self._closed = not self._closed, True
            if first:
                self._closer = threading.get_ident()
            engine, subscriptions = self._engine, list(self._subscriptions)
        if not first:
            # A signal handler may have interrupted the first call in this thread. That call cannot end before this one.
            return self._ended.wait(0.0 if self._closer == threading.get_ident() else allowed)
        drained = False
        try:
            drained = engine is None or self._drain(subscriptions, allowed)
        finally:
            if engine is not None and not drained:  # also when a signal has interrupted the wait
                self._closer = 0
                if not ending():  # else the process ends, and with it the handlers, the connections and the locks
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
            self._notices.close()  # its functions may use the client until here
            self._publisher.close()
            self._database.close()
        finally:
            self._ended.set()

    def _finish_later(self, engine: Engine, subscriptions: Sequence[SubscriptionCore]) -> None:
        self._drain(subscriptions, None)
        self._finish(engine)
