import logging
import math
from collections.abc import Callable, Sequence

import pytest

from lanelog._base.backoff import OF_LOOPS
from lanelog._process.loop import LOG_AGAIN, Loop
from lanelog.errors import ConfigurationError, DatabaseError

LONG = 3600.0  # the wait after a success
LOST = DatabaseError("gone away", code=2006, retriable=True)

# The turns are taken by the test itself, without a thread.


def refuse(error: BaseException) -> None:
    """The `failed` of a loop that must not fail."""
    raise AssertionError(f"the loop was declared failed: {error!r}")


def make(
    turn: Callable[[float], float],
    failed: Callable[[BaseException], None] = refuse,
    *,
    patience: Callable[[BaseException], float] | None = None,
) -> Loop:
    """A loop that nobody starts."""
    if patience is None:
        return Loop("keeper", turn, failed=failed)
    return Loop("keeper", turn, failed=failed, patience=patience)


def failing(outcomes: Sequence[BaseException | None]) -> Callable[[float], float]:
    """A turn with these outcomes, then successes."""
    remaining = iter(outcomes)

    def turn(_: float) -> float:
        error = next(remaining, None)
        if error is not None:
            raise error
        return LONG

    return turn


def steps(loop: Loop, count: int) -> list[float]:
    """Take so many turns and return the delays."""
    return [loop.step(float(now)) for now in range(1, count + 1)]


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and event of what was logged."""
    return [(record.levelname, record.getMessage().split()[0]) for record in caplog.records]


def test_five_failures_in_a_row_are_reported_once() -> None:
    """`failed` gets the fifth error, and no later one until a turn succeeds: a bug, or of the tree and final."""
    heard: list[BaseException] = []
    errors = [(ConfigurationError if number % 2 else ValueError)(str(number)) for number in range(12)]
    loop = make(failing([*errors, None, *errors[:5]]), failed=heard.append)
    steps(loop, 4)
    assert heard == []
    steps(loop, 8)
    assert heard == [errors[4]]
    steps(loop, 6)
    assert heard == [errors[4], errors[4]]


def test_a_success_in_between_starts_the_count_anew() -> None:
    """Four failures, a success and four failures are no five in a row."""
    outcomes = [*[ValueError("broken")] * 4, None, *[ValueError("broken")] * 4]
    steps(make(failing(outcomes), failed=refuse), len(outcomes))


def test_a_retriable_error_never_counts(caplog: pytest.LogCaptureFixture) -> None:
    """A database that is away for an hour does not fail the loop; it neither adds to the count nor resets it."""
    heard: list[BaseException] = []
    loop = make(failing([LOST] * 50 + [ValueError("broken")] * 4 + [LOST] + [KeyError("broken")]), failed=heard.append)
    steps(loop, 55)
    assert heard == []
    steps(loop, 1)
    assert [type(error) for error in heard] == [KeyError]
    assert ("ERROR", "loop.callback_failed") not in messages(caplog)


def test_failure_and_recovery_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    """Fifty failures of one kind are one event, and so is the recovery."""
    caplog.set_level(logging.INFO, logger="lanelog")
    loop = make(failing([LOST] * 50 + [None, None, LOST]))
    steps(loop, 53)
    expected = [("WARNING", "loop.failed"), ("INFO", "loop.recovered"), ("WARNING", "loop.failed")]
    assert messages(caplog) == expected
    assert "loop=keeper failures=50" in caplog.records[1].getMessage()


def test_an_outage_is_one_event_whatever_the_database_says(caplog: pytest.LogCaptureFixture) -> None:
    """One more event follows each minute, with the reason at that time and the length of the outage."""
    full = DatabaseError("too many connections", code=1040, retriable=True)
    loop = make(failing([LOST, full] * 50 + [None, LOST]))
    steps(loop, 102)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.rpartition(" ")[2] for text in told] == ["seconds=0", f"seconds={LOG_AGAIN:g}", "seconds=0"]
    assert "gone away" in told[0]


def test_another_kind_of_fault_is_another_event(caplog: pytest.LogCaptureFixture) -> None:
    """A new cause is logged though the loop was failing already; a known one that returns is not.

    A lost connection needs no stack; what is unexpected does.
    """
    denied = ConfigurationError("denied")
    steps(make(failing([LOST, denied, LOST, denied, LOST, ValueError("bug")])), 6)
    assert messages(caplog) == [("WARNING", "loop.failed"), ("ERROR", "loop.failed"), ("ERROR", "loop.failed")]
    assert [record.exc_info is not None for record in caplog.records] == [False, True, True]


def test_what_may_last_for_a_while_fails_the_loop_after_that() -> None:
    """Once. A success, or an outage in between, starts the time anew: nobody knows what it was like meanwhile."""
    missing, heard = DatabaseError("no such table", code=1146), list[BaseException]()
    outcomes = [*[missing] * 8, LOST, *[missing] * 8, None, *[missing] * 14]
    loop = make(failing(outcomes), failed=heard.append, patience=lambda error: 10.0 if error is missing else math.inf)
    steps(loop, 18 + 10)
    assert heard == []
    for now in range(29, 33):
        loop.step(float(now))
    assert heard == [missing]


def test_back_off_grows_within_its_bounds() -> None:
    """The wait after failures is random, at least 0.05 and at most 2 seconds, and first short."""
    assert (OF_LOOPS.least, OF_LOOPS.most) == (0.05, 2.0)
    assert all(OF_LOOPS.least <= OF_LOOPS.after(1) <= 2 * OF_LOOPS.least for _ in range(100))
    for failures in (1, 2, 5, 10, 1_000_000):
        assert all(OF_LOOPS.least <= OF_LOOPS.after(failures) <= OF_LOOPS.most for _ in range(100))
    assert len({OF_LOOPS.after(8) for _ in range(10)}) > 1
    loop = make(failing([LOST, None, LOST, LOST, LOST]))
    first, second, *_ = steps(loop, 5)
    assert OF_LOOPS.least <= first <= 2 * OF_LOOPS.least
    assert (second, repr(loop)) == (LONG, "<Loop keeper stopped, 3 failures in a row>")


def test_a_failing_listener_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """`failed` and `finished` may raise; the event says which did."""
    turn = failing([ValueError("broken")] * 5)
    loop = Loop("keeper", turn, failed=refuse, finished=lambda: refuse(ValueError("closed")))
    steps(loop, 5)
    loop.start()
    assert loop.stop()
    called = [record.getMessage() for record in caplog.records if "callback_failed" in record.getMessage()]
    assert ["callback=failed" in text for text in called] == [True, False]
    assert "callback=finished" in called[1]
