"""Several processes of lanelog inside one: real clients on a real server, whose threads are turned by hand.

Owns the clock (one hand moves the monotonic clock and the database's), the processes and what their workers do; never
decides what happens next nor what must be true. The simulation (`integration/engine/test_simulation.py`) drives it.

What is real: every statement, every session and its GET_LOCK, the four loops' turns, the workers' own code. What is
not: time, and who runs when. A worker's thread runs only while the test waits for it, from one handler to the next, so
that there is never more than one thread running, and the same script always does the same.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pymysql
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import _engine
from lanelog._client import subscription as _subscription
from lanelog._client.subscription_facts import SubscriptionState
from lanelog._database.connection import wire
from lanelog._database.connection.driver import Driver
from lanelog._engine.lane.flush_waiter import FlushWaiter
from lanelog._engine.leasing.keeper import SET_PATIENCE
from lanelog._engine.member import isolation
from lanelog._engine.member.isolation import Isolation
from lanelog._engine.server_identity import Connected, ServerIdentity
from lanelog._engine.working.batches import _single
from lanelog._engine.working.worker import Worker
from lanelog._engine.working.workers import Workers
from lanelog._hints import sender
from lanelog._process.loop import Loop
from lanelog.batches import Messages
from lanelog.errors import ClosedError, LeaseLost
from support.sql import connect, rows
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from lanelog._client.subscription import SubscriptionCore
    from lanelog._engine.lane.run import Attempt, Run
    from lanelog._engine.member.member import Member
    from lanelog.message import Message

TOPIC = "jobs"
GROUPS = ("builders", "mailers")
ATTEMPTS = 3
"""So many the retry policy allows."""
WORKERS = 2
OF_HANDLERS = ("workers", "auto_extend", "batch")  # refused where messages are pulled
LEASE = 10.0
RENEWAL = 3.0
PULL_TIMEOUT = 3.0
TICK = 0.1
"""Seconds that pass with every turn: without them no second look would be due."""

MIDNIGHT = 1_750_000_000
"""Where the database's clock begins, in seconds since 1970."""
UPTIME = "SHOW GLOBAL STATUS LIKE 'Uptime'"
PATIENCE = SET_PATIENCE.partition("%")[0]
STUCK = 60.0


class Clock:
    """The only clock: `time` for the engine, and `timestamp` for every session."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        """No work takes time."""
        return 0.0

    def drive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the engine read this clock."""
        names = [found.name for found in pkgutil.walk_packages(_engine.__path__, f"{_engine.__name__}.")]
        for module in (*map(importlib.import_module, names), _subscription, sender, wire):
            if hasattr(module, "time"):
                monkeypatch.setattr(module, "time", self)

    def wind(self, raw: Any) -> None:
        """Let a connection's session live by this clock: UTC_TIMESTAMP() obeys it, and so does the server's age."""
        query = raw.query
        shown = 0.0

        def by_the_clock(sql: Any, unbuffered: bool = False) -> Any:
            nonlocal shown
            if shown != self.now:
                shown = self.now
                query(f"SET timestamp = {MIDNIGHT + self.now:.6f}")
            if sql.startswith(PATIENCE):
                return query("DO 0", unbuffered)  # it would run by the real clock
            return query(f"SELECT 'Uptime', {int(self.now)}" if sql == UPTIME else sql, unbuffered)

        query("SET SESSION wait_timeout = 28800")  # which runs by the real clock
        raw.query = by_the_clock


class Hand(threading.Thread):
    """One worker's thread with one run: it goes on when the test says how its message ends, up to the next message."""

    def __init__(self, process: Process, runs: list[tuple[Member, Run]]) -> None:
        super().__init__(name=f"hand of {process!r}", daemon=True)
        self.process = process
        self.member = runs[0][0]
        self._runs = runs
        self.worker = Worker(0, thread=self)
        self.call: list[tuple[Message, Attempt]] = []
        """What its handler has got in its last call."""
        self.fresh: list[Message] = []
        """Those of them that nobody has taken note of yet."""
        self.beside: list[Message] = []
        """What its handler has not been asked about yet, of a batch."""
        self._of_batch: Attempt | None = None
        self.message: Message | None = None
        self.ended = False
        self.refused = False  # its last explicit settlement raised LeaseLost
        self._outcome = ""
        self._fault: BaseException | None = None
        self._may_go, self._waits = threading.Semaphore(0), threading.Semaphore(0)

    @property
    def attempt(self) -> Attempt:
        """What its handler has."""
        found = self._of_batch or self.worker.attempt
        assert found is not None
        return found

    def possible(self, outcome: str) -> str:
        """The outcome itself, or what a message of a batch may do instead."""
        return outcome if self._of_batch is None else INSTEAD.get(outcome, outcome)

    def go(self, outcome: str = "") -> None:
        """Let it run until its handler has a message, or the run is over."""
        self._outcome, self.message, self.refused = outcome, None, False
        if outcome:
            self._may_go.release()
        else:
            self.start()
        assert self._waits.acquire(timeout=STUCK), f"{self.name} is stuck"
        if self.ended:
            self.join()
        if self._fault is not None:
            raise self._fault

    def run(self) -> None:
        workers = self.process.workers(self.member.group)
        workers._workers.append(self.worker)
        try:
            if workers._batches is None:
                workers._work(self.worker, self.member, self._runs[0][1])
            else:
                workers._batches.work(self.worker, self._runs)
        except BaseException as fault:  # noqa: BLE001 - to be raised by the test
            self._fault = fault
        finally:
            self.worker.member = self.worker.run = self.worker.attempt = None
            with suppress(ValueError):  # it was abandoned
                workers._workers.remove(self.worker)
            self.ended = True
            self._waits.release()

    def handle(self, message: Message) -> None:
        """The handler: wait for an order."""
        self.call, self.fresh = [(message, self.attempt)], [message]
        self.message = message
        self._waits.release()
        self._may_go.acquire()
        try:
            {**OUTCOMES, **OWN_OUTCOMES}[self._outcome](message)
        except LeaseLost:
            self.refused = True

    def handle_batch(self, messages: Messages) -> list[BaseException | None]:
        """The handler of a batch: wait for an order for each, or for one of a transaction of all of them.

        In strict order what follows a failure in its lane is not handled.
        """
        assert self.worker.call is not None
        attempts = [each.attempt for each in self.worker.call.messages]
        self.call, self.fresh = list(zip(messages, attempts, strict=True)), list(messages)
        ends: list[BaseException | None] = []
        failed: set[str] = set()
        try:
            for number, message in enumerate(messages):
                ends.append(None)
                if message.key in failed:
                    continue
                self._of_batch, self.beside = attempts[number], messages[number + 1 :]
                self.message = message
                self._waits.release()
                self._may_go.acquire()
                if self._outcome == "effect" and number == 0:
                    self._effects(messages)
                    break
                ends[-1] = self._end_of(message)
                if ends[-1] is not None and self.member.rules.strict:
                    failed.add(message.key)
        finally:
            self._of_batch, self.beside = None, []
        return ends + [None] * (len(messages) - len(ends))

    def _effects(self, messages: Messages) -> None:
        try:
            with messages.transaction() as connection:
                for message in messages:
                    _effect(connection, message)
        except LeaseLost:
            self.refused = True

    def _end_of(self, message: Message) -> BaseException | None:
        """What the handler's list has for a message."""
        try:
            OUTCOMES[self._outcome](message)
        except LeaseLost:
            self.refused = True
        except _Nacked:
            return lanelog.Retry()
        except (lanelog.Postpone, lanelog.Reject) as end:
            return end
        return None


class _Nacked(Exception):
    """A handler's own error."""


def _raise(error: BaseException) -> None:
    raise error


def _effect(connection: Any, message: Message) -> None:
    rows(connection, "INSERT INTO effects VALUES (%s, %s, %s)", message.group, message.key, message.offset)


def _in_transaction(message: Message) -> None:
    with message.transaction() as connection:
        _effect(connection, message)


def _in_own_transaction(message: Message) -> Any:
    """An effect and its ack, on a connection of the handler's own. What then? The handler says it."""
    hand = threading.current_thread()
    assert isinstance(hand, Hand)
    connection = connect(hand.process.world.url, autocommit=False)
    hand.process.connections.append(connection)
    try:
        _effect(connection, message)
        message.ack(connection=connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _committed(message: Message) -> None:
    connection = _in_own_transaction(message)
    connection.commit()
    connection.close()


def _rolled_back(message: Message) -> None:
    _in_own_transaction(message).close()


def _left_open(message: Message) -> None:
    hand = threading.current_thread()
    assert isinstance(hand, Hand)
    hand.process.open.append(_in_own_transaction(message))


OUTCOMES: dict[str, Callable[[Message], None]] = {
    "ack": lambda _: None,
    "nack": lambda _: _raise(_Nacked("nacked")),
    "postpone": lambda _: _raise(lanelog.Postpone(delay=5)),
    "reject": lambda _: _raise(lanelog.Reject("bad")),
    "ack now": lambda message: message.ack(),
    "nack now": lambda message: message.nack(reason="nacked"),
    "effect": _in_transaction,
    "die": lambda _: _raise(SystemExit()),
}
"""How a handler may end: by returning or raising, by an explicit call that waits for its flush, with its own commit."""


OWN_OUTCOMES: dict[str, Callable[[Message], None]] = {
    "own effect": _committed,
    "own effect, rolled back": _rolled_back,
    "own effect, committed late": _left_open,
    "own effect, rolled back late": _left_open,
}
"""The same with `message.ack(connection=)` in a transaction of the handler's own."""


INSTEAD = {
    "nack now": "nack",
    "own effect": "ack now",
    "own effect, rolled back": "nack",
    "own effect, committed late": "ack",
    "own effect, rolled back late": "nack",
}
"""What a message of a batch does instead of what is refused there."""


class Process:
    """A client with a subscription for each group, none of whose threads run; `pulls`: it has no workers either."""

    def __init__(self, world: World, name: str, options: dict[str, dict[str, Any]], *, pulls: bool = False) -> None:
        self.world = world
        self.name = name
        self.isolation = Isolation()
        self.hands: list[Hand] = []
        self.connections: list[Any] = []
        self.open: list[Any] = []
        """Connections of its handlers whose transactions have acked and have not ended."""
        self.frozen = self.gone = self.stopping = False
        self._handed: dict[str, deque[tuple[Member, Run]]] = {group: deque() for group in GROUPS}
        self.client = lanelog.connect(world.url, lane_idle_purge=20.0, publish_timeout=5.0)
        world.processes[self.client._database._driver] = self
        self.subscriptions: dict[str, SubscriptionCore] = {}
        with world.acting(self):
            for group in GROUPS if options else ():
                if pulls:
                    pulled = {option: v for option, v in options[group].items() if option not in OF_HANDLERS}
                    deliveries = self.client.deliveries(TOPIC, group, name=name, recreate=True, **pulled)
                    self.subscriptions[group] = deliveries.subscription.start()._core
                    continue
                subscribed = self.client.subscribe(
                    TOPIC, group, self._handle, name=name, recreate=True, **options[group]
                )
                self.subscriptions[group] = subscribed._core
            if options:  # before the keeper's first turn, so that no other of its turns has to vouch for them
                for loop in self.client._engine._loops:
                    loop._turn.__self__.session.ensure()

    def __repr__(self) -> str:
        return self.name

    @property
    def role(self) -> str:
        """Its name without the number of its incarnation."""
        return self.name.split(".")[0]

    def owner(self, group: str) -> str:
        return self.subscriptions[group].owner

    def workers(self, group: str) -> Workers:
        found = self.subscriptions[group]._workers
        assert found is not None
        return found

    def turn(self, loop: str) -> None:
        """One turn of keeper, fetcher, settler or janitor; what it raises is a finding."""
        self.world.clock.now += TICK
        with self.world.acting(self):
            self._loop(loop)._turn(self.world.clock.now)
        if self.stopping and not self.hands and all(m.ended.is_set() for m in self.members):
            self._leave()

    def _loop(self, name: str) -> Loop:
        engine = self.client._engine
        return next(found for found in engine._loops if found.name == name)

    @property
    def members(self) -> list[Member]:
        return [member for subscription in self.subscriptions.values() for member in subscription.members]

    # -- handlers ------------------------------------------------------------------------------------------------------

    def begin(self, group: str) -> Hand | None:
        """A free worker takes the next run that was handed out; None when there is none or nobody is free."""
        if sum(hand.member.group == group for hand in self.hands) >= WORKERS:
            return None
        handed = self._handed[group]
        runs = self.subscriptions[group]._runs
        while not runs.empty():
            item = runs.get()
            if isinstance(item, tuple):
                handed.append(item)
        for member, run in handed:
            if self.isolation._alone or (run.alone and self.isolation._inside):
                continue  # it waits until nobody is inside, or for a suspect
            handed.remove((member, run))
            hand = Hand(self, [(member, run), *self._more(group, run)])
            self.hands.append(hand)
            self._go(hand)
            return hand
        return None

    def _more(self, group: str, first: Run) -> list[tuple[Member, Run]]:
        """The runs that go into one batch with a first one."""
        batch, handed = self.subscriptions[group].config.batch, self._handed[group]
        if batch is None or batch.across == "lane" or _single(first):
            return []
        more = [item for item in handed if not _single(item[1])][: batch.size - 1]
        for item in more:
            handed.remove(item)
        return more

    def settle(self, hand: Hand, outcome: str) -> None:
        """A handler comes to its end."""
        self._go(hand, outcome)

    def finish(self, *, commit: bool) -> None:
        """The transactions that its handlers have left open come to their end."""
        while self.open:
            connection = self.open.pop()
            if commit:
                connection.commit()
            connection.close()

    def _go(self, hand: Hand, outcome: str = "") -> None:
        with self.world.acting(self):
            hand.go(outcome)
        if hand.ended:
            self.hands.remove(hand)

    def pull(self, group: str) -> Message | None:
        """The next message that was handed out to a pulled subscription; None when there is none.

        What would wait for others, or for a suspect, stays in the queue: nobody else runs who could let it go on.
        """
        subscription = self.subscriptions[group]
        runs, clock = subscription._runs, self.world.clock

        def time_is_over() -> None:
            clock.now += PULL_TIMEOUT

        def ready(item: Any) -> bool:
            return not (self.isolation._alone or (isinstance(item, tuple) and item[1].alone and self.isolation._inside))

        handed = [runs.get() for _ in range(runs.qsize())]
        fitting = [item for item in handed if ready(item)]
        message = None
        if fitting:
            for item in (*fitting, time_is_over):
                runs.put(item)
            with self.world.acting(self):
                message = subscription.pull(PULL_TIMEOUT)
        left = [runs.get() for _ in range(runs.qsize())]
        for item in (*(item for item in handed if item not in fitting), *left):
            if item is not time_is_over:
                runs.put(item)
        return message

    @staticmethod
    def _handle(message: Message | Messages) -> object:
        hand = threading.current_thread()
        assert isinstance(hand, Hand)
        return hand.handle_batch(message) if isinstance(message, Messages) else hand.handle(message)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """It is gone without a word, and the server has noticed."""
        self.gone = True
        self.world.cut(*self.connections)
        self._bury()

    def lose(self, loop: str) -> None:
        """The connection of one loop is lost, and the process lives."""
        session = self._loop(loop)._turn.__self__.session
        self.world.cut(*(raw for raw in self.connections if raw is session._wire.raw))
        session.drop()

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        self.stopping = True
        with self.world.acting(self):
            for subscription in self.subscriptions.values():
                subscription.ask_to_stop()

    def _leave(self) -> None:
        self.gone = True
        engine = self.client._engine
        with self.world.acting(self):
            assert self.client.close(timeout=0)
            for loop in engine._loops if engine is not None else ():
                if loop._finished is not None:
                    loop._finished()

    def _bury(self) -> None:
        """What only real processes take with them when they die."""
        for subscription in self.subscriptions.values():
            subscription._state = SubscriptionState.STOPPED
        self.client._closed = True

    def end(self) -> None:
        """The example is over."""
        for hand in list(self.hands):
            while not hand.ended:
                self._go(hand, "die")
        if not self.gone:
            self.crash()


class World:
    """The server, the clock, and every process there ever was in this example."""

    def __init__(self, url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, errors: list[str]) -> None:
        self.url = url
        self.raw = raw
        self.errors = errors
        self.clock = Clock()
        self.processes: dict[Driver, Process] = {}
        self._acting: Process | None = None
        self.clock.drive(monkeypatch)
        monkeypatch.setattr(Loop, "start", lambda _: None)
        monkeypatch.setattr(Workers, "_start_locked", lambda _: None)
        self._patch_connections(monkeypatch)
        self._patch_waits(monkeypatch)
        rows(raw, "CREATE TABLE effects (consumer_group TEXT, partition_key TEXT, message_offset BIGINT)")

    def begin(self) -> None:
        """Empty the tables."""
        self.clock.now = 1000.0
        self.errors.clear()
        for (table,) in rows(self.raw, "SHOW TABLES"):
            if table != "queue_schema":
                rows(self.raw, f"DELETE FROM {table}")

    def end(self) -> None:
        """Nothing of this example may be left to the next."""
        for process in list(self.processes.values()):
            process.end()
        self.processes.clear()

    def cut(self, *connections: Any) -> None:
        """End connections without a word, and wait until the server has noticed."""
        ids = {raw.thread_id() for raw in connections if raw.open}
        for raw in connections:
            raw._force_close()
        left = "SHOW PROCESSLIST"
        eventually(lambda: not ids & {row[0] for row in rows(self.raw, left)}, what="the end of these sessions")

    @contextmanager
    def acting(self, process: Process) -> Iterator[None]:
        """Be that process: it has an isolation of its own, and its settler works while somebody waits for a flush."""
        before, self._acting = self._acting, process
        isolation._process[0] = process.isolation
        try:
            yield
        finally:
            self._acting = before

    def _patch_connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        really = Driver.open

        def open_(driver: Driver, *, autocommit: bool) -> tuple[Any, Any]:
            process = self.processes.get(driver)
            if process is None:
                return really(driver, autocommit=autocommit)
            if process.gone:
                raise pymysql.err.OperationalError(2003, f"{process!r} is dead")
            raw, facts = really(driver, autocommit=autocommit)
            self.clock.wind(raw)
            process.connections.append(raw)
            return raw, facts

        monkeypatch.setattr(Driver, "open", open_)

    def _patch_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        really = FlushWaiter.wait

        def wait(waiter: FlushWaiter, timeout: float | None = None) -> bool:
            process = self._acting
            for count in range(20):
                if really(waiter, 0):
                    return True
                if process.gone:
                    raise ClosedError  # nobody waits any more: its threads are being collected
                if count >= 3:
                    process.turn("keeper")  # it vouches for a session that is new
                process.turn("settler")
            raise AssertionError(f"{process!r}'s settler never answers {waiter!r}")

        monkeypatch.setattr(FlushWaiter, "wait", wait)

        def wait_for_keeper(server_identity: ServerIdentity, line: Connected, _seconds: float) -> int:
            process = self._acting
            for _ in range(3):
                if generation := server_identity.vouches(line):
                    return generation
                process.turn("keeper")
            return 0

        monkeypatch.setattr(ServerIdentity, "wait", wait_for_keeper)


def options(
    order: str, *, retention: float, timeout: float | None, batch: lanelog.Batch | None = None
) -> dict[str, Any]:
    """The options of one group's subscriptions; `timeout`: deliveries are given up after so many seconds."""
    return {
        "workers": WORKERS,
        "order": order,
        "retention": retention,
        "lease_duration": LEASE,
        "lease_renewal": RENEWAL,
        "batch_size": 4,
        "batch": batch,
        "retry": lanelog.RetryPolicy(stop=stop_after_attempt(ATTEMPTS), wait=wait_fixed(2)),
        **({} if order != "concurrent" else {"lane_concurrency": 2}),
        **({} if timeout is None else {"visibility_timeout": timeout, "auto_extend": False}),
    }
