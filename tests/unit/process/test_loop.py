import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from lanelog._process.loop import Loop
from lanelog.errors import ClosedError
from support.waiting import raising

Make: TypeAlias = Callable[..., Loop]

LONG = 3600.0  # a wait that only an event ends
PATIENCE = 20.0  # for what happens at once unless something is broken


class Turns:
    """A turn that reports when it runs, and can be held in the middle of itself, or fail."""

    def __init__(self, delay: float = LONG, *, gated: bool = False, failures: int = 0) -> None:
        self.delay, self.gated, self.failures = delay, gated, failures
        self.count = 0
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.threads: set[str] = set()

    def __call__(self, now: float) -> float:
        assert now > 0
        self.count += 1
        self.threads.add(threading.current_thread().name)
        self.begun.release()
        if self.gated:
            assert self.gate.acquire(timeout=PATIENCE)
        if self.count <= self.failures:
            raise SystemExit
        return self.delay

    def wait(self) -> None:
        """Wait until a turn begins."""
        assert self.begun.acquire(timeout=PATIENCE)


def refuse(error: BaseException) -> None:
    """The `failed` of a loop that must not fail."""
    raise AssertionError(f"the loop was declared failed: {error!r}")


@pytest.fixture
def make() -> Iterator[Make]:
    """Make loops that are stopped after the test."""
    loops: list[Loop] = []

    def build(turn: Callable[[float], float], **callbacks: Callable[..., None]) -> Loop:
        loops.append(Loop("keeper", turn, failed=refuse, **callbacks))
        return loops[-1]

    yield build
    for loop in loops:
        assert loop.stop(PATIENCE)


def started(make: Make, turns: Turns, **callbacks: Callable[..., None]) -> Loop:
    """A loop in its first turn, or behind it."""
    loop = make(turns, **callbacks)
    loop.start()
    turns.wait()
    return loop


def test_it_turns_in_one_thread_with_its_name(make: Make) -> None:
    """A loop's thread is recognised in any dump, and does not keep the process alive; a second start does nothing."""
    turns = Turns(gated=True)
    loop = started(make, turns)
    loop.start()
    assert turns.threads == {"lanelog-keeper"}
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "lanelog-keeper"] == [True]
    turns.gate.release()


def test_zero_means_at_once(make: Make) -> None:
    """A turn that returns 0 is followed by the next without a wait."""
    turns = Turns(delay=0.0)
    make(turns).start()
    for _ in range(100):
        turns.wait()


@pytest.mark.parametrize("delay", [LONG, float("inf")])
def test_wake_cuts_a_wait_short(make: Make, delay: float) -> None:
    """A waiting loop turns at once when woken, also one that waits for that alone."""
    turns = Turns(delay)
    loop = started(make, turns)
    loop.wake()
    turns.wait()
    assert turns.count == 2


def test_a_wake_during_a_turn_is_not_lost(make: Make) -> None:
    """Work that arrives during a turn is done by a turn after it."""
    turns = Turns(gated=True)
    loop = started(make, turns)
    loop.wake()
    turns.gate.release()
    turns.wait()
    turns.gate.release()


@pytest.mark.parametrize("failures", [0, 1])
def test_stop_ends_a_long_wait(make: Make, failures: int) -> None:
    """Stopping waits neither for the delay to pass nor for a back-off."""
    turns = Turns(failures=failures)
    loop = started(make, turns)
    assert loop.stop(PATIENCE)
    assert turns.count == 1


def test_stop_lets_the_turn_finish(make: Make) -> None:
    """A stop with a time-out reports that the turn still runs, and the next one that it has ended.

    It does not start again before: two threads never run the same turn.
    """
    turns = Turns(gated=True)
    loop = started(make, turns)
    assert [loop.stop(0.0), loop.stop(-1.0)] == [False, False]
    assert (loop.running, loop.stopping) == (True, True)
    with pytest.raises(ClosedError, match="keeper is still stopping"):
        loop.start()
    turns.gate.release()
    assert loop.stop() is True
    assert turns.count == 1


def test_several_threads_may_stop_at_once(make: Make) -> None:
    """Every stop returns when the loop has ended."""
    turns = Turns(gated=True)
    loop = started(make, turns)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(loop.stop())) for _ in range(8)]
    for thread in threads:
        thread.start()
    turns.gate.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [True] * 8


def test_a_turn_may_stop_its_own_loop(make: Make) -> None:
    """A stop from within does not wait for itself."""
    answers: list[bool] = []
    ended = threading.Event()

    def turn(_: float) -> float:
        answers.append(loop.stop())
        return LONG

    loop = make(turn, finished=ended.set)
    loop.start()
    assert ended.wait(PATIENCE)
    assert loop.stop(PATIENCE)
    assert answers == [False]


def test_a_stopped_loop_can_start_again(make: Make) -> None:
    """A loop runs from its start until its thread has ended; one that does not run is stopped already."""
    turns = Turns()
    loop = make(turns)
    for _ in range(3):
        assert loop.stop()
        assert not loop.running
        loop.start()
        assert loop.running
        turns.wait()
        assert loop.stop(PATIENCE)
    assert turns.count == 3


def test_without_a_thread_nothing_remains(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the system has no thread left, start raises and stop has nothing to wait for."""
    loop = make(Turns())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError, "can't start new thread"))
        with pytest.raises(RuntimeError, match="can't start"):
            loop.start()
    assert loop.stop(PATIENCE)


def test_finished_runs_in_the_thread_when_it_ends(make: Make) -> None:
    """The thread closes what it owned, after its last turn."""
    turns = Turns()
    seen: list[tuple[str, int]] = []
    loop = started(make, turns, finished=lambda: seen.append((threading.current_thread().name, turns.count)))
    assert loop.stop(PATIENCE)
    assert seen == [("lanelog-keeper", 1)]


def test_a_failing_turn_is_repeated(make: Make) -> None:
    """An exception ends the turn, not the loop."""
    turns = Turns(failures=2)
    loop = started(make, turns)
    turns.wait()
    turns.wait()
    assert loop.running
