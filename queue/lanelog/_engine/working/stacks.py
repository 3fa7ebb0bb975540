"""Where threads stand: the frames of a stack as text, without the values of variables and without reading a file.

Owns that text and its bound. A thread runs on while its frames are read, so the lines may be those of two moments.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from threading import Thread
    from types import CodeType, FrameType

STACK_CHARACTERS: Final = 4096
"""The longest text of a stack. The innermost frames are kept."""
_LEFT_OUT: Final = "…"


def frames_of(threads: Collection[int]) -> Mapping[int, FrameType]:
    """Return the innermost frames of threads, by their `ident`. Those that have ended are missing."""
    return {ident: frame for ident, frame in sys._current_frames().items() if ident in threads}  # noqa: SLF001


def outermost(handler: Callable[[Any], object], messages: object) -> object:
    """Call the handler of a batch. Its frame is the engine's innermost one: `text_of` leaves it out, too."""
    return handler(messages)


def text_of_thread(thread: Thread | None, first: CodeType) -> str:
    """Return where a thread stands, as `text_of`. Empty: it has ended."""
    frame = None if thread is None or thread.ident is None else frames_of((thread.ident,)).get(thread.ident)
    return "" if frame is None else text_of(frame, first)


def text_of(frame: FrameType, first: CodeType) -> str:
    """Return a stack as text, the innermost frame last. Frames from `first` on are the engine's: they are left out.

    It holds no frame when it returns: a frame keeps the variables of its handler.
    """
    lines: list[str] = []
    room = STACK_CHARACTERS
    each: FrameType | None = frame
    while each is not None and each.f_code not in (first, outermost.__code__):
        line = f'File "{each.f_code.co_filename}", line {each.f_lineno}, in {each.f_code.co_qualname}'
        line = line.encode("utf-8", "backslashreplace").decode()  # a file name may have a lone surrogate
        room -= len(line) + 1
        if room < len(_LEFT_OUT):
            lines.append(_LEFT_OUT if lines else line[: STACK_CHARACTERS - 1] + _LEFT_OUT)
            break
        lines.append(line)
        each = each.f_back
    return "\n".join(reversed(lines))
