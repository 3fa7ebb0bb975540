"""Numbers that are counted: epochs and offsets. What replaces one to which nothing can be added.

The columns hold more than counting will ever reach. A greater number was written by another program, or is what a
damaged disk or a restore has left. `+ 1` to the greatest of all is an error of the statement. A statement is about many
lanes, so the error stops all of them.

So what is beyond counting is replaced by the clock, in milliseconds. No lane changes its owner or gets a message once a
millisecond for ever, so the clock is above every number that was counted: none is used again. Tokens are compared for
equality alone, so it does no harm that the number falls. A second replacement in the same lane comes later, and is
higher.
"""

from __future__ import annotations

from typing import Final

from lanelog._base.checks import MAX_SECONDS
from lanelog._database import NOW_MS

BEYOND_COUNTING: Final = 2**53
"""From here on, a number is beyond counting. The clock, in milliseconds, is near 2^41, and a million messages a second
in one lane need 285 years up to here.

The bound lies far below the end of the column. A number just below that end does the same harm a few messages later."""

LONGEST_MS: Final = int(MAX_SECONDS * 1000)
"""No lease lasts longer, so a heartbeat that ends later was not written by lanelog."""

FAR: Final = 2**62
"""The latest time, in milliseconds, with which the servers calculate: `signed`."""


def counted(number: str) -> str:
    """An expression, or the clock if it is beyond counting."""
    return f"IF({number} < {BEYOND_COUNTING}, {number}, {NOW_MS})"


def signed(time: str) -> str:
    """A time as a signed number, from which another can be taken away. After some million years all times are alike."""
    return f"CAST(LEAST({time}, {FAR}) AS SIGNED)"


NEXT_EPOCH: Final = f"{counted('lease_epoch')} + 1"
"""The next epoch of a lease row."""
