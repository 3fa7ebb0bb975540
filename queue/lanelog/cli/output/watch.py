"""`--watch`: the same question again and again, with a clock, until `q` or Ctrl-C.

Owns the rhythm, the keyboard, what is scrolled to, and the line about a database that does not answer. Never decides
what is asked. It restores the settings of the terminal, however it ends.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from typing import Final

import click
from attrs import define, evolve
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from lanelog._base.duty_cycle import DutyCycle
from lanelog._base.text import shown
from lanelog._views.column import Tone
from lanelog.cli.output.answer import Answer, on_screen, print_answer, to_json
from lanelog.cli.output.crop import crop
from lanelog.errors import LanelogError

CYCLE: Final = DutyCycle(1 / 11)
"""For the polls: who watches must not keep a server busy."""


class Key(Enum):
    """What a key does."""

    QUIT = "quit"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"


_KEYS: Final = {
    b"q": Key.QUIT,
    b"Q": Key.QUIT,
    b"k": Key.UP,
    b"\x1b[A": Key.UP,
    b"\x1bOA": Key.UP,
    b"j": Key.DOWN,
    b"\x1b[B": Key.DOWN,
    b"\x1bOB": Key.DOWN,
    b"b": Key.PAGE_UP,
    b"\x1b[5~": Key.PAGE_UP,
    b" ": Key.PAGE_DOWN,
    b"\x1b[6~": Key.PAGE_DOWN,
}
_PRESSED: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
"""One key as a terminal sends it."""

Wait = Callable[[float], list[Key]]
"""Waits for a number of seconds, or until keys were pressed that do something. None were: the time is over."""


@define(eq=False)
class Watched:
    """The last answer, and since when there has been none."""

    ask: Callable[[], Answer]
    answer: Answer | None = None
    silent_since: datetime | None = None
    why: str = ""
    took: float = 0.0
    """Seconds of the last poll."""

    def turn(self) -> bool:
        """Poll once.

        Return whether there was an answer. An error of the first poll is raised: a wrong URL ends the watch.
        """
        began = time.monotonic()
        try:
            self.answer = self.ask()
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
        """Return the seconds until the next poll: `interval`, or more where a poll takes long."""
        return max(interval, CYCLE.rest(self.took))

    @property
    def complaint(self) -> str:
        """One line about the missing answer."""
        since = f"{self.silent_since:%H:%M:%S}" if self.silent_since else ""
        return f"no answer since {since}, trying again: {shown(self.why)}"


def _now() -> datetime:
    """Return the time in the time zone of this machine."""
    return datetime.now().astimezone()


def watch(
    ask: Callable[[], Answer], interval: float, *, as_json: bool, wide: bool, rest: Callable[[float], None]
) -> None:
    """Poll until `q` or Ctrl-C. Raises the error of the first poll; a later error is shown, and the poll repeated."""
    console = Console(highlight=False)
    watched = Watched(ask)
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
    watched.turn()  # before the terminal is changed: an error of the first poll is one line, as without --watch
    with _keyboard() as wait, Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        top = 0
        while True:
            due = time.monotonic() + watched.pause(interval)
            while True:
                width, height = console.size
                lines, top = screen(watched, title, _now(), width=width, height=height, wide=wide, top=top)
                live.update(Group(*lines), refresh=True)
                keys = wait(max(0.0, due - time.monotonic()))
                if Key.QUIT in keys:
                    return
                if not keys:
                    break
                top += sum(_step(key, height) for key in keys)
            watched.turn()


def _step(key: Key, height: int) -> int:
    """Return by how many lines a key scrolls down."""
    page = max(1, height // 2)
    return {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page}[key]


def screen(
    watched: Watched, title: str, now: datetime, *, width: int, height: int, wide: bool, top: int = 0
) -> tuple[list[Text], int]:
    """Return at most `height` lines: the clock, a missing answer, and of the last answer what is scrolled to.

    `top`: the first line of the answer to show. Returned as it is, or as the answer allows.
    """
    answer = watched.answer
    database = f"  {answer.database}" if answer is not None and answer.database else ""
    lines = [Text(crop(f"{title}  {now:%H:%M:%S}  q ends it{database}", width), style=Tone.FAINT)]
    if watched.silent_since is not None:
        lines.append(Text(crop(watched.complaint, width), style=Tone.BAD))
    lines.append(Text())
    body = [] if answer is None else on_screen(evolve(answer, database=""), None if wide else width)
    room = max(1, height - 1)  # the cursor stands in the last line
    if len(lines) + len(body) <= room:
        top, lines = 0, [*lines, *body]
    else:
        shown_lines = max(1, room - len(lines) - 1)
        top = max(0, min(top, len(body) - shown_lines))
        where = f"lines {top + 1} to {top + shown_lines} of {len(body)}: ↓ ↑ or space scroll"
        lines = [*lines, *body[top : top + shown_lines], Text(crop(where, width), Tone.FAINT)]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines, top


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
        yield lambda seconds: _pressed(stdin, seconds)
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)


def _slept(seconds: float) -> list[Key]:
    select.select([], [], [], seconds)
    return []


def _pressed(keyboard: int, seconds: float) -> list[Key]:
    """Wait until keys that do something, or until the time is over. A closed terminal ends the watch, as `q` does."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([keyboard], [], [], left)[0]:
            data = os.read(keyboard, 64)
            keys = [_KEYS[key] for key in _PRESSED.findall(data) if key in _KEYS] if data else [Key.QUIT]
            if keys:
                return keys
    return []
