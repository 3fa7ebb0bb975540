"""The checks of everything a caller hands in: names, numbers, durations, callables.

It never touches a database, a clock or the environment, and never puts a value that may be a secret into a message.
`config`, `message` and the publisher call it before any SQL is sent.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import unicodedata
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, overload

from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attrs import Attribute

P = ParamSpec("P")
T = TypeVar("T")

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta: what every duration may be given as. Inside, durations are seconds."""

NAME_MAX = 255
"""The most characters a topic, key, group or id may have; the width of their columns."""

MAX_SECONDS = 3_155_760_000.0
"""A hundred years: the longest duration; its milliseconds added to any date fit the BIGINT columns."""

_UNWRAP_LIMIT = 32  # decorators around decorators; an object that answers every attribute would never end


def check_name(kind: str, value: object) -> str:
    """Return `value` as a plain str if it can name a topic, key, group or id: the `kind` that an error calls it by.

    Names are compared byte for byte by the servers, which pad trailing spaces and order by code point: what could look
    equal to one side and different to the other is refused here.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{kind} must be a str, not {type(value).__name__}")
    length = len(value)
    if not 0 < length <= NAME_MAX:
        raise ConfigurationError(f"{kind} must have 1 to {NAME_MAX} characters, not {length}")
    # isprintable() is False for every control character, surrogate and white space but the plain blank.
    if not (value.isprintable() and value[0] != " " and value[-1] != " "):
        _check_unusual_name(kind, value)
    # Not str(value): that gives the name of the member, not its value, for an Enum that inherits from str.
    return value if type(value) is str else str.__str__(value)


def _check_unusual_name(kind: str, value: str) -> None:
    if value != value.strip():
        raise ConfigurationError(f"{kind} must not begin or end with white space: {value!r}")
    for character in value:
        category = unicodedata.category(character)
        if category in {"Cc", "Cs"}:
            what = "control characters" if category == "Cc" else "lone surrogates"
            raise ConfigurationError(f"{kind} must not contain {what}: {value!r}")


def check_number(
    what: str, value: object, *, least: float = 0.0, above: bool = False, most: float = MAX_SECONDS
) -> float:
    """Return `value` as a float if it is a finite number of `least` (or `above` it) to `most`; a bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be a number, not {type(value).__name__}")
    return _in_range(what, value, least=least, above=above, most=most)


@overload
def seconds(value: Duration) -> float: ...


@overload
def seconds(value: Duration | None) -> float | None: ...


def seconds(value: Any) -> Any:
    """Turn a timedelta into seconds; anything else stays as it is, for a check that knows its name to judge."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def check_duration(
    what: str, value: object, *, least: float = 0.0, above: bool = False, most: float = MAX_SECONDS
) -> float:
    """Return the seconds of `value`, a number or a timedelta, if they are finite and in range; see `check_number`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be a number of seconds or a timedelta, not {type(value).__name__}")
    return _in_range(what, value, least=least, above=above, most=most)


def check_timeout(what: str, value: object) -> float | None:
    """Return the seconds to wait, None for as long as it takes; what is over already, a negative one, is no wait."""
    return None if value is None else max(0.0, check_duration(what, value, least=-MAX_SECONDS))


def _in_range(what: str, value: Any, *, least: float, above: bool, most: float) -> float:
    # An int too large for a float is compared as an int; nan and the infinities fail the comparison.
    fits = least < value <= most if above else least <= value <= most
    if not fits:
        bound = f"more than {least:g}" if above else f"at least {least:g}"
        shown = f"{value:g}" if isinstance(value, float) else "too large" if value > most else str(value)
        raise ConfigurationError(f"{what} must be a finite number, {bound} and at most {most:.0f}, not {shown}")
    return float(value)


def check_integer(what: str, value: object, *, least: int, most: int) -> int:
    """Return `value` if it is an int of `least` to `most`; a bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ConfigurationError(f"{what} must be {least} to {most}")
    return value


def check_callable(what: str, value: object) -> Callable[..., object]:
    """Return `value` if calling it does work in this thread; refuse coroutine, generator and non-callable objects."""
    if not callable(value):
        raise ConfigurationError(f"{what} must be callable, not {type(value).__name__}")
    if _is_deferred(value):
        raise ConfigurationError(f"{what} must be a plain function: calling an async def or a generator runs nothing")
    return value


def refuse_bare(decorator: Callable[P, T]) -> Callable[P, T]:
    """Have a method that makes decorators say what is missing when it is used as one itself, `@client.subscriber`."""

    @functools.wraps(decorator)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 1 and callable(args[1]):
            name = getattr(args[1], "__name__", type(args[1]).__name__)
            raise ConfigurationError(
                f'no topic and group for the handler {name}: write @client.subscriber("topic", "group") above it'
            )
        return decorator(*args, **kwargs)

    return checked


def check_arguments(what: str, function: Callable[..., object], *names: str) -> None:
    """Refuse a callable that cannot be called with these arguments, by position; one that hides its signature passes.

    A decorator's own signature counts, not that of what it wraps: it may hand on more arguments than it takes.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # many that are written in C, and objects with every attribute
        return
    reason = ""
    try:
        signature.bind(*names)
    except TypeError as exc:
        reason = str(exc)
    if reason:
        wanted = "one positional argument" if len(names) == 1 else f"{len(names)} positional arguments"
        # Of the signature nothing is shown: the default of a parameter may be a secret.
        raise ConfigurationError(f"{what} must take {wanted}, {' and '.join(names)}: {reason}")


def _is_deferred(function: Any) -> bool:
    """Whether a call would return a coroutine or generator, as far as can be seen without calling."""
    for _ in range(_UNWRAP_LIMIT):
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
            or inspect.isgeneratorfunction(function)
        ):
            return True
        if isinstance(function, functools.partial | functools.partialmethod):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function) or inspect.isclass(function):
            return False
        else:
            function = type(function).__call__
    return False


def check_options(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first option that is not known, and say which known one was probably meant."""
    names = sorted(known)
    for option in given:
        if option not in names:
            close = difflib.get_close_matches(option, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
            raise ConfigurationError(f"unknown {what} {option!r}; {hint}")


# Validators for attrs fields: the field's name is the name the caller knows.


def duration(
    *, least: float = 0.0, above: bool = False, most: float = MAX_SECONDS, optional: bool = False
) -> Callable[[Any, Attribute[Any], object], None]:
    """A field that holds seconds, see `check_duration`; its converter is `seconds`."""

    def validate(_: Any, attribute: Attribute[Any], value: object) -> None:
        if not (optional and value is None):
            check_duration(attribute.name, value, least=least, above=above, most=most)

    return validate


def integer(*, least: int, most: int, optional: bool = False) -> Callable[[Any, Attribute[Any], object], None]:
    """A field that holds an int, see `check_integer`, or None if that is `optional`."""

    def validate(_: Any, attribute: Attribute[Any], value: object) -> None:
        if not (optional and value is None):
            check_integer(attribute.name, value, least=least, most=most)

    return validate


def boolean(_: Any, attribute: Attribute[Any], value: object) -> None:
    """A field that holds True or False, not something truthy."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{attribute.name} must be True or False, not {type(value).__name__}")
