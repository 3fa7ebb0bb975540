"""What administration deletes, and what it lets groups pass, is told: one event for each call.

Owns these events; what they count was committed. A dry run tells nothing, and neither does a call that found nothing to
do. A call that fails in its middle tells what it had committed, and the error. Called by the rooms that delete.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._engine.cleanup.deletion_events import who
from lanelog._telemetry import describe, get_logger
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog._database import Database

log = get_logger("admin")


@frozen(kw_only=True)
class Act:
    """What is done, on what, and why: in names and choices, never in payloads."""

    verb: str
    topic: str
    group: str | None = None
    key: str | None = None
    why: str = "an operator's decision"

    def values(self) -> dict[str, object]:
        """As an event has them, without those that there are none of."""
        given = {"verb": self.verb, "topic": self.topic, "group": self.group, "key": self.key, "why": self.why}
        return {name: value for name, value in given.items() if value}


@define(eq=False)
class Tally:
    """What one call has committed so far."""

    messages: int = 0
    unsettled: int = 0
    """Of these, or beside them: messages that a group had not settled and does not get any more, summed over groups."""
    scheduled: int = 0
    """Messages that were not due yet."""
    done: bool = False
    """Whether anything was committed that is to be told, be it no message."""

    def add(self, *, messages: int = 0, unsettled: int = 0, scheduled: int = 0) -> None:
        """Count what was committed."""
        self.messages += messages
        self.unsettled += unsettled
        self.scheduled += scheduled
        self.done |= bool(messages or unsettled or scheduled)


@contextmanager
def deleting(database: Database, act: Act) -> Iterator[Tally]:
    """Tell at the end of the block, however it ends, what was deleted in it."""
    tally = Tally()
    try:
        yield tally
    except BaseException as error:
        if tally.done:
            log.warning("messages.deleted", error=describe(error), **_values(database, act, tally))
        raise
    if tally.done:
        log.warning("messages.deleted", **_values(database, act, tally))


@contextmanager
def passing(database: Database, act: Act) -> Iterator[Tally]:
    """The same for messages that stay, but that a group is taken past without handling them."""
    tally = Tally()
    try:
        yield tally
    except BaseException as error:
        if tally.done:
            log.warning("messages.passed", error=describe(error), **_values(database, act, tally))
        raise
    if tally.done:
        log.warning("messages.passed", **_values(database, act, tally))


def _values(database: Database, act: Act, tally: Tally) -> dict[str, object]:
    counts = {"messages": tally.messages, "unsettled": tally.unsettled, "scheduled": tally.scheduled}
    return {**act.values(), **counts, **who(database.config.user)}


@define(eq=False)
class Unanswered:
    """What a transaction was about to commit when its COMMIT was not answered: the repetition may find it done."""

    lost: int = field(default=0, init=False)
    _planned: int = field(default=0, init=False)

    def plan(self, count: int) -> None:
        """Note what the transaction is about to commit."""
        self._planned = count

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One attempt, its COMMIT included."""
        self._planned = 0
        try:
            yield
        except DatabaseError as error:
            if error.outcome_unknown:
                self.lost = max(self.lost, self._planned)
            raise

    def committed(self, count: int) -> int:
        """What was done in all, by the attempt that was answered and the one before it."""
        return max(count, self.lost)
