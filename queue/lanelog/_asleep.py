"""Sleep: for how long this machine has been suspended, which its monotonic clock does not count.

Leases and retentions go on meanwhile, by the database's clock: what was true before need not be true afterwards. Owns
that one reading. Called by a member, for its authority, and by publishers, for what they are in doubt about.
"""

from __future__ import annotations

import time
from time import clock_gettime

_CLOCKS = (getattr(time, "CLOCK_BOOTTIME", None), getattr(time, "CLOCK_MONOTONIC", None))


def suspended() -> float:
    """Seconds since the boot in which the machine slept; 0 where the system has no clock that tells."""
    boot, monotonic = _CLOCKS
    if boot is None or monotonic is None:
        return 0.0
    return clock_gettime(boot) - clock_gettime(monotonic)
