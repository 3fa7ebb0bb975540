"""The declaration of a fact: `Room("keeper")` is a logger, `@room.warning("lanes.taken_over")` an event of it.

Owns the decorators and what they make of a function. Knows no event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypedDict, get_args, get_type_hints

from attrs import define, field, frozen

from lanelog._facts.log import LOGGER_NAME, EventLogger, Level, get_logger

P = ParamSpec("P")


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
    """One event. To call it, with its fields by name, is to log it."""

    name: str
    level: Level
    room: Room
    declaration: Callable[P, None]

    def __call__(self, *_: P.args, **fields: P.kwargs) -> None:
        """Log it. The fields stand in the message in the order of the call."""
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
        del hints["return"]
        (shared,) = [get_args(hints.pop("fields"))[0]] if "fields" in hints else [None]
        return (*hints, *(() if shared is None else shared.__annotations__))
