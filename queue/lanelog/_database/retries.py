"""Repeats a whole transaction after a retriable error, with growing random waits, until a deadline.

tenacity repeats it; `translation` decides which error of the database is retriable. Never repeats after another error,
and never repeats a single statement of a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import tenacity

from lanelog._backoff import OF_TRANSACTIONS
from lanelog.errors import DatabaseError

T = TypeVar("T")


def with_retries(
    op: Callable[[], T],
    *,
    deadline: float,
    what: str,
    give_up: Callable[[DatabaseError], bool] = lambda _error: False,
    stopping: Event | None = None,
) -> T:
    """Return `op()`, repeated on a retriable DatabaseError until `deadline` on the monotonic clock.

    Raises the last error, with a note that counts the attempts at `what`. If the outcome of one attempt was unknown,
    the outcome of the whole is. `give_up(error)` may end it after a failure. `stopping` cuts the waits short.
    """
    try:
        return op()  # outside tenacity, because nearly every transaction succeeds at once
    except DatabaseError as exc:
        failed = [exc]
        unknown = exc.outcome_unknown

    def attempt() -> T:
        """Fail as the first attempt did, then repeat: tenacity counts and waits from the first failure on."""
        nonlocal unknown
        if failed:
            raise failed.pop()
        try:
            return op()
        except DatabaseError as exc:
            unknown = exc.outcome_unknown = exc.outcome_unknown or unknown
            raise

    repeating = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda exc: isinstance(exc, DatabaseError) and exc.retriable and not give_up(exc)
        ),
        wait=lambda state: OF_TRANSACTIONS.after(state.attempt_number),
        stop=tenacity.stop_before_delay(deadline - time.monotonic()),
        sleep=tenacity.sleep_using_event(stopping or Event()),
        reraise=True,
    )
    try:
        return repeating(attempt)
    except DatabaseError as exc:
        attempts = repeating.statistics["attempt_number"]
        if attempts > 1:
            exc.add_note(f"{what}: tried {attempts} times")
        raise
