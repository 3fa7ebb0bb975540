"""What a problem is: its state, its names, how long it has lasted, and the command that brings work back.

Owns its fields and its lines. Judges nothing (`problems` does).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from attrs import frozen

from lanelog._base.text import age, shown

BEHIND: Final = "behind"
"""The state of a group whose oldest message waits, though nothing is stuck."""
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
    """Seconds for which the oldest message that it holds back has waited."""
    lasted: float | None = None
    """Seconds for which the problem has lasted, where a row or the server says since when."""
    since: str | None = None
    """When the problem began, if that is known."""
    owner: str | None = None
    detail: str
    remedy: str
    """What the command does, as the end of the sentence that `detail` is: `to have another worker try`."""
    cause: str | None = None
    """The error, if there is one: lanes that fail alike have the same."""
    reason: str | None = None
    """The short name of the reason of the dead letters that the command puts back. None: it puts none back."""
    notes: tuple[str, ...] = ()
    """What stands below the sentence, line by line: where hung handlers are."""
    command: str
    """The shell command that brings work back, or shows more.

    It deletes nothing, and ends nothing but a process that hangs. What delivers again only shows what it would do.
    """
    command_for_all: str | None = None
    """The command that does the same in all lanes of the group; None: there is none."""

    @property
    def sentence(self) -> str:
        """What is wrong, and what the command does about it."""
        return f"{self.detail}; {self.remedy}:"

    @property
    def lasts(self) -> str:
        """Since when, or for how long; if no row says it, how long the oldest message waits. Empty: not known."""
        if self.since is not None:
            return f"since {self.since}"
        if self.lasted is not None:
            return f"for {age(self.lasted)}"
        return "" if self.seconds is None else f"the oldest waits {age(self.seconds)}"

    def lines(self) -> list[str]:
        """Return it as people read it: three lines, and the notes before the last."""
        where = [] if self.rank is Rank.SERVER else [shown(self.topic), shown(self.group)]
        where += [] if self.key is None else [shown(self.key)]
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        first = "  ".join([self.what.upper(), *([" ".join(where)] if where else [])])
        if self.lasts:
            first += f", {self.lasts}"
        if self.owner is not None:
            first += f", owner {shown(self.owner)}"
        return [first, f"    {self.sentence}", *(f"    {note}" for note in self.notes), f"    $ {self.command}"]


def command(verb: str, *arguments: str, options: Iterable[str] = ()) -> str:
    """Return the command line, quoted for a shell. A name that begins like an option comes after `--`."""
    dashes = ["--"] if any(argument.startswith("-") for argument in arguments) else []
    parts = [*options, *dashes, *arguments] if dashes else [*arguments, *options]
    return f"lanelog {verb} {' '.join(map(shlex.quote, parts)).replace(shlex.quote('--'), '--')}"
