"""Repeating a transaction: what is repeated, for how long, and what is said at the end. How long things wait."""

import gc
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog._base.backoff import OF_TRANSACTIONS, Backoff
from lanelog._base.duty_cycle import DutyCycle
from lanelog._database.retries import with_retries
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError


class Failing:
    """An operation that fails with the given errors, one after the other, and then returns."""

    def __init__(self, *errors: LanelogError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@given(least=st.floats(0, 1), first=st.floats(1, 10), most=st.floats(10, 100), failures=st.integers(1, 10_000))
def test_waits_double_up_to_a_bound(least: float, first: float, most: float, failures: int) -> None:
    """The longest wait after n failures is the first one, doubled n - 1 times, and never above the most."""
    wait = Backoff(least=least, first=first, most=most).after(failures)
    assert least <= wait <= min(most, first * 2.0 ** min(failures - 1, 60))


@given(first=st.floats(0.001, 10), most=st.floats(10, 100), failures=st.integers(1, 40))
def test_each_wait_follows_from_the_one_before(first: float, most: float, failures: int) -> None:
    """A memory of the last wait and a count of the failures lead to the same wait."""
    backoff, wait = Backoff(first=first, most=most), 0.0
    for _ in range(failures):
        wait = backoff.following(wait)
    assert wait == pytest.approx(backoff.longest(failures))


@given(share=st.floats(0.001, 0.999), work=st.floats(0, 1000))
def test_work_and_its_rest_keep_to_their_share(share: float, work: float) -> None:
    """A duty cycle: of work and rest together, the work takes its share."""
    assert work == pytest.approx(share * (work + DutyCycle(share).rest(work)))


def passing() -> DatabaseError:
    return DatabaseError("deadlock", code=1213, retriable=True)


def soon() -> float:
    return time.monotonic() + 30


def test_what_may_pass_is_repeated() -> None:
    """The result of the first attempt that succeeds is returned."""
    op = Failing(passing(), passing(), passing())
    assert (with_retries(op, deadline=soon(), what="testing"), op.calls) == ("done", 4)


@pytest.mark.parametrize("error", [DatabaseError("no", code=1062), ConfigurationError("no")])
def test_what_will_not_pass_is_raised_at_once(error: LanelogError) -> None:
    """A lasting error is raised at once also after attempts that failed with passing ones."""
    for op in (Failing(error), Failing(passing(), error)):
        with pytest.raises(type(error), match="no"):
            with_retries(op, deadline=soon(), what="testing")


def test_the_deadline_ends_it_with_the_last_error() -> None:
    """At least one attempt is made, and the error says how often it was tried."""
    op = Failing(*(passing() for _ in range(1000)))
    with pytest.raises(DatabaseError) as caught:
        with_retries(op, deadline=time.monotonic() + 0.05, what="testing")
    assert caught.value.__notes__ == [f"testing: tried {op.calls} times"]
    op = Failing(passing(), passing())
    with pytest.raises(DatabaseError):
        with_retries(op, deadline=time.monotonic() - 1, what="testing")
    assert op.calls == 1


def test_an_unknown_outcome_stays_unknown() -> None:
    """If an earlier attempt may have committed, a later clear failure does not change that."""
    lost = DatabaseError("lost", code=2013, retriable=True, outcome_unknown=True)
    for errors in ((lost, DatabaseError("no", code=1)), (passing(), lost, DatabaseError("no", code=1))):
        with pytest.raises(DatabaseError) as caught:
            with_retries(Failing(*errors), deadline=soon(), what="testing")
        assert caught.value.outcome_unknown


def test_giving_up_is_asked_after_every_failure() -> None:
    """A database that was never reached is not waited for."""
    op = Failing(passing(), passing())
    with pytest.raises(DatabaseError):
        with_retries(op, deadline=soon(), what="testing", give_up=lambda error: op.calls == 2 and error.retriable)
    assert op.calls == 2


def test_stopping_cuts_the_waits_short() -> None:
    """A stopping thread does not wait for a back-off to end."""
    stopping = threading.Event()
    stopping.set()
    op = Failing(*(passing() for _ in range(200)))
    assert with_retries(op, deadline=soon() + 1000, what="testing", stopping=stopping) == "done"


def test_waits_grow_and_are_bounded() -> None:
    """The first is a matter of milliseconds, none is longer than a second."""
    assert all(0 < OF_TRANSACTIONS.after(1) <= 0.02 for _ in range(50))
    assert max(OF_TRANSACTIONS.after(3) for _ in range(200)) > 0.02
    assert all(OF_TRANSACTIONS.after(50) <= 1.0 for _ in range(50))


class Payload:
    """What a caller holds while it publishes."""


@pytest.mark.parametrize("errors", [1, 3])
def test_a_failure_is_freed_without_the_garbage_collector(errors: int) -> None:
    """Objects of the caller's frame, such as a message, are freed at once as well."""

    def fail() -> "weakref.ref[Payload]":
        payload = Payload()
        op = Failing(*(passing() for _ in range(errors - 1)), DatabaseError("no", code=1))
        with pytest.raises(DatabaseError, match="no"):
            with_retries(op, deadline=soon(), what="testing")
        return weakref.ref(payload)

    gc.collect()
    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()
