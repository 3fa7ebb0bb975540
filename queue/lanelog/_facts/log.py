"""The way out for events: structlog's bound logger around the stdlib loggers below "lanelog", one for each room.

Never configures logging or structlog, and never raises. Renders plain values, and of any other value the type only.
"""

from __future__ import annotations

import enum
import logging
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal

import structlog
from structlog.typing import EventDict

from lanelog._base.text import describe

LOGGER_NAME: Final = "lanelog"
OWN_THREADS: Final = "lanelog-"
"""The names of the library's threads begin so."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
Raised = BaseException | ExcInfo | bool | None
"""What an event takes as `exc_info`. True: the exception that is being handled. False, None: there is none."""
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_TRACEBACK: Any = BaseException.__dict__["__traceback__"]
_LONGEST_VALUE = 2000  # characters; a last error may quote a whole payload
_LEVELS: Final[dict[Level, int]] = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
}


class EventLogger(structlog.BoundLoggerBase):
    """structlog's bound logger. An event whose level is off costs one look-up, and no event raises."""

    def emit(self, level_name: Level, event: str, fields: dict[str, Any]) -> None:
        """Log an event. The record's caller is the caller of the function that calls this."""
        level = _LEVELS[level_name]
        if not self._logger.isEnabledFor(level):
            return
        try:
            (template, arguments), more = self._process_event(level_name.lower(), event, fields)
            path, line, function, _stack = self._logger.findCaller(stacklevel=3)
            record = self._logger.makeRecord(
                self._logger.name, level, path, line, template, arguments, more["exc_info"], function
            )
            _attach(record, more["fields"])
            if more["exc_info"] is not None:
                _make_writable(record, more["exc_info"])
            self._logger.handle(record)
        except BaseException as error:
            # An application's broken log filter must not stop a loop. In a thread of the application's own, something
            # else than an Exception may be an interrupt that is meant for the caller.
            if not isinstance(error, Exception) and not threading.current_thread().name.startswith(OWN_THREADS):
                raise
            if logging.raiseExceptions:
                with suppress(Exception):  # the error stream may be closed
                    traceback.print_exc(file=sys.stderr)


def _resolve_exc_info(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    """Take `exc_info` of the call, before context variables are merged: one of that name is no exception."""
    event_dict["exc_info"] = _exc_info(event_dict.get("exc_info"))
    return event_dict


def _render(_logger: object, _method: str, event_dict: EventDict) -> tuple[tuple[str, tuple[str, ...]], dict[str, Any]]:
    """Return a record's template with its arguments, and what else the record gets.

    The event is the template, and the fields are an argument: tools that group records group by template.
    """
    exc_info, event = event_dict.pop("exc_info"), event_dict.pop("event")
    fields = {name: _plain(value) for name, value in event_dict.items()}
    shown = " ".join(f"{name}={_text(value)}" for name, value in fields.items())
    template, arguments = (f"{event} %s", (shown,)) if shown else (event, ())
    return (template, arguments), {"exc_info": exc_info, "fields": {"event": event, **fields}}


_PROCESSORS: Final = (_resolve_exc_info, structlog.contextvars.merge_contextvars, _render)


def _exc_info(given: object) -> ExcInfo | None:
    """Resolve `exc_info=`: an exception, its triple, or True for the exception that is being handled."""
    if isinstance(given, BaseException):
        return type(given), given, traceback_of(given)
    if isinstance(given, tuple):
        return given
    kind, error, frames = sys.exc_info() if given else (None, None, None)
    return None if kind is None or error is None else (kind, error, frames)


def _attach(record: logging.LogRecord, fields: Mapping[str, object]) -> None:
    """Make the fields attributes of the record, as `extra=` does. A name that is taken gets the prefix `lanelog_`.

    An application's record factory may have taken names: `extra=` would raise then, and the event would be lost.
    """
    for name, value in fields.items():
        taken = name in record.__dict__ or name in {"message", "asctime"}
        record.__dict__[f"lanelog_{name}" if taken else name] = value


def _make_writable(record: logging.LogRecord, exc_info: ExcInfo) -> None:
    """Escape a lone surrogate in the traceback. No stream could write it, and the event would be lost.

    The application's formatter renders any other traceback.
    """
    try:
        text = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    except Exception:  # noqa: BLE001 - an exception of the application, or one of its causes, fails to render
        text = record.exc_text = encodable(describe(exc_info[1]))
    try:
        text.encode()
    except UnicodeEncodeError:
        record.exc_text = encodable(text)


def encodable(text: str) -> str:
    """Return the text with its lone surrogates escaped: neither UTF-8 nor a database can hold them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: object) -> object:
    """Return a value that any formatter can render. Other objects might hold a secret: only their type is shown."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, BaseException):
        value = describe(value)
    if isinstance(value, str):
        if len(value) > _LONGEST_VALUE:
            value = value[:_LONGEST_VALUE] + "…"
        return encodable(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"


def _text(value: object) -> str:
    """Show a plain value on one line."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{','.join(_text(item) for item in value)}]"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return str(value).lower()  # None, a truth value, a whole number


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception, whatever its class says of itself."""
    frames: TracebackType | None = _TRACEBACK.__get__(error)
    return frames


def _quoted(value: str) -> str:
    # repr() escapes line breaks, so that one event stays one line.
    plain = value.isprintable() and value and not any(character in value for character in " =\"'")
    return value if plain else repr(value)


def get_logger(room: str) -> EventLogger:
    """Return the way out through the logger `lanelog.<room>`.

    What an application passes to `structlog.configure` changes nothing here, because the logger gets its processors
    from this module.
    """
    return EventLogger(logging.getLogger(f"{LOGGER_NAME}.{room}"), _PROCESSORS, {})
