"""The JSON of payloads without a codec: which types it takes, and what it says about the others.

Every such publish needs it, so the standard library's encoder goes first, and a quick check compares the payload
with what comes back. Only a payload that fails, or comes back different, is searched for the path to name. Errors and
warnings name fields and types, and never a value of the payload.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import attrs

from lanelog.errors import ConfigurationError

_SAME: Final = frozenset({str, int, float, bool, type(None)})
"""Types without parts that come back equal."""
_AS_TEXT: Final = frozenset({datetime, date, Decimal})
"""Types without parts that come back as documented."""
_LEAVES: Final = _SAME | _AS_TEXT
_PATHS_MAX: Final = 100
"""How many paths warnings may name. Python remembers the text of each warning as long as it runs."""
_NAME: Final = 40
"""The most characters of a key that counts as the name of a field."""
_PACKAGE: Final = __name__.partition(".")[0]

_named: set[str] = set()


@attrs.frozen
class _Finding:
    """A fault at one path within a payload."""

    path: str
    problem: str
    refused: bool
    """Whether it cannot be JSON. Otherwise it comes back different."""


def encode_json(value: object) -> bytes:
    """Return compact JSON in UTF-8. Warn if it comes back different. Raises ConfigurationError, which names the path.

    Beyond JSON's own types it takes datetime and date (ISO 8601), Decimal and UUID (text), Enum (its value), attrs
    classes and dataclasses (objects of their fields).
    """
    try:
        encoded = _JSON.encode(value).encode()
    except UnicodeEncodeError:
        # Not chained: that error carries the whole text.
        raise ConfigurationError(_refusal(value, "a lone surrogate")) from None
    except (TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise ConfigurationError(_refusal(value, str(exc))) from exc
    if not _comes_back(value):
        _warn(value)
    return encoded


def _substitute(value: Any) -> object:
    """Return what stands in JSON for a value that JSON does not know. Raises TypeError."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date):  # datetime is one
        return value.isoformat()
    if isinstance(value, Decimal):
        # As for floats, other programs could not read it as a number.
        if not value.is_finite():
            raise TypeError("not a finite number")
        return str(value)
    if "uuid" in sys.modules and isinstance(value, sys.modules["uuid"].UUID):  # not imported for nothing
        return str(value)
    if not isinstance(value, type):
        if attrs.has(type(value)):
            return {each.name: getattr(value, each.name) for each in attrs.fields(type(value))}
        dataclasses = sys.modules.get("dataclasses")
        if dataclasses is not None and dataclasses.is_dataclass(value):
            return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    raise TypeError(f"of type {type(value).__name__}")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_substitute)


def _comes_back(value: object) -> bool:
    """Whether a quick check says that it comes back equal, or as documented. False: a full search is needed."""
    try:
        return _leaves_only(value)
    except RecursionError:  # the encoder goes a little deeper
        return True


def _leaves_only(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined] # checked above; isinstance would cost more
            if type(key) is not str or (type(item) not in _LEAVES and not _leaves_only(item)):
                return False
        return True
    if kind is list:
        for item in value:  # type: ignore[attr-defined] # noqa: SIM110 - all() costs twice as much
            if type(item) not in _LEAVES and not _leaves_only(item):
                return False
        return True
    return kind in _LEAVES


def _warn(value: object) -> None:
    found = _first(value, refused=False)
    if found is None:
        return
    path = found.path
    if path not in _named:
        if len(_named) >= _PATHS_MAX:
            path = "a part of it"
        else:
            _named.add(path)
    warnings.warn(
        f"the payload comes back different: {path} {found.problem}. lanelog 1.0 will refuse it",
        FutureWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    """Return the stacklevel, as the caller of this function counts, of the first frame outside of this package."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - inspect's way reads source files
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level


def _refusal(value: object, error: str) -> str:
    found = _first(value, refused=True)
    what = error if found is None else f"{found.path} {found.problem}"
    return f"the payload cannot be JSON: {what}. Convert it, give a codec=, or encode it yourself and publish bytes"


def _first(value: object, *, refused: bool) -> _Finding | None:
    """Return the first finding of that kind. None: there is none, or it lies too deep or in a circle."""
    try:
        return next((found for found in _findings(value, "$") if found.refused is refused), None)
    except RecursionError:
        return None


def _findings(value: object, path: str) -> Iterator[_Finding]:
    """Yield the faults in the order in which the encoder meets them. So the encoder's fault comes before any circle."""
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items(), 1):
            yield from _about_key(key, path)
            yield from _findings(item, path + _step(key, number))
    elif isinstance(value, list | tuple):
        if isinstance(value, tuple):
            yield _Finding(path, "is a tuple, which would be a list", refused=False)
        for index, item in enumerate(value):
            yield from _findings(item, f"{path}[{index}]")
    elif value is None or isinstance(value, str | int | float):
        yield from _about_leaf(value, path)
    else:
        try:
            substitute = _substitute(value)
        except TypeError as exc:
            yield _Finding(path, f"is {exc}", refused=True)
        except AttributeError as exc:  # an attrs class or a dataclass whose __init__ has not set all fields yet
            yield _Finding(path, f"is incomplete: {exc}", refused=True)
        else:
            yield from _findings(substitute, path)


def _about_leaf(value: object, path: str) -> Iterator[_Finding]:
    if isinstance(value, str) and _has_surrogate(value):
        yield _Finding(path, "contains a lone surrogate, which cannot be UTF-8", refused=True)
    elif isinstance(value, float) and not math.isfinite(value):
        yield _Finding(path, "is not a finite number", refused=True)


def _about_key(key: object, path: str) -> Iterator[_Finding]:
    if isinstance(key, str):
        if _has_surrogate(key):
            yield _Finding(path, "has a key with a lone surrogate, which cannot be UTF-8", refused=True)
    elif isinstance(key, float) and not math.isfinite(key):
        yield _Finding(path, "has a key that is not a finite number", refused=True)
    elif key is None or isinstance(key, int | float):
        yield _Finding(path, f"has a key of type {type(key).__name__}, which would be a str", refused=False)
    else:
        yield _Finding(path, f"has a key of type {type(key).__name__}; JSON has only str", refused=True)


def _step(key: object, number: int) -> str:
    """Return the text for one step into an object. A key that is no identifier may be data: its number is shown."""
    named = isinstance(key, str) and len(key) <= _NAME and key.isascii() and key.isidentifier()
    return f".{key}" if named else f"[key {number}]"


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
