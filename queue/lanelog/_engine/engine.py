"""The engine of one client: its five loops, started with the first subscription and stopped with the client.

Owns the loops' threads and the order in which they stop. Never does their work. A client that only publishes runs the
scheduler alone, from its first delayed message or schedule on.

Stop order, and why: subscriptions drain first (handlers, their last flush, release of their lanes, deregistration),
because that needs all loops. Then the loops stop that no other part waits for: fetcher, janitor, scheduler. Then the
settler. The keeper is the last, because its connection shows others that this process lives.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from attrs import define, field, frozen

from lanelog._engine import loop_health
from lanelog._engine.cleanup.janitor import Janitor, JanitorPace
from lanelog._engine.engine_context import EngineContext
from lanelog._engine.fetching.fetcher import Fetcher
from lanelog._engine.fetching.pace import FetcherPace
from lanelog._engine.leasing.keeper import Keeper
from lanelog._engine.leasing.pace import KeeperPace
from lanelog._engine.member.rules import Signals
from lanelog._engine.scheduling.scheduler import Scheduler, SchedulerPace
from lanelog._engine.server_identity import ServerIdentity
from lanelog._engine.settling.settler import Settler
from lanelog._facts.engine import subscription as facts
from lanelog._hints.datagram import Hint, number_of
from lanelog._hints.doorbell import Doorbell
from lanelog._process.loop import Loop
from lanelog.errors import ClosedError
from lanelog.measures import Meter
from lanelog.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._database import Database, Executor
    from lanelog._engine.member.member import Member
    from lanelog._log.append.appender import Appender
    from lanelog.health import ConnectionHealth, DatabaseHealth, HeartbeatHealth, LoopHealth
    from lanelog.measures import LoopMeasures


class Supervised(Protocol):
    """A subscription, as the engine sees it: its handlers are watched by the clock."""

    @property
    def members(self) -> Sequence[Member]:
        """Its members, one for each topic."""

    def supervise(self, now: float) -> None:
        """Check the running handlers against the clock."""


@frozen(kw_only=True)
class EnginePace:
    """How often the parts of an engine do their work."""

    fetcher: FetcherPace = field(factory=FetcherPace)
    keeper: KeeperPace = field(factory=KeeperPace)
    janitor: JanitorPace = field(factory=JanitorPace)
    scheduler: SchedulerPace = field(factory=SchedulerPace)
    waited_seconds: float = 5.0
    """Seconds between two `subscription.waited` events, while a thread waits for the end of a subscription."""
    stop_seconds: float = 10.0
    """The client's longest wait for the end of each loop."""
    health: loop_health.Bounds | None = None
    """None: as the time-outs of the client allow."""


@define(eq=False)
class Engine:
    """The loops of one client: started with the first subscription, stopped in order."""

    database: Database
    appender: Appender
    notices: Notices = field(factory=Notices)
    pace: EnginePace = field(factory=EnginePace)
    meter: Meter = field(factory=Meter, kw_only=True)
    read_endpoints: Callable[[Executor], None] = field(kw_only=True)
    context: EngineContext = field(init=False)
    signals: Signals = field(init=False)
    _supervised: list[Supervised] = field(factory=list)
    _loops: list[Loop] = field(init=False)
    _scheduler: Scheduler = field(init=False)
    _scheduling: Loop = field(init=False)
    _keeping: Loop = field(init=False)
    _keeper: Keeper = field(init=False)
    _doorbell: Doorbell = field(init=False)
    _bounds: loop_health.Bounds = field(init=False)
    _lock: threading.Lock = field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self.context = context = EngineContext(
            self.database,
            self.appender,
            due_in=self._due_in,
            read_endpoints=self.read_endpoints,
            server_identity=ServerIdentity(self._wake_keeper),
        )
        keeper, janitor = Keeper(context, self._supervise, self.pace.keeper), Janitor(context, self.pace.janitor)
        self._keeper, self._doorbell = keeper, Doorbell(context.receiver, self._received)
        fetcher, settler = Fetcher(context, self.pace.fetcher), Settler(context)
        self._scheduler = scheduler = Scheduler(context, self.pace.scheduler)
        self._loops = [
            Loop(
                name,
                part.turn,
                failed=_goes_on if part is scheduler else self._failed,
                patience=context.patience,
                finished=part.close,
                woken=self._doorbell if part is fetcher else threading.Event(),
            )
            for name, part in (
                ("fetcher", fetcher),
                ("janitor", janitor),
                ("scheduler", scheduler),
                ("settler", settler),
                ("keeper", keeper),
            )
        ]
        by_name = {loop.name: loop for loop in self._loops}
        self._scheduling, self._keeping = by_name["scheduler"], by_name["keeper"]
        config = self.database.config
        self._bounds = self.pace.health or loop_health.Bounds(unanswered=config.connect_timeout + config.read_timeout)
        self.signals = Signals(
            by_name["fetcher"].wake, by_name["settler"].wake, self._keeping.wake, self.notices, self.meter
        )

    def check_process(self) -> None:
        """Raise ClosedError in a forked child."""
        self.context.check_process()

    def add(self, subscription: Supervised) -> None:
        """Work for a subscription whose groups are registered."""
        with self._lock:
            if self.database.config.wake:
                self.context.receiver.open(self.database.config.wake_address)
            self._supervised.append(subscription)
            for member in subscription.members:
                self.context.add(member)
                self.meter.count(member.at, member.counters)
            for loop in self._loops:
                loop.start()
        self.signals.wake_keeper()

    def remove(self, subscription: Supervised) -> None:
        """Forget a subscription that holds no lane any more."""
        with self._lock:
            if subscription in self._supervised:
                self._supervised.remove(subscription)
                for member in subscription.members:
                    self.meter.ended(member.counters)

    def announce(self, topic: str) -> None:
        """This process has published: the members of the topic poll at once."""
        for member in self.context.members():
            if member.topic == topic:
                member.fetching.poll_soon()

    def grown(self, topic: str) -> None:
        """This process has created lanes, and will publish to them: they get an owner meanwhile."""
        if any(member.topic == topic for member in self.context.members()):
            self._hurry_keeper()

    def _received(self, hint: Hint) -> None:
        """Another process says what it has committed."""
        for member in self.context.members():
            if number_of(member.topic) == hint.topic:
                if hint.messages:
                    member.fetching.hinted()
                if hint.new_lanes:
                    self._hurry_keeper()

    def _wake_keeper(self) -> None:
        self._keeping.wake()

    def _hurry_keeper(self) -> None:
        if self._keeper.may_hurry():
            self.signals.wake_keeper()

    def schedule(self, *, committed: bool) -> None:
        """Start and wake the scheduler: this process has scheduled a message, or will when a transaction commits."""
        if not committed:
            self._scheduler.attend()
        with self._lock:
            if self.context.closing.is_set():
                return
            self._scheduling.start()
        self._scheduling.wake()

    def wake_scheduler(self) -> bool:
        """Wake the scheduler if it runs. False: it does not."""
        if not self.scheduling or self._scheduling.stopping:
            return False
        self._scheduling.wake()
        return True

    @property
    def scheduling(self) -> bool:
        """Whether the scheduler runs."""
        return self._scheduling.running

    def measures(self) -> tuple[LoopMeasures, ...]:
        """Measure the loops that should be turning."""
        return tuple(loop_health.measured(loop) for loop in self._loops if loop.expected)

    def loops_health(self) -> tuple[LoopHealth, ...]:
        """Judge the loops that should be turning."""
        return tuple(loop_health.of_loop(loop, self._bounds) for loop in self._loops if loop.expected)

    def heartbeats_health(self) -> tuple[HeartbeatHealth, ...]:
        """Judge the heartbeats of the members."""
        return loop_health.of_heartbeats(self.context.members(), self._keeper.beaten, self._keeping)

    def connections_health(self) -> tuple[ConnectionHealth, ...]:
        """Return the connections for lack of which the client stands aside."""
        return self.context.shortage.lacking()

    def database_health(self) -> DatabaseHealth:
        """Judge the database."""
        return loop_health.of_database(self._keeping, self._bounds) if self._keeping.expected else loop_health.UNASKED

    def _due_in(self, seconds: float) -> None:
        """Wake the scheduler if its next turn is too late for a message that is due in `seconds`."""
        if self._scheduler.is_late_for(seconds):
            self._scheduling.wake()

    def close(self) -> None:
        """Stop the loops. Every member has ended before, or is abandoned."""
        with self._lock:
            self.context.closing.set()
        ended = [loop.stop(self.pace.stop_seconds) for loop in self._loops]
        for loop, stopped in zip(self._loops, ended, strict=True):
            if not stopped:
                facts.loop_still_running(loop=loop.name)
        if all(ended):
            self.context.receiver.close()
            self._doorbell.close()
        for member in self.context.members():
            member.resolve_all(ClosedError("the client was closed"))

    def _supervise(self, now: float) -> None:
        for subscription in list(self._supervised):
            subscription.supervise(now)

    def _failed(self, error: BaseException) -> None:
        """A loop failed outside of any one member: all members of the client fail."""
        for member in self.context.members():
            member.fail(error)


def _goes_on(error: BaseException) -> None:
    """The scheduler failed again and again. No subscription needs it, so it goes on with its back-off."""
    facts.scheduler_failed(error=error)
