"""Packets in which the server has stopped without a word, found and ended.

KILL QUERY may come between two statements of a packet. The server has then said that another answer follows, runs
nothing more, and waits for its client, with the locks of the transaction. The client waits for the answer. Only the
time-out of one of them would end that. So when a packet takes long, another connection asks the server about it. While
the server runs a statement, or one waits for a lock, the session shows it. If it twice shows none, the connection is
cut off: its thread gets the error of a lost connection, and the server rolls back.

A packet counts from its first answer on: before that it may be on its way to the server, which can stop only between
two statements. Nor is it cut off while data arrives, as from a slow network behind a server that has answered.

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

from attrs import define, field

from lanelog._database.connection.awaited import Awaited
from lanelog._database.connection.driver import Driver
from lanelog._database.connection.wire import Wire
from lanelog._database.server.incarnation import Incarnation
from lanelog._facts import database as facts
from lanelog._process.ending import ending

LONG: Final = 2.0
"""Seconds after which the server is asked about a packet."""
_TURN: Final = 1.0
"""Seconds between two checks, and between the two questions about a packet: an answer may be on its way meanwhile."""
_CONNECT_WITHIN: Final = 1.0
_ANSWER_WITHIN: Final = 2.0

# What the sessions run. An account sees its own. (The server's memory. In information_schema, MySQL refuses the whole
# list if one statement has a character of four bytes.)
_SESSIONS: Final = "SHOW PROCESSLIST"
# Any text of a statement can be shown: what is not ASCII becomes a question mark.
_READABLE: Final = "SET character_set_results = ascii"
# Numbers are of one server, and a balancer may ask another one.
_SERVER: Final = f"SELECT {Incarnation.identity_in_sql(mariadb=None)}, CONNECTION_ID()"
_IDLE: Final = frozenset({"Sleep", "Killed"})
"""What MariaDB calls `Killed` runs nothing until its next statement."""


@define(eq=False)
class StoppedPackets:
    """The thread that finds them, for the connections of one `Driver`."""

    _driver: Driver
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _over: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the thread, unless it runs. It holds nothing that would keep this object from being collected."""
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive and not self._over.is_set() and not ending():
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
        self._driver.awaited.abandon()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = None

    def turn(self) -> None:
        """Ask about the packets that take long, if there are any, and end those that were stopped."""
        late = self._driver.awaited.before(time.monotonic() - LONG)
        if not late:
            return
        driver = self._driver.brief(connect=_CONNECT_WITHIN, answer=_ANSWER_WITHIN)
        with closing(Wire(driver, autocommit=True)) as asking:
            asking.ensure()
            asking.execute(_READABLE)
            stopped = _stopped(asking, late)
            if stopped and not self._over.wait(_TURN):
                for awaited in _stopped(asking, stopped):
                    since = awaited.since
                    if since == late[awaited]:  # still the same packet
                        awaited.cut_off()
                        seconds = round(time.monotonic() - since, 1)
                        facts.packet_stopped(connection=awaited.number, seconds=seconds)


def _turns(of: weakref.ref[StoppedPackets], over: threading.Event) -> None:
    while not over.wait(_TURN):
        packets = of()
        if packets is None:
            return
        try:
            packets.turn()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the next check may succeed
            with suppress(Exception):
                facts.packet_not_asked(error=str(exc))
        del packets


def _stopped(asking: Wire, packets: Iterable[Awaited]) -> list[Awaited]:
    """Return those that the server has stopped in: their sessions run nothing, and no answer is on its way."""
    before = asking.one(_SERVER)
    sessions = {
        int(number): (command, statement)
        for number, _user, _host, _database, command, _time, _state, statement, *_ in asking.query(_SESSIONS)
    }
    if before is None or asking.one(_SERVER) != before:
        return []
    server, own = before
    if not str(sessions.get(own, ("", ""))[1]).startswith(_SESSIONS):
        return []  # another server has answered in between
    idle = {number for number, (command, statement) in sessions.items() if command in _IDLE and statement is None}
    return [
        awaited for awaited in packets if awaited.number in idle and awaited.server == server and awaited.is_silent()
    ]
