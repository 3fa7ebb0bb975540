"""What the simulated processes send, line by line, and the chance that the library takes: both the same in each run.

Owns what differs from run to run, and how it is taken out; never decides what happens. `statement_trace` uses it.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lanelog._base.backoff import RANDOM
from support.simulation import MIDNIGHT, Driver, Process, World

CLOCK = "SET timestamp = "
"""How the simulation sets the clock of a session: no statement of the library's."""
DIFFERENT = (
    (re.compile(r"\b[0-9a-f]{64}\b|(?<=@@datadir\)\) = )\d+"), "<server>"),
    (re.compile(r"'lanelog-[0-9a-f]{32}', \d+"), "<wake place>"),
    (re.compile(rf"\b{os.getpid()}\b"), "<pid>"),
    (re.compile(re.escape(str(Path(__file__).parents[2]))), "<checkout>"),
)
"""What is another one in each run."""
COMMITS = re.compile(r"(^|lanelog_start;\s)COMMIT(; END)?$")
"""The end of a transaction, with the proof that it stands or without. Not that of a packet with writes."""
TRACEBACK = re.compile(r"Traceback \(most recent call last\):(?:\\.|[^'\\])*")
"""What a handler raised, as a dead letter or a delivery row keeps it: with lines and files, which may move."""


class Recorder:
    """The lines of one history. Also cuts a connection before or after its next COMMIT, on demand."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lines: list[str] = []
        self._names: dict[Any, str] = {}
        self._opening: Process | None = None
        self._cut: tuple[Process, bool] | None = None

    def begin(self) -> None:
        """Forget the last history."""
        self.lines = []
        self._names.clear()

    def note(self, text: str) -> None:
        self.lines.append(f"# {self.world.clock.now:.3f} {text}")

    def sent(self, raw: Any, text: str) -> None:
        """Keep a statement if one of the simulated processes has sent it."""
        if raw not in self._names and self._opening is not None:
            count = sum(name.startswith(f"{self._opening!r}#") for name in self._names.values())
            self._names[raw] = f"{self._opening!r}#{count + 1}"
        if raw not in self._names or text.startswith(CLOCK):
            return
        text = TRACEBACK.sub("<traceback>", text)
        for pattern, name in DIFFERENT:
            text = pattern.sub(name, text)
        self.lines.append(f"{self._names[raw]} {' '.join(text.split())}")

    @contextmanager
    def cutting(self, process: Process, *, committed: bool) -> Iterator[Callable[[], bool]]:
        """The first connection of this process that commits is lost: before the server has the COMMIT, or after.

        Gives a function that says whether one was.
        """
        self._cut = process, committed
        try:
            yield lambda: self._cut is None
        finally:
            self._cut = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Listen to all connections."""
        connection = pymysql.connections.Connection
        opened, command, closed = Driver.open, connection._execute_command, connection.close

        def open_(driver: Driver, *, autocommit: bool) -> Any:
            self._opening = self.world.processes.get(driver)
            try:
                return opened(driver, autocommit=autocommit)
            finally:
                self._opening = None

        def execute_command(raw: Any, kind: int, sql: Any) -> None:
            text = sql if isinstance(sql, str) else bytes(sql).decode("utf-8", "surrogateescape")
            process, committed = self._cut or (None, False)
            cut = process is not None and raw in process.connections and COMMITS.search(text)
            self.sent(raw, text or f"(command {kind})")
            if committed or not cut:
                command(raw, kind, sql)
            if cut:
                if committed:
                    raw._read_query_result()
                    while raw._result.has_next:
                        raw._read_query_result()
                self._cut = None
                self.sent(raw, "(lost)")
                self.world.cut(raw)
                raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

        def close(raw: Any) -> None:
            if raw.open:
                self.sent(raw, "(closed)")
            closed(raw)

        monkeypatch.setattr(Driver, "open", open_)
        monkeypatch.setattr(connection, "_execute_command", execute_command)
        monkeypatch.setattr(connection, "close", close)


class Chance:
    """What is random to the library, made of the seed: no two runs of one history differ."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begin(0)

    def begin(self, seed: int) -> None:
        self.seed = seed
        self._count = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = lambda: MIDNIGHT + self.world.clock.now  # noqa: E731 - two clocks of one kind
        monkeypatch.setattr(os, "urandom", self.urandom)
        monkeypatch.setattr(RANDOM, "uniform", self.uniform)
        monkeypatch.setattr(time, "time", now)
        monkeypatch.setattr(time, "time_ns", lambda: round(now() * 1e9))

    def urandom(self, size: int) -> bytes:
        self._count += 1
        return hashlib.shake_256(f"{self.seed} {self._count}".encode()).digest(size)

    def uniform(self, least: float, most: float) -> float:
        """Depends on when it is asked, and not on how often: another call elsewhere changes nothing here."""
        drawn = hashlib.sha256(f"{self.seed} {self.world.clock.now:.6f} {least} {most}".encode()).digest()
        return least + (most - least) * int.from_bytes(drawn[:4], "big") / 2**32
