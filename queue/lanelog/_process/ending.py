"""The end of the interpreter: no thread can be started any more (Python 3.12), then modules lose their names.

Ends nothing itself. What runs then must do without a new thread, and without an error from `__del__`.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def ending() -> bool:
    """Whether Python has left the main thread: what runs now was registered with `atexit`, or is in another thread."""
    return not threading.main_thread().is_alive()


def quiet_at_the_end(delete: Callable[[T], None]) -> Callable[[T], None]:
    """Wrap a `__del__`. Python prints its errors, and at the end any name that it needs may be None."""
    finalizing = sys.is_finalizing  # kept here: the names of this module are gone, too

    def deleted(thing: T) -> None:
        try:
            delete(thing)
        except Exception:
            if not finalizing():
                raise

    return deleted
