"""Waiting for what other threads and processes do: on conditions with a bound, never by sleeping."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

import pytest

T = TypeVar("T")

BETWEEN_LOOKS = 0.02
"""Seconds between two looks at something that cannot notify: a table, a counter."""


def eventually(condition: Callable[[], T], *, within: float = 15.0, what: str = "", every: float = BETWEEN_LOOKS) -> T:
    """Return the first true value of `condition`; AssertionError, with the last value, when there is none in time."""
    pause = threading.Event()
    until = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= until:
            raise AssertionError(f"{what or 'the condition'} did not hold within {within:g} s; last value: {value!r}")
        pause.wait(every)


def never(condition: Callable[[], object], *, during: float, what: str = "") -> None:
    """Hold that `condition` stays false for so many seconds."""
    pause = threading.Event()
    until = time.monotonic() + during
    while time.monotonic() < until:
        value = condition()
        assert not value, f"{what or 'the condition'} held: {value!r}"
        pause.wait(BETWEEN_LOOKS)


def accept(_message: object) -> None:
    """A handler that has nothing against anything."""


def raising(error: type[BaseException], *args: object, **fields: Any) -> Callable[..., Any]:
    """A handler, or anything else that is called, which raises a new one of these each time."""

    def fail(*_: object, **_options: object) -> None:
        raise error(*args, **fields)

    return fail


class Record:
    """What handlers have seen, in order; threads add, the test waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[Any] = []

    def __repr__(self) -> str:
        return f"Record({self.items})"

    def __len__(self) -> int:
        return len(self._items)

    def __call__(self, item: Any) -> None:
        """Add one."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    @property
    def items(self) -> list[Any]:
        """Everything so far."""
        with self._changed:
            return list(self._items)

    def wait(self, count: int, *, within: float = 15.0) -> list[Any]:
        """Wait for so many, and return them all."""
        return self.until(lambda items: len(items) >= count, within=within, what=f"{count} records")

    def until(self, enough: Callable[[list[Any]], object], *, within: float = 15.0, what: str = "") -> list[Any]:
        """Wait until `enough` is true of what was recorded."""
        with self._changed:
            ok = self._changed.wait_for(lambda: enough(self._items), within)
            seen = list(self._items)
        assert ok, f"{what or 'not enough'} within {within:g} s: {len(seen)} so far, the last are {seen[-10:]!r}"
        return seen


class Gate:
    """Where handlers wait until the test opens it, at the latest at the end of its block. It is a handler, too."""

    def __init__(self) -> None:
        self.inside, self._open = Record(), threading.Event()

    def __call__(self, who: object = None) -> None:
        """Wait for the test."""
        self.inside(who)
        assert self._open.wait(60), "nobody has opened the gate"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def reached(self, count: int = 1) -> list[Any]:
        """Wait until so many have come here, and return them all."""
        return self.inside.wait(count, within=30)

    def open(self) -> None:
        """Let everybody go on."""
        self._open.set()


def events(caplog: pytest.LogCaptureFixture, name: str, level: int = logging.DEBUG) -> list[str]:
    """The lines of one event that lanelog has logged."""
    return [
        record.getMessage()
        for record in list(caplog.records)
        if record.name.startswith("lanelog.") and record.levelno >= level and record.getMessage().split(" ")[0] == name
    ]
