"""The checks of arguments: names, numbers, durations, callables.

Never touches a database, a clock or the environment. Never puts a value that may be a secret into an error.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import unicodedata
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, overload

from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attrs import Attribute

P = ParamSpec("P")
T = TypeVar("T")

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta. A caller may give any duration as either. Inside, durations are seconds."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NAME_MAX = 255
"""The most characters of a topic, key, group or id, as wide as their columns."""

MAX_SECONDS = 3_155_760_000.0
"""A hundred years, the longest duration. Its milliseconds, added to any date, fit the BIGINT columns."""

_UNWRAP_LIMIT = 32  # an object that answers every attribute seems to have decorators without end


def check_name(kind: str, value: object) -> str:
    """Return `value` as a plain str if it can name a topic, key, group or id. Otherwise raise ConfigurationError.

    `kind` says in the error what it should name. Servers compare names by code point, but pad trailing spaces. Names
    that are equal to one side and different to the other are refused here.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{kind} must be a str, not {type(value).__name__}")
    length = len(value)
    if not 0 < length <= NAME_MAX:
        raise ConfigurationError(f"{kind} must have 1 to {NAME_MAX} characters, not {length}")
    # isprintable() is False for every control character, surrogate and white space but the plain blank.
    if not (value.isprintable() and value[0] != " " and value[-1] != " "):
        _check_unusual_name(kind, value)
    # Not str(value): for an Enum that inherits from str, that gives the name of the member, not its value.
    return value if type(value) is str else str.__str__(value)


def _check_unusual_name(kind: str, value: str) -> None:
    if value != value.strip():
        raise ConfigurationError(f"{kind} must not begin or end with white space: {value!r}")
    for character in value:
        category = unicodedata.category(character)
        if category in {"Cc", "Cs"}:
            what = "control characters" if category == "Cc" else "lone surrogates"
            raise ConfigurationError(f"{kind} must not contain {what}: {value!r}")


def check_number(what: str, value: object, *, above: bool = False, most: float = MAX_SECONDS) -> float:
    """Return `value` as a float if it is a finite number from 0 to `most`. `above`: above 0. A bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be a number, not {type(value).__name__}")
    return _in_range(what, value, least=0.0, above=above, most=most)


@overload
def seconds(value: Duration) -> float: ...


@overload
def seconds(value: Duration | None) -> float | None: ...


def seconds(value: Any) -> Any:
    """Convert a timedelta to seconds. Any other value stays as it is: a later check knows its name."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def check_duration(
    what: str, value: object, *, least: float = 0.0, above: bool = False, most: float = MAX_SECONDS
) -> float:
    """Return the seconds of `value`, a number or a timedelta, if they are finite and in range.

    `above`: they must be more than `least`.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be a number of seconds or a timedelta, not {type(value).__name__}")
    return _in_range(what, value, least=least, above=above, most=most)


def aware(what: str, moment: datetime) -> datetime:
    """Return the same instant in UTC. Refuse a datetime without a time zone, or out of the range of the columns."""
    if moment.utcoffset() is None:
        raise ConfigurationError(f"{what} must be an aware datetime: add tzinfo=datetime.UTC")
    if moment < EPOCH or moment.year == MAXYEAR:  # in UTC, the last year could leave the range
        raise ConfigurationError(f"{what} must be between the years 1970 and 9998")
    return moment.astimezone(UTC)


def check_timeout(what: str, value: object) -> float | None:
    """Return the seconds to wait. None: as long as it takes. A negative time-out is over already: 0."""
    return None if value is None else max(0.0, check_duration(what, value, least=-MAX_SECONDS))


def _in_range(what: str, value: Any, *, least: float, above: bool, most: float) -> float:
    # An int too large for a float is compared as an int. nan and the infinities fail the comparison.
    fits = least < value <= most if above else least <= value <= most
    if not fits:
        bound = f"more than {least:g}" if above else f"at least {least:g}"
        size = "too large" if value > most else "too small" if value < -most else str(value)
        shown = f"{value:g}" if isinstance(value, float) else size
        raise ConfigurationError(f"{what} must be a finite number, {bound} and at most {most:.0f}, not {shown}")
    return float(value)


def check_integer(what: str, value: object, *, least: int, most: int) -> int:
    """Return `value` if it is an int from `least` to `most`. A bool is no number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ConfigurationError(f"{what} must be {least} to {most}")
    return value


def check_callable(what: str, value: object) -> Callable[..., object]:
    """Return `value` if a call does its work in this thread. Refuse async functions, generators and non-callables."""
    if not callable(value):
        raise ConfigurationError(f"{what} must be callable, not {type(value).__name__}")
    if _is_deferred(value):
        raise ConfigurationError(f"{what} must be a plain function: calling an async def or a generator runs nothing")
    return value


def refuse_bare(decorator: Callable[P, T]) -> Callable[P, T]:
    """Make a method that returns decorators say what is missing when it is used as one: `@client.subscriber`."""

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
    """Refuse a callable that does not take these arguments by position. A callable that hides its signature passes.

    A decorator's own signature counts, not the wrapped function's: it may hand on more arguments than it takes.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # many callables written in C, and objects that answer every attribute
        return
    reason = ""
    try:
        signature.bind(*names)
    except TypeError as exc:
        reason = str(exc)
    if reason:
        wanted = "one positional argument" if len(names) == 1 else f"{len(names)} positional arguments"
        # The error does not show the signature: the default of a parameter may be a secret.
        raise ConfigurationError(f"{what} must take {wanted}, {' and '.join(names)}: {reason}")


def check_middleware(value: object, argument: str) -> tuple[Callable[..., object], ...]:
    """Return the callables `(argument, call_next)`, the first one outermost. Otherwise raise ConfigurationError."""
    if not isinstance(value, tuple | list):
        raise ConfigurationError(f"middleware must be a tuple of callables, not {type(value).__name__}")
    for item in value:
        check_arguments("a middleware", check_callable("a middleware", item), argument, "call_next")
    return tuple(value)


def _is_deferred(function: Any) -> bool:
    """Whether a call would return a coroutine or a generator, as far as it can be seen without a call."""
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
    """Refuse the first option that is not known, and name the closest known one."""
    names = sorted(known)
    for option in given:
        if option not in names:
            close = difflib.get_close_matches(option, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
            raise ConfigurationError(f"unknown {what} {option!r}; {hint}")


# Validators for attrs fields: the field's name is the name that the caller knows.


def duration(
    *, above: bool = False, most: float = MAX_SECONDS, optional: bool = False
) -> Callable[[Any, Attribute[Any], object], None]:
    """Return a validator for seconds, see `check_duration`. The field's converter is `seconds`."""

    def validate(_: Any, attribute: Attribute[Any], value: object) -> None:
        if not (optional and value is None):
            check_duration(attribute.name, value, above=above, most=most)

    return validate


def integer(*, least: int, most: int, optional: bool = False) -> Callable[[Any, Attribute[Any], object], None]:
    """Return a validator for an int, see `check_integer`. `optional`: None is valid, too."""

    def validate(_: Any, attribute: Attribute[Any], value: object) -> None:
        if not (optional and value is None):
            check_integer(attribute.name, value, least=least, most=most)

    return validate


def boolean(_: Any, attribute: Attribute[Any], value: object) -> None:
    """Validate that a field holds True or False, and no other true or false value."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{attribute.name} must be True or False, not {type(value).__name__}")
