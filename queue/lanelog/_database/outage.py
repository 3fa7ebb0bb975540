"""What an error means to a loop that works on a server which it has reached before.

Owns that judgement alone. It is `retriable` reversed: a list of errors that pass is never complete, and a loop that
ends wrongly handles nothing until somebody notices. So whatever a database says, it is unavailable, and a loop tries
again without end. Only what an operator has to put right, and what stays for `lease_duration`, ends the work.
"""

from __future__ import annotations

import math
from typing import Final

from lanelog._database import codes
from lanelog.errors import DatabaseError, LanelogError, PayloadTooLarge, SchemaError

WITHOUT_END: Final = math.inf


def patience(error: BaseException, lease: float) -> float:
    """Return for how many seconds a loop bears an error, after which its work has failed.

    `WITHOUT_END`: the database is unavailable. `lease`: no such database, no table or column, or a denied grant on our
    tables. For so long it may be a restore, or a table that is being swapped. 0: it is no error of the database.
    """
    if isinstance(error, SchemaError) or (isinstance(error, DatabaseError) and error.code in codes.FOR_AN_OPERATOR):
        return lease
    # In a loop, only the server finds that something is too large.
    if isinstance(error, DatabaseError | PayloadTooLarge) or (isinstance(error, LanelogError) and error.retriable):
        return WITHOUT_END
    return 0.0


def is_away(error: BaseException) -> bool:
    """Whether a loop tries again without end."""
    return patience(error, 0.0) == WITHOUT_END
