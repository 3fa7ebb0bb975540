"""Facts of which `client.on` notifies a program: `@noticed("dropped")`, above the declaration of an event or alone.

Owns the names of the notices and the decorator. Never queues a notice: the client's `Notices` does, if it is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, Protocol

from attrs import frozen

from lanelog._facts.fact import Fact

P = ParamSpec("P")

NoticeName = Literal[
    "retried",
    "dead_lettered",
    "dropped",
    "expired",
    "timed_out",
    "handler_slow",
    "lease_lost",
    "lanes_taken_over",
    "group_paused",
    "group_resumed",
    "subscription_failed",
]
"""What a program can be notified of."""

Fields = Mapping[str, Any]
ErrorText = Callable[[Fields], str | None]
"""Makes a notice's `error` of the fields."""


class NoticeSink(Protocol):
    """The notices of one client."""

    def notify(self, name: NoticeName, fields: Fields, error: ErrorText) -> None:
        """Take a fact as a notice, if the program wants it. Never waits, so a lock may be held."""


def noticed(name: NoticeName, *, error: ErrorText | None = None) -> Callable[[Callable[P, None]], Noticed[P]]:
    """Declare a fact as a notice. `error`: None is the field of that name, if there is one."""

    def declare(declaration: Callable[P, None]) -> Noticed[P]:
        event = declaration if isinstance(declaration, Fact) else None
        text = error or (lambda fields: fields.get("error"))
        return Noticed(name, declaration if event is None else event.declaration, event, text)

    return declare


@frozen(eq=False)
class Noticed(Generic[P]):
    """A fact that is a notice, and an event or none. To call it is to tell both."""

    notice: NoticeName
    declaration: Callable[P, None]
    event: Fact[...] | None
    """None: it is not logged, and may be told under a lock."""
    error: ErrorText

    def __call__(self, to: NoticeSink, /, *_: P.args, **fields: P.kwargs) -> None:
        """Notify the program, and log the event."""
        to.notify(self.notice, fields, self.error)
        if self.event is not None:
            self.event.room.log.emit(self.event.level, self.event.name, fields)
