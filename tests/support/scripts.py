"""A user's own scripts: plain programs that print lines, started as a terminal would, that die with the test."""

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import define, field

from support.waiting import Record


def ran(*command: str | Path, check: bool = False, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; what it printed is text. `check`: its status has to be 0."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, **options)
    assert not check or done.returncode == 0, done.stderr
    return done


@define(eq=False)
class Script:
    """One running program; what it prints, on both streams, goes line by line to `lines`."""

    process: subprocess.Popen[str]
    lines: Record = field(factory=Record, init=False)
    _reader: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, name=f"reads {self.process.pid}", daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, command: Sequence[str | Path], environment: Mapping[str, str], directory: Path) -> Self:
        """Run `command` in `directory`, with nothing in its environment but `environment`."""
        return cls(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                cwd=directory,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "\n".join(self.lines.items)
