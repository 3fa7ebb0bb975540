import functools
import math
import random
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from lanelog.config import MAX_SECONDS, RetryPolicy
from lanelog.errors import ConfigurationError

SECONDS = st.floats(0.0, 1e6)
STOPS = st.recursive(
    st.builds(tenacity.stop_after_attempt, st.integers(0, 30))
    | st.builds(tenacity.stop_after_delay, SECONDS)
    | st.builds(tenacity.stop_before_delay, SECONDS)
    | st.just(tenacity.stop_never),
    lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
    max_leaves=4,
)
WAITS = st.recursive(
    st.builds(tenacity.wait_fixed, SECONDS)
    | st.builds(tenacity.wait_none)
    | st.builds(tenacity.wait_exponential, multiplier=st.floats(0.01, 10), max=SECONDS)
    | st.builds(tenacity.wait_exponential_jitter, max=SECONDS, jitter=st.floats(0, 10))
    | st.builds(tenacity.wait_random_exponential, multiplier=st.floats(0.01, 10), max=SECONDS)
    | st.builds(tenacity.wait_random, min=st.just(0), max=SECONDS)
    | st.builds(tenacity.wait_incrementing, start=SECONDS, increment=SECONDS)
    | st.just(tenacity.wait_exception(lambda error: float(len(str(error))))),
    lambda inner: (
        st.builds(lambda a, b: a + b, inner, inner) | st.lists(inner, min_size=1).map(lambda w: tenacity.wait_chain(*w))
    ),
    max_leaves=4,
)
RETRIES = st.recursive(
    st.sampled_from(
        [
            tenacity.retry_always,
            tenacity.retry_never,
            tenacity.retry_if_exception_type(ValueError),
            tenacity.retry_if_not_exception_type(LookupError),
            tenacity.retry_if_exception_message(match="b"),
            tenacity.retry_if_exception_cause_type(OSError),
            tenacity.retry_if_exception(lambda error: len(str(error)) > 2),
        ]
    ),
    lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
    max_leaves=4,
)
ERRORS = st.sampled_from(
    [ValueError("bad"), KeyError("k"), OSError("b"), SystemExit(), tenacity.TryAgain(), Exception("")]
)


def tenacity_itself(policy: RetryPolicy, attempt: int, since_first: float, error: BaseException) -> float | None:
    """What tenacity's own loop does after this attempt: the seconds it sleeps, None if it gives up."""
    retrying = tenacity.Retrying(stop=policy.stop, wait=policy.wait, retry=policy.retry)
    retrying.begin()
    state = tenacity.RetryCallState(retrying, fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    state.set_exception((type(error), error, None))
    # Zero as the start makes the difference exact.
    state.start_time, state.outcome_timestamp = 0.0, since_first
    try:
        done = retrying.iter(state)
    except (tenacity.RetryError, type(error)):
        return None
    assert isinstance(done, tenacity.DoSleep)
    return float(done)


@given(
    policy=st.builds(RetryPolicy, stop=STOPS, wait=WAITS, retry=RETRIES),
    attempt=st.integers(1, 100),
    since_first=SECONDS,
    error=ERRORS,
    seed=st.integers(),
)
def test_it_decides_as_tenacity_does(
    policy: RetryPolicy, attempt: int, since_first: float, error: BaseException, seed: int
) -> None:
    """For any combination of tenacity's objects and any failure, the answer is that of tenacity's own loop.

    A nack or a time-out has no exception to judge: stop and wait decide, as for TryAgain, and would_retry agrees.
    """

    def expected(error: BaseException) -> float | None:
        random.seed(seed)
        wait = tenacity_itself(policy, attempt, since_first, error)
        return None if wait is None else min(wait, MAX_SECONDS)

    for raised, judged in ((error, error), (None, tenacity.TryAgain())):
        wait = expected(judged)
        random.seed(seed)
        assert policy.decide(attempt=attempt, since_first=since_first, error=raised) == wait
    random.seed(seed)
    assert policy.would_retry(attempt, since_first) == (wait is not None)


def test_a_whole_life_under_the_default_policy() -> None:
    """Five attempts with waits of about 1, 2, 4 and 8 seconds, as tenacity makes them; no wait exceeds a minute."""
    slept: list[float] = []

    def fail() -> None:
        raise ValueError("bad")

    random.seed(7)
    policy = RetryPolicy()
    with pytest.raises(tenacity.RetryError):
        tenacity.Retrying(
            stop=tenacity.stop_after_attempt(5), wait=policy.wait, retry=policy.retry, sleep=slept.append
        )(fail)
    random.seed(7)
    decided = [policy.decide(attempt=attempt, since_first=0.0, error=ValueError("bad")) for attempt in range(1, 6)]
    assert decided == [*slept, None]
    assert [math.floor(wait) for wait in slept] == pytest.approx([1, 2, 4, 8], abs=1)
    for late in (10, 1_000_000):
        assert RetryPolicy(stop=tenacity.stop_never).decide(attempt=late, since_first=0.0, error=None) == 60


def gives_up_at(policy: RetryPolicy) -> int | None:
    """The first attempt after which a policy gives up, if that is among the first twenty."""
    given_up = (n for n in range(1, 21) if policy.decide(attempt=n, since_first=0.0, error=None) is None)
    return next(given_up, None)


def test_a_number_of_attempts_is_a_policy() -> None:
    """Alone it replaces the default of five; with a `stop`, the first to be reached counts; so after `evolve`."""
    assert gives_up_at(RetryPolicy()) == 5
    for number in (7, 1, None):
        assert gives_up_at(RetryPolicy(max_attempts=number)) == number
    assert gives_up_at(RetryPolicy(stop=tenacity.stop_never)) is None
    for stop, most, last in ((9, None, 9), (9, 3, 3), (3, 9, 3)):
        other = {} if most is None else {"max_attempts": most}
        assert gives_up_at(RetryPolicy(stop=tenacity.stop_after_attempt(stop), **other)) == last
    assert gives_up_at(attrs.evolve(RetryPolicy(), max_attempts=9)) == 9
    assert RetryPolicy(max_attempts=2).would_retry(1, 0.0) is True
    assert RetryPolicy(max_attempts=2, stop=exploding).would_retry(2, 0.0) is False


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "5", 10**7])
def test_a_number_of_attempts_must_be_one(value: Any) -> None:
    """At least the first attempt is made."""
    with pytest.raises(ConfigurationError, match="max_attempts must be"):
        RetryPolicy(max_attempts=value)


def test_a_wait_may_be_a_timedelta() -> None:
    """A wait may be a timedelta, like every duration."""
    policy = RetryPolicy(wait=lambda _: timedelta(seconds=1.5))
    assert policy.decide(attempt=1, since_first=0.0, error=None) == 1.5


@pytest.mark.parametrize("error", [ValueError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_by_default_any_exception_is_a_failure_like_others(error: BaseException) -> None:
    """A handler that calls sys.exit() is tried again."""
    assert RetryPolicy().decide(attempt=1, since_first=0.0, error=error) is not None


@given(SECONDS)
def test_the_time_since_the_first_attempt_is_exact(since_first: float) -> None:
    """The objects see the time that the rows say, whatever the monotonic clock shows and however it rounds."""
    seen: list[float | None] = []

    def wait(state: tenacity.RetryCallState) -> float:
        seen.append(state.seconds_since_start)
        return 0.0

    RetryPolicy(wait=wait).decide(attempt=1, since_first=since_first, error=None)
    assert seen == [since_first]


def test_custom_callables_see_a_real_state() -> None:
    """Plain functions are taken in place of tenacity's objects, and get everything that tenacity would give them."""
    error = ValueError("bad")
    seen: list[tenacity.RetryCallState] = []

    def wait(state: tenacity.RetryCallState) -> float:
        seen.append(state)
        return 2

    policy = RetryPolicy(stop=lambda state: state.attempt_number >= 3, wait=wait, retry=lambda _: True)
    before = time.monotonic()
    assert [policy.decide(attempt=number, since_first=30.0, error=error) for number in (2, 3)] == [2.0, None]
    state = seen[0]
    assert (state.attempt_number, state.seconds_since_start, state.idle_for) == (2, 30.0, 30.0)
    assert (state.outcome.failed, state.outcome.exception(), state.outcome.attempt_number) == (True, error, 2)
    assert before <= state.outcome_timestamp <= time.monotonic()
    assert state.outcome_timestamp - state.start_time == pytest.approx(30.0)
    assert isinstance(state.retry_object, tenacity.Retrying)
    assert state.retry_object.wait is wait
    assert (state.fn, state.args, state.kwargs) == (None, (), {})
    assert "attempt #2" in repr(state)


def test_a_clock_that_went_back_is_no_negative_time() -> None:
    """Times and attempts below their least are taken as the least."""
    policy = RetryPolicy(stop=tenacity.stop_after_delay(0), wait=tenacity.wait_none())
    assert policy.decide(attempt=0, since_first=-5.0, error=None) is None
    assert RetryPolicy(wait=tenacity.wait_none()).decide(attempt=-1, since_first=-5.0, error=None) == 0.0


@pytest.mark.parametrize("wait", [tenacity.wait_exponential(), lambda _: sys.maxsize, lambda _: math.inf])
def test_an_endless_wait_is_bounded(wait: Any) -> None:
    """The default maximum of tenacity is larger than a column: the wait is cut to a hundred years."""
    policy = RetryPolicy(stop=tenacity.stop_never, wait=wait)
    assert policy.decide(attempt=200, since_first=0.0, error=None) == MAX_SECONDS


def exploding(state: tenacity.RetryCallState) -> Any:
    """A user's object with a bug."""
    raise LookupError(f"no setting for attempt {state.attempt_number}")


def exiting(_: tenacity.RetryCallState) -> Any:
    """A user's object that does what it must not."""
    raise SystemExit(1)


@pytest.mark.parametrize("part", ["stop", "wait", "retry"])
@pytest.mark.parametrize("broken", [exploding, exiting])
def test_what_the_objects_raise_is_named(part: str, broken: Callable[[tenacity.RetryCallState], Any]) -> None:
    """A bug in a policy becomes one error of the library that names the object and keeps the cause."""
    policy = attrs.evolve(RetryPolicy(), **{part: broken})
    with pytest.raises(ConfigurationError, match=f"retry policy's {part}, {broken.__name__}, raised") as caught:
        policy.decide(attempt=1, since_first=0.0, error=ValueError("bad"))
    assert isinstance(caught.value.__cause__, LookupError | SystemExit)


class Unshowable:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [None, -1, -0.5, math.nan, True, "5", -math.inf, -(10**5000), Unshowable()],
    ids=lambda value: type(value).__name__,
)
def test_a_wait_must_be_seconds(value: Any) -> None:
    """A wait that is no number of seconds is refused, and the error has the value."""
    with pytest.raises(ConfigurationError, match="wait, wait_exception, returned"):
        RetryPolicy(wait=tenacity.wait_exception(lambda _: value)).decide(attempt=1, since_first=0.0, error=None)


@pytest.mark.parametrize(
    "value", [10**400, 10**5000, 2**63, 1e300, math.inf], ids=["400 digits", "5,000 digits", "64 bits", "float", "inf"]
)
def test_a_wait_beyond_every_bound_is_the_longest_one(value: float) -> None:
    """An int that no float can hold is the longest wait, too."""
    policy = RetryPolicy(wait=lambda _: value)  # type: ignore[arg-type]
    assert policy.decide(attempt=1, since_first=0.0, error=None) == MAX_SECONDS
    assert policy.would_retry(1, 0.0)


@pytest.mark.parametrize("part", ["wait", "retry"])
def test_stop_is_honoured_though_another_part_is_broken(part: str) -> None:
    """A bug in the wait does not make a message immortal."""
    policy = attrs.evolve(RetryPolicy(), **{part: exploding})
    assert policy.decide(attempt=5, since_first=0.0, error=ValueError("bad")) is None


def test_would_retry_never_raises() -> None:
    """A broken stop counts as one that allows another attempt, a broken wait as none."""
    assert RetryPolicy(stop=exploding).would_retry(1, 0.0) is True
    assert [RetryPolicy(wait=exploding).would_retry(attempt, 0.0) for attempt in (4, 5)] == [True, False]


async def deferred(_: tenacity.RetryCallState) -> bool:
    """Always true as a condition: a coroutine object."""
    return False


@pytest.mark.parametrize("part", ["stop", "wait", "retry"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (5, "must be callable, not int"),
        (None, "must be callable, not NoneType"),
        (tenacity.wait_none, r"not a class: write wait_none\("),
        (deferred, "must be a plain function"),
        (functools.partial(deferred), "must be a plain function"),
    ],
)
def test_wrong_parts_are_refused_at_once(part: str, value: Any, reason: str) -> None:
    """The mistake is found when the policy is written, not when the first message fails."""
    with pytest.raises(ConfigurationError, match=f"RetryPolicy's {part} .*{reason}"):
        RetryPolicy(**{part: value})


def test_policies_are_values() -> None:
    """A policy cannot be changed, and takes its parts by name only."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        RetryPolicy().stop = tenacity.stop_never  # type: ignore[misc]
    with pytest.raises(TypeError):
        RetryPolicy(tenacity.stop_never)  # type: ignore[call-arg]
    first = RetryPolicy(stop=tenacity.stop_never)
    assert attrs.evolve(first) == first
