"""Repeats a whole transaction after an error that may pass: waits between attempts grow, are jittered, and end in time.

It never repeats a single statement, nor anything that is not retriable. Publisher, administration and loops call it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import Generic, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_random_exponential
from tenacity.nap import sleep_using_event

from lanelog.errors import DatabaseError

T = TypeVar("T")

# At random up to 20 ms, then up to 40, up to a second: those who collided must not meet again.
_WAIT = wait_random_exponential(multiplier=0.02, min=0.001, max=1.0)


def with_retries(
    op: Callable[[], T],
    *,
    deadline: float,
    what: str,
    give_up: Callable[[DatabaseError], bool] = lambda _error: False,
    stopping: Event | None = None,
) -> T:
    """Return `op()`, repeated on a retriable DatabaseError until `deadline` on the monotonic clock.

    Raises the last error, with a note saying how often `what` was tried. Once the outcome of any attempt was unknown,
    so is that of the whole. `give_up(error)` may end it after a failure; `stopping` cuts the waits short.
    """
    try:
        return op()
    except DatabaseError as exc:
        if not exc.retriable or give_up(exc):
            raise
        first = exc
    attempts = _Attempts(op, first)
    retrying = Retrying(
        retry=retry_if_exception(lambda exc: isinstance(exc, DatabaseError) and exc.retriable and not give_up(exc)),
        wait=_WAIT,
        stop=stop_before_delay(max(0.0, deadline - time.monotonic())),
        sleep=sleep_using_event(stopping or Event()),
        before_sleep=attempts.note,
        reraise=True,
    )
    try:
        return retrying(attempts)
    except DatabaseError as exc:
        exc.outcome_unknown = exc.outcome_unknown or attempts.unknown
        exc.add_note(f"{what}: tried {attempts.made} times")
        raise


def backoff(attempt: int) -> float:
    """Return the jittered wait in seconds after failure number `attempt`, counted from 1."""
    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = attempt
    return _WAIT(state)


class _Attempts(Generic[T]):
    """The operation, whose first attempt has been made already, and what is known about all of them."""

    def __init__(self, op: Callable[[], T], first: DatabaseError) -> None:
        self._op = op
        self._first: DatabaseError | None = first
        self.made = 1
        self.unknown = first.outcome_unknown

    def __call__(self) -> T:
        if self._first is not None:
            first, self._first = self._first, None
            raise first
        self.made += 1
        return self._op()

    def note(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self.unknown = self.unknown or bool(getattr(error, "outcome_unknown", False))
