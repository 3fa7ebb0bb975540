"""What a forked child does with inherited connections and locks: it forgets them, without a word to the server.

It never touches the parent: closing the child's copy of a socket is invisible to it, a COM_QUIT on it would not be.
Wires are registered when they connect; what is shared by threads is registered when it is made, to get new locks.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Inheritable(Protocol):
    """What can be made harmless in a child."""

    def abandon(self) -> None:
        """Forget what was inherited; called in the child, when no other thread exists yet."""


_wires: weakref.WeakSet[Any] = weakref.WeakSet()
_shared: weakref.WeakSet[Any] = weakref.WeakSet()
# What would take an inherited lock, or talk to the server, when it is collected: kept until the end instead.
_kept: list[object] = []


def register_wire(wire: Inheritable) -> None:
    """Have `wire.abandon()` called in a forked child, as long as the wire lives."""
    _wires.add(wire)


def register_shared(shared: Inheritable) -> None:
    """Have `shared.abandon()` called in a forked child after all wires are abandoned, as long as it lives."""
    _shared.add(shared)


def keep(inherited: object) -> None:
    """Keep an inherited object from being collected in the child."""
    _kept.append(inherited)


def _in_child() -> None:
    for inherited in (*_wires, *_shared):
        inherited.abandon()


os.register_at_fork(after_in_child=_in_child)
