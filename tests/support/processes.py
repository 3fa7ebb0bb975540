"""Processes of a test: small programs that say what they do, one JSON line at a time, and that die with the test."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from support.waiting import Record, eventually

PROGRAMS = Path(__file__).parents[1] / "integration/programs"
STARTS_WITHIN = 20.0


@frozen
class Line:
    """What a process said, and when it was received."""

    process: str
    at: float  # monotonic: when this process has read it
    said: float  # the same clock: when it was said; the lines of several processes may be read in another order
    event: str
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@define(eq=False, repr=False)
class Program:
    """One running program. Its lines go to a journal that it may share with others."""

    name: str
    journal: Record
    popen: subprocess.Popen[str]
    _reader: threading.Thread | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        return f"<Program {self.name} pid {self.popen.pid}>"

    @classmethod
    def start(
        cls, name: str, program: str, journal: Record, environment: Mapping[str, str] | None = None, **config: Any
    ) -> "Program":
        """Run a script of tests/integration/programs; it finds `config` as JSON in its first argument."""
        popen = subprocess.Popen(
            [sys.executable, "-W", "error", str(PROGRAMS / program), json.dumps({"name": name, **config})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self = cls(name, journal, popen)
        self._reader = threading.Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for text in self.popen.stdout:
            fields = json.loads(text)
            at = time.monotonic()
            self.journal(Line(self.name, at, fields.pop("said", at), fields.pop("event"), fields))

    @property
    def lines(self) -> list[Line]:
        """What it has said so far."""
        return [line for line in self.journal.items if line.process == self.name]

    def said(self, event: str, *, within: float = STARTS_WITHIN, count: int = 1) -> list[Line]:
        """Wait until it has said `event` so often."""

        def heard(lines: list[Line]) -> list[Line]:
            return [line for line in lines if line.process == self.name and line.event == event]

        what = f"{count} times {event!r} by {self.name}"
        return heard(self.journal.until(lambda lines: len(heard(lines)) >= count, within=within, what=what))

    def tell(self, word: str) -> None:
        """Say something to it."""
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()

    def kill(self) -> float:
        """SIGKILL; the moment at which it was gone."""
        self.popen.kill()
        at = time.monotonic()
        self.popen.wait(10)
        return at

    def terminate(self) -> None:
        """SIGTERM: it is to drain and leave."""
        self.popen.terminate()

    def freeze(self) -> None:
        """SIGSTOP, and wait until every thread has stopped."""
        os.kill(self.popen.pid, signal.SIGSTOP)
        self._stopped = True
        status = Path(f"/proc/{self.popen.pid}/stat")
        eventually(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", within=5, what="the stop")

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.popen.pid, signal.SIGCONT)
        self._stopped = False

    def ended(self, *, within: float = 30.0) -> int:
        """Wait until it has ended and everything it said was received; its exit status."""
        status = self.popen.wait(within)
        if self._reader is not None:
            self._reader.join(5)
        return status

    def close(self) -> None:
        """Make sure that it is gone."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)
        if self._reader is not None:
            self._reader.join(5)
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                stream.close()


class Fleet:
    """The processes of one test, which share a journal."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.journal = Record()
        self.programs: list[Program] = []

    def start(
        self, name: str, program: str = "worker.py", *, environment: Mapping[str, str] | None = None, **config: Any
    ) -> Program:
        """Start a program; does not wait for it."""
        running = Program.start(name, program, self.journal, environment, **{"url": self.url, **config})
        self.programs.append(running)
        return running

    def worker(self, name: str, **config: Any) -> Program:
        """Start a worker and wait until it is subscribed."""
        running = self.start(name, **config)
        running.said("ready")
        return running

    def heard(self, event: str) -> list[Line]:
        """Every line of one event, of all processes, in the order in which they were received."""
        return [line for line in self.journal.items if line.event == event]

    def logged(self, name: str) -> list[Line]:
        """What the library has logged under this event name, in any process."""
        return [line for line in self.heard("log") if line["text"].split(" ")[0] == name]

    def close(self) -> None:
        """End all that still run."""
        for running in self.programs:
            running.close()
