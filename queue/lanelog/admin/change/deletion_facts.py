"""The events of administration: one for each call that deleted messages, or took a group past messages.

Owns these events. They count what was committed. A dry run writes no event, and neither does a call that changed
nothing. A call that fails in its middle writes what it had committed, and the error.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import asdict, define, field

from lanelog._base.text import describe
from lanelog._facts import admin as facts
from lanelog._process.identity import ProcessIdentity
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from lanelog._facts.fact import Fact
    from lanelog.admin.audit_entry import Act


@define(eq=False)
class Tally:
    """What one call has committed so far."""

    messages: int = 0
    unsettled: int = 0
    """Messages that a group had not settled and does not get any more, summed over groups."""
    scheduled: int = 0
    """Messages that were not due yet."""
    done: bool = False
    """Whether anything was committed that the event must tell, even if it was no message."""

    def add(self, *, messages: int = 0, unsettled: int = 0, scheduled: int = 0) -> None:
        """Count messages that were committed."""
        self.messages += messages
        self.unsettled += unsettled
        self.scheduled += scheduled
        self.done |= bool(messages or unsettled or scheduled)


def deleting(act: Act) -> AbstractContextManager[Tally]:
    """At the end of the block, however it ends, write the event of what was deleted in it."""
    return _counted(act, facts.messages_deleted)


def passing(act: Act) -> AbstractContextManager[Tally]:
    """At the end of the block, write the event of messages that stay, but that a group passed without handling them."""
    return _counted(act, facts.messages_passed)


@contextmanager
def _counted(act: Act, write: Fact[...]) -> Iterator[Tally]:
    tally, failed = Tally(), {}
    try:
        yield tally
    except BaseException as error:
        failed = {"error": describe(error)}
        raise
    finally:
        if tally.done:
            counts = {"messages": tally.messages, "unsettled": tally.unsettled, "scheduled": tally.scheduled}
            write(**failed, **act.values(), **counts, **asdict(ProcessIdentity(act.database.config.user)))


@define(eq=False)
class Unanswered:
    """The count of a transaction whose COMMIT was not answered: the repetition may find that it is done."""

    lost: int = field(default=0, init=False)
    _planned: int = field(default=0, init=False)

    def plan(self, count: int) -> None:
        """Note how many messages the transaction is about to commit."""
        self._planned = count

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run one attempt, its COMMIT included."""
        self._planned = 0
        try:
            yield
        except DatabaseError as error:
            if error.outcome_unknown:
                self.lost = max(self.lost, self._planned)
            raise

    def committed(self, count: int) -> int:
        """Return the count of what was done: by the answered attempt, or by an unanswered one before it."""
        return max(count, self.lost)
