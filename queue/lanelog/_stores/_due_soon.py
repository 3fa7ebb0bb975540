"""How far the scheduler and the keeper search for the next delayed message. Never contains SQL."""

from __future__ import annotations

from typing import Final

HORIZON_MS: Final = 1500
"""How far ahead a query for the next due message goes. The scheduler repeats it before that time is over."""

RECENT_MS: Final = 60_000
"""How far back the usual query goes. Rows that were moved long ago stay in the index as long as an old snapshot is
open, and a query from the beginning reads all of them. So it is rare."""
