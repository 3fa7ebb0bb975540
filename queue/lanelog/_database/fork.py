"""Inherited connections and locks in a forked child: it forgets them, without a word to the server.

Never touches the parent's connections: to close the child's copy of a socket changes nothing there, but a COM_QUIT
would end the parent's session. A wire is registered when it connects. An object with locks is registered when it is
made, and gets new locks in the child.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from contextlib import suppress
from typing import Any, Protocol

import pymysql
from attrs import frozen


class Inheritable(Protocol):
    """An object that can be made harmless in a child."""

    def abandon(self) -> None:
        """Forget inherited state. Called in the child, when no other thread exists yet."""


@frozen
class Descriptor:
    """A connection's file descriptor, and which file it was when the connection was made.

    Noted at once, because a driver may refuse to report it later: mysqlclient raises in one thread while another one
    uses the connection, and in a forked child for ever if that was so at the fork.
    """

    number: int
    device: int
    inode: int

    @classmethod
    def of(cls, raw: Any) -> Descriptor | None:
        """Take it from a new connection. None for PyMySQL, whose socket reports it at any time."""
        return None if isinstance(raw, pymysql.connections.Connection) else cls.noted(raw)

    @classmethod
    def noted(cls, raw: Any) -> Descriptor:
        """Take it from a new connection of any driver."""
        number = (raw._sock if hasattr(raw, "_sock") else raw).fileno()  # noqa: SLF001 - there is no public way
        found = os.fstat(number)
        return cls(number, found.st_dev, found.st_ino)

    def is_file_of(self, number: int) -> bool:
        """Whether another number leads to the same file. Raises OSError if it leads nowhere."""
        found = os.fstat(number)
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def cut(self) -> None:
        """Let the number lead nowhere. If it is another file by now, do nothing."""
        try:
            same = self.is_file_of(self.number)
        except OSError:  # it was closed meanwhile
            return
        if same:
            try:
                nowhere = os.open(os.devnull, os.O_RDWR)
            except OSError:  # no descriptor is left: take this one
                os.close(self.number)
                nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != self.number:
                os.dup2(nowhere, self.number, inheritable=False)
                os.close(nowhere)


def silence(raw: Any, descriptor: Descriptor | None) -> object:
    """Cut an inherited connection off from its server, in a forked child.

    To close the child's file descriptor sends nothing to the server, but the driver's own close would. Asks the driver
    nothing. Returns an object that must not be collected before the process ends, because another thread may have been
    reading from it.
    """
    if descriptor is not None:
        descriptor.cut()
        return raw
    state = vars(raw)
    socket, stream = state.pop("_sock", None), state.pop("_rfile", None)
    if socket is not None:
        with suppress(OSError):
            os.close(socket.detach())
    return stream


_wires: weakref.WeakSet[Any] = weakref.WeakSet()
_shared: weakref.WeakSet[Any] = weakref.WeakSet()
# Objects that would take an inherited lock, or talk to the server, when they are collected. They stay until the end.
_kept: list[object] = []
_thread = threading.local()
"""Of the thread that forks: its signal mask."""


def register_wire(wire: Inheritable) -> None:
    """Let a forked child call `wire.abandon()`, as long as the wire lives."""
    _wires.add(wire)


def register_shared(shared: Inheritable) -> None:
    """Let a forked child call `shared.abandon()` before any wire is abandoned, as long as the object lives."""
    _shared.add(shared)


def keep(inherited: object) -> None:
    """Keep an inherited object from being collected in the child."""
    _kept.append(inherited)


def _before() -> None:
    """Hold signals back. Ctrl-C reaches a child, too, and must not interrupt what makes its connections harmless."""
    _thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _after() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _thread.mask)


def _in_child() -> None:
    """Abandon each object, whatever happens to the others. Shared ones come first: nobody gets an inherited connection.

    All are held until the end, because a connection that is collected before it is abandoned ends the parent's session.
    """
    failed: BaseException | None = None
    inherited = (*_shared, *_wires)
    for each in inherited:
        try:
            each.abandon()
        except BaseException as exc:  # noqa: BLE001 - the first one is raised below, and the interpreter prints it
            failed = failed or exc
    _after()
    if failed is not None:
        raise failed


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
