"""The events of administration: one for each call that deleted messages, or let a group pass over messages.

Owns these events. They count what was committed. A dry run writes no event, and neither does a call that changed
nothing. A call that fails in its middle writes what it had committed, and the error.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import asdict, define

from lanelog._base.text import describe
from lanelog._facts import admin as facts
from lanelog._process.identity import ProcessIdentity

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
    """Whether anything was committed that the event must report, even if it was no message."""

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
    """At the end of the block, write the event of messages that stay, but that a group skips."""
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
