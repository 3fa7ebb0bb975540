"""The description of one event. Owns the type alone."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@frozen
class Event:
    """One event, as the logging of an application sees it."""

    name: str
    level: Level
    room: str
    """The last part of its logger's name: `worker` is the logger `lanelog.worker`."""
    says: str
    """Its meaning, and the remedy if one is needed."""
    fields: tuple[str, ...] = field(converter=_words)
    """The attributes of its record. `exc_info`: the record has a traceback."""

    @property
    def logger(self) -> str:
        """The name of its logger."""
        return f"lanelog.{self.room}"
