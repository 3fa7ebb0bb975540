"""One event of the log: what an application reads of it before it happens.

Owns the type alone. The rooms beside it make one for each event.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@frozen
class Event:
    """One event, as an application's logging sees it."""

    name: str
    level: Level
    room: str
    """The last part of its logger's name: `worker` is the logger `lanelog.worker`."""
    says: str
    """One sentence: what has happened, and what to do where something is to be done."""
    fields: tuple[str, ...] = field(converter=_words)
    """Attributes of its record. `exc_info`: its record has a traceback."""

    @property
    def logger(self) -> str:
        """The name of the logger that it goes through."""
        return f"lanelog.{self.room}"
