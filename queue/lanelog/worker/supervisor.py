"""The supervisor: it starts processes, kills those that hang, starts others for those that die, recycles, and ends.

Owns the decisions. One turn takes the reports that came in, and decides. Only the thread that calls `run` changes
anything. The probes ask from threads of their own, and read.
"""

from __future__ import annotations

import selectors
import signal
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import define, evolve, field

from lanelog._base.backoff import Backoff
from lanelog._facts import supervisor as facts
from lanelog.worker.changes import Changes
from lanelog.worker.orders import REFUSED, Limits, Orders
from lanelog.worker.process import Process, named
from lanelog.worker.signals import INTERRUPTED, EndingSignals
from lanelog.worker.silence import APART, BEAT, ENDS, SILENCE, Awake, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

SETTLED: Final = 10.0
"""Seconds for which a process must have been ready, so that its death is not one of a row of deaths."""

IN_VAIN: Final = 5
"""Attempts of each slot that may fail before any is ready. Then the supervisor ends, and its own end reports it."""

OVERDUE: Final = 20.0
"""Seconds after `--drain-timeout` in which a process has its last writes and ends by itself. Then it is killed."""

FAILED: Final = 1

ANSWER: Final = 2.0
"""Seconds in which processes report their metrics."""

POLL_SECONDS: Final = 0.5
"""Seconds between two polls of the application's source."""

OF_PROCESSES: Final = Backoff(least=0.1, first=1.0, most=30.0)
"""The wait before a process is started again."""


@define(eq=False)
class Slot:
    """A slot for one process at a time."""

    number: int
    process: Process | None = None
    start_at: float = 0.0
    """When (monotonic) the next process is started."""
    deaths: int = 0
    """Processes in a row that died soon."""
    why: str = ""
    """Why the last process is gone."""
    recycling: bool = False
    """Whether it is being replaced on purpose: from the request to drain until the new process is ready."""
    watch: Watch = field(factory=Watch)
    """Judges whether the process is hung."""

    def dying(self) -> Iterator[str]:
        """Yield why this slot has a process that does not live. The supervisor kills it later."""
        process = self.process
        if process is None:
            return
        if process.killed:
            yield f"process {self.number}, pid {process.pid}: {process.killed}; it was killed, and has not ended"
        if not process.reported_at:
            return
        silent = time.monotonic() - process.reported_at
        if silent > SILENCE:
            yield f"process {self.number}, pid {process.pid}: it has said nothing for {silent:.0f} s"
        for reason in process.report.dying:
            yield f"process {self.number}, pid {process.pid}: {reason}"

    def lacking(self) -> Iterator[str]:
        """Yield why this slot does not work now."""
        process = self.process
        if process is None:
            yield f"process {self.number}: {self.why or 'it was not started yet'}"
        elif not process.reported_at:
            yield f"process {self.number}, pid {process.pid}: it is starting"
        else:
            for reason in process.report.lacking:
                yield f"process {self.number}, pid {process.pid}: {reason}"


@define(eq=False)
class Supervisor:
    """Keeps the processes of one command running, until a signal or too many deaths."""

    _orders: Orders
    _processes: int
    _limits: Limits = field(factory=Limits)
    _changes: Changes | None = None
    """None: the processes are not replaced when the source changes."""
    _backoff: Backoff = OF_PROCESSES
    retire: Callable[[str], None] | None = None
    """Gets what a process has shown last, when it has ended."""
    _slots: list[Slot] = field(init=False)
    _selector: selectors.BaseSelector = field(factory=selectors.DefaultSelector, init=False)
    _poll_at: float = field(default=0.0, init=False)
    _in_vain: int = field(default=0, init=False)
    _draining: bool = field(default=False, init=False)
    _status: int = field(default=0, init=False)
    _reported: threading.Condition = field(factory=threading.Condition, init=False)
    _awake: Awake = field(factory=Awake, init=False)
    _next_kill: float = field(default=0.0, init=False)
    """When, by `_awake`, the next process that is hung may be killed."""

    def __attrs_post_init__(self) -> None:
        self._slots = [Slot(number) for number in range(1, self._processes + 1)]

    def run(self) -> int:
        """Run until a signal, or until no process can start. Return the exit status. In the main thread alone."""
        with EndingSignals() as signals, self._selector:
            self._selector.register(signals.wakes, selectors.EVENT_READ)
            while True:
                for received in signals.take():
                    facts.signal_received(signal=received.name)
                    self.drain()
                if signals.hard:
                    self._kill()
                    return signals.hard + INTERRUPTED
                delay = self.turn(time.monotonic())
                if self._draining and all(slot.process is None for slot in self._slots):
                    return self._status
                self._selector.select(delay)

    def turn(self, now: float) -> float:
        """Receive reports, kill, count the dead, start and recycle. Return the seconds until the next turn."""
        self._awake.turn(now)
        for slot in self._slots:
            self._receive(slot)
            self._kill_overdue(slot, now)
            self._bury(slot, now)
        self._end_hung()
        with self._reported:
            self._reported.notify_all()
        waits = [BEAT, *(due - now for slot in self._slots if (due := self._due(slot)))]
        if self._draining:
            return max(0.0, min(waits))
        if self._changes is not None and now >= self._poll_at:
            self._poll_at = now + POLL_SECONDS
            self._reload(now)
        self._recycle()
        for slot in self._slots:
            if slot.process is None and now >= slot.start_at:
                self._start(slot, now)
        waits += [slot.start_at - now for slot in self._slots if slot.process is None]
        waits += [] if self._changes is None else [self._poll_at - now]
        return max(0.0, min(waits))

    def drain(self) -> None:
        """Ask every process to end, and start no other."""
        self._draining = True
        for slot in self._slots:
            if slot.process is not None:
                slot.process.terminate()

    def dying(self) -> list[str]:
        """Return why the whole should be replaced, unless this ends soon: what is hung is killed, and started again."""
        return [reason for slot in self._slots for reason in slot.dying()]

    def lacking(self) -> list[str]:
        """Return why the whole is not ready. One process that is being recycled is no reason while another is ready."""
        if self._draining:
            return ["it is stopping"]
        lacking = {slot.number: list(slot.lacking()) for slot in self._slots}
        excused = next((slot.number for slot in self._slots if slot.recycling), 0)
        if any(not reasons for reasons in lacking.values()):  # a slot that works
            lacking.pop(excused, None)
        return [reason for reasons in lacking.values() for reason in reasons]

    def metrics(self, read: Callable[[list[str]], T]) -> T:
        """Ask the processes for their metrics, and return `read` of the answers. No process is retired meanwhile.

        Of a process that does not answer in time, the answer before is taken.
        """
        asked = time.monotonic()
        processes = [each for slot in self._slots if (each := slot.process) is not None and each.reported_at]
        for process in processes:
            process.ask()
        with self._reported:
            self._reported.wait_for(
                lambda: all(each.measured_at >= asked or each.channel.fileno() < 0 for each in processes), ANSWER
            )
            return read([each.metrics for slot in self._slots if (each := slot.process) is not None])

    # -- one process ---------------------------------------------------------------------------------------------------

    def _start(self, slot: Slot, now: float) -> None:
        try:
            slot.process = process = Process.start(self._orders)
        except OSError as error:  # the system has too many processes, or too little memory
            slot.deaths += 1
            slot.start_at = now + self._backoff.after(slot.deaths)
            slot.why = f"it cannot be started: {error}"
            facts.process_not_started(number=slot.number, error=error)
            return
        slot.watch = Watch(self._awake.seconds)
        self._selector.register(process.channel, selectors.EVENT_READ)
        facts.process_started(number=slot.number, started=process.pid)

    def _receive(self, slot: Slot) -> None:
        process = slot.process
        if process is None:
            return
        if not process.receive():
            self._hang_up(process)  # its end comes with SIGCHLD
        slot.watch.see(process, self._awake.seconds)
        if process.ready and not process.asked:
            self._in_vain = 0
            self._orders = evolve(self._orders, recreate=False)  # a group that is evicted later stays so
            slot.recycling, slot.why = False, ""

    def _hang_up(self, process: Process) -> None:
        if process.channel in self._selector.get_map():
            self._selector.unregister(process.channel)

    def _due(self, slot: Slot) -> float:
        """When (monotonic) its process is killed, because it has not drained. 0: never."""
        process, patience = slot.process, self._orders.drain_timeout
        if process is None or not process.asked or process.killed or patience is None:
            return 0.0
        return process.asked_at + patience + OVERDUE

    def _kill_overdue(self, slot: Slot, now: float) -> None:
        """Kill a process that should have ended. Its threads may be stuck outside of Python, or it is stopped."""
        due, process = self._due(slot), slot.process
        if process is not None and due and now >= due:
            self._kill_for(slot, process, "it did not end after its drain", now - process.asked_at)

    def _end_hung(self) -> None:
        """End one process that is hung. The next one has another moment to speak, or to go on.

        One whose workers hang still answers: it ends itself, so that only what hangs counts an attempt. It is killed if
        it does not.
        """
        now = self._awake.seconds
        if now < self._next_kill:
            return
        for slot in self._slots:
            process, hung = slot.process, slot.watch.hung(now)
            if process is None or process.killed:
                continue
            if hung is None and process.end_asked_at is not None and now - process.end_asked_at > ENDS:
                hung = "it was asked to end because its workers hang, and did not", now - process.end_asked_at
            if hung is not None:
                self._kill_for(slot, process, *hung)
            elif process.report.hung and process.end_asked_at is None:
                facts.process_hung(number=slot.number, hung=process.pid, why="; ".join(process.report.hung))
                process.ask_to_end(now)
            else:
                continue
            self._next_kill = now + APART
            return

    def _kill_for(self, slot: Slot, process: Process, why: str, seconds: float) -> None:
        facts.process_killed(number=slot.number, killed=process.pid, why=why, seconds=round(seconds, 1))
        process.kill(f"{why} for {seconds:.0f} s")

    def _bury(self, slot: Slot, now: float) -> None:
        process = slot.process
        status = None if process is None else process.ended()
        if process is None or status is None:
            return
        process.receive()  # its last word may have come after the one before
        self._hang_up(process)
        process.close()
        with self._reported:
            slot.process = None
            if self.retire is not None:
                self.retire(process.metrics)
        if self._draining:
            # SIGTERM ends a process that was still starting.
            self._status = self._status or (0 if status in (0, -signal.SIGTERM) else FAILED)
        elif process.asked:
            slot.start_at, slot.deaths = now, 0
        else:
            self._died(slot, process, status, now)

    def _died(self, slot: Slot, process: Process, status: int, now: float) -> None:
        settled = process.ready_at and now - process.ready_at >= SETTLED
        slot.deaths = 1 if settled else slot.deaths + 1
        how = f"{named(status)}: {process.killed}" if process.killed else named(status)
        slot.recycling, slot.why = False, f"the last one ended with {how}"
        wait = self._backoff.after(slot.deaths)
        slot.start_at = now + wait
        facts.process_died(number=slot.number, died=process.pid, how=how, seconds=round(wait, 1))
        if process.ready_at:
            return
        self._in_vain += 1
        # A process that has worked is kept before one that cannot start, as while the database is unavailable.
        works = any(each.process is not None and each.process.ready_at for each in self._slots)
        if not works and self._changes is None and (status == REFUSED or self._in_vain >= IN_VAIN * self._processes):
            facts.supervisor_gave_up(processes=self._in_vain, how=how)
            self._status = REFUSED if status == REFUSED else FAILED
            self.drain()

    def _recycle(self) -> None:
        """Replace one process that has reached a limit, unless another one is being replaced."""
        if any(slot.recycling for slot in self._slots):
            return
        for slot in self._slots:
            if (
                slot.process is not None
                and slot.process.ready_at
                and (why := self._limits.exceeded(slot.process.report))
            ):
                self._replace(slot, slot.process, why)
                return

    def _reload(self, now: float) -> None:
        """Replace all processes if the source has changed: one that cannot start has another attempt now."""
        if self._changes is None or not self._changes.poll():
            return
        for slot in self._slots:
            slot.deaths, slot.start_at = 0, now
            if slot.process is not None and not slot.process.asked:
                self._replace(slot, slot.process, "the source has changed")

    def _replace(self, slot: Slot, process: Process, why: str) -> None:
        slot.recycling, slot.why = True, f"it is being replaced: {why}"
        facts.process_recycled(number=slot.number, recycled=process.pid, why=why)
        process.terminate()

    def _kill(self) -> None:
        processes = [slot.process for slot in self._slots if slot.process is not None]
        for process in processes:
            process.kill("there was a second signal")
        for process in processes:
            process.wait()
            process.close()
