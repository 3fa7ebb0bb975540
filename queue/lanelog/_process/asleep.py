"""Sleep: for how long this machine has been suspended. Its monotonic clock does not count that time.

Leases and retentions go on meanwhile, by the database's clock.
"""

from __future__ import annotations

import time
from time import CLOCK_MONOTONIC, clock_gettime

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds on a clock that is never set, and that goes on while the machine sleeps."""
    return time.monotonic() if _BOOT is None else clock_gettime(_BOOT)


def suspended() -> float:
    """Seconds of sleep since the boot. 0 where the system has no clock for it."""
    return 0.0 if _BOOT is None else clock_gettime(_BOOT) - clock_gettime(CLOCK_MONOTONIC)
