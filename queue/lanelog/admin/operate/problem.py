"""What a problem is: its state, its place, how long it has lasted, and the command that brings work back.

Owns its fields and its lines. Judges nothing (`problems` does).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from attrs import frozen

from lanelog._text import age, shown

FAILING: Final = "failing"
"""The state of a lane whose first message failed and waits for its next attempt."""
OWNER_GONE: Final = "owner gone"
"""The state of a lane whose owner gives no sign of life. To release one lane of such an owner releases all."""
HEAD_LOCKED: Final = "head locked"
"""The state of a lane whose head a transaction has locked. To end that connection frees all lanes that it holds."""


class Rank(IntEnum):
    """How bad a problem is. Problems are shown in this order, and within one rank by age."""

    SERVER = 0
    """Nothing can be written, or this is not the server that is written to. Nothing is concluded about members."""
    STUCK = 1
    NOBODY = 2
    PAUSED = 3
    BEHIND = 4
    DEAD_LETTERS = 5


@frozen(kw_only=True)
class Problem:
    """One thing that is wrong, found by `status`. `lines()` returns it as the command line shows it."""

    rank: Rank
    what: str
    """The state, in the words of the runbook: `failing`, `nobody consumes`, …"""
    topic: str
    group: str
    key: str | None = None
    offset: int | None = None
    seconds: float | None = None
    """Age of the oldest message that it holds back, or how long it has lasted."""
    since: str | None = None
    """When it began, if that is known."""
    owner: str | None = None
    detail: str
    cause: str | None = None
    """The error, if there is one: lanes that fail alike have the same."""
    reason: str | None = None
    """The reason of the dead letters that the command puts back. None: it puts none back."""
    command: str
    """The shell command that brings work back, or shows more.

    It destroys nothing. What delivers again only shows what it would do.
    """

    def lines(self) -> list[str]:
        """Return it as people read it: three lines."""
        where = [] if self.rank is Rank.SERVER else [shown(self.topic), shown(self.group)]
        where += [] if self.key is None else [shown(self.key)]
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        first = "  ".join([self.what.upper(), *([" ".join(where)] if where else [])])
        if self.since is not None:
            first += f", since {self.since}"
        elif self.seconds is not None:
            first += f", for {age(self.seconds)}"
        if self.owner is not None:
            first += f", owner {shown(self.owner)}"
        return [first, f"    {self.detail}", f"    $ {self.command}"]


def command(verb: str, *arguments: str, options: Iterable[str] = ()) -> str:
    """Return the command line, quoted for a shell. A name that looks like an option comes behind `--`."""
    dashes = ["--"] if any(argument.startswith("-") for argument in arguments) else []
    parts = [*options, *dashes, *arguments] if dashes else [*arguments, *options]
    return f"lanelog {verb} {' '.join(map(shlex.quote, parts)).replace(shlex.quote('--'), '--')}"
