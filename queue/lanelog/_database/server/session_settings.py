"""Whether the server has taken what a new session has set. A proxy may answer a SET with success and ignore it.

Sets nothing and asks nothing itself: `driver` asks in the round trip that reads the facts about the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ISOLATION: Final = "isolation"
# Each family executes its own comment. The handshake cannot choose the name: a proxy answers it for its server.
_ISOLATION: Final = "/*M! @@tx_isolation *//*!80000 @@transaction_isolation */"

SILENCE: Final = frozenset({"wait_timeout", "net_read_timeout"})
"""Settings without which a session may read, but not hold a lock."""

# Names that a server shows for the number that was set.
_SHOWN: Final = {"NO_CHAIN": "0", "OFF": "0", "ON": "1"}


def column(wanted: Mapping[str, object]) -> str:
    """Return one column of a SELECT that shows these settings of the session. PyMySQL takes long for twenty columns."""
    return f"CONCAT_WS(';', {', '.join(_ISOLATION if name == ISOLATION else f'@@{name}' for name in wanted)})"


def not_taken(wanted: Mapping[str, object], found: str) -> dict[str, str]:
    """Return the settings that have another value than the one that was set, with that value."""
    return {
        name: value
        for (name, set_to), value in zip(wanted.items(), found.split(";"), strict=True)
        if _plain(value) != _plain(set_to)
    }


def refusal(wanted: Mapping[str, object], ignored: Mapping[str, object], *, consequence: str) -> str:
    """Return the sentence that refuses a session, with the first of the settings that were not taken."""
    name, value = next(iter(ignored.items()))
    return (
        f"this session's {name} is {value}, though lanelog has set it to {wanted[name]}: a proxy or the server ignores "
        f"it, so {consequence}. Connect to the primary directly, or let the proxy pass SET SESSION on"
    )


def _plain(value: object) -> list[str]:
    text = str(value).upper()
    return sorted(_SHOWN.get(text, text).split(","))  # the modes of sql_mode have no order
