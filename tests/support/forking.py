"""Forked children of a test."""

import gc
import os
import signal
import traceback
import warnings
from collections.abc import Callable

CHILD_ENDS_WITHIN = 60
"""Seconds: one that hangs is ended by SIGALRM."""


def exit_status_of(body: Callable[[], object]) -> int:
    """Run `body` in a forked child; its exit status: the number that it returned, and 99 if it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads: that is the point
        pid = os.fork()
    if pid == 0:
        status = 99
        try:
            signal.alarm(CHILD_ENDS_WITHIN)
            status = int(body() or 0)
            gc.collect()
        except BaseException:  # noqa: BLE001 - a child that raised must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
