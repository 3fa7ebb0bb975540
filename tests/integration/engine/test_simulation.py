"""A simulation: several processes on a real server, in every order of turns and troubles that Hypothesis thinks of.

The script of a failure is printed rule by rule, with the names of processes. SIMULATION_EXAMPLES=500 plays so many, and
different ones each time; without it the same ones are played again.

Operators steer meanwhile: seek, skip, release, pause, resume, redrive, the deletion of a group, maintenance. What each
may change in the tables is in `Record`; until their keepers' next turn, the processes know nothing of it.
"""

import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import lanelog
from lanelog.admin import Admin
from lanelog.devserver import DevServer
from support.simulation import GROUPS, LEASE, MIDNIGHT, OUTCOMES, OWN_OUTCOMES, Hand, Process, World, options
from support.simulation_record import Record, Steered
from support.simulation_tables import Lease, Place, Tables
from support.sql import rows

EXAMPLES = int(os.environ.get("SIMULATION_EXAMPLES", "0"))
STEPS = 40
STRIDE = 2.5
"""Seconds between two turns of a keeper: it would take one every quarter, and beats every three."""

LOOPS = ["keeper", "settler", "fetcher", "janitor"]
TROUBLES = ["crashes", "freezes", "oversleeps", "stops"]
ENDS = [*(outcome for outcome in OUTCOMES if outcome != "die"), *OWN_OUTCOMES]
OUTCOME = st.sampled_from(["ack", "ack", *ENDS])
OUTCOMES_IN_A_ROW = st.lists(OUTCOME, min_size=1, max_size=4) | st.just([])
MOSTLY = st.sampled_from([True, True, False])
PICK = st.integers(0, 3)
NAME = st.sampled_from(["p1", "p2", "p3"])
GROUP = st.sampled_from(GROUPS)
BATCH = st.sampled_from([None, None, lanelog.Batch(2, 0.0), lanelog.Batch(2, 1.0), lanelog.Batch(3, 0.0, "lanes")])
KEY = st.sampled_from("abc")
TARGET = st.sampled_from(["earliest", "latest", "offset", "offset", "instant"])
STEERING = st.sampled_from(["skip", "skip", "release", "release", "pause lane", "pause group", "resume"])


class Simulation(RuleBasedStateMachine):
    """What may happen; what must be true is in `Record`. A process that is gone or frozen is back when it is needed."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.living: dict[str, Process] = {}
        self.everybody: list[Process] = []
        self.orphans: set[Process] = set()  # of a group that was deleted: they fail, and are started anew

    @initialize(
        order=st.sampled_from(["strict", "serial", "concurrent", "concurrent"]),
        retention=st.sampled_from([0.0, 15.0]),
        timeout=st.sampled_from([None, 3.0]),
        count=st.integers(1, 5),
        batches=st.tuples(BATCH, BATCH),
    )
    def begin(
        self,
        order: str,
        retention: float,
        timeout: float | None,
        count: int,
        batches: tuple[lanelog.Batch | None, lanelog.Batch | None] = (None, None),
    ) -> None:
        """One group is strict; the other may be anything."""
        self.world.begin()
        self.options = {
            GROUPS[0]: options("strict", retention=retention, timeout=None, batch=batches[0]),
            GROUPS[1]: options(order, retention=retention, timeout=timeout, batch=batches[1]),
        }
        self.publisher = Process(self.world, "publisher", {})
        self.record = Record(self.world.raw, self.world.clock, {GROUPS[0]: "strict", GROUPS[1]: order}, retention)
        self.record.deleted.update(GROUPS)  # they are not registered yet
        self.publish("a", count)
        self.publish("b", 1)

    # -- publishers ----------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from("abc"), count=st.integers(1, 3))
    def publish(self, key: str, count: int) -> None:
        for _ in range(count):
            receipt = self.publisher.client.publish("jobs", key, b"")
            self.record.published[key][receipt.offset] = self.world.clock.now
        self.look(None)

    # -- operators -----------------------------------------------------------------------------------------------------

    @property
    def admin(self) -> Admin:
        return self.publisher.client.admin

    @rule(group=GROUP, key=KEY, every=st.booleans(), to=TARGET, pick=PICK)
    def seek(self, group: str, key: str, every: bool, to: str, pick: int) -> None:
        """A group goes on elsewhere: in one lane, or in all (but then not at an offset)."""
        tables = self.record.tables
        every = every and to != "offset"
        keys = [found for found in tables.heads if every or found == key]
        if not keys or group in self.record.deleted:
            return
        started = self.record.published
        moment = sorted(started[keys[0]].values())[-1 - pick % len(started[keys[0]])] + 0.0005
        offset = max(1, tables.heads[keys[0]] - pick)
        target = {"offset": offset, "instant": datetime.fromtimestamp(MIDNIGHT + moment, UTC)}.get(to, to)
        wanted = {
            "earliest": dict.fromkeys(keys, 0),
            "latest": dict(tables.heads),
            "offset": dict.fromkeys(keys, offset - 1),
            "instant": {each: max((o for o, at in started[each].items() if at < moment), default=0) for each in keys},
        }[to]
        places = {each: min(max(wanted[each], tables.floor(each)), tables.heads[each]) for each in keys}
        again = sum(
            tables.settled(Place(group, each, offset))
            for each in keys
            for offset in range(places[each] + 1, tables.heads[each] + 1)
        )
        sought = self.admin.seek("jobs", group, key=None if every else key, to=target, dry_run=False)
        assert (sought.lanes, sought.again) == (len(keys), again)
        self.record.look(None, self.everybody, Steered(verb="seek", group=group, watermarks=places))

    @rule(what=STEERING, group=GROUP, key=KEY, pick=PICK)
    def steer(self, what: str, group: str, key: str, pick: int) -> None:
        """One message is skipped, a lane is taken from its owner, or something is paused for a while."""
        if group in self.record.deleted:
            return
        if what == "resume":
            self.resume(group)
        elif what == "pause group":
            self.admin.pause("jobs", group)
            self.record.paused.setdefault((group, ""), set())
            self.look(None)
        elif key in self.record.tables.heads:
            getattr(self, what.replace(" ", "_"))(group, key, pick)

    def resume(self, group: str) -> None:
        for paused, key in list(self.record.paused):
            if paused == group:
                assert self.admin.resume("jobs", group, key=key or None).changed
                del self.record.paused[group, key]
                self.steered("pause", group, [key] if key else [])

    def pause_lane(self, group: str, key: str, _: int) -> None:
        self.admin.pause("jobs", group, key=key)
        self.record.paused.setdefault((group, key), set())
        self.steered("pause", group, [key])

    def release(self, group: str, key: str, _: int) -> None:
        released = self.admin.release("jobs", group, key, dry_run=False)
        assert released.changed == bool(self.record.tables.leases.get((group, key), ("",))[0])
        self.steered("release", group, [key, *released.others] if released.changed else [])

    def skip(self, group: str, key: str, pick: int) -> None:
        tables = self.record.tables
        place = Place(group, key, min(tables.watermark(group, key) + 1 + pick, tables.heads[key]))
        if not place.offset:
            return
        was_settled, watermark = tables.settled(place), tables.watermark(group, key)
        skipped = self.admin.skip("jobs", group, key, place.offset, reason="it hangs", dry_run=False)
        assert skipped.changed != was_settled
        if place.offset == watermark + 1:
            watermark += 1
            while tables.settled(place._replace(offset=watermark + 1)) and watermark < tables.heads[key]:
                watermark += 1
        steered = Steered(verb="skip", group=group, watermarks={key: watermark}, skipped=place.offset)
        self.record.look(None, self.everybody, steered if skipped.changed else None)

    def steered(self, verb: Any, group: str, keys: list[str]) -> None:
        watermarks = {key: self.record.tables.watermark(group, key) for key in keys}
        self.record.look(None, self.everybody, Steered(verb=verb, group=group, watermarks=watermarks))

    @rule(what=st.sampled_from(["redrive", "redrive", "maintain", "delete"]), group=GROUP, name=NAME)
    def administer(self, what: str, group: str, name: str) -> None:
        """Dead letters come back; what may leave leaves; a group is forgotten, and made anew when somebody comes."""
        if what == "maintain":
            self.admin.maintain()
            self.look(None)
        elif group in self.record.deleted:
            return
        elif what == "delete":
            self.delete_group(group)
        else:
            if not self.record.tables.waiting_letters(group):
                self.handle(group, name, ["reject"], "", loops=True)
                self.turn(name, "settler")
            self.redrive(group)

    def redrive(self, group: str) -> None:
        before = self.record.tables
        waiting = before.waiting_letters(group)
        assert self.admin.redrive("jobs", group, all=True, dry_run=False).messages == len(waiting)
        found = Tables.read(self.world.raw).redriven
        new = sorted(found.keys() - before.redriven.keys())
        assert [(key, *found[key, offset]) for key, offset in new] == [(at.place.key, group, at.id) for at in waiting]
        for key, offset in new:
            self.record.published[key][offset] = self.world.clock.now
            self.record.targets[key, offset] = group
        self.look(None)
        assert self.admin.redrive("jobs", group, all=True, dry_run=False).messages == 0

    def delete_group(self, group: str) -> None:
        """Who runs settles nothing any more, fails at its keeper's next turn, and is started anew."""
        tables = self.record.tables
        self.admin.delete_group("jobs", group, evict=True, dry_run=False)
        for paused in [paused for paused in self.record.paused if paused[0] == group]:
            del self.record.paused[paused]
        floors = {key: tables.floor(key) for key in tables.heads}
        self.record.look(None, self.everybody, Steered(verb="delete", group=group, watermarks=floors))
        self.orphans.update(self.living.values())
        for process in list(self.living.values()):
            for hand in [hand for hand in process.hands if hand.member.group == group][:1]:
                if not process.frozen:
                    self.end_message(hand, "ack now")
                    assert hand.refused or hand.ended

    # -- processes come and go -----------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """The process of this name: started if it is not there, woken if it is frozen."""
        if name not in self.living:
            incarnation = sum(process.name.startswith(name) for process in self.everybody) + 1
            process = Process(self.world, f"{name}.{incarnation}", self.options)
            self.living[name] = process
            self.everybody.append(process)
            self.record.deleted.clear()  # it has registered its groups
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
            self.time_passes(2 * LEASE + 3, stalled=False)
        elif not process.frozen:
            process.ask_to_stop()

    # -- turns ---------------------------------------------------------------------------------------------------------

    @rule(name=NAME, loop=st.sampled_from(LOOPS))
    def turn(self, name: str, loop: str) -> None:
        process = self.process(name)
        process.turn(loop)
        if loop == "keeper":
            self.record.kept(process)
        self.look(process)
        for hand in process.hands:
            if hand.worker.abandoned:
                self.record.gave_back(hand)
        if not process.gone and process in self.orphans and any(m.failure is not None for m in process.members):
            process.crash()
            self.look(None)
        if process.gone:
            del self.living[name]

    @rule(name=NAME)
    def work_on(self, name: str) -> None:
        """Its loops run for a moment: what it owns comes to its workers."""
        for loop in ("keeper", "settler", "fetcher", "settler"):
            if loop == "keeper" or name in self.living:
                self.turn(name, loop)

    @rule(seconds=st.sampled_from([1.0, 4.0, LEASE - 1, LEASE + 1, 2 * LEASE + 1]), stalled=st.booleans())
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
            if not hand.ended and outcome in ENDS:
                self.end_message(hand, outcome)
        if then in TROUBLES and not hand.ended:
            self.trouble(process.role, then)
            if then == "oversleeps":  # and knows nothing of it: nobody may be bound by what it says now
                process.frozen = False
                self.end_message(hand, "ack now")

    def bring(self, name: str, group: str) -> Hand | None:
        """As `found`; if nobody can have a message because the group is paused, resume it."""
        hand = self.found(name, group)
        if hand is None and any(paused == group for paused, _ in self.record.paused):
            self.resume(group)
            hand = self.found(name, group)
        return hand

    def found(self, name: str, group: str) -> Hand | None:
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
        message, outcome = hand.message, hand.possible(outcome)
        place = Place(message.group, message.key, message.offset)
        self.record.decided(hand, outcome)
        hand.process.settle(hand, outcome)
        self.after(hand)
        if hand.process.open:
            lease = Lease(hand.process.owner(place.group), message.fencing_token)
            self.finish(hand.process, (place, lease), commit="committed" in outcome)
        self.record.answered(place, outcome, refused=hand.refused)

    def finish(self, process: Process, acked: tuple[Place, Lease], *, commit: bool) -> None:
        """A transaction that a handler has left open ends behind it. Before, the settler asks, and others may begin."""
        process.turn("settler")
        self.look(process)
        self.begin_message(process, acked[0].group)
        if commit:
            self.record.acks.add(acked)
        process.finish(commit=commit)
        self.look(process)

    def after(self, hand: Hand) -> None:
        """A worker went as far as it could: it may have the next message."""
        self.look(hand.process)
        for message in hand.fresh:
            self.record.began(hand, message, self.everybody)
        hand.fresh = []
        if hand.ended:
            self.record.gave_back(hand)

    # -- what must be true ---------------------------------------------------------------------------------------------

    def look(self, actor: Process | None) -> None:
        self.record.look(actor, self.everybody)
        errors = [error for error in self.world.errors if not (self.orphans and error.startswith("membership.failed"))]
        assert not errors, errors
        for process in self.living.values():
            for member in process.members:
                assert member.failure is None or process in self.orphans, member.failure

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
        for group in GROUPS:
            self.resume(group)
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
            for hand in [] if process.gone else list(process.hands):
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
        if not record.getMessage().startswith("message.dead_lettered "):  # a handler's error, not the engine's
            self.seen.append(record.getMessage())


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """What the engine calls an error of its own."""
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


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # a failure takes as long as Hypothesis needs to find the shortest script
@pytest.mark.parametrize("examples", [4, EXAMPLES or 30])
def test_the_engine_keeps_its_promises_in_every_simulated_history(world: World, examples: int) -> None:
    """Through any crash, freeze, start or end, order, fences, counts and collection hold, and everything is handled."""
    run_state_machine_as_test(
        lambda: Simulation(world),
        settings=settings(
            max_examples=examples,
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
        for member in history.process("p1").members:
            member.rules.seconds = 0.0  # its handlers are quick: no mark, and no fence, stands before each
        history.work_on(name="p1")
        history.turn(name="p2", loop="keeper")
        history.time_passes(seconds=1.6, stalled=False)  # it reads its leases back, and its next heartbeat is not due
        history.work_on(name="p1")
        history.trouble(name="p1", what="freezes")
        # A lock that was granted would keep its lanes for longer: here the server would not grant one.
        rows(history.world.raw, "UPDATE queue_subscriber_heartbeats SET liveness_lock = ''")
        history.time_passes(seconds=LEASE - 1, stalled=False)
        owners = {lease.owner for lease in history.record.tables.leases.values()}
        assert owners == {history.living["p2"].owner(group) for group in GROUPS}
        while history.begin_message(history.process("p1"), GROUPS[0]) is not None:
            assert not history.record.begun
    finally:
        history.teardown()
