"""Repeats a whole transaction after a retriable error, with growing random waits, until a deadline.

tenacity repeats it; `translation` decides which error of the database is retriable. Never repeats after another error,
and never repeats a single statement of a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar, cast

import tenacity

from lanelog._base.backoff import OF_TRANSACTIONS
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
        failed = [exc]  # the failure of the last attempt, if it was one
    first, unknown = True, failed[0].outcome_unknown

    def attempt() -> T | None:
        """Repeat, but for the first call: tenacity counts and waits from the first failure on.

        A failure is kept and not raised: tenacity would hold it in a frame that its traceback holds. That circle would
        keep what the failed transaction had (a payload, a message) until a collection.
        """
        nonlocal first, unknown
        if first:
            first = False
            return None
        failed.clear()
        try:
            return op()
        except DatabaseError as exc:
            unknown = exc.outcome_unknown = exc.outcome_unknown or unknown
            failed.append(exc)
            return None

    repeating = tenacity.Retrying(
        retry=lambda _state: bool(failed) and failed[0].retriable and not give_up(failed[0]),
        wait=lambda state: OF_TRANSACTIONS.after(state.attempt_number),
        stop=tenacity.stop_before_delay(deadline - time.monotonic()),
        sleep=tenacity.sleep_using_event(stopping or Event()),
        retry_error_callback=lambda _state: None,
    )
    try:
        result = repeating(attempt)
        if not failed:
            return cast("T", result)
        if (attempts := repeating.statistics["attempt_number"]) > 1:
            failed[0].add_note(f"{what}: tried {attempts} times")
        raise failed[0]
    finally:
        failed.clear()  # this frame is in its traceback
