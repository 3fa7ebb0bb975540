"""The events of the thread under each loop."""

from __future__ import annotations

from lanelog._facts.fact import Room
from lanelog._facts.log import Raised

room = Room("loop")


@room.error("loop.callback_failed")
def loop_callback_failed(*, loop: str, callback: str, error: BaseException | str, exc_info: Raised) -> None:
    """The callback for a loop's end failed."""


@room.error("loop.failed")
def loop_failed(*, loop: str, error: BaseException | str, retriable: bool, exc_info: Raised) -> None:
    """A background loop failed. Five times in a row end the subscription, and so does a database, a table or a grant
    that is missing for `lease_duration`.
    """


@room.warning("loop.failed")
def loop_failed_in_outage(*, loop: str, error: BaseException | str, retriable: bool, seconds: float) -> None:
    """The database is unavailable for a background loop, which tries again without end; logged at once, and each minute
    until it has recovered.
    """


@room.info("loop.recovered")
def loop_recovered(*, loop: str, failures: int) -> None:
    """A background loop works again."""
