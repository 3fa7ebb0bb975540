"""Carries out the faults of a chaos run, one after the other, and tells which there were and when.

Owns the faults; it never looks at what they do to the messages. The runner gives it the fleet, the server, the proxy
and the plan, and takes from it the faults as they happened.
"""

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final
from urllib.parse import urlsplit

import pymysql
from attrs import define, field

from chaos.disk import SmallDisk
from chaos.fleet import Fleet
from chaos.history import Event, Fault
from chaos.pair import Pair
from chaos.proxy import Proxy
from chaos.schedule import SERVERS, Planned
from chaos.server_faults import ServerFaults
from chaos.sessions import kill_running, kill_some
from lanelog.devserver import DevServer

INTERRUPTS, FORKS = 60, 12
"""Signals of one fault."""

FORGOTTEN: Final = 50
"""Ends of transactions that make a `forgetful` fault, at the least."""

LOOKS: Final = 20
"""How often a `queries` fault looks for statements between two signals to its publisher."""

SIGNALLED: Final = 1.5
"""Seconds over which they come."""

REFUSED: Final = b"\xff"
"""What the server's first packet begins with, instead of a greeting."""

LIMIT: Final = "SET GLOBAL max_connections = 150"
"""Enough for the largest fleet, few enough to be taken at once."""

RESUMES_WITHIN: Final = 5.0
"""Seconds that a server has to write again after its disk was freed, before it is restarted."""

ANSWERS_WITHIN: Final = 30.0
"""Seconds that a server may be busy with the fault before, until it gives us a session."""

CREATE_PROBE: Final = "CREATE TABLE IF NOT EXISTS chaos_probe (number BIGINT PRIMARY KEY) ENGINE=InnoDB"
PROBE: Final = "REPLACE INTO chaos_probe VALUES (1)"
SNAPSHOT: Final = (
    "SET SESSION wait_timeout = 3600",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "SELECT COUNT(*) FROM queue_groups",
)

Connect = Callable[[], pymysql.Connection]


@define(eq=False)
class Nemesis:
    """Carries out a plan."""

    fleet: Fleet
    server: DevServer | Pair
    proxy: Proxy
    disk: Callable[[], SmallDisk | None]
    connect: Connect
    publishers: tuple[str, ...]
    """Those behind the proxy."""
    publishing: Sequence[subprocess.Popen[bytes]]
    """All of them, by their numbers."""
    say: Callable[[str], None]
    servers: ServerFaults | None = None
    """What servers can do; None: the run has none of its own."""
    _never: threading.Event = field(factory=threading.Event, init=False)
    _beside: list[Fault] = field(factory=list, init=False)
    """What happened beside the planned fault."""
    _background: list[threading.Thread] = field(factory=list, init=False)
    _over: threading.Event = field(factory=threading.Event, init=False)

    def run(self, faults: tuple[Planned, ...]) -> Iterator[Event]:
        """Do one fault after the other, and give each as it happened, with what it did to the server's data."""
        for planned in faults:
            self._never.wait(planned.pause)
            if planned.kind in SERVERS:
                yield from self._by_servers(planned)
                continue
            processes = self._victims(planned)
            start = time.monotonic()
            did = getattr(self, f"_{planned.kind.replace('-', '_')}")(planned)
            end = time.monotonic()
            self.say(f"{planned.kind} {' '.join(processes or ())} {end - start:.2f} s")
            if isinstance(did, str):
                processes = (did,)
            if planned.kind != "snapshot":
                yield Fault(kind=planned.kind, start=start, end=end, processes=processes)
            yield from self._take_beside()
        self._over.set()
        for thread in self._background:
            thread.join()
        yield from self._take_beside()

    def _by_servers(self, planned: Planned) -> list[Event]:
        if self.servers is None:
            raise RuntimeError("the run has no servers of its own")
        did = self.servers.do(planned)
        for fault in did:
            if isinstance(fault, Fault) and fault.kind != "copy":
                self.say(f"{fault.kind} {' '.join(fault.processes or ())} {fault.end - fault.start:.2f} s")
        return did

    def _victims(self, planned: Planned) -> tuple[str, ...] | None:
        if planned.kind in {"kill", "stop", "term"}:
            return (self.fleet.workers[planned.victim].name,)
        if planned.kind in {"cut", "stall", "half-close", "forgetful"}:
            return self.fleet.proxied() + self.publishers
        return None

    def _take_beside(self) -> list[Fault]:
        taken, self._beside = self._beside, []
        return taken

    # -- processes -------------------------------------------------------------------------------------------------

    def _kill(self, planned: Planned) -> None:
        self.fleet.kill(planned.victim)
        self.fleet.replace(planned.victim, planned.clock)

    def _term(self, planned: Planned) -> None:
        self.fleet.drain(planned.victim)
        self.fleet.replace(planned.victim, planned.clock)

    def _stop(self, planned: Planned) -> None:
        pid = self.fleet.workers[planned.victim].process.pid
        os.kill(pid, signal.SIGSTOP)
        self._never.wait(planned.hold)
        os.kill(pid, signal.SIGCONT)

    def _grow(self, planned: Planned) -> str:
        return self.fleet.add(planned.clock)

    def _shrink(self, _: Planned) -> str:
        return self.fleet.remove()

    def _interrupt(self, planned: Planned) -> str:
        """Raise exceptions in the main thread of a publisher, wherever it is in a publish."""
        return self._signal(planned, signal.SIGUSR1, INTERRUPTS)

    def _fork(self, planned: Planned) -> str:
        """Let a publisher fork while its threads publish."""
        return self._signal(planned, signal.SIGUSR2, FORKS)

    def _signal(self, planned: Planned, number: signal.Signals, times: int) -> str:
        dice = random.Random(planned.seed)
        publisher = dice.randrange(len(self.publishing))
        for _ in range(times):
            self.publishing[publisher].send_signal(number)
            self._never.wait(dice.uniform(0.0, 2 * SIGNALLED / times))
        return f"p{publisher}"

    # -- the network -----------------------------------------------------------------------------------------------

    def _cut(self, _: Planned) -> None:
        self.proxy.cut()

    def _stall(self, planned: Planned) -> None:
        self.proxy.stall()
        self._never.wait(planned.hold)
        self.proxy.resume()

    def _half_close(self, planned: Planned) -> None:
        self.proxy.half_close(random.Random(planned.seed))

    def _forgetful(self, planned: Planned) -> None:
        """End transactions behind the proxy unseen, for so long, and as often as makes it a fault."""
        before, now = self.proxy.forgotten, time.monotonic()
        until, latest = now + planned.hold, now + planned.hold + ANSWERS_WITHIN
        self.proxy.forget(random.Random(planned.seed))
        try:
            while time.monotonic() < until or self.proxy.forgotten < before + FORGOTTEN:
                if time.monotonic() >= latest:
                    raise RuntimeError("hardly anything goes through the proxy, or it cannot be read there")
                self._never.wait(0.1)
        finally:
            self.proxy.remember()
        self.say(f"{self.proxy.forgotten - before} transactions ended unseen")

    # -- the server ------------------------------------------------------------------------------------------------

    def _server(self, planned: Planned) -> None:
        self.server.kill()
        self._never.wait(planned.hold)
        self.server.restart()

    def _connections(self, planned: Planned) -> None:
        with self._session() as connection:
            kill_some(connection, random.Random(planned.seed))

    def _queries(self, planned: Planned) -> None:
        """Kill statements of whatever transactions there are, and no session, while a publisher hurries."""
        dice, until = random.Random(planned.seed), time.monotonic() + planned.hold
        publisher = dice.choice(self.publishing)
        with self._session() as connection:
            while time.monotonic() < until:
                publisher.send_signal(signal.SIGHUP)
                for _ in range(LOOKS):
                    kill_running(connection, dice)
                    self._never.wait(0.005)

    def _exhaustion(self, planned: Planned) -> None:
        """Take every connection the server has left; then kill some of the library's and take these as well."""
        with ExitStack() as stack:
            control = stack.enter_context(self._session())
            with control.cursor() as cursor:
                cursor.execute(LIMIT)  # again each time: a restarted server has forgotten it
            self._take_connections(stack)
            start = time.monotonic()
            kill_some(control, random.Random(planned.seed))
            while time.monotonic() < start + planned.hold:
                self._take_connections(stack)
                self._never.wait(0.02)
        # Who lost a session then could not have a new one before the end: that is what may have consequences.
        self._beside.append(Fault(kind="connections", start=start, end=time.monotonic()))

    def _take_connections(self, stack: ExitStack) -> None:
        """Connect and never log in, until the server refuses: each counts until the server's patience ends."""
        address = urlsplit(self.server.primary.url if isinstance(self.server, Pair) else self.server.url)
        while True:
            try:
                connection = socket.create_connection((address.hostname, address.port or 3306), timeout=RESUMES_WITHIN)
                stack.callback(connection.close)
                greeting = connection.recv(256)
            except OSError:
                return  # it does not even say no: there is nothing more to be had
            if not greeting or greeting[4:5] == REFUSED:
                return

    def _session(self) -> pymysql.Connection:
        """A session of our own, asked for until there is one."""
        until = time.monotonic() + ANSWERS_WITHIN
        while True:
            try:
                return self.connect()
            except pymysql.err.MySQLError:
                if time.monotonic() >= until:
                    raise
            self._never.wait(0.1)

    def _snapshot(self, planned: Planned) -> None:
        """Begin a transaction with a snapshot, and let it be: it goes on while other faults come."""
        begun = threading.Event()

        def hold() -> None:
            start = time.monotonic()
            try:
                with self.connect() as connection, connection.cursor() as cursor:
                    for statement in SNAPSHOT:
                        cursor.execute(statement)
                    begun.set()
                    self._over.wait(planned.hold)
                    cursor.execute("COMMIT")
            except pymysql.err.MySQLError:
                self.say("the snapshot's session was lost")
            finally:
                begun.set()
                self._beside.append(Fault(kind="snapshot", start=start, end=time.monotonic()))

        thread = threading.Thread(target=hold, name="snapshot", daemon=True)
        self._background.append(thread)
        thread.start()
        begun.wait(RESUMES_WITHIN)

    def _disk(self, planned: Planned) -> None:
        """Fill the disk, and free it again; a server that does not go on by itself is restarted."""
        disk = self.disk()
        if disk is None:
            raise RuntimeError("there is no small disk to fill")
        start = time.monotonic()
        until = start + planned.hold
        try:
            while time.monotonic() < until:
                disk.fill()
                self._never.wait(0.25)
        finally:
            disk.free()
        until = time.monotonic() + RESUMES_WITHIN
        while not self._writes():
            if time.monotonic() >= until:
                self.say("the server does not write again: restarting it")
                self.server.kill()
                self.server.restart()
                self._beside.append(Fault(kind="server", start=start, end=time.monotonic()))
                return
            self._never.wait(0.1)

    def _writes(self) -> bool:
        try:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute(PROBE)
        except pymysql.err.MySQLError:
            return False
        return True
