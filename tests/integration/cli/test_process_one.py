"""The command `lanelog` as process 1, as a container runs it, and a SIGTERM while it is still being imported.

The kernel drops a signal that process 1 does not handle. `unshare` makes a process 1, which needs root.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lanelog import Client
from support.processes import PROGRAMS
from support.readme import ROOT, Example, example
from support.sql import watermark
from support.waiting import Record, eventually

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]
IMPORTS = pytest.mark.parametrize(
    "module",
    [
        pytest.param("lanelog.errors", id="first", marks=pytest.mark.thorough),
        pytest.param("click", id="middle"),
        pytest.param("lanelog.worker.orders", id="last", marks=pytest.mark.thorough),
    ],
)


def entry() -> str:
    """A program that does what the installed script does."""
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["lanelog"]
    module, _, function = target.partition(":")
    return f"import sys; from {module} import {function}; sys.argv[0] = 'lanelog'; {function}()"


class Container:
    """A command as process 1, or as any other process, and what it writes to standard error."""

    def __init__(self, url: str, *arguments: str, first: bool, program: Sequence[str]) -> None:
        self.said = Record()
        self._popen = subprocess.Popen(
            [*(UNSHARE if first else []), sys.executable, "-X", "importtime", *program, *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=PROGRAMS,
            env={**os.environ, "LANELOG_URL": url},
        )
        self._first = first
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            self.said(line)

    def imported(self, module: str) -> None:
        """Wait until it has imported a module."""

        def is_there(lines: list[str]) -> bool:
            return any(line.startswith("import time:") and line.split("|")[-1].strip() == module for line in lines)

        self.said.until(is_there, within=20, what=f"the import of {module}")

    def terminate(self) -> None:
        """SIGTERM to the command."""
        pid = self._popen.pid
        if self._first:
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        os.kill(pid, signal.SIGTERM)

    def ended(self) -> int:
        """Wait for its end; its exit status."""
        status = self._popen.wait(20)
        self._reader.join(5)
        return status

    def close(self) -> None:
        """End what still runs."""
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(10)
        self._reader.join(5)
        self._popen.stderr.close()


Start = Callable[..., Container]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start commands that end with the test."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make a process 1")
    running: list[Container] = []

    def begin(url: str, *arguments: str, first: bool = True, program: str = "", module: str = "") -> Container:
        what = ["-m", module] if module else ["-c", program or entry()]
        running.append(Container(url, *arguments, first=first, program=what))
        return running[-1]

    yield begin
    for each in running:
        each.close()


@IMPORTS
@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["one", "other"])
def test_a_worker_that_is_still_imported_ends_at_sigterm(
    start: Start, lanelog_url: str, module: str, first: bool
) -> None:
    """The command starts no process, logs the signal, and has drained: there was nothing to drain."""
    worker = start(lanelog_url, "worker", "jobs:client", first=first)
    worker.imported(module)
    worker.terminate()
    assert worker.ended() == 0
    logged = [line for line in worker.said.items if "lanelog.supervisor" in line and not line.startswith("import")]
    assert [line.split("lanelog.supervisor ")[1].split()[0] for line in logged] == ["signal.received"]


@pytest.mark.thorough
def test_a_module_that_process_1_runs_ends_at_sigterm(start: Start, lanelog_url: str) -> None:
    """`python -m lanelog_command`, in an image without the command: its handler, too, comes before the package."""
    worker = start(lanelog_url, "worker", "jobs:client", module="lanelog_command")
    worker.imported("lanelog.errors")
    worker.terminate()
    assert worker.ended() == 0


@pytest.mark.thorough
def test_a_worker_as_process_1_drains(start: Start, lanelog_url: str) -> None:
    """A later signal is one for the supervisor, as before."""
    worker = start(lanelog_url, "worker", "jobs:client")
    worker.said.until(lambda lines: any("process.started" in line for line in lines), within=20, what="a process")
    worker.terminate()
    assert worker.ended() == 0


STATUS = pytest.mark.parametrize(
    ("first", "status"),
    [(True, 128 + signal.SIGTERM), pytest.param(False, -signal.SIGTERM, marks=pytest.mark.thorough)],
    ids=["one", "other"],
)


@STATUS
@pytest.mark.thorough
def test_a_worker_that_hangs_after_its_drain_ends_at_sigterm(start: Start, first: bool, status: int) -> None:
    """A thread that keeps the interpreter from ending must not need SIGKILL: nothing is remembered any more."""
    program = """
import sys, threading
from lanelog_command.early_signal import early
early.remember()
from lanelog.worker.signals import EndingSignals
with EndingSignals():
    pass
print("drained", file=sys.stderr, flush=True)
threading.Event().wait()
"""
    worker = start("", first=first, program=program)
    worker.said.until(lambda lines: "drained\n" in lines, within=20, what="the end of the drain")
    worker.terminate()
    assert worker.ended() == status


@STATUS
@pytest.mark.parametrize("when", [pytest.param("importing", marks=pytest.mark.thorough), "running"])
def test_another_verb_ends_at_sigterm(start: Start, first: bool, status: int, when: str) -> None:
    """Process 1 ends at once, like any process, while it is imported and while it waits for a silent database."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        command = start(f"mysql://u@127.0.0.1:{silent.getsockname()[1]}/d", "topics", first=first)
        if when == "importing":
            command.imported("lanelog.errors")
            command.terminate()
            assert command.ended() == status
        else:
            with silent.accept()[0]:
                command.terminate()
                assert command.ended() == status


PROGRAM = """
import jobs

print("running", file=sys.stderr, flush=True)
jobs.client.run()
"""


@pytest.mark.thorough
def test_a_program_with_the_handler_of_the_page(
    start: Start, lanelog_url: str, lanelog_client: Client, raw: Any
) -> None:
    """As process 1, the program ends while it is imported. Within `run()`, a signal drains."""
    program = example(Example.PROCESS_ONE).text + PROGRAM
    imported = start(lanelog_url, program=program)
    imported.imported("lanelog.errors")
    imported.terminate()
    assert imported.ended() == 128 + signal.SIGTERM
    running = start(lanelog_url, program=program)
    lanelog_client.publish("t", "k", {})
    running.said.until(lambda lines: "running\n" in lines, within=20, what="the program")
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    running.terminate()
    assert running.ended() == 0
