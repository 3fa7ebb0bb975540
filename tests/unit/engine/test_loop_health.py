"""Whether a loop is late, on threads that stop where the test says."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lanelog._engine import loop_health
from lanelog._engine.loop_health import Bounds
from lanelog._process.loop import Loop
from lanelog._process.pulse import calling
from lanelog.errors import DatabaseError
from lanelog.health import Health
from support.waiting import eventually

BOUNDS = Bounds(stuck=0.1, unanswered=0.6, silence=0.3)
PATIENT = Bounds(stuck=60.0, unanswered=60.0, silence=60.0)
LONG = 3600.0

Start = Callable[[Callable[[float], float]], Loop]


@pytest.fixture
def begin() -> Iterator[Start]:
    """Start loops that end with the test."""
    loops: list[Loop] = []

    def start(turn: Callable[[float], float]) -> Loop:
        loops.append(Loop("keeper", turn, failed=lambda _error: None))
        loops[-1].start()
        return loops[-1]

    yield start
    for loop in loops:
        assert loop.stop(20)


def test_a_loop_that_waits_for_its_next_turn_is_not_late(begin: Start) -> None:
    """The bound runs from the time at which the next turn is due, however long the wait is."""
    turned = threading.Event()

    def turn(_now: float) -> float:
        turned.set()
        return LONG

    loop = begin(turn)
    assert turned.wait(20)
    eventually(lambda: loop.pulse.expected > time.monotonic() + 60)
    found = loop_health.of_loop(loop, BOUNDS)
    assert (found.late, found.why, found.waits) == (False, "", None)
    assert found.turned is not None


def test_a_loop_that_stands_still_in_its_turn_is_late_after_its_bound(begin: Start) -> None:
    """The loop is no longer late once it goes on."""
    gate = threading.Event()

    def turn(_now: float) -> float:
        gate.wait(20)
        return LONG

    loop = begin(turn)
    try:
        assert not loop_health.of_loop(loop, PATIENT).late
        late = eventually(lambda: found if (found := loop_health.of_loop(loop, BOUNDS)).late else None)
        assert "it has not turned for" in late.why
    finally:
        gate.set()
    eventually(lambda: not loop_health.of_loop(loop, BOUNDS).late)


@pytest.mark.thorough
def test_a_loop_that_waits_for_the_database_is_late_after_the_drivers_time_outs_alone(begin: Start) -> None:
    """Long after the bound of a loop that does something else; but not never."""
    gate = threading.Event()

    def turn(_now: float) -> float:
        with calling:
            gate.wait(20)
        return LONG

    loop = begin(turn)
    try:
        waits = eventually(lambda: found.waits if (found := loop_health.of_loop(loop, BOUNDS)).waits else None)
        eventually(lambda: (loop_health.of_loop(loop, PATIENT).waits or 0) > waits + BOUNDS.stuck)
        found = loop_health.of_loop(loop, Bounds(stuck=0.0, unanswered=60.0, silence=0.0))
        assert not found.late
        assert "the database has not answered" in found.why
        eventually(lambda: loop_health.of_loop(loop, BOUNDS).late)
        assert not loop_health.of_database(loop, BOUNDS).fresh
    finally:
        gate.set()
    eventually(lambda: loop_health.of_loop(loop, BOUNDS).waits is None)


def test_each_answer_of_the_database_is_a_sign_of_life(begin: Start) -> None:
    """A turn with many statements takes longer than any bound, and is not late."""
    go = threading.Semaphore(0)

    def turn(_now: float) -> float:
        for _ in range(3):
            assert go.acquire(timeout=20)
            with calling:
                pass
        return LONG

    loop = begin(turn)
    began = eventually(lambda: loop.pulse.turned)
    for _ in range(3):
        before = loop.pulse.expected
        go.release()
        eventually(lambda: loop.pulse.expected > before)  # noqa: B023 - called at once
    assert loop.pulse.turned == began
    assert loop_health.of_database(loop, PATIENT).fresh


def test_a_call_that_fails_is_no_answer_and_its_error_says_why(begin: Start) -> None:
    """The database is not fresh as long as the keeper's turns fail; the loop itself turns."""

    def turn(_now: float) -> float:
        with calling:
            raise DatabaseError("gone away", retriable=True)

    loop = begin(turn)
    eventually(lambda: loop.error)
    found = loop_health.of_database(loop, PATIENT)
    assert (found.fresh, found.answered, found.why) == (False, None, "DatabaseError: gone away")
    assert not loop_health.of_loop(loop, PATIENT).late


def test_a_loop_whose_thread_has_ended_is_late(begin: Start) -> None:
    """Nobody has stopped the loop, so something went wrong that it could not survive."""
    loop = begin(lambda _now: LONG)
    eventually(lambda: loop.pulse.expected > time.monotonic() + 60)
    ended = threading.Thread(target=time.monotonic)
    ended.start()
    ended.join()
    living, loop._thread = loop._thread, ended
    found = loop_health.of_loop(loop, PATIENT)
    loop._thread = living
    assert (found.late, found.why) == (True, "its thread has ended")


def test_nothing_that_runs_is_live_and_not_ready() -> None:
    """All subscriptions have ended: there is nothing to restart, and nothing that is ready to handle."""
    found = Health(loops=(), heartbeats=(), database=loop_health.UNASKED, connections=(), tables=0, subscriptions=())
    assert (found.live, found.ready) == (True, False)
    assert "no subscription" in found.lacking
