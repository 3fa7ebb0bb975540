"""Errors as Spark shows them: Spark prints the whole traceback of an error in Python, and ours shall be one line.

It changes no error but what led to it. `_source`, `_stream`, `_reading` and `_writer` wrap what Spark calls in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog.errors import LanelogError

if TYPE_CHECKING:
    from types import TracebackType


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
