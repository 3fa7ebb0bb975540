"""The connections of the server that lanelog's loops leave to others: a tenth of `max_connections`, and more.

Owns these bounds. Keeper and settler leave a tenth. A lower priority leaves a few more, so that in every process a
settler can write outcomes: until they are written, their lanes are not given back.

Without a bound, workers take each one that becomes free, and an application beside them gets
none. The caller has connected already, and counts itself: two that connect at once may both give up, and try again at
random times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lanelog._database import codes
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from lanelog._database.connection.wire import Wire

LEFT: Final = {"keeper": 3, "settler": 3, "fetcher": 4, "janitor": 5, "scheduler": 5}
"""How many thirtieths of all connections each loop leaves."""
PARTS: Final = 30

# No table, no privilege needed.
_MOST = "SELECT @@max_connections"
# How many connections there are (no table, no privilege needed).
_THERE_ARE = "SHOW GLOBAL STATUS LIKE 'Threads_connected'"


def check(wire: Wire, purpose: str) -> None:
    """Close a connection that was just made, and raise DatabaseError, if it is one of those for others."""
    try:
        _check(wire, LEFT.get(purpose, 0))
    except BaseException:
        wire.close()
        raise


def _check(wire: Wire, parts: int) -> None:
    if not parts:
        return
    most, there_are = wire.one(_MOST), wire.one(_THERE_ARE)
    if most is None or there_are is None:  # a proxy that knows no such thing
        return
    used, limit = int(there_are[1]), int(most[0])
    if used > limit - limit * parts // PARTS:
        raise DatabaseError(
            f"{used} of the server's max_connections = {limit} are in use, and this loop leaves "
            f"{limit * parts // PARTS} to others",
            code=codes.NO_CONNECTION_LEFT,
            retriable=True,
        )
