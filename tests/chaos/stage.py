"""What a chaos run plays on: a private server, a small disk, a proxy, publishers and workers, all writing a history.

Owns their order of coming and going; it never breaks anything. `run` and `profiles` use it, each with its own faults.
"""

import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from attrs import define, field
from rich.console import Console

from chaos import database
from chaos.fleet import Fleet, faketime, launch, wrong_clock
from chaos.hints import Hints
from chaos.history import Event, FaultKind, Journal, read
from chaos.monitor import Monitor
from chaos.nemesis import Nemesis
from chaos.operator import Operator
from chaos.pair import Pair
from chaos.proxy import Proxy
from chaos.schedule import Operation, Plan
from chaos.server_faults import ServerFaults
from chaos.setting import ACCOUNT, PATIENCE, setting
from chaos.worker import EFFECTS, RECORDS
from lanelog.devserver import DevServer

PUBLISHERS: Final = 2
DRAINS_WITHIN: Final = 180.0
STARTS_WITHIN: Final = 90.0


@define(eq=False, kw_only=True)
class Stage:
    """One run's processes. Made by `stage`."""

    server: DevServer | Pair
    directory: Path
    journal: Journal
    fleet: Fleet
    nemesis: Nemesis
    console: Console
    began: float
    impossible: dict[str, str]
    """The kinds of faults that this machine cannot do, and why."""
    failures: list[str] = field(factory=list)
    publishers: list[subprocess.Popen[bytes]] = field(factory=list)

    def say(self, text: str) -> None:
        """Tell what goes on, with the time of the run."""
        self.console.print(f"{time.monotonic() - self.began:7.1f}  {text}", markup=False, highlight=False)

    def wait_until_busy(self) -> None:
        """Wait until every process has written its first event: a fault before that would meet nothing."""
        journals = [self.directory / f"{worker.name}.jsonl" for worker in self.fleet.workers]
        journals += [self.directory / f"p{number}.jsonl" for number in range(PUBLISHERS)]
        until = time.monotonic() + STARTS_WITHIN
        while not all(journal.exists() and journal.stat().st_size for journal in journals):
            if time.monotonic() >= until:
                raise TimeoutError(f"not every process was at work after {STARTS_WITHIN:g} s; see {self.directory}")
            self.rest(0.05)
        self.say("every process is at work")

    def play(self, plan: Plan) -> None:
        """Carry out the faults that this machine can do, and write them down."""
        for fault in self.nemesis.run(plan.without(self.impossible).faults):
            self.journal.write(fault)

    @contextmanager
    def operated(self, operations: tuple[Operation, ...]) -> Iterator[None]:
        """Let an operator do these beside the faults; what he has begun is done, and nothing is paused, afterwards."""
        operator = Operator(self.server.url, self.journal, self.say, operations)
        if self.nemesis.servers is not None:
            self.nemesis.servers.went_back = operator.forget
        with operator:
            yield
        self.failures += operator.failures

    def rest(self, seconds: float) -> None:
        """Let everything run, without faults."""
        threading.Event().wait(seconds)

    def end(self) -> list[Event]:
        """Stop the publishers, wait for the groups, stop the workers; everything that was written down."""
        for process in self.publishers:
            process.terminate()
        for process in self.publishers:
            try:
                status = process.wait(DRAINS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                self.failures.append(f"a publisher had not ended after {DRAINS_WITHIN:g} s")
            else:
                if status:
                    self.failures.append(f"a publisher ended with status {status}")
        self.say("publishers have ended")
        drained = database.drain(self.server.url, DRAINS_WITHIN)
        self.journal.write(*drained)
        self.say(f"drained: {', '.join(sorted(group.group for group in drained))}")
        self.failures += [f"{group} did not drain" for group in {EFFECTS, RECORDS} - {group.group for group in drained}]
        self.fleet.drain_all()
        self.failures += self.fleet.failures
        if isinstance(self.server, Pair):
            self.server.retire()
            self.failures += self.server.failures
        self.journal.write(*self.fleet.wrong_clocks)
        self.journal.write(*database.outcome(self.server.url))
        return read(sorted(self.directory.glob("*.jsonl")))


@contextmanager
def stage(
    kind: str,
    directory: Path,
    console: Console,
    *,
    workers: int,
    lease: float,
    keys: int,
    seed: int,
    hints: Hints = "on",
    rate: float = 0.0,
    megabytes: int = 0,
    no_disk: str = "",
    servers: Collection[FaultKind] = (),
) -> Iterator[Stage]:
    """A stage with everything running; `megabytes`: on a disk of that size, `no_disk`: why there is none.

    `servers`: which of the faults that need servers of the run's own are to be possible.
    """
    directory.mkdir(parents=True, exist_ok=True)
    impossible: dict[str, str] = {"disk": no_disk} if no_disk else {}
    library = faketime()
    if library is None:
        impossible["clock"] = "libfaketime is missing"
    with ExitStack() as stack:
        found = stack.enter_context(setting(kind, 0 if no_disk else megabytes, servers, impossible))
        server, account = found.server, found.account
        proxy = stack.enter_context(Proxy(found.port))
        if isinstance(server, Pair):
            server.lead(proxy)
        journal = stack.enter_context(Journal(directory / "nemesis.jsonl"))

        def work(name: str, proxied: bool, clock: int) -> subprocess.Popen[bytes]:
            url = through(account, proxy) if proxied else account
            return launch("worker", directory, name, url, str(lease), hints, environment=wrong_clock(library, clock))

        fleet = Fleet(work, directory)
        began = time.monotonic()
        faults = ServerFaults(server, fleet, proxy, ACCOUNT, ("p0",)) if isinstance(server, Pair) else None
        publishers: list[subprocess.Popen[bytes]] = []
        nemesis = Nemesis(fleet, server, proxy, found.disk, found.connect, ("p0",), publishers, lambda _: None, faults)
        played = Stage(
            server=server,
            directory=directory,
            journal=journal,
            fleet=fleet,
            nemesis=nemesis,
            console=console,
            began=began,
            impossible=impossible,
            publishers=publishers,
        )
        nemesis.say = played.say
        if faults is not None:
            faults.say = played.say
        # Before the first process: nothing makes a machine as slow as all of them starting. The second one connects as
        # a worker would: an administrator may write where everybody else may only read.
        behind = partial(database.connect, through(account, proxy), PATIENCE)
        stack.enter_context(Monitor(found.connect, journal, lambda: None, fleet.alive))
        stack.enter_context(Monitor(behind, journal, fleet.proxied))
        stack.callback(fleet.kill_all)
        fleet.fill(workers)
        for number in range(PUBLISHERS):
            url = account if number else through(account, proxy)
            arguments = (str(seed), str(keys), hints, str(rate / PUBLISHERS))
            process = launch("publishers", directory, f"p{number}", url, *arguments)
            stack.callback(process.wait)
            stack.callback(process.kill)
            played.publishers.append(process)
        played.wait_until_busy()
        yield played


def through(url: str, proxy: Proxy) -> str:
    """The URL by way of the proxy."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{proxy.port}"))
