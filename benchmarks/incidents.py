"""Four bad nights, staged with real processes and timed: how long until `lanelog status` says what is wrong.

`python -m benchmarks.incidents` starts a server, and stages them side by side, each in a database of its own. Each is
watched as an operator would watch it: by the command, once every few seconds, and by its text alone. Status 1: one of
them was not named in time, or with a wrong remedy.

`--builds=600`: seconds that one build takes. With ten minutes, which is the default, the whole lasts half an hour.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

import lanelog
from lanelog.devserver import start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lanelog.devserver import DevServer

TOPIC, GROUP = "merge", "builders"
THREADS: Final = 4
BUILDS: Final = 12
EVERY: Final = 3.0
"""Seconds between two calls of `lanelog status`."""
RARELY: Final = 15.0
"""Seconds between two calls while an incident lasts half an hour."""
LATER: Final = 60.0
"""Seconds by which the builds may end later than they should."""
HUNG_WITHIN: Final = 45.0
BACKLOG_WITHIN: Final = 90.0
ALL_DEAD_FOR: Final = 90.0
"""Seconds for which all workers stay dead."""
ENDS_WITHIN: Final = 10.0
TENANT, OTHERS = "tenant-7", 20
TENANT_BACKLOG: Final = 3000
"""Messages that one tenant publishes at once, of which its lane handles ten a second."""
TENANT_RATE: Final = 20
"""Messages a second that it publishes from then on."""
DESTROYS: Final = re.compile(r"\$ lanelog (delete|purge|skip|seek|dlq delete|dlq redrive.*--execute)")
ENDS_A_PROCESS: Final = re.compile(r"kill -|restart|SIGTERM")


@frozen(kw_only=True)
class Found:
    """How one incident went."""

    incident: str
    expected: str
    seconds: float | None
    """From its beginning until `lanelog status` named it. None: it did not, or was not to."""
    held: bool
    said: str
    """What `lanelog status` printed then."""


@frozen
class Night:
    """One incident: its database, and the commands of an operator."""

    url: str

    def status(self) -> str:
        """Return what `lanelog status` prints."""
        return self._run("status")

    def _run(self, verb: str) -> str:
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "lanelog_command", verb],
            env={**os.environ, "LANELOG_URL": self.url, "COLUMNS": "160", "LINES": "60"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    @contextmanager
    def worker(self, role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """A process that works in a role; the block begins when it is ready, and ends it by SIGKILL."""
        command = [sys.executable, "-m", "benchmarks.incidents", "--role", role, *map(str, arguments)]
        with subprocess.Popen(  # noqa: S603 - this module, with arguments of our own
            command, env={**os.environ, "LANELOG_URL": self.url}, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                self.await_line(process, "ready")
                yield process
            finally:
                process.kill()

    @staticmethod
    def await_line(process: subprocess.Popen[str], expected: str) -> None:
        """Wait until the process prints a line."""
        assert process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
        while (line := process.stdout.readline().strip()) != expected:
            if not line:
                raise RuntimeError(f"the process ended before it said {expected!r}")

    def watch(
        self, seconds: float, until: Callable[[str], bool], every: float = EVERY
    ) -> tuple[float | None, list[str]]:
        """Call status until its text is as expected; the seconds it took, and all texts. None: not in time."""
        began, texts = time.monotonic(), list[str]()
        while time.monotonic() < began + seconds:
            texts.append(self.status())
            if until(texts[-1]):
                return time.monotonic() - began, texts
            time.sleep(every)
        return None, texts


# -- the incidents -----------------------------------------------------------------------------------------------------


def deadlock(night: Night) -> Found:
    """Four handlers wait for each other's locks: named with their stack, and ended by the command that is printed."""
    with night.worker("deadlock") as process:
        night.await_line(process, "deadlocked")
        seconds, texts = night.watch(HUNG_WITHIN, lambda text: "HUNG" in text)
        said = texts[-1]
        named = f"{THREADS} of {THREADS} workers" in said and "take_second" in said
        command = re.search(r"^ *\$ (.*kill .*)$", said, re.MULTILINE)
        ended = False
        if command:
            subprocess.run(command[1], shell=True, check=False)  # noqa: S602 - as the operator would
            try:
                ended = process.wait(ENDS_WITHIN) == -signal.SIGKILL
            except subprocess.TimeoutExpired:
                ended = False
    return Found(
        incident="four deadlocked threads",
        expected=f"named with stack within {HUNG_WITHIN:.0f} s; the command that is printed ends the process",
        seconds=seconds,
        held=seconds is not None and named and ended,
        said=said,
    )


def builds(night: Night, each: float) -> Found:
    """Twelve long builds on four workers are no incident."""
    with lanelog.connect(night.url) as client:
        client.publish_many(TOPIC, [(f"repo-{number}", b"build") for number in range(BUILDS)])
    lasts = each * BUILDS / THREADS
    with night.worker("builds", each) as process:
        ended = threading.Event()

        def wait_for_the_last() -> None:
            night.await_line(process, "done")
            ended.set()

        threading.Thread(target=wait_for_the_last, daemon=True).start()
        _, texts = night.watch(lasts + LATER, lambda _text: ended.is_set(), every=min(each / 10, RARELY))
    wrong = [text for text in texts if ENDS_A_PROCESS.search(text) or DESTROYS.search(text)]
    return Found(
        incident=f"{BUILDS} builds of {each:.0f} s on {THREADS} workers",
        expected="no restart named, nothing that destroys; all are built",
        seconds=None,
        held=not wrong and ended.is_set(),
        said=(wrong or texts[-2:-1] or texts)[0],
    )


def all_dead(night: Night) -> Found:
    """All workers die: status names the last members, and nothing that destroys."""
    with lanelog.connect(night.url) as client, night.worker("handle", 0.01), night.worker("handle", 0.01):
        client.publish_many(TOPIC, [(f"repo-{number}", b"build") for number in range(BUILDS)])
    with lanelog.connect(night.url) as client:
        client.publish_many(TOPIC, [(f"repo-{number}", b"build") for number in range(BUILDS)])
    began = time.monotonic()
    seconds, texts = night.watch(ALL_DEAD_FOR, lambda text: "NOBODY CONSUMES" in text)
    _, later = night.watch(began + ALL_DEAD_FOR - time.monotonic(), lambda _text: False)
    return Found(
        incident="all workers dead",
        expected="named, and no line destroys",
        seconds=seconds,
        held=seconds is not None and not any(DESTROYS.search(text) for text in (*texts, *later)),
        said=(later or texts)[-1],
    )


def backlog(night: Night) -> Found:
    """One tenant has published more than one lane can do, and goes on: its key and both rates are named."""
    with night.worker("handle", 0.1), night.worker("tenant"):
        rates = re.compile(rf"BEHIND.* {TENANT}\b.*/s come in, .*/s go out", re.DOTALL)
        seconds, texts = night.watch(BACKLOG_WITHIN, lambda text: bool(rates.search(text)))
    return Found(
        incident="one tenant's backlog",
        expected=f"named with key and rates within {BACKLOG_WITHIN:.0f} s",
        seconds=seconds,
        held=seconds is not None,
        said=texts[-1],
    )


# -- the processes -----------------------------------------------------------------------------------------------------


def work_deadlocked() -> None:
    """Four workers, in two pairs, each of which takes two locks in opposite order."""
    locks = [threading.Lock() for _ in range(THREADS)]
    holding = threading.Barrier(THREADS, action=lambda: print("deadlocked", flush=True))

    def take_first(message: lanelog.Message) -> None:
        number = int(message.key)
        with locks[number]:
            holding.wait()
            take_second(number ^ 1)

    def take_second(number: int) -> None:
        with locks[number]:
            pass

    with lanelog.connect() as client:
        client.publish_many(TOPIC, [(str(number), b"x") for number in range(THREADS)])
        print("ready", flush=True)  # before "deadlocked": a reader that waits for one line skips those before it
        client.subscribe(TOPIC, GROUP, take_first, workers=THREADS)
        signal.pause()


def work(seconds: float, *, visibility_timeout: float = 60.0, ends_after: int | None = None) -> None:
    """Four workers, whose handlers take so long."""
    handled = threading.Semaphore(0)

    def handle(_message: lanelog.Message) -> None:
        time.sleep(seconds)
        handled.release()

    with lanelog.connect() as client:
        client.subscribe(TOPIC, GROUP, handle, workers=THREADS, visibility_timeout=visibility_timeout)
        print("ready", flush=True)
        for _ in range(ends_after or sys.maxsize):
            handled.acquire()
        print("done", flush=True)
        signal.pause()


def publish_as_tenant() -> None:
    """One key gets more than its lane can do, the others little."""
    with lanelog.connect() as client:
        client.publish_many(TOPIC, [(TENANT, b"x")] * TENANT_BACKLOG)
        print("ready", flush=True)
        for number in range(sys.maxsize):
            client.publish_many(TOPIC, [(TENANT, b"x")] * TENANT_RATE)
            client.publish(TOPIC, f"quiet-{number % OTHERS}", b"x")
            time.sleep(1)


ROLES: Final[dict[str, Callable[..., None]]] = {
    "deadlock": work_deadlocked,
    "builds": lambda seconds: work(float(seconds), visibility_timeout=2 * float(seconds), ends_after=BUILDS),
    "handle": lambda seconds: work(float(seconds)),
    "tenant": publish_as_tenant,
}


# -- all of them -------------------------------------------------------------------------------------------------------


def stage(server: DevServer, each: float) -> list[Found]:
    """Stage all incidents side by side, and return how they went."""
    nights: list[Callable[[Night], Found]] = [deadlock, lambda night: builds(night, each), all_dead, backlog]

    def one(number: int) -> Found:
        url = server.create_database(f"night_{number}")
        with lanelog.connect(url) as client:
            client.migrate()
        found = nights[number](Night(url))
        print(_line(found), flush=True)
        return found

    with ThreadPoolExecutor(len(nights)) as pool:
        return list(pool.map(one, range(len(nights))))


def _line(found: Found) -> str:
    took = "" if found.seconds is None else f", after {found.seconds:.0f} s"
    return f"{'held' if found.held else 'NOT HELD'}{took}: {found.incident} ({found.expected})"


def main() -> int:
    """Stage, print, and write down."""
    parser = ArgumentParser(prog="benchmarks.incidents", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--server", default="local", choices=["local", "mysql-local"])
    parser.add_argument("--builds", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--output", type=Path, metavar="DIRECTORY")
    parser.add_argument("--role", nargs="+", metavar="ROLE", help="used by the script itself")
    given = parser.parse_args()
    if given.role:
        name, *arguments = given.role
        ROLES[name](*arguments)
        return 0
    with start(given.server) as server:
        found = stage(server, given.builds)
        version = f"{server.family}-{server.version}"
    for each in found:
        print(f"\n== {_line(each)}\n{each.said}")
    if given.output:
        path = given.output / f"incidents-{version}.json"
        path.write_text(json.dumps([_as_json(each) for each in found], indent=1) + "\n")
    return 0 if all(each.held for each in found) else 1


def _as_json(found: Found) -> dict[str, object]:
    seconds = None if found.seconds is None else round(found.seconds, 1)
    return {"incident": found.incident, "expected": found.expected, "held": found.held, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
