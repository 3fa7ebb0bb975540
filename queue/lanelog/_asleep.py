"""Sleep: for how long this machine has been suspended. Its monotonic clock does not count that time.

Leases and retentions go on meanwhile, by the database's clock.
"""

from __future__ import annotations

import time
from time import clock_gettime

_CLOCKS = (getattr(time, "CLOCK_BOOTTIME", None), getattr(time, "CLOCK_MONOTONIC", None))


def suspended() -> float:
    """Seconds of sleep since the boot. 0 where the system has no clock that tells."""
    boot, monotonic = _CLOCKS
    if boot is None or monotonic is None:
        return 0.0
    return clock_gettime(boot) - clock_gettime(monotonic)
