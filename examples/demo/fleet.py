"""The worker processes: started, released, killed, replaced and stopped.

Owns these processes and their output. Never decides when to kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from attrs import define, field, frozen

from demo.worker import PATIENCE, RELEASE

LOG_LINES = 5
EXAMPLES = Path(__file__).resolve().parents[1]
"""The directory that holds the package `demo`."""


class WorkerEnded(Exception):
    """A worker ended by itself."""


@frozen(eq=False, kw_only=True)
class Worker:
    """One running worker."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]


@define(eq=False, kw_only=True)
class Fleet:
    """The workers of a run. A context manager that leaves none behind."""

    url: str = field(repr=False)
    topic: str
    run: str
    pause: float
    workers: dict[str, Worker] = field(factory=dict, init=False)
    _started: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Worker:
        """Start one more worker."""
        self._started += 1
        name = f"worker-{self._started}"
        path = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker has ended
        process = subprocess.Popen(  # noqa: S603 - this Python, with arguments of our own
            [
                # -P: the demo may be started in any repository, whose files must not be imported.
                *(sys.executable, "-P", "-m", "demo.worker"),
                *("--topic", self.topic, "--run", self.run, "--name", name, "--pause", str(self.pause)),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "LANELOG_URL": self.url, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,  # Ctrl-C must only reach this process, which stops the workers
        )
        worker = Worker(name=name, process=process, log=log)
        self.workers[name] = worker
        return worker

    def release(self) -> None:
        """End the pause after each job, in running workers and in those that start later."""
        self.pause = 0.0
        for worker in self.workers.values():
            assert worker.process.stdin is not None  # noqa: S101 - for mypy: it is a pipe
            with contextlib.suppress(BrokenPipeError):  # it has ended: `check` raises that
                worker.process.stdin.write(f"{RELEASE}\n".encode())
                worker.process.stdin.flush()

    def kill(self, name: str) -> Worker:
        """Kill one worker with SIGKILL, and wait until the kernel has closed its connections."""
        worker = self.workers.pop(name)
        worker.process.send_signal(signal.SIGKILL)
        worker.process.communicate()
        worker.log.close()
        return worker

    def check(self) -> None:
        """Raise WorkerEnded if a worker has ended by itself."""
        for worker in self.workers.values():
            status = worker.process.poll()
            if status is not None:
                worker.log.seek(0)
                lines = worker.log.read().decode(errors="replace").splitlines()[-LOG_LINES:]
                raise WorkerEnded("\n".join([f"{worker.name} ended with status {status}:", *lines]))

    def stop(self) -> None:
        """Ask all workers to end by closing their input, and kill those that do not."""
        deadline = time.monotonic() + PATIENCE + 1
        workers = list(self.workers.values())
        self.workers.clear()
        for worker in workers:
            assert worker.process.stdin is not None  # noqa: S101 - for mypy: it is a pipe
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()
        try:
            for worker in workers:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # the next lines kill all that still run
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()
                worker.log.close()
