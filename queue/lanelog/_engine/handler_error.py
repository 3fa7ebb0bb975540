"""The two forms of a handler's exception: the text that is kept with the message, and the traceback in the log.

Owns both forms. Decides nothing and never raises. The caller holds none of the engine's locks, because an exception's
text comes from the user's code, and source lines are read from files.

The text begins with the exception's own message, because administration groups failures by their first line. The frames
follow in Python's order, the innermost last. Where there is no room for all, the outer ones are left out.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lanelog._base.text import TRACEBACK_HEAD, describe
from lanelog._facts.log import ExcInfo, encodable, traceback_of
from lanelog.message import Postpone, Reject, Retry

if TYPE_CHECKING:
    from types import TracebackType

MAX_BYTES: Final = 4096
"""The longest error text in the database, in bytes of UTF-8. The columns are TEXT, with room for 65,535."""

MESSAGE_BYTES: Final = 2048
"""The longest text of an exception's own message, in bytes, when frames follow."""

FRAMES: Final = 20
"""How many frames of one exception are kept."""

CAUSES: Final = 5
"""How many exceptions one text holds: the first, its causes, and the members of a group."""

LINE: Final = 200
"""How many characters of a source line are kept."""

_CUT: Final = "…"
_OWN: Final = str(Path(__file__).parent)


def clip(text: str, most: int = MAX_BYTES) -> str:
    """The text, cut to `most` bytes of UTF-8. It can always be encoded."""
    text = encodable(text[: most + 1])  # no character is shorter than a byte
    data = text.encode()
    if len(data) <= most:
        return text
    return data[: most - len(_CUT.encode())].decode(errors="ignore") + _CUT


def raised(error: BaseException | None) -> ExcInfo | None:
    """The traceback for a log record.

    None for Postpone, Reject and Retry: they show no fault, unless they were raised from another exception.
    """
    if error is None:
        return None
    if isinstance(error, Postpone | Reject | Retry) and not _causes(error):
        return None
    return type(error), error, _frames(error)


def render(error: BaseException) -> str:
    """The exception's message and its innermost frames, then the same of its causes."""
    plain = clip(describe(error))
    if raised(error) is None:
        return plain
    try:
        return _render(error)
    except Exception:  # noqa: BLE001 - an exception class of the application may raise when it is formatted
        return plain


def _render(error: BaseException) -> str:
    text = ""
    for number, each in enumerate(_chain(error)):
        frames = [_shown(frame) for frame in traceback.extract_tb(_frames(each), limit=-FRAMES)]
        begin = f"{text}\nCaused by " if number else ""
        left = MAX_BYTES - len(begin.encode())
        if left <= len(TRACEBACK_HEAD):
            break
        message = clip(describe(each), min(left, MESSAGE_BYTES) if frames else left)
        text = begin + message
        kept = _innermost(frames, MAX_BYTES - len(text.encode()) - len(TRACEBACK_HEAD) - 2)
        if kept:
            text = "\n".join([text, TRACEBACK_HEAD, *kept])
    return text


def _innermost(frames: list[str], room: int) -> list[str]:
    """The last of these lines for which there is room."""
    kept: list[str] = []
    for frame in reversed(frames):
        room -= len(frame.encode()) + 1
        if room < 0:
            break
        kept.insert(0, frame)
    return kept


def _shown(frame: traceback.FrameSummary) -> str:
    where = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    return encodable(f"{where}\n    {frame.line[:LINE]}" if frame.line else where)


def _frames(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first frame on. The whole traceback when there is no frame of the user's."""
    frames = whole = traceback_of(error)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN):
        frames = frames.tb_next
    return whole if frames is None else frames


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes and its members, each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < CAUSES:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += _causes(each)


def _causes(error: BaseException) -> list[BaseException]:
    before = error.__cause__ if error.__suppress_context__ else error.__cause__ or error.__context__
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [each for each in (before, *members) if each is not None]
