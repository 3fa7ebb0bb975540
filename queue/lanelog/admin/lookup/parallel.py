"""Reads that need nothing of each other, at the same time: the server reads from its disk for all of them.

Owns the threads. Each read borrows a connection of its own, and gives it back before it ends: whoever calls this must
hold none, or a small pool could have none left.

Ctrl-C leaves the threads behind. They only read, and end with the process.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

AT_ONCE: Final = 4
"""Reads at the same time, unless the caller says otherwise: as many connections."""


@define(eq=False)
class _Taken:
    """One read, its answer, and the error instead of one."""

    read: Callable[[], object]
    answer: object = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)

    def run(self) -> None:
        try:
            self.answer = self.read()
        except Exception as exc:  # noqa: BLE001 - it is raised where the answer is wanted
            self.error = exc


def in_parallel(reads: Sequence[Callable[[], T]], most: int = AT_ONCE) -> list[T]:
    """Return the answers, in order. The caller's own thread reads, too.

    If some raise, the error of the first of them is raised, once all have ended.

    Args:
        reads: What to ask.
        most: How many there are at the same time.
    """
    tasks = [_Taken(read) for read in reads]
    left = deque(tasks)  # a thread takes the next one in one step

    def take() -> None:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task.run()

    threads = [
        threading.Thread(target=take, name="lanelog-parallel", daemon=True) for _ in range(min(most, len(tasks)) - 1)
    ]
    for thread in threads:
        thread.start()
    take()
    for thread in threads:
        thread.join()
    for task in tasks:
        if task.error is not None:
            raise task.error
    return [task.answer for task in tasks]  # type: ignore[misc] # each is its read's
