"""One process of `lanelog worker`: it imports the module, runs its client, and reports to the supervisor.

Owns its two threads beside the client's: one reports, and one receives the supervisor's questions and its end. Its
arguments are the number of its socket, and its orders. Exit status: 0 drained; 1 failed, and another attempt may help;
2 refused; 3 its handlers hung.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog._facts import supervisor as facts
from lanelog._process import own_end
from lanelog.errors import ConfigurationError
from lanelog.worker.orders import END, REFUSED, Orders, Report
from lanelog.worker.target import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog.client import Client

FAILED: Final = 1
_EVERY: Final = 1.0
"""Seconds between two reports."""
_SOON: Final = 0.1
"""The same while it is not ready."""
_ORPHAN: Final = 30.0
"""Seconds in which a process without a supervisor drains, unless its orders say how long a drain may take."""
_LAST_STEPS: Final = 10.0
"""Seconds after its last commits in which a process ends by itself. A thread of the application may hold it up."""
_FORMAT: Final = "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"


def main(number: str, text: str) -> int:
    """Run, and return the exit status."""
    orders = Orders.from_json(text)
    channel = socket.socket(fileno=int(number))
    channel.set_inheritable(False)  # a program that a handler starts must not hold the supervisor's socket
    reporter = Reporter(channel)
    threading.Thread(target=_obey, args=(channel, reporter, orders), name="lanelog-supervised", daemon=True).start()
    try:
        reporter.client = client = find(orders.target)
        log_to_terminal()
        if orders.metrics:
            _measure(client)
        _supervise(client, recreate=orders.recreate)
        threading.Thread(target=reporter.repeat, name="lanelog-reports", daemon=True).start()
        try:
            client.run(workers=orders.workers, drain_timeout=orders.drain_timeout)
        finally:
            if orders.metrics:
                reporter.send(metrics=True)  # the last word: what is counted until here is not lost
            # `run` has waited for the handlers as long as they may take. The database may be away: do not wait again.
            client.close(30.0 if orders.drain_timeout is None else 0.0)
    except ConfigurationError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a command line prints
        return REFUSED
    except Exception:  # noqa: BLE001 - it is printed, and the supervisor decides
        traceback.print_exc()
        return FAILED
    return 0


def log_to_terminal() -> None:
    """Log to standard error, from INFO on, unless the application has set up logging."""
    ours = [each for each in logging.getLogger("lanelog").handlers if not isinstance(each, logging.NullHandler)]
    if not ours:
        logging.basicConfig(level=logging.INFO, format=_FORMAT)  # does nothing if the root logger has a handler


@define(eq=False)
class Reporter:
    """Reports to the supervisor how this process is."""

    _channel: socket.socket
    client: Client | None = None
    """None: it is still being imported."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def repeat(self) -> None:
        """Report again and again, until the supervisor is gone."""
        pause = threading.Event()
        while (report := self.send()) is not None:
            pause.wait(_SOON if report.lacking else _EVERY)

    def cut_off(self) -> None:
        """Give back what handlers still have."""
        if self.client is not None:
            for each in list(self.client._subscriptions):  # noqa: SLF001 - as `run`
                each.cut_off()

    def send(self, *, metrics: bool = False) -> Report | None:
        """Send one report, and return it. None: the supervisor is gone, or there was nothing to say."""
        client = self.client
        if client is None:
            return None
        health = client.health()
        report = Report(
            dying=health.dying,
            hung=health.hung,
            lacking=health.lacking,
            handled=sum(each.stats().handled for each in list(client._subscriptions)),  # noqa: SLF001 - as `run`
            memory=_memory(),
            metrics=_metrics() if metrics else None,
        )
        try:
            with self._lock:
                self._channel.sendall(report.to_line())
        except OSError:
            return None
        return report


def _obey(channel: socket.socket, reporter: Reporter, orders: Orders) -> None:
    """Answer the supervisor: it asks for metrics, and a process that hangs for its end. When it is gone, drain and end.

    What still runs after the drain goes back with an attempt that does not count, as in `run(drain_timeout=)`.
    """
    with suppress(OSError):
        while asked := channel.recv(1):
            try:
                if asked == END:
                    threading.Thread(target=own_end.end_if_hung, name="lanelog-ending", daemon=True).start()
                else:
                    reporter.send(metrics=True)
            except Exception:  # noqa: BLE001 - this thread must notice the supervisor's end
                facts.metrics_failed(exc_info=True)
    drain = _ORPHAN if orders.drain_timeout is None else orders.drain_timeout
    _later(drain, reporter.cut_off)
    _later(drain + _LAST_STEPS, os._exit, FAILED)
    os.kill(os.getpid(), signal.SIGTERM)  # before the client runs, this ends the process


def _later(seconds: float, work: Callable[..., object], *arguments: object) -> None:
    timer = threading.Timer(seconds, work, arguments)
    timer.daemon = True
    timer.start()


def _supervise(client: Client, *, recreate: bool) -> None:
    """Let it run what it can without groups that were evicted, or register these again.

    The supervisor would start a process again and again that one evicted group keeps from running.
    """
    client._supervised = True  # noqa: SLF001 - as `run`
    if recreate:
        client._subscriptions = [each.with_options(recreate=True) for each in client._subscriptions]  # noqa: SLF001 - as `run`


def _measure(client: Client) -> None:
    from lanelog.metrics import observe
    from lanelog.metrics.summed import OF_A_PROCESS

    observe(client, bounds=OF_A_PROCESS)


def _metrics() -> str:
    from lanelog.metrics.summed import exposed

    try:
        return exposed()
    except Exception:  # noqa: BLE001 - it is logged with its traceback
        facts.metrics_failed(exc_info=True)
        return ""


def _memory() -> int:
    """Return the bytes of memory that this process uses. Without /proc, the most that it has used."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def end(status: int) -> None:
    """End the process. Python waits for the application's own threads first, but not for ever."""
    logging.shutdown()
    _later(_LAST_STEPS, os._exit, status)
    sys.exit(status)


if __name__ == "__main__":
    end(main(*sys.argv[1:]))
