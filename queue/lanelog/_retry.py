"""The retry policy: tenacity's stop, wait and retry objects, asked about an attempt that the database remembers.

It never sleeps, repeats nothing and has no state: tenacity sees a RetryCallState rebuilt from the number of the attempt
and the time since the first. The engine calls `decide` once for each failure; `config` hands it on to users.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import tenacity
from attrs import Factory, field, frozen

from lanelog._checks import MAX_SECONDS, Duration, check_callable, integer, seconds
from lanelog._telemetry import describe
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute


ATTEMPTS = 5
"""How often a message is tried by default."""

_ATTEMPTS_MAX = 1_000_000
_NO_STOP = tenacity.stop_any()
"""The default of `stop`: never says stop, and can be told from one that was given."""


class _PastAttempt(tenacity.RetryCallState):
    """The state of a call whose earlier attempts were made by other threads, or in other processes."""

    def __init__(self, policy: RetryPolicy, *, attempt: int, since_first: float, error: BaseException | None) -> None:
        wait: Any = policy.wait  # for tenacity, which only keeps it for the objects to see, it returns seconds
        retrying = tenacity.Retrying(stop=policy.stop, wait=wait, retry=policy.retry)
        super().__init__(retrying, fn=None, args=(), kwargs={})
        self.attempt_number = max(attempt, 1)
        self._since_first = max(since_first, 0.0)
        self.outcome_timestamp = time.monotonic()
        self.start_time = self.outcome_timestamp - self._since_first
        # The rows do not say how much of the time was spent waiting: this is the most it can be.
        self.idle_for = self._since_first if self.attempt_number > 1 else 0.0
        # TryAgain is tenacity's own sign for "the function asked for another attempt".
        failure = tenacity.TryAgain() if error is None else error
        self.outcome = tenacity.Future.construct(self.attempt_number, failure, has_exception=True)

    @property
    def seconds_since_start(self) -> float:
        # Not the difference of the two timestamps, which is off by a rounding error: stop_after_delay compares with >=.
        return self._since_first


def _object(_: Any, attribute: Attribute[Any], value: object) -> None:
    what = f"RetryPolicy's {attribute.name}"
    if isinstance(value, type):
        raise ConfigurationError(f"{what} must be an object, not a class: write {value.__name__}(…)")
    check_callable(what, value)


def _attempts(policy: RetryPolicy) -> int | None:
    return ATTEMPTS if policy.stop is _NO_STOP else None


@frozen(kw_only=True)
class RetryPolicy:
    """When a failed message is tried again, and when it is given up: any of tenacity's objects, or callables like them.

    >>> RetryPolicy(stop=stop_after_attempt(10) | stop_after_delay(3600), wait=wait_fixed(1) + wait_random(0, 2))

    `max_attempts`, or `retry=5` at subscribe, is the short form of a `stop`; with both, the first one to be reached
    counts. By default: five attempts (as many as `stop` allows, where one is given), after any exception, waiting 1, 2,
    4 and 8 s plus up to a second of jitter. The three objects are shared by all threads; a wait of one's own returns
    seconds or a timedelta. Raises ConfigurationError.
    """

    stop: Callable[[tenacity.RetryCallState], bool] = field(default=_NO_STOP, validator=_object)
    wait: Callable[[tenacity.RetryCallState], Duration] = field(
        factory=lambda: tenacity.wait_exponential_jitter(1, 60), validator=_object
    )
    # BaseException: a handler that calls sys.exit() has failed like any other.
    retry: Callable[[tenacity.RetryCallState], bool] = field(
        factory=lambda: tenacity.retry_if_exception_type(BaseException), validator=_object
    )
    # Not the decorator for a default, which pyright does not know: it would take the field for one that must be given.
    max_attempts: int | None = field(
        default=Factory(_attempts, takes_self=True), validator=integer(least=1, most=_ATTEMPTS_MAX, optional=True)
    )
    """The most attempts, the first one included; None: `stop` alone decides."""

    def decide(self, *, attempt: int, since_first: float, error: BaseException | None) -> float | None:
        """Return the seconds to wait before the next attempt, or None to give the message up.

        `attempt` is the number of the attempt that failed, from 1; `since_first` the seconds since the first one began.
        Without an `error` (a nack, a time-out) there is nothing for `retry` to judge: only `stop` and `wait` are asked,
        as tenacity does for TryAgain. Whatever the three objects raise, and a wait that is no number of seconds,
        becomes a ConfigurationError that names the object; `stop` is honoured all the same.
        """
        state = _PastAttempt(self, attempt=attempt, since_first=since_first, error=error)
        fault: ConfigurationError | None = None
        # tenacity's order: retry, wait, stop. stop_before_delay looks at the wait.
        try:
            explicit = error is None or isinstance(error, tenacity.TryAgain)
            if not explicit and not _ask("retry", self.retry, state):
                return None
            state.upcoming_sleep = _seconds(self.wait, _ask("wait", self.wait, state))
        except ConfigurationError as exc:
            fault = exc
        if self._stops(state):
            return None
        if fault is not None:
            raise fault
        return state.upcoming_sleep

    def would_retry(self, attempt: int, since_first: float) -> bool:
        """Whether `stop` allows another attempt after this one; whatever its error, `retry` is not asked.

        A stop or wait that raises counts as one that allows it: `decide` will say what is wrong with it.
        """
        state = _PastAttempt(self, attempt=attempt, since_first=since_first, error=None)
        try:
            state.upcoming_sleep = _seconds(self.wait, _ask("wait", self.wait, state))
        except ConfigurationError:
            state.upcoming_sleep = 0.0
        try:
            return not self._stops(state)
        except ConfigurationError:
            return True

    def _stops(self, state: tenacity.RetryCallState) -> bool:
        if self.max_attempts is not None and state.attempt_number >= self.max_attempts:
            return True
        return bool(_ask("stop", self.stop, state))


def _ask(part: str, strategy: Callable[[tenacity.RetryCallState], Any], state: tenacity.RetryCallState) -> Any:
    try:
        answer = strategy(state)
        return answer if part == "wait" else bool(answer)
    except BaseException as exc:  # an application's object must not end the thread that asks it
        raise ConfigurationError(f"the retry policy's {part}, {_label(strategy)}, raised {describe(exc)}") from exc


def _seconds(strategy: object, value: Any) -> float:
    wait: Any = seconds(value)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or math.isnan(wait) or wait < 0:
        raise ConfigurationError(f"the retry policy's wait, {_label(strategy)}, returned {value!r} instead of seconds")
    # tenacity's own upper bound, half of sys.maxsize, is more than the columns hold.
    return float(min(wait, MAX_SECONDS))


def _label(strategy: object) -> str:
    return getattr(strategy, "__qualname__", None) or type(strategy).__name__
