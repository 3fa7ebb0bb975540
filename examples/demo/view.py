"""The output while the demo runs: a live table in a terminal, a plain line every few seconds elsewhere.

Never reads anything itself: it is given the progress and the events.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self

from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.rebuild import GROUPS
from demo.watch import Progress

PLAIN_EVERY: Final = 2.0
REFRESH_PER_SECOND: Final = 8


class View(AbstractContextManager["View"], Protocol):
    """Shows a run."""

    def say(self, text: str) -> None:
        """Show an event."""

    def show(self, progress: Progress, now_doing: str) -> None:
        """Show the progress."""


def view_for(console: Console) -> View:
    """Return the view that suits the output."""
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)


@define(eq=False)
class PlainView:
    """Lines of text, for logs and pipes."""

    console: Console
    _began: float = field(factory=time.monotonic, init=False)
    _next: float = field(default=0.0, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Print one line, at once."""
        print_plain(self.console, f"{time.monotonic() - self._began:6.1f} s  {text}")

    def show(self, progress: Progress, now_doing: str) -> None:
        """Print one line, if the last one is a while ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PLAIN_EVERY
        groups = ", ".join(f"{group} {progress.handled(group)} (lag {progress.lag(group)})" for group in GROUPS)
        published = f"published {progress.published} in {progress.lanes} lanes"
        self.say("; ".join([published, groups, owners_of(progress), now_doing]))


@define(eq=False)
class LiveView:
    """A table that is redrawn in place. Events scroll by above it."""

    console: Console
    _live: Live = field(init=False)
    _began: float = field(factory=time.monotonic, init=False)

    def __attrs_post_init__(self) -> None:
        self._live = Live(console=self.console, refresh_per_second=REFRESH_PER_SECOND, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print one line above the table."""
        print_plain(self.console, f"{time.monotonic() - self._began:6.1f} s  {text}")

    def show(self, progress: Progress, now_doing: str) -> None:
        """Redraw the table."""
        table = Table(title=f"{time.monotonic() - self._began:.0f} s, {progress.lanes} lanes")
        for heading in ("", "handled", "published", "lag"):
            table.add_column(heading, justify="right" if heading else "left", min_width=10)
        for group in GROUPS:
            handled = progress.handled(group)
            table.add_row(f"group {group}", str(handled), str(progress.published), str(progress.lag(group)))
        self._live.update(Group(table, Text(owners_of(progress)), Text(now_doing)))


def owners_of(progress: Progress) -> str:
    """Say how many lanes of group `rebuild` each worker owns."""
    owned = [f"{name}: {count}" for name, count in sorted(progress.owners.items())]
    return f"lanes owned by {', '.join(owned)}" if owned else "no lane has an owner yet"


def print_plain(console: Console, text: str) -> None:
    """Print text that may contain anything: names are not markup, and may not fit the output's encoding."""
    text = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def plural(number: int, noun: str) -> str:
    """Return a number and its noun: `1 lane`, `2,000 lanes`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
