"""The way out for log events: the stdlib loggers below "lanelog", one for each room.

Never configures logging, and never raises. Renders plain values, and of any other value the type only. `_events` lists
the events.
"""

from __future__ import annotations

import enum
import logging
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from attrs import frozen

LOGGER_NAME: Final = "lanelog"

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_LONGEST_VALUE = 2000  # characters; a last error may quote a whole payload


@frozen(eq=False, repr=False)
class BoundLogger:
    """A logger with values that each of its events begins with. An event whose level is off costs one look-up."""

    _logger: logging.Logger
    _context: Mapping[str, object]

    def bind(self, **context: object) -> BoundLogger:
        """Return the same logger with more values."""
        return BoundLogger(self._logger, {**self._context, **context})

    def debug(self, event: str, **values: Any) -> None:
        """Log an event for the debugging of lanelog itself."""
        self._log(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log an event of a normal life."""
        self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log an event that an operator may want to look at."""
        self._log(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log an event that an operator must look at."""
        self._log(logging.ERROR, event, values)

    def exception(self, event: str, **values: Any) -> None:
        """As `error`, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        exc_info = _exc_info(values.pop("exc_info", None))
        try:
            fields = {name: _plain(value) for name, value in {**self._context, **values}.items()}
            shown = " ".join(f"{name}={_text(value)}" for name, value in fields.items())
            # The caller in the record is the caller of debug() … exception(), two frames above this one.
            path, line, function, _ = self._logger.findCaller(stacklevel=3)
            # The event is the template, and the fields are an argument: tools that group records group by template.
            template, arguments = (f"{event} %s", (shown,)) if shown else (event, ())
            record = self._logger.makeRecord(
                self._logger.name, level, path, line, template, arguments, exc_info, function
            )
            _attach(record, {"event": event, **fields})
            if exc_info is not None:
                _make_writable(record, exc_info)
            self._logger.handle(record)
        except Exception:  # noqa: BLE001 - an application's broken log filter must not stop a loop
            if logging.raiseExceptions:
                traceback.print_exc(file=sys.stderr)


def _exc_info(given: object) -> ExcInfo | None:
    """Resolve `exc_info=`: an exception, its triple, or True for the exception that is being handled."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
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
    text = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
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


def describe(error: BaseException) -> str:
    """Return the class and text of an exception; never raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - an application's exception may fail to render
        text = "(its text could not be rendered)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _quoted(value: str) -> str:
    # repr() escapes line breaks, so that one event stays one line.
    plain = value.isprintable() and value and not any(character in value for character in " =\"'")
    return value if plain else repr(value)


def get_logger(room: str, **context: object) -> BoundLogger:
    """Return the logger `lanelog.<room>` with `context` bound to it: `log.info("lanes.acquired", lanes=3)`.

    Events are static past-tense names from `_events`.
    """
    return BoundLogger(logging.getLogger(f"{LOGGER_NAME}.{room}"), context)
