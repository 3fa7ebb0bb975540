"""Looks that need nothing of each other, taken at the same time: the server reads from its disk for all of them.

Owns the threads. Each look borrows a connection of its own, and gives it back before it ends: whoever calls this must
hold none, or a small pool could have none left.

Ctrl-C leaves the threads behind. They only read, and end with the process.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


@define(eq=False)
class _Taken:
    """One look, its answer, and the error instead of one."""

    look: Callable[[], object]
    answer: object = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)

    def run(self) -> None:
        try:
            self.answer = self.look()
        except Exception as exc:  # noqa: BLE001 - it is raised where the answer is wanted
            self.error = exc


def together(looks: Sequence[Callable[[], T]]) -> list[T]:
    """Return the answers, in order. The caller's own thread takes the last look.

    If some raise, the error of the first of them is raised, once all have ended.
    """
    tasks = [_Taken(look) for look in looks]
    threads = [threading.Thread(target=task.run, name="lanelog-look", daemon=True) for task in tasks[:-1]]
    for thread in threads:
        thread.start()
    for task in tasks[-1:]:
        task.run()
    for thread in threads:
        thread.join()
    for task in tasks:
        if task.error is not None:
            raise task.error
    return [task.answer for task in tasks]  # type: ignore[misc] # each is its look's
