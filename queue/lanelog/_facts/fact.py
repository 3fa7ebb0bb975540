"""The declaration of a fact: `Room("keeper")` is a logger, `@room.warning("lanes.taken_over")` an event of it.

`@noticed("lanes_taken_over")` above it, or alone, makes it a notice: `client.on` has the program notified of it. Owns
the decorators, what they make of a function, and the names of the notices. Knows no event, and queues no notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypedDict, get_args, get_type_hints

from attrs import define, field, frozen

from lanelog._facts.log import LOGGER_NAME, EventLogger, Level, get_logger

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


class AttemptFields(TypedDict):
    """What an event about an attempt names first."""

    topic: str
    key: str
    group: str
    offset: int
    attempt: int


@define(eq=False)
class Room:
    """One logger of the library, and its facts in the order of their declaration."""

    name: str
    """The last part of the logger's name: `worker` is the logger `lanelog.worker`."""
    log: EventLogger = field(init=False, repr=False)
    facts: list[Fact[...]] = field(factory=list, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.log = get_logger(self.name)

    def debug(self, name: str) -> Callable[[Callable[P, None]], Fact[P]]:
        """Declare an event of the level DEBUG."""
        return self._declare(name, "DEBUG")

    def info(self, name: str) -> Callable[[Callable[P, None]], Fact[P]]:
        """Declare an event of the level INFO."""
        return self._declare(name, "INFO")

    def warning(self, name: str) -> Callable[[Callable[P, None]], Fact[P]]:
        """Declare an event of the level WARNING."""
        return self._declare(name, "WARNING")

    def error(self, name: str) -> Callable[[Callable[P, None]], Fact[P]]:
        """Declare an event of the level ERROR."""
        return self._declare(name, "ERROR")

    def _declare(self, name: str, level: Level) -> Callable[[Callable[P, None]], Fact[P]]:
        def declare(declaration: Callable[P, None]) -> Fact[P]:
            fact = Fact(name, level, self, declaration)
            self.facts.append(fact)
            return fact

        return declare


@frozen(eq=False)
class Fact(Generic[P]):
    """One event. A call, with the fields by name, logs it."""

    name: str
    level: Level
    room: Room
    declaration: Callable[P, None]

    def __call__(self, *_: P.args, **fields: P.kwargs) -> None:
        """Log the event. The fields stand in the message in the order of the call."""
        self.room.log.emit(self.level, self.name, fields)

    @property
    def logger(self) -> str:
        """The name of its logger."""
        return f"{LOGGER_NAME}.{self.room.name}"

    @property
    def says(self) -> str:
        """Its meaning, and the remedy if one is needed."""
        return " ".join((self.declaration.__doc__ or "").split())

    @property
    def fields(self) -> tuple[str, ...]:
        """The attributes of its record. `exc_info`: the record has a traceback."""
        hints = get_type_hints(self.declaration)
        if "fields" in hints:  # those of a type that several events share
            (shared,) = get_args(hints["fields"])
            return tuple(shared.__annotations__)
        return tuple(name for name in hints if name != "return")


def noticed(name: NoticeName, *, error: ErrorText | None = None) -> Callable[[Callable[P, None]], Noticed[P]]:
    """Declare a fact as a notice. `error`: None is the field of that name, if there is one."""

    def declare(declaration: Callable[P, None]) -> Noticed[P]:
        event = declaration if isinstance(declaration, Fact) else None
        text = error or (lambda fields: fields.get("error"))
        return Noticed(name, declaration if event is None else event.declaration, event, text)

    return declare


@frozen(eq=False)
class Noticed(Generic[P]):
    """A fact that is a notice, and often an event, too. A call names the notices of the client, and the fields."""

    notice: NoticeName
    declaration: Callable[P, None]
    event: Fact[...] | None
    """None: nothing is logged, so the caller may hold a lock."""
    error: ErrorText

    def __call__(self, to: NoticeSink, /, *_: P.args, **fields: P.kwargs) -> None:
        """Notify the program, and log the event."""
        to.notify(self.notice, fields, self.error)
        if self.event is not None:
            self.event.room.log.emit(self.event.level, self.event.name, fields)
