"""Repeats a whole transaction after a retriable error, with growing random waits, until a deadline.

`translation` decides which error of the database is retriable. Never repeats after another one, and never repeats a
single statement of a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

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
    pause = stopping or Event()
    unknown = False
    attempts = 0
    while True:
        attempts += 1
        try:
            return op()
        except DatabaseError as exc:
            unknown = exc.outcome_unknown = exc.outcome_unknown or unknown
            wait = OF_TRANSACTIONS.after(attempts)
            if not exc.retriable or give_up(exc) or time.monotonic() + wait >= deadline:
                if attempts > 1:
                    exc.add_note(f"{what}: tried {attempts} times")
                raise
        pause.wait(wait)
