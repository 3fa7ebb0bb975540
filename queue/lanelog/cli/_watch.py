"""`--watch`: the same look again and again, with a clock, until `q` or Ctrl-C.

Owns the rhythm, the keyboard and the line about a database that does not answer. Never decides what is looked at. It
restores the settings of the terminal, however it ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import click
from attrs import define, evolve
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from lanelog._text import shown
from lanelog.cli._crop import crop
from lanelog.cli._output import Answer, on_screen, print_answer, to_json
from lanelog.cli._table import Tone
from lanelog.errors import LanelogError

PATIENCE = 10
"""A pause is at least so many times as long as the look before it: who watches must not keep a server busy."""

Wait = Callable[[float], bool]
"""Waits for a number of seconds. True: `q` was pressed."""


@define(eq=False)
class Watched:
    """The last answer, and since when there has been none."""

    look: Callable[[], Answer]
    answer: Answer | None = None
    silent_since: datetime | None = None
    why: str = ""
    took: float = 0.0
    """Seconds of the last look."""

    def turn(self) -> bool:
        """Look once.

        Return whether there was an answer. An error of the first look is raised: a wrong URL ends the watch.
        """
        began = time.monotonic()
        try:
            self.answer = self.look()
        except LanelogError as exc:
            if self.answer is None:
                raise
            self.silent_since = self.silent_since or _now()
            self.why = " ".join(str(exc).split())
            return False
        finally:
            self.took = time.monotonic() - began
        self.silent_since = None
        return True

    def pause(self, interval: float) -> float:
        """Return the seconds until the next look: `interval`, or more where a look takes long."""
        return max(interval, PATIENCE * self.took)

    @property
    def complaint(self) -> str:
        """One line about the missing answer."""
        since = f"{self.silent_since:%H:%M:%S}" if self.silent_since else ""
        return f"no answer since {since}, trying again: {shown(self.why)}"


def _now() -> datetime:
    """Return the time in the time zone of this machine."""
    return datetime.now().astimezone()


def watch(
    look: Callable[[], Answer], interval: float, *, as_json: bool, wide: bool, rest: Callable[[float], None]
) -> None:
    """Look until `q` or Ctrl-C. Raises the error of the first look; a later error is shown, and the look repeated."""
    console = Console(highlight=False)
    watched = Watched(look)
    try:
        if as_json or not console.is_terminal:
            _lines(watched, interval, as_json=as_json, rest=rest)
        else:
            _screens(watched, interval, console, wide=wide)
    except KeyboardInterrupt:
        pass  # the way to end it


def _lines(watched: Watched, interval: float, *, as_json: bool, rest: Callable[[float], None]) -> None:
    while True:
        if not watched.turn():
            click.echo(watched.complaint, err=True)
        elif watched.answer is not None:
            if as_json:
                click.echo(to_json(watched.answer.data))
            else:
                print_answer(watched.answer, as_json=False)
                click.echo()
        rest(watched.pause(interval))


def _screens(watched: Watched, interval: float, console: Console, *, wide: bool) -> None:
    title = f"{click.get_current_context().command_path}, every {interval:g}s"
    watched.turn()  # before the terminal is changed: an error of the first look is one line, as without --watch
    with _keyboard() as wait, Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            width, height = console.size
            lines = screen(watched, title, _now(), width=width, height=height, wide=wide)
            live.update(Group(*lines), refresh=True)
            if wait(watched.pause(interval)):
                return
            watched.turn()


def screen(watched: Watched, title: str, now: datetime, *, width: int, height: int, wide: bool) -> list[Text]:
    """Return at most `height` lines: the clock, a missing answer, and the last answer."""
    answer = watched.answer
    database = f"  {answer.database}" if answer is not None and answer.database else ""
    lines = [Text(crop(f"{title}  {now:%H:%M:%S}  q ends it{database}", width), style=Tone.FAINT)]
    if watched.silent_since is not None:
        lines.append(Text(crop(watched.complaint, width), style=Tone.BAD))
    lines.append(Text())
    if answer is not None:
        lines += on_screen(evolve(answer, database=""), None if wide else width)
    room = max(1, height - 1)  # the cursor stands in the last line
    if len(lines) > room:
        missing = len(lines) - room + 1
        lines = [*lines[: room - 1], Text(crop(f"… {missing} more lines than this window has", width), Tone.FAINT)]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines


@contextmanager
def _keyboard() -> Iterator[Wait]:
    """Read keys as they are pressed, without echo, if this process has the keyboard. SIGTERM ends like Ctrl-C then."""
    stdin = sys.stdin.fileno()
    # In the background, changing the terminal would stop the process.
    if not os.isatty(stdin) or os.tcgetpgrp(stdin) != os.getpgrp():
        yield _slept
        return
    import termios
    import tty

    before = termios.tcgetattr(stdin)
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        tty.setcbreak(stdin)
        yield lambda seconds: _pressed_q(stdin, seconds)
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)


def _slept(seconds: float) -> bool:
    select.select([], [], [], seconds)
    return False


def _pressed_q(keyboard: int, seconds: float) -> bool:
    """Wait until `q`, or until the time is over. Other keys do nothing. A closed terminal ends it, too."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([keyboard], [], [], left)[0] and os.read(keyboard, 1) in {b"q", b"Q", b""}:
            return True
    return False
