"""The outcome of an attempt, as a value.

Owns its fields. The policy makes it, and the dispatcher applies it to a lane.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import field, frozen

from lanelog._log import bury
from lanelog._stores.consumers.history import Ended

if TYPE_CHECKING:
    from lanelog._facts.log import ExcInfo


class Verb(Enum):
    """The effect of an outcome on a message."""

    ACK = "ack"
    RETRY = "retry"
    POSTPONE = "postpone"
    BURY = "bury"


@frozen
class Outcome:
    """The decision about an attempt. `wait` is in seconds."""

    verb: Verb
    wait: float = 0.0
    error: str | None = None
    next_is_last: bool = False  # for a message that crashed before: the attempt after this wait is the last
    ended: Ended = Ended.SUCCESS  # how history says that the message left
    raised: ExcInfo | None = field(default=None, eq=False, repr=False)  # the traceback for a dead letter's event


ACKED = Outcome(Verb.ACK)
EXPIRED = Outcome(Verb.BURY, error=bury.EXPIRED, ended=Ended.EXPIRED)
"""The outcome of a message whose time was over before its handler could start. It has had no attempt."""
