"""The core of a `Subscription`: one group's handlers in this process, from registration to the last release.

Owns the life cycle (start, pause, stop, state) and the members, one for each topic. The engine owns leases,
rows and settlements. Users never see the core.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
import warnings
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from lanelog._base.checks import check_timeout
from lanelog._base.places import GroupTopic
from lanelog._client.subscription_facts import SubscriptionState, SubscriptionStats, stats
from lanelog._engine import lifecycle
from lanelog._engine.lane import policy
from lanelog._engine.lane.values import Budget
from lanelog._engine.member.member import Member
from lanelog._engine.member.rules import SubscriptionRules
from lanelog._engine.working.hung import HungHandlers
from lanelog._engine.working.pulling import Puller
from lanelog._engine.working.workers import Workers, compose
from lanelog._facts.engine import subscription as facts
from lanelog._log.lookup.known import repeated
from lanelog._log.register import EvictedError, register
from lanelog._process.ending import quiet_at_the_end
from lanelog.config import AckPolicy, check_name
from lanelog.errors import ClosedError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._base.checks import Duration
    from lanelog._engine.engine import Engine
    from lanelog._engine.lane.run import Attempt
    from lanelog.config import SubscriptionConfig
    from lanelog.message import Message

SHORTEST_WAIT = 0.05


@define(eq=False, repr=False)
class SubscriptionCore:
    """One group's handler on one or more topics. `handler` None: the user pulls the messages."""

    group: str
    topics: tuple[str, ...]
    config: SubscriptionConfig
    handler: Callable[[Any], object] | None
    _engine: Engine
    members: tuple[Member, ...] = field(init=False)
    _runs: queue.SimpleQueue[Any] = field(factory=queue.SimpleQueue, init=False)
    _workers: Workers | None = field(default=None, init=False)
    _puller: Puller = field(init=False)
    _hung: HungHandlers = field(init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _state: SubscriptionState = field(default=SubscriptionState.NEW, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _on_failure: Callable[[], None] | None = field(default=None, init=False)
    _pid: int = field(factory=os.getpid, init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        rules = SubscriptionRules(self.group, config, self.handler is None or config.ack_policy is AckPolicy.MANUAL)
        budget, lock = Budget(), threading.Lock()
        owner = f"{config.name}:{uuid.uuid4().hex[:12]}"
        self.members = tuple(
            Member(
                at=GroupTopic(topic=topic, group=self.group),
                owner=owner,
                config=config,
                rules=rules,
                budget=budget,
                lock=lock,
                signals=self._engine.signals,
                runs=self._runs,
                failed=self._fail,
                workers=0 if self.handler is None else config.workers,
            )
            for topic in self.topics
        )
        self._puller = Puller(config, self._runs, self.members, self._engine.context)
        if self.handler is not None:
            handler = compose(self.handler, config.middleware)
            self._workers = Workers(self.group, config, handler, self._runs, self._engine.context)
        for member in self.members:
            member.workload = self._puller.workload if self._workers is None else self._workers.workload
        self._hung = HungHandlers(config, self.members, self._workers, self.ask_to_stop)

    def __repr__(self) -> str:
        return f"<Subscription {self.group!r} on {', '.join(map(repr, self.topics))}: {self.state}>"

    @quiet_at_the_end
    def __del__(self) -> None:
        if getattr(self, "_state", None) is SubscriptionState.RUNNING and os.getpid() == self._pid:
            warnings.warn(f"{self!r} was never stopped", ResourceWarning, source=self, stacklevel=1)

    @property
    def state(self) -> SubscriptionState:
        """Where it is in its life."""
        if self._state is SubscriptionState.STOPPING and all(m.ended.is_set() for m in self.members):
            return SubscriptionState.STOPPED
        return self._state

    @property
    def inherited(self) -> bool:
        """Whether it was made in the parent of this process, and is of no use here."""
        return os.getpid() != self._pid

    @property
    def failure(self) -> BaseException | None:
        """The error that made it fail, or None."""
        return self._failure

    @property
    def owner(self) -> str:
        """The owner's name in its leases: `name` and a random part."""
        return self.members[0].owner

    def with_options(self, **changes: Any) -> SubscriptionCore:
        """Return it with other options, if it has a handler and was not started. Else return it itself."""
        if self.handler is None or self._state is not SubscriptionState.NEW:
            return self
        return SubscriptionCore(self.group, self.topics, evolve(self.config, **changes), self.handler, self._engine)

    def start_unless_evicted(self) -> None:
        """Start. If its group was evicted, log an ERROR and stop: the other subscriptions of the process go on."""
        try:
            self.start()
        except EvictedError as error:
            facts.subscription_evicted(group=self.group, topics=list(self.topics), error=error)
            self.ask_to_stop()

    def start(self) -> None:
        """Register the group, and start. The registration is committed when this returns. Idempotent while it runs."""
        self._engine.check_process()
        from lanelog._facts.logging import report_disabled

        report_disabled()
        with self._lock:
            if self._state in (SubscriptionState.RUNNING, SubscriptionState.PAUSED):
                return
            if self._state is not SubscriptionState.NEW:
                raise ClosedError(f"{self!r} cannot be started again: subscribe anew")
            database = self._engine.database
            for member in self.members:
                what = f"registering group {self.group!r} of topic {member.topic!r}"
                member.registered_at = repeated(database, register, what, database, member.at, self.config)
            self._state = SubscriptionState.RUNNING
        if self._workers is not None:
            self._workers.start()
        self._engine.add(self)
        self._hung.watch()

    def pause(self) -> None:
        """Hand out no more messages in this process."""
        self._set_paused(paused=True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._set_paused(paused=False)

    def _set_paused(self, *, paused: bool) -> None:
        self._engine.check_process()
        with self._lock:
            if self._state not in (SubscriptionState.RUNNING, SubscriptionState.PAUSED):
                raise ClosedError(f"{self!r} does not run")
            self._state = SubscriptionState.PAUSED if paused else SubscriptionState.RUNNING
            for member in self.members:
                if paused:
                    member.leasing.pause()
                else:
                    member.leasing.resume()
        if not paused:
            self._engine.signals.wake_keeper()  # it reads whether an operator has paused the lane as well

    def stop(self, timeout: Duration | None = 30.0) -> bool:
        """Drain, within `timeout`. True when everything is released."""
        allowed = check_timeout("timeout", timeout)
        self._engine.check_process()
        self.ask_to_stop()
        until = None if allowed is None else time.monotonic() + allowed
        ended = all(self._wait_for(member, until) for member in self.members)
        if ended:
            self._dismiss()
            if self._workers is not None:
                self._workers.join(0.5 if until is None else max(0.0, min(0.5, until - time.monotonic())))
        else:
            facts.subscription_still_draining(group=self.group, running=self.stats().running)
        return ended

    def _wait_for(self, member: Member, until: float | None) -> bool:
        began = logged = time.monotonic()
        while not member.ended.is_set():
            if time.monotonic() - logged >= self._engine.pace.waited_seconds:
                logged = time.monotonic()
                away = self._engine.context.server_identity.incarnation is None
                lifecycle.waited(member, logged - began, away=away)
            left = SHORTEST_WAIT if until is None else min(SHORTEST_WAIT, until - time.monotonic())
            if left <= 0:
                return False
            if self.handler is None:
                self.drain()  # a run may have come to the queue after the end of the iterator
                member.handing_back.hand_back(forgotten=True)
            member.ended.wait(left)
        return True

    def cut_off(self) -> None:
        """Stop without a wait for handlers. Their messages go back, and the next owner of the lane has them at once.

        If the process dies before that is committed, the next owner counts the attempts as crashed, as after a kill.
        """
        now = time.monotonic()
        for member in self.members:
            for attempt in member.handing_back.cut_off():
                seconds = now - attempt.started if attempt.started else 0.0
                facts.handler_cut_off(**member.about(attempt), seconds=seconds)
        if self._workers is not None:
            self._workers.cut_off()

    def _dismiss(self) -> None:
        """Let the workers end. No message and no lane is held any more."""
        if self._workers is not None:
            self._workers.stop()
        self._hung.close()
        self._engine.remove(self)

    def ask_to_stop(self) -> None:
        """Begin to stop. Does not wait."""
        with self._lock:
            if self._state is SubscriptionState.NEW:
                self._state = SubscriptionState.STOPPED
                for member in self.members:
                    member.ended.set()
                return
            if self._state is not SubscriptionState.FAILED:
                self._state = SubscriptionState.STOPPING
        for member in self.members:
            member.leasing.stop()
        self._engine.signals.wake_keeper()

    def stats(self) -> SubscriptionStats:
        """Return what it holds, and what it has done since its start, over all its topics."""
        self._engine.check_process()
        return stats(self.state, self.members)

    def supervise(self, now: float) -> None:
        """Check the deadlines of handlers, and of messages in the user's hands, once."""
        if self._workers is not None:
            self._workers.supervise(now)
        if self._state is not SubscriptionState.RUNNING and all(m.ended.is_set() for m in self.members):
            self._dismiss()  # a stop() has timed out before
        for member in self.members:
            for attempt in member.attempts.detached():
                if now >= attempt.deadline:
                    self._give_up(member, attempt, now)

    def _give_up(self, member: Member, attempt: Attempt, now: float) -> None:
        reason = f"neither settled nor extended within {now - attempt.started:.1f} s"
        if member.attempts.give_up(attempt, policy.timed_out(self.config, attempt, reason, now)):
            facts.delivery_given_up(**member.about(attempt), seconds=now - attempt.started)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the subscription fails. If it has failed already, call it now."""
        self._on_failure = callback
        if self._failure is not None:
            callback()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure, self._state = error, SubscriptionState.FAILED
        self.ask_to_stop()
        if self._on_failure is not None:
            self._on_failure()

    def pull(self, timeout: float | None) -> Message | None:
        """Wait for the next message of a pulled subscription. None: `timeout` seconds passed, or it has ended."""
        self._engine.check_process()
        until = None if timeout is None else time.monotonic() + timeout
        message = self._puller.next(until, lambda: self.state in (SubscriptionState.RUNNING, SubscriptionState.PAUSED))
        if message is None and self._failure is not None:
            raise self._failure
        return message

    def drain(self) -> None:
        """Give back the runs that wait in the queue of a pulled subscription."""
        self._puller.drain()


def checked_topics(topic: str | Sequence[str], config: SubscriptionConfig) -> tuple[str, ...]:
    """Return the topics without repetition. Each is checked, and so is the name of its dead letter topic."""
    names = [topic] if isinstance(topic, str) else list(topic) if isinstance(topic, list | tuple) else [topic]
    if not names:
        raise ConfigurationError("topic must name at least one topic")
    topics = tuple(dict.fromkeys(check_name("topic", name) for name in names))
    for name in topics:
        dead_topic = config.dead_letter_topic(name)
        if dead_topic is not None:
            check_name("topic with its dead letter suffix", dead_topic)
    return topics
