"""The way out for log events: the stdlib logger "lanelog", written to through structlog.

It never configures structlog or logging, renders only plain values (of anything else, the type), and never raises.
Every room that does something takes its logger from `get_logger` and binds topic, group, key and subscriber to it.
"""

from __future__ import annotations

import enum
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict

LOGGER_NAME: Final = "lanelog"

_LONGEST_VALUE = 2000  # characters; a last error may quote a whole payload
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
}


class BoundLogger(structlog.stdlib.BoundLogger):
    """A structlog logger that costs a look-up while its level is off, and names its caller's line in the record."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *_: object, **values: Any) -> None:
        level = _LEVELS[method_name]
        if not self._logger.isEnabledFor(level):
            return
        exc_info = values.pop("exc_info", None)
        try:
            (line,), _kwargs = self._process_event(method_name, event, values)
            # The record's caller is whoever called debug() … exception(): two frames above this one.
            self._logger.log(level, line, exc_info=exc_info, stacklevel=3)
        except Exception:  # noqa: BLE001 - an application's broken log filter must not stop a loop
            if logging.raiseExceptions:
                traceback.print_exc(file=sys.stderr)


def render(_logger: object, _method: str, event_dict: EventDict) -> str:
    """Render the one line "event key=value …"; a structlog processor, the last of the chain."""
    event = str(event_dict.pop("event", ""))
    return " ".join([event, *(f"{name}={_text(value)}" for name, value in event_dict.items())])


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

    Events are static past-tense names. All settings are passed here, so that neither the library's events nor those of
    an application that configured structlog itself depend on the other.
    """
    wrapped = structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[render],
        wrapper_class=BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return cast("BoundLogger", wrapped.bind(**context))


logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())
