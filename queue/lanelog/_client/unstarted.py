"""A warning at the end of a process whose decorated handlers were never started.

Owns the list of such handlers, and the warning. Starts nothing, and keeps no client alive.

The warning is for a program that registers handlers and forgets `client.run()`. It is not for a process that only
imports a module with handlers: a web process, a test runner, a tool, a child of multiprocessing. So the program itself,
the module `__main__`, must be a file that registers the handler or knows the client by a name. And the client must
never have tried to connect.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PACKAGE: Final = __name__.partition(".")[0]


@frozen
class CallSite:
    """A line of the user's program."""

    module: str
    file: str
    line: int

    @classmethod
    def of_caller(cls) -> CallSite:
        """The line that called lanelog."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `warnings` finds its caller
        while frame is not None and frame.f_back and _module_of(frame).partition(".")[0] == _PACKAGE:
            frame = frame.f_back
        return cls("", "", 0) if frame is None else cls(_module_of(frame), frame.f_code.co_filename, frame.f_lineno)


@define(eq=False)
class _Waiting:
    """The first handler of a client that has not been started yet."""

    client: weakref.ref[object]
    started: Callable[[], bool]
    what: str
    site: CallSite
    script: bool
    """Whether the program is a file, not `python -c` or a prompt."""
    pid: int = field(factory=os.getpid)


_waiting: list[_Waiting] = []


def remember(client: object, started: Callable[[], bool], what: str, site: CallSite) -> None:
    """Remember the first handler of `client`, named by `what`, unless the client has `started` something.

    `started` is called again when the process ends. It must not refer to the client.
    """
    _waiting[:] = [each for each in _waiting if not each.started()]
    if not started() and all(each.client() is not client for each in _waiting):
        # Asked now: at the end of the process, Python has removed `__file__` from the program.
        script = hasattr(sys.modules.get("__main__"), "__file__")
        _waiting.append(_Waiting(weakref.ref(client), started, what, site, script))


@atexit.register
def _warn() -> None:
    # A program that fails has shown a more important error already.
    if getattr(sys, "last_value", None) is not None:
        return
    for each in _waiting:
        if each.pid == os.getpid() and not each.started() and _of_the_program(each):
            warnings.warn_explicit(
                f"{each.what} was registered, but its client never did anything: "
                "end the program with client.run(), or call client.start()",
                RuntimeWarning,
                each.site.file,
                each.site.line,
            )


def _of_the_program(waiting: _Waiting) -> bool:
    """Whether the module `__main__` is a file that registered the handler, or knows the client by a name."""
    if not waiting.script:
        return False
    if waiting.site.module == "__main__":
        return True
    client, names = waiting.client(), list(vars(sys.modules["__main__"]).values())
    return client is not None and any(
        value is client or (isinstance(value, ModuleType) and any(own is client for own in vars(value).values()))
        for value in names
    )


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
