"""Errors as Spark shows them: Spark prints the whole traceback of an error in Python, and ours shall be one line.

It changes no error of lanelog but what led to it. `source`, `stream`, `reading` and `writer` wrap what Spark calls
in `clear`, for the tasks; `archive`, `replay` and `analyze` wrap what calls Spark in `in_one_line`, for the driver.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lanelog.errors import LanelogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_OWN: Final = re.compile(r"^\s*lanelog(?:\.\w+)+: (.+)$", re.MULTILINE)
"""The line of an error of lanelog in a traceback of a task, without its class."""
_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s/]*@")
_EMPTY: Final = re.compile(r"^(?:: )?(?:An error occurred while calling .*)?$")
"""What comes before Spark's own message in an error that crossed over from Java."""
_WAITED: Final = "awaitResult:"
"""How a line ends that says only that something failed elsewhere."""
_CAUSE: Final = "Caused by: "
_MOST: Final = 1_000


class clear:  # noqa: N801 - a context manager, as contextlib.suppress; contextlib's own would put the traceback back
    """Let an error of lanelog out without the errors and the frames behind it: its message says what to do."""

    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(exc, LanelogError):
            exc.__cause__ = None
            raise exc.with_traceback(None) from None


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Around what calls Spark: its errors, and those of the disk, become a LanelogError that says `what` and why."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as exc:
        raise LanelogError(f"{what}: {one_line(str(exc)) or type(exc).__name__}") from None


def one_line(text: str) -> str:
    """What a text of Spark's says first, or rather what an error of lanelog in it says; without a URL's password."""
    own = _OWN.search(text)
    lines = [line.strip() for line in text.splitlines()]
    first = own[1].strip() if own else next((line for line in lines if not _EMPTY.match(line)), "")
    if first.endswith(_WAITED):
        causes = (line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE))
        first = next((cause for cause in causes if not cause.endswith(_WAITED)), first)
    return _CREDENTIALS.sub("***@", first.removeprefix(": "))[:_MOST]
