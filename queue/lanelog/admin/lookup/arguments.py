"""Checks of the methods' arguments, before any SQL.

Owns the bounds of `limit` and of offsets. Never asks the database anything (`given` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.checks import EPOCH
from lanelog.config import check_name
from lanelog.errors import ConfigurationError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from lanelog._base.places import GroupTopic

LIMIT_MAX = 10_000
"""The most entries of a list."""

OFFSET_MAX = (1 << 63) - 1

BY_MAX, REASON_MAX = 255, 1024


def limit_of(value: object) -> int:
    """Return a limit, if it is 1 to 10,000."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LIMIT_MAX:
        raise ConfigurationError(f"limit must be an int of 1 to {LIMIT_MAX}, not {value!r}")
    return value


def offset_of(value: object, what: str = "offset") -> int:
    """Return an offset, if it is 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= OFFSET_MAX:
        raise ConfigurationError(f"{what} must be an int, 1 or more: offsets begin at 1, not at {value!r}")
    return value


def decided(dry_run: object) -> bool:
    """Return `dry_run`, if it is a bool: a value that merely counts as false must not let a method destroy."""
    if not isinstance(dry_run, bool):
        raise ConfigurationError(f"dry_run must be True or False, not {dry_run!r}")
    return dry_run


def unheard(_: int) -> None:
    """Default for `progress`: does nothing."""


def check_names(at: GroupTopic) -> None:
    """Refuse a malformed name of a topic or a group."""
    check_name("topic", at.topic)
    check_name("group", at.group)


def optional(kind: str, value: object) -> str | None:
    """Return a checked name, or None."""
    return None if value is None else check_name(kind, value)


def check_list(what: str, kind: str, values: Iterable[object]) -> list[str]:
    """Return a list of checked names. Refuse a single one, whose letters would be taken for names."""
    if isinstance(values, str | bytes):
        raise ConfigurationError(f"{what} must be a list of {what}, not one of them")
    try:
        return [check_name(kind, each) for each in values]
    except TypeError as exc:
        raise ConfigurationError(f"{what} must be a list of {what}, not {type(values).__name__}") from exc


def when(milliseconds: int | None) -> datetime | None:
    """Return an aware UTC datetime; None for 0 and NULL, which mean never."""
    return utc_from_ms(milliseconds) if milliseconds else None


def milliseconds(moment: datetime) -> int:
    """Return the first millisecond at or after the instant. What has an earlier one was written before the instant."""
    whole = moment - EPOCH
    microseconds = (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds
    return -(-microseconds // 1000)


def check_text(what: str, value: object, most: int, *, empty: bool = True) -> str:
    """Return `value`, if it is a str that its column can hold."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a str, not {type(value).__name__}")
    if len(value) > most or not (empty or value.strip()):
        least = 0 if empty else 1
        raise ConfigurationError(f"{what} must have {least} to {most} characters")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ConfigurationError(f"{what} must not contain lone surrogates") from exc
    return value
