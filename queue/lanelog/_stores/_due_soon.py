"""How far the looks for the next delayed message go: the scheduler's, and the keeper's. Never contains SQL."""

from __future__ import annotations

from typing import Final

HORIZON_MS: Final = 1500
"""How far ahead a look for the next due message goes. The scheduler looks again before that time is over."""

RECENT_MS: Final = 60_000
"""How far back the usual look goes. Rows that were moved long ago stay in the index as long as an old snapshot is open,
and a look from the beginning reads all of them. So it is rare."""
