"""A simulation: several processes on a real server, in every order of turns and troubles that Hypothesis thinks of.

The script of a failure is printed rule by rule, with the names of processes. SIMULATION_EXAMPLES=500 plays so many, and
different ones each time; without it the same ones are played again.

How others join: a verb of an operator is one more rule. `pause` sets a flag, and from the keeper's next turn on
`Record.began` is to refuse that lane; `seek` takes the lane's settlements back out of `Record.acks` and zeroes
`Record.counted`, which makes an exception in `Record._writes` and `_settlements` for a step whose lease changed; a
`redrive` publishes, with one group alone in `Record.places`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

import lanelog
from lanelog.devserver import DevServer
from support.simulation import GROUPS, LEASE, OUTCOMES, Process, World, options
from support.simulation_record import Place, Record
from support.sql import rows

if TYPE_CHECKING:
    from support.simulation import Hand

EXAMPLES = int(os.environ.get("SIMULATION_EXAMPLES", "0"))
STEPS = 40
STRIDE = 2.5
"""Seconds between two turns of a keeper: it would take one every quarter, and beats every three."""

LOOPS = ["keeper", "settler", "fetcher", "janitor"]
TROUBLES = ["crashes", "freezes", "oversleeps", "stops"]
OUTCOME = st.sampled_from(["ack", "ack", *(outcome for outcome in OUTCOMES if outcome != "die")])
OUTCOMES_IN_A_ROW = st.lists(OUTCOME, min_size=1, max_size=4) | st.just([])
MOSTLY = st.sampled_from([True, True, False])
PICK = st.integers(0, 3)
NAME = st.sampled_from(["p1", "p2", "p3"])


class Simulation(RuleBasedStateMachine):
    """What may happen; what must be true is in `Record`. A process that is gone or frozen is back when it is needed."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.living: dict[str, Process] = {}
        self.everybody: list[Process] = []

    @initialize(
        order=st.sampled_from(["strict", "serial", "concurrent", "concurrent"]),
        retention=st.sampled_from([0.0, 15.0]),
        timeout=st.sampled_from([None, 3.0]),
        count=st.integers(1, 5),
    )
    def begin(self, order: str, retention: float, timeout: float | None, count: int) -> None:
        """One group is strict; the other may be anything."""
        self.world.begin()
        self.options = {
            GROUPS[0]: options("strict", retention=retention, timeout=None),
            GROUPS[1]: options(order, retention=retention, timeout=timeout),
        }
        self.publisher = Process(self.world, "publisher", {})
        self.record = Record(self.world.raw, self.world.clock, {GROUPS[0]: "strict", GROUPS[1]: order}, retention)
        self.publish("a", count)
        self.publish("b", 1)

    # -- publishers ----------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from("abc"), count=st.integers(1, 3))
    def publish(self, key: str, count: int) -> None:
        for _ in range(count):
            receipt = self.publisher.client.publish("jobs", key, b"")
            self.record.published[key][receipt.offset] = self.world.clock.now
        self.look(None)

    # -- processes come and go -----------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """The process of this name: started if it is not there, woken if it is frozen."""
        if name not in self.living:
            incarnation = sum(process.name.startswith(name) for process in self.everybody) + 1
            process = Process(self.world, f"{name}.{incarnation}", self.options)
            self.living[name] = process
            self.everybody.append(process)
            self.look(process)
        self.living[name].frozen = False
        return self.living[name]

    @rule(name=NAME, what=st.sampled_from(TROUBLES))
    def trouble(self, name: str, what: str) -> None:
        """SIGKILL; SIGTERM; SIGSTOP, maybe past its lease: it goes on when needed, and has not seen time pass."""
        process = self.living.get(name)
        if process is None:
            return
        if what == "crashes":
            del self.living[name]
            process.crash()
            self.look(None)
        elif what == "freezes":
            process.frozen = True
        elif what == "oversleeps":
            self.process("p2" if name == "p1" else "p1")
            process.frozen = True
            self.time_passes(LEASE + 3, stalled=False)
        elif not process.frozen:
            process.ask_to_stop()

    # -- turns ---------------------------------------------------------------------------------------------------------

    @rule(name=NAME, loop=st.sampled_from(LOOPS))
    def turn(self, name: str, loop: str) -> None:
        process = self.process(name)
        process.turn(loop)
        if process.gone:
            del self.living[name]
        self.look(process)

    @rule(name=NAME)
    def work_on(self, name: str) -> None:
        """Its loops run for a moment: what it owns comes to its workers."""
        for loop in ("keeper", "settler", "fetcher", "settler"):
            if loop == "keeper" or name in self.living:
                self.turn(name, loop)

    @rule(seconds=st.sampled_from([1.0, 4.0, LEASE - 1, LEASE + 1]), stalled=st.booleans())
    def time_passes(self, seconds: float, stalled: bool) -> None:
        """Whoever is awake beats and takes what is nobody's; or, stalled, nobody does anything."""
        while seconds > 0:
            self.world.clock.now += min(STRIDE, seconds)
            seconds -= STRIDE
            for name, process in [] if stalled else list(self.living.items()):
                if not process.frozen:
                    self.turn(name, "keeper")

    # -- handlers ------------------------------------------------------------------------------------------------------

    @rule(name=NAME, pick=PICK, outcome=OUTCOME)
    def settle(self, name: str, pick: int, outcome: str) -> None:
        """A handler ends."""
        process = self.process(name)
        if process.hands:
            self.end_message(process.hands[pick % len(process.hands)], outcome)

    @rule(name=NAME, outcomes=OUTCOMES_IN_A_ROW, then=st.sampled_from(["begins another", *TROUBLES, ""]), loops=MOSTLY)
    def build(self, name: str, outcomes: list[str], then: str, loops: bool) -> None:
        """A worker of one group handles some messages, and maybe is at the next when something befalls its process."""
        self.handle(GROUPS[0], name, outcomes, then, loops)

    @rule(name=NAME, outcomes=OUTCOMES_IN_A_ROW, then=st.sampled_from(["begins another", *TROUBLES, ""]), loops=MOSTLY)
    def mail(self, name: str, outcomes: list[str], then: str, loops: bool) -> None:
        """A worker of the other group does."""
        self.handle(GROUPS[1], name, outcomes, then, loops)

    def handle(self, group: str, name: str, outcomes: list[str], then: str, loops: bool) -> None:
        hand = self.bring(name, group) if loops else self.begin_message(self.process(name), group)
        if hand is None:
            return
        process = hand.process
        for outcome in [*outcomes, then]:
            if outcome and hand.ended and not process.gone:
                again = self.begin_message(process, group)
                if again is None:  # the run's mark, and what was handled before, go out with one flush
                    self.turn(process.role, "settler")
                    again = self.begin_message(process, group)
                hand = again or hand
            if not hand.ended and outcome in OUTCOMES:
                self.end_message(hand, outcome)
        if then in TROUBLES and not hand.ended:
            self.trouble(process.role, then)
            if then == "oversleeps":  # and knows nothing of it: nobody may be bound by what it says now
                process.frozen = False
                self.end_message(hand, "ack now")

    def bring(self, name: str, group: str) -> Hand | None:
        """Wait until somebody has a message, rather this one: others may have to die first, or a delivery be due."""
        if all(self.record.tables.settled(place) for place in self.record.places() if place.group == group):
            self.publish("abc"[len(self.record.begun) % 3], 3)
        for seconds in (0.0, 2.0, LEASE + 1):
            self.time_passes(seconds, stalled=False)
            for candidate in [name, *(other for other in list(self.living) if other != name)]:
                if candidate == name or (candidate in self.living and not self.living[candidate].frozen):
                    self.work_on(candidate)
                    hand = self.begin_message(self.process(candidate), group)
                    if hand is not None:
                        return hand
        return None

    def begin_message(self, process: Process, group: str) -> Hand | None:
        hand = None if process.gone else process.begin(group)
        if hand is not None:
            self.after(hand)
        return hand

    def end_message(self, hand: Hand, outcome: str) -> None:
        message = hand.message
        assert message is not None
        place = Place(message.group, message.key, message.offset)
        self.record.decided(hand, outcome)
        hand.process.settle(hand, outcome)
        self.after(hand)
        self.record.answered(place, outcome, refused=hand.refused)

    def after(self, hand: Hand) -> None:
        """A worker went as far as it could: it may have the next message."""
        self.look(hand.process)
        if hand.message is not None:
            self.record.began(hand, self.everybody)

    # -- what must be true ---------------------------------------------------------------------------------------------

    def look(self, actor: Process | None) -> None:
        self.record.look(actor, self.everybody)
        assert not self.world.errors, self.world.errors
        for process in self.living.values():
            for membership in process.memberships:
                assert membership.failure is None, membership.failure

    def teardown(self) -> None:
        """Without further trouble everything gets handled, and whoever leaves leaves nothing behind."""
        if not hasattr(self, "record"):
            return
        try:
            self.drain()
        finally:
            self.world.end()

    def drain(self) -> None:
        for process in self.living.values():
            process.frozen = False
        for _ in range(60):
            if not any(not process.stopping for process in self.living.values()):
                self.process("p1")
            self.everybody_works()
            if self.quiet():
                break
        self.record.drained()
        for process in self.living.values():
            process.ask_to_stop()
        for _ in range(3):
            self.everybody_works()
        assert not self.living, f"{self.living} did not leave"
        assert not any(lease.owner for lease in self.record.tables.leases.values())

    def everybody_works(self) -> None:
        self.world.clock.now += 1.0
        for name, process in list(self.living.items()):
            for loop in ("keeper", "settler", "fetcher", "settler"):
                if not process.gone:
                    self.turn(name, loop)
            for group in GROUPS:
                while self.begin_message(process, group) is not None:
                    pass
            for hand in list(process.hands):
                while not hand.ended:
                    self.end_message(hand, "ack")
            for loop in ("settler", "keeper", "janitor"):
                if not process.gone:
                    self.turn(name, loop)

    def quiet(self) -> bool:
        """The lanes are purged: they were drained and collected before."""
        return not self.record.tables.heads or not self.record.published


class _Errors(logging.Handler):
    """Nothing that this simulation does is an error to the engine."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """What the engine calls an error."""
    handler = _Errors()
    logger = logging.getLogger("lanelog")
    logger.addHandler(handler)
    yield handler.seen
    logger.removeHandler(handler)


@pytest.fixture
def lanelog_url(private_server: DevServer) -> str:
    """A database on a server that need not remember anything: these are hundreds of commits a second."""
    url = private_server.create_database("simulation")
    with lanelog.connect(url) as client:
        client.migrate()
    return url


@pytest.fixture
def world(lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, errors: list[str]) -> World:
    """Where the histories take place."""
    rows(raw, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    rows(raw, "SET GLOBAL sync_binlog = 0")
    return World(lanelog_url, raw, monkeypatch, errors)


@pytest.mark.timeout(1800)  # a failure takes as long as Hypothesis needs to find the shortest script
def test_the_engine_keeps_its_promises_in_every_simulated_history(world: World) -> None:
    """Whoever crashes, freezes, comes or goes: order, fences, counts and collection hold, and everything is handled."""
    run_state_machine_as_test(
        lambda: Simulation(world),
        settings=settings(
            max_examples=EXAMPLES or 20,
            stateful_step_count=STEPS,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


def test_a_process_that_slept_begins_nothing_on_a_lane_that_was_taken(world: World) -> None:
    """Authority ends with the heartbeat: when others may take a lane, no worker starts what it was handed before."""
    history = Simulation(world)
    try:
        history.begin(count=1, order="strict", retention=0.0, timeout=None)
        history.work_on(name="p1")
        history.turn(name="p2", loop="keeper")
        history.time_passes(seconds=1.6, stalled=False)  # it reads its leases back, and its next heartbeat is not due
        history.work_on(name="p1")
        history.trouble(name="p1", what="freezes")
        history.time_passes(seconds=LEASE - 1, stalled=False)
        owners = {lease.owner for lease in history.record.tables.leases.values()}
        assert owners == {history.living["p2"].owner(group) for group in GROUPS}
        while history.begin_message(history.process("p1"), GROUPS[0]) is not None:
            assert not history.record.begun
    finally:
        history.teardown()
