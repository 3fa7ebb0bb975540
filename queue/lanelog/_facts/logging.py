"""The event that the application has disabled loggers of the library, and the check for it.

`logging.config` disables every logger that was made before, unless an option forbids it. The logger of this event may
be among them, and is enabled for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lanelog._facts.fact import Room
from lanelog._facts.log import LOGGER_NAME

room = Room("logging")
_reported = False


@room.warning("loggers.disabled")
def loggers_disabled(*, loggers: Sequence[str], remedy: str) -> None:
    """The application's logging configuration has disabled these loggers, and what they say is lost, dead letters too.
    Set `disable_existing_loggers=False`. Logged once per process.
    """


def report_disabled() -> None:
    """Log once in a process that the application has disabled loggers of the library."""
    global _reported  # noqa: PLW0603 - once in a process
    found = list(logging.root.manager.loggerDict.items())
    disabled = sorted(
        name
        for name, logger in found
        if name.startswith(f"{LOGGER_NAME}.") and isinstance(logger, logging.Logger) and logger.disabled
    )
    if disabled and not _reported:
        _reported = True
        logging.getLogger(f"{LOGGER_NAME}.{room.name}").disabled = False
        loggers_disabled(loggers=disabled, remedy="disable_existing_loggers=False")
