"""Packets in which the server has stopped without a word, found and ended.

KILL QUERY may come between two statements of a packet. The server has then said that another answer follows, runs
nothing more, and waits for its client, with the locks of the transaction. The client waits for the answer. Only the
time-out of one of them would end that. So when a packet takes long, another connection asks the server about it. While
the server runs a statement, or one waits for a lock, the session shows it. If it twice shows none, the connection is
cut off: its thread gets the error of a lost connection, and the server rolls back.

Ends nothing else, and never closes the connection: its own thread does. Where the server cannot be asked, the time-outs
of the connections remain.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Final

from attrs import define, evolve, field

from lanelog._database.awaited import Awaited, AwaitedPackets
from lanelog._database.driver import Driver
from lanelog._database.wire import Wire
from lanelog._ending import ending
from lanelog._telemetry import get_logger
from lanelog.config import ConnectConfig
from lanelog.errors import LanelogError

LONG: Final = 2.0
"""Seconds after which the server is asked about a packet."""
_TURN: Final = 1.0
"""Seconds between two turns, and between the two questions about a packet: an answer may be on its way meanwhile."""
_CONNECT_WITHIN: Final = 1.0
_ANSWER_WITHIN: Final = 2.0

# Which of these sessions run no statement. An account sees its own. (The server's memory. MariaDB calls a session
# `Killed` until its next statement.)
_IDLE: Final = """SELECT ID FROM information_schema.PROCESSLIST
WHERE ID IN ({numbers}) AND COMMAND IN ('Sleep', 'Killed') AND INFO IS NULL"""

log = get_logger("database")


@define(eq=False)
class StoppedPackets:
    """The thread that finds them, for the connections of one `Driver`."""

    _config: ConnectConfig
    _packets: AwaitedPackets
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _over: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the thread, unless it runs. It holds nothing that would keep this object from being collected."""
        with self._lock:
            if self._thread is None and not self._over.is_set() and not ending():
                arguments = (weakref.ref(self), self._over)
                thread = threading.Thread(target=_turns, args=arguments, name="lanelog-packets", daemon=True)
                with suppress(RuntimeError):  # the system has no thread left
                    thread.start()
                    self._thread = thread

    def stop(self) -> None:
        """End the thread, for good."""
        self._over.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CONNECT_WITHIN + _ANSWER_WITHIN)

    def abandon(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._packets.abandon()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = None

    def turn(self) -> None:
        """Ask about the packets that take long, if there are any, and end those that were stopped."""
        late = self._packets.before(time.monotonic() - LONG)
        if not late:
            return
        driver = Driver(
            evolve(
                self._config,
                connect_timeout=min(self._config.connect_timeout, _CONNECT_WITHIN),
                read_timeout=min(self._config.read_timeout, _ANSWER_WITHIN),
            )
        )
        with suppress(LanelogError), closing(Wire(driver, autocommit=True)) as asking:
            asking.ensure()
            idle = _idle(asking, late)
            if idle and not self._over.wait(_TURN):
                for awaited in _idle(asking, idle):
                    if awaited.since == late[awaited]:  # still the same packet
                        seconds = round(time.monotonic() - awaited.since, 1)
                        log.warning("packet.stopped", connection=awaited.number, seconds=seconds)
                        awaited.cut_off()


def _turns(of: weakref.ref[StoppedPackets], over: threading.Event) -> None:
    while not over.wait(_TURN):
        packets = of()
        if packets is None:
            return
        packets.turn()
        del packets


def _idle(asking: Wire, packets: Iterable[Awaited]) -> list[Awaited]:
    numbers = ", ".join(str(awaited.number) for awaited in packets)
    idle = {int(number) for (number,) in asking.query(_IDLE.format(numbers=numbers))}
    return [awaited for awaited in packets if awaited.number in idle]
