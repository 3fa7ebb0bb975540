"""The way out for log events: the stdlib logger "lanelog".

It never configures logging, renders only plain values (of anything else, the type), and never raises.
Every room that does something takes its logger from `get_logger` and binds topic, group, key and subscriber to it.
"""

from __future__ import annotations

import enum
import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

LOGGER_NAME: Final = "lanelog"

_LONGEST_VALUE = 2000  # characters; a last error may quote a whole payload


@frozen(eq=False, repr=False)
class BoundLogger:
    """A logger with values that each of its events begins with; it costs a look-up while an event's level is off."""

    _logger: logging.Logger
    _context: Mapping[str, object]

    def bind(self, **context: object) -> BoundLogger:
        """The same logger, with more values."""
        return BoundLogger(self._logger, {**self._context, **context})

    def debug(self, event: str, **values: Any) -> None:
        """Log an event that only who debugs lanelog itself wants to see."""
        self._log(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:
        """Log an event of a normal life."""
        self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log something that somebody may want to look at."""
        self._log(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log something that somebody must look at."""
        self._log(logging.ERROR, event, values)

    def exception(self, event: str, **values: Any) -> None:
        """As `error`, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        exc_info = values.pop("exc_info", None)
        try:
            line = " ".join([event, *(f"{name}={_text(value)}" for name, value in {**self._context, **values}.items())])
            # The record's caller is whoever called debug() … exception(): two frames above this one.
            self._logger.log(level, line, exc_info=exc_info, stacklevel=3)
        except Exception:  # noqa: BLE001 - an application's broken log filter must not stop a loop
            if logging.raiseExceptions:
                traceback.print_exc(file=sys.stderr)


def _text(value: object) -> str:
    """Show a value on one line; only the type of what might hold a secret or be of any length."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, BaseException):
        value = describe(value)
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{','.join(_text(item) for item in value)}]"
    return f"<{type(value).__name__}>"


def describe(error: BaseException) -> str:
    """Return the class and text of an exception; never raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the application's own exception class may fail to render
        text = "(its text could not be rendered)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _quoted(value: str) -> str:
    if len(value) > _LONGEST_VALUE:
        value = value[:_LONGEST_VALUE] + "…"
    # repr() escapes line breaks and lone surrogates: one event stays one line, on any stream.
    plain = value.isprintable() and value and not any(character in value for character in " =\"'")
    return value if plain else repr(value)


def get_logger(**context: object) -> BoundLogger:
    """Return the library's logger with `context` bound to it: `log.info("lane.acquired", key=key)`.

    Events are static past-tense names.
    """
    return BoundLogger(logging.getLogger(LOGGER_NAME), context)


logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())
