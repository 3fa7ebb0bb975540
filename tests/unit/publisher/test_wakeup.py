"""The event of a thread that waits for its message, when the wait is interrupted."""

import sys
import threading
from types import FrameType
from typing import Any

from lanelog.publisher.topic_queue import Wakeup


class InterruptError(Exception):
    """Of a signal handler."""


def test_it_is_set_until_somebody_has_waited() -> None:
    """Set twice is set once, and a wait takes the mark away."""
    wakeup = Wakeup()
    assert not wakeup.wait(0)
    wakeup.set()
    wakeup.set()
    assert [wakeup.wait(0), wakeup.wait(0)] == [True, False]
    wakeup.set()
    wakeup.clear()
    assert not wakeup.wait(0)


def wait_until(wakeup: Any, moment: int) -> bool:
    """Wait for a moment, and be interrupted at this call, line or return. Return whether the wait had so many."""
    left = moment

    def trace(_frame: FrameType, _event: str, _arg: object) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise InterruptError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        wakeup.wait(0.001)
    except InterruptError:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupted_wait_keeps_nobody_from_setting_it() -> None:
    """Whichever moment an exception chooses to come: the thread that sets it next does not hang."""
    moment = 0
    wakeup = Wakeup()
    while wait_until(wakeup, moment):
        thread = threading.Thread(target=wakeup.set, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), f"it hangs after an interrupt at moment {moment}"
        wakeup.clear()
        moment += 1
    assert moment > 2
