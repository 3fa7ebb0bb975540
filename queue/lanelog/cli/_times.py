"""Times as people write them on a command line.

Owns which texts are a time. Knows no verb.
"""

from __future__ import annotations

from datetime import datetime

from lanelog.errors import ConfigurationError


def instant(text: str) -> datetime | None:
    """Return an ISO 8601 time with its offset from UTC; None if the text is no time.

    Raises ConfigurationError for a time without an offset from UTC.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        raise ConfigurationError(
            f"the time {text!r} has no time zone: write {found.isoformat()}Z for UTC, or {found.isoformat()}+02:00"
        )
    return found


def moment_of(option: str, text: str | None) -> datetime | None:
    """Return the time that an option names, if it was given. Raises ConfigurationError for a text that is no time."""
    if text is None:
        return None
    found = instant(text)
    if found is None:
        raise ConfigurationError(f"{option} {text!r} is no time: write 2026-01-31T12:00:00Z")
    return found
