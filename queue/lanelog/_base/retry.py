"""The retry policy: it decides when the next attempt at a message is, or that there is none.

tenacity's stop, wait and retry objects decide about an attempt that the database remembers. Never sleeps, repeats
nothing and has no state. tenacity sees a RetryCallState that is built from the number of the attempt and the time since
the first one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import tenacity
from attrs import Factory, field, frozen

from lanelog._base.checks import MAX_SECONDS, Duration, check_callable, integer, seconds
from lanelog._base.text import describe
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute


ATTEMPTS = 5
"""The most attempts by default."""

_ATTEMPTS_MAX = 1_000_000
_NO_STOP = tenacity.stop_any()
"""The default of `stop`. It never stops, and differs from every object that a user gives."""


class _EndedAttempt(tenacity.RetryCallState):
    """The state of a call whose earlier attempts ran in other threads or processes."""

    def __init__(self, policy: RetryPolicy, *, attempt: int, since_first: float, error: BaseException | None) -> None:
        wait: Any = policy.wait  # by tenacity's types it returns seconds only; tenacity itself never calls it here
        retrying = tenacity.Retrying(stop=policy.stop, wait=wait, retry=policy.retry)
        super().__init__(retrying, fn=None, args=(), kwargs={})
        self.attempt_number = max(attempt, 1)
        self._since_first = max(since_first, 0.0)
        self.outcome_timestamp = time.monotonic()
        self.start_time = self.outcome_timestamp - self._since_first
        # The rows do not say how much of the time was a wait. This is the most that it can be.
        self.idle_for = self._since_first if self.attempt_number > 1 else 0.0
        # TryAgain is tenacity's sign that the function has asked for another attempt.
        failure = tenacity.TryAgain() if error is None else error
        self.outcome = tenacity.Future.construct(self.attempt_number, failure, has_exception=True)

    @property
    def seconds_since_start(self) -> float:
        # The difference of the two timestamps has a rounding error, and stop_after_delay compares with >=.
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
    """When a failed message is tried again, and when it is dead-lettered.

    Takes tenacity's objects, or callables like them.

    All threads share the objects. `retry=5` at `subscribe` is short for `RetryPolicy(max_attempts=5)`.

    Args:
        stop: Whether no further attempt follows. Default: never; `max_attempts` decides.
        wait: The wait before the next attempt, in seconds or as a timedelta. Default: 1, 2, 4, 8 s and so on, plus up
            to a second of jitter, 60 s at most.
        retry: Whether to try again after this exception. Default: after any.
        max_attempts: The most attempts, the first one included. Default: 5, or None if there is a `stop`. With both,
            the first limit that is reached counts.

    Raises:
        ConfigurationError: An argument is not valid.

    Example::

        RetryPolicy(stop=stop_after_attempt(10) | stop_after_delay(3600), wait=wait_fixed(1) + wait_random(0, 2))
    """

    stop: Callable[[tenacity.RetryCallState], bool] = field(default=_NO_STOP, validator=_object)
    wait: Callable[[tenacity.RetryCallState], Duration] = field(
        factory=lambda: tenacity.wait_exponential_jitter(1, 60), validator=_object
    )
    # BaseException: a handler that calls sys.exit() has failed, too.
    retry: Callable[[tenacity.RetryCallState], bool] = field(
        factory=lambda: tenacity.retry_if_exception_type(BaseException), validator=_object
    )
    # Not attrs' decorator for a default: pyright does not know it, and would take the field for a required one.
    max_attempts: int | None = field(
        default=Factory(_attempts, takes_self=True), validator=integer(least=1, most=_ATTEMPTS_MAX, optional=True)
    )
    """The most attempts, the first one included. None: `stop` alone decides."""

    def decide(self, *, attempt: int, since_first: float, error: BaseException | None) -> float | None:
        """Return the seconds to wait before the next attempt. None: no attempt follows.

        Args:
            attempt: The number of the attempt that failed, from 1.
            since_first: Seconds since the first attempt began.
            error: The exception. None after a nack or `Retry`: there is nothing to judge, and `retry` is not asked.

        Raises:
            ConfigurationError: One of the objects raised, or the wait is no number of seconds, and `stop` does not give
                the message up. The error names the object.
        """
        state = _EndedAttempt(self, attempt=attempt, since_first=since_first, error=error)
        fault: ConfigurationError | None = None
        # tenacity's order: retry, wait, stop. stop_before_delay reads the wait.
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
        """Whether `stop` allows another attempt after this one. `retry` is not asked, because there is no error yet.

        A `stop` or `wait` that raises allows it: `decide` reports the fault later.
        """
        state = _EndedAttempt(self, attempt=attempt, since_first=since_first, error=None)
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
    except BaseException as exc:  # an application's object must not end our thread
        raise ConfigurationError(f"the retry policy's {part}, {_label(strategy)}, raised {describe(exc)}") from exc


def _seconds(strategy: object, value: Any) -> float:
    wait: Any = seconds(value)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:  # NaN is not
        raise ConfigurationError(
            f"the retry policy's wait, {_label(strategy)}, returned {_shown(value)} instead of seconds"
        )
    # An int may be beyond any float, and tenacity's own upper bound, half of sys.maxsize, beyond the columns.
    return float(min(wait, MAX_SECONDS))


def _shown(value: object) -> str:
    """Show what an application's object returned: its repr, or its type if that fails, as that of a very large int."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as `_ask`
        return f"<{type(value).__name__}>"


def _label(strategy: object) -> str:
    return getattr(strategy, "__qualname__", None) or type(strategy).__name__
