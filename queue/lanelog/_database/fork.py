"""Inherited connections and locks in a forked child: it forgets them, without a word to the server.

Never touches the parent's connections: to close the child's copy of a socket changes nothing there, but a COM_QUIT
would end the parent's session. A wire is registered when it connects. An object with locks is registered when it is
made, and gets new locks in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Inheritable(Protocol):
    """An object that can be made harmless in a child."""

    def abandon(self) -> None:
        """Forget inherited state. Called in the child, when no other thread exists yet."""


_wires: weakref.WeakSet[Any] = weakref.WeakSet()
_shared: weakref.WeakSet[Any] = weakref.WeakSet()
# Objects that would take an inherited lock, or talk to the server, when they are collected. They stay until the end.
_kept: list[object] = []


def register_wire(wire: Inheritable) -> None:
    """Let a forked child call `wire.abandon()`, as long as the wire lives."""
    _wires.add(wire)


def register_shared(shared: Inheritable) -> None:
    """Let a forked child call `shared.abandon()` before any wire is abandoned, as long as the object lives."""
    _shared.add(shared)


def keep(inherited: object) -> None:
    """Keep an inherited object from being collected in the child."""
    _kept.append(inherited)


def _in_child() -> None:
    """Abandon each object, whatever happens to the others. Shared ones come first: nobody gets an inherited connection.

    All are held until the end, because a connection that is collected before it is abandoned ends the parent's session.
    """
    failed: Exception | None = None
    inherited = (*_shared, *_wires)
    for each in inherited:
        try:
            each.abandon()
        except Exception as exc:  # noqa: BLE001 - the first one is raised below, and the interpreter prints it
            failed = failed or exc
    if failed is not None:
        raise failed


os.register_at_fork(after_in_child=_in_child)
