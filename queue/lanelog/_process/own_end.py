"""The end of this process by itself, because handlers hang: their attempts count, and all others go back uncounted.

Owns the list of this process's subscriptions, the order of the last steps, their bounds and the exit status. Never
judges a handler: each subscription does. All clients of a process end together.

Order: each subscription is asked once more what hangs, because a handler may end at this very moment. Then memory gives
back what others have, and settlers and keepers write that: delivery rows, watermarks, leases. The lane of a handler
that hangs is not given back, and its mark stays. So its message counts an attempt when the process is gone, as after a
crash. Its handler never runs beside its successor, and its open transaction ends with its connection.

If the process dies before that is written, or the server does not answer within `WRITES`: what was not written counts
an attempt, as after a crash. If a lease was lost meanwhile: the fence refuses the write, and the next owner decides. If
the application's logging hangs: the last lines are missing. The process ends in any of these cases.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakSet

from lanelog._facts.engine import worker as facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STATUS: Final = 3
"""Exit status of a process that ended because handlers hung."""
WRITES: Final = 5.0
"""The longest wait, in seconds, until what goes back is written."""
LOGS: Final = 2.0
"""The longest time, in seconds, for the last lines of the log. It begins when all is written, or when `WRITES` end."""
_POLL_SECONDS: Final = 0.02
"""Seconds between two checks whether all is written."""

_T = TypeVar("_T")


class Participant(Protocol):
    """A subscription, as the end of its process sees it."""

    def hangs(self) -> bool:
        """Find handlers because of which the process has to end, and remember them."""

    def give_back(self) -> None:
        """Let nothing begin any more, and give back, in memory, all messages but theirs."""

    def given_back(self) -> bool:
        """Whether that is written."""

    def report(self) -> None:
        """Log these handlers, and what was given back."""


_subscriptions: WeakSet[Participant] = WeakSet()
_joining = threading.Lock()
_ending = threading.Lock()


def join(subscription: Participant) -> None:
    """Let a subscription take part in the end of this process."""
    with _joining:
        _subscriptions.add(subscription)


def end_if_hung() -> None:
    """End this process if a handler hangs. Return if none does. Any thread may call it, but none that runs handlers."""
    with _ending:  # who comes second waits here for the end
        with _joining:
            subscriptions = list(_subscriptions)
        if [each for each in subscriptions if each.hangs()]:  # ask each one
            _end(subscriptions)


def _end(subscriptions: Sequence[Participant]) -> None:
    """Take the last steps. Does not return."""
    began = time.monotonic()
    try:
        # Whatever hangs below, as a log handler whose lock a handler holds.
        logs = threading.Event()
        threading.Thread(target=_end_without, args=(logs,), name="lanelog-ends", daemon=True).start()
        errors: list[Exception] = []  # an error in one subscription must not stop the others
        for each in subscriptions:
            _try(each.give_back, errors)
        while not (written := _all_given_back(subscriptions, errors)) and time.monotonic() < began + WRITES:
            time.sleep(_POLL_SECONDS)
        logs.set()
        for each in subscriptions:
            _try(each.report, errors)
        for error in {str(each): each for each in errors}.values():
            facts.process_end_failed(exc_info=error)
        facts.process_ends(status=STATUS, written=written, seconds=round(time.monotonic() - began, 1))
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, or replaced by something else
                stream.flush()
        logging.shutdown()
    finally:
        os._exit(STATUS)


def _all_given_back(subscriptions: Sequence[Participant], errors: list[Exception]) -> bool:
    return all(_try(each.given_back, errors) for each in subscriptions) and not errors


def _try(step: Callable[[], _T], errors: list[Exception]) -> _T | None:
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
        errors.append(error)
        return None


def _end_without(logs: threading.Event) -> None:
    """End the process without its last lines, if they take too long."""
    logs.wait(WRITES)
    time.sleep(LOGS)
    os._exit(STATUS)


def _after_fork() -> None:
    global _joining, _ending
    _joining, _ending = threading.Lock(), threading.Lock()
    _subscriptions.clear()  # they are the parent's, and so are the threads that may hold the locks


os.register_at_fork(after_in_child=_after_fork)
