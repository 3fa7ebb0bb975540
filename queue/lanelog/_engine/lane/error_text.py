"""How a handler's exception is told: as the text that is kept with the message, and as the traceback in the log.

Owns both forms; decides nothing and never raises. Called by the policy and by whoever logs a failure, outside the
engine's locks: what an exception says of itself is the user's code, and source lines are read from files.

The text begins with the exception's own message, because administration groups failures by their first line. The frames
follow in Python's order, the innermost last. Where there is no room for all, the outer ones are left out.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lanelog._telemetry import ExcInfo, describe, encodable
from lanelog.message import Postpone, Reject, Retry

if TYPE_CHECKING:
    from types import TracebackType

MAX_BYTES: Final = 4096
"""Of an error's text in the database, in UTF-8; the columns are TEXT and have room for 65,535."""

MESSAGE_BYTES: Final = 2048
"""Of the exception's own message, when frames follow."""

FRAMES: Final = 20
"""Of one exception."""

CAUSES: Final = 5
"""Exceptions that one text tells of: the first, what it was raised from, the members of a group."""

LINE: Final = 200
"""Characters of a source line."""

_HEAD: Final = "Traceback (most recent call last):"
_CUT: Final = "…"
_OWN: Final = str(Path(__file__).parents[1])


def clip(text: str, most: int = MAX_BYTES) -> str:
    """At most so many bytes of UTF-8, and always encodable."""
    text = encodable(text[: most + 1])  # no character is shorter than a byte
    data = text.encode()
    if len(data) <= most:
        return text
    return data[: most - len(_CUT.encode())].decode(errors="ignore") + _CUT


def summary(text: str | None) -> str | None:
    """The exception's own message, of a text that `render` has made."""
    return None if text is None else text.split(f"\n{_HEAD}", 1)[0]


def raised(error: BaseException | None) -> ExcInfo | None:
    """What a log record shows as the traceback; None for what a handler raises to say what it wants.

    Those have no fault to show unless they were raised from one.
    """
    if error is None:
        return None
    if isinstance(error, Postpone | Reject | Retry) and not _causes(error):
        return None
    return type(error), error, _frames(error)


def render(error: BaseException) -> str:
    """The exception's message and its innermost frames, then those of what it was raised from."""
    told = clip(describe(error))
    if raised(error) is None:
        return told
    try:
        return _render(error)
    except Exception:  # noqa: BLE001 - an exception class of the application's may break whoever looks at it
        return told


def _render(error: BaseException) -> str:
    text = ""
    for number, each in enumerate(_chain(error)):
        frames = [_shown(frame) for frame in traceback.extract_tb(_frames(each), limit=-FRAMES)]
        begin = f"{text}\nCaused by " if number else ""
        left = MAX_BYTES - len(begin.encode())
        if left <= len(_HEAD):
            break
        message = clip(describe(each), min(left, MESSAGE_BYTES) if frames else left)
        text = begin + message
        kept = _innermost(frames, MAX_BYTES - len(text.encode()) - len(_HEAD) - 2)
        if kept:
            text = "\n".join([text, _HEAD, *kept])
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
    """The traceback from the user's first frame on; all of it when the user's code was not reached."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN):
        frames = frames.tb_next
    return error.__traceback__ if frames is None else frames


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those behind it, each once."""
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
