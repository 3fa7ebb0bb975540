"""Errors as Spark shows them: Spark prints the whole traceback of a Python error; ours should be one line.

Changes no error of lanelog, except that it drops the errors that led to it. `clear` is for code that Spark calls, in
tasks and on the driver. `in_one_line` is for code that calls Spark.
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
"""The line of an error of lanelog in the traceback of a task, without its class."""
_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s/]*@")
_EMPTY: Final = re.compile(r"^(?:: )?(?:An error occurred while calling .*)?$")
"""Lines before Spark's own message in an error that came from Java."""
_WAITED: Final = "awaitResult:"
"""The end of a line that only says that something failed elsewhere."""
_CAUSE: Final = "Caused by: "
_MOST: Final = 1_000


class clear:  # noqa: N801 - a context manager, as contextlib.suppress; contextlib's own would put the traceback back
    """Let an error of lanelog out without its causes and frames: its message says what to do."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(exc, LanelogError):
            exc.__cause__ = None
            raise exc.with_traceback(None) from None


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Turn errors of Spark and of the disk within the block into a LanelogError of one line: `what`, and why."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as exc:
        raise LanelogError(f"{what}: {one_line(str(exc)) or type(exc).__name__}") from None


def one_line(text: str) -> str:
    """Return the first message in a text of Spark's; if it holds an error of lanelog, that.

    A URL's password is masked.
    """
    own = _OWN.search(text)
    lines = [line.strip() for line in text.splitlines()]
    first = own[1].strip() if own else next((line for line in lines if not _EMPTY.match(line)), "")
    if first.endswith(_WAITED):
        causes = (line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE))
        first = next((cause for cause in causes if not cause.endswith(_WAITED)), first)
    return _CREDENTIALS.sub("***@", first.removeprefix(": "))[:_MOST]
