"""What may be a handler: what a thread can call, and what runs when it is called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from lanelog.config import SubscriptionConfig, check_handler
from support.refusing import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def plain(*message: object) -> None:
    """A handler."""


async def coroutine(*message: object) -> None:
    """Not a handler."""


def generator(*message: object) -> Iterator[object]:
    """Not a handler."""
    yield message


async def async_generator(*message: object) -> AsyncIterator[object]:
    """Not a handler."""
    yield message


class Plain:
    """Callable, with methods of each kind."""

    __call__ = method = plain
    of_class = classmethod(plain)
    static = staticmethod(plain)


class Deferred:
    """Callable, but calling it runs nothing, nor does calling any of its methods."""

    __call__ = method = coroutine
    of_class = classmethod(coroutine)
    static = staticmethod(coroutine)
    generating = generator


class GeneratingCall:
    """Callable, but calling it runs nothing."""

    __call__ = generator


class Anything:
    """Has every attribute, as a mock or a remote proxy has."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, message: object) -> None:
        """Handle."""


def decorated(function: Callable[..., object]) -> Callable[..., object]:
    """A decorator as everybody writes them."""

    @functools.wraps(function)
    def wrapper(*args: object) -> object:
        return function(*args)

    return wrapper


@pytest.mark.parametrize(
    "handler",
    [
        plain, lambda _: None, print, Plain(), Plain().method, Plain.of_class, Plain.static, Anything(),
        functools.partial(plain), functools.partial(Plain().method), functools.partial(functools.partial(Plain())),
        decorated(plain), functools.lru_cache(plain),
    ],
)  # fmt: skip
def test_what_a_thread_can_call_is_a_handler(handler: object) -> None:
    """Functions, methods, partials, callable objects and decorated ones."""
    assert check_handler(handler) is handler


@pytest.mark.parametrize(
    "handler",
    [
        coroutine, generator, async_generator, GeneratingCall(),
        Deferred(), Deferred().method, Deferred().generating, Deferred.of_class, Deferred.static,
        functools.partial(coroutine), functools.partial(functools.partial(generator)), functools.partial(Deferred()),
        functools.partial(Deferred().method), functools.lru_cache(coroutine),
        decorated(coroutine), decorated(decorated(generator)), decorated(functools.partial(async_generator)),
    ],
)  # fmt: skip
def test_what_would_run_nothing_is_refused(handler: object) -> None:
    """An async def or a generator, however wrapped, would be acked without having run."""
    assert refused(check_handler, handler).startswith("the handler must be a plain function")


@pytest.mark.parametrize("handler", [None, "handle", 7, [plain]])
def test_what_is_not_callable_is_refused(handler: object) -> None:
    """The error names the type."""
    assert f"must be callable, not {type(handler).__name__}" in refused(check_handler, handler)


def needs_two(message: object, session: object) -> None:
    """Not a handler, unless somebody gives it the session."""


def without(*, password: str = "hunter2") -> None:  # noqa: S107 - it must not be shown
    """Not a handler."""


def keyword_only(*, message: object) -> None:
    """Not a handler: it is called by position."""


def injecting(function: Callable[..., object]) -> Callable[..., object]:
    """A decorator that adds an argument."""

    @functools.wraps(function)
    def wrapper(message: object) -> object:
        return function(message, "session")

    return wrapper


@pytest.mark.parametrize(
    "handler",
    [
        injecting(needs_two), functools.partial(needs_two, session="s"), functools.partial(needs_two, "s"),
        lambda message, _session=None: message, list[object]().append, Mock(), str,
    ],
)  # fmt: skip
def test_what_takes_one_argument_is_a_handler(handler: object) -> None:
    """A wrapped function may need more than the decorator takes; a callable without a signature is believed."""
    assert check_handler(handler) is handler


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (needs_two, "missing a required argument: 'session'"),
        (without, "too many positional arguments"),
        (keyword_only, "too many positional arguments"),
        (lambda: None, "too many positional arguments"),
        (functools.partial(needs_two, "m", "s"), "too many positional arguments"),
        (Plain, "too many positional arguments"),
    ],
)
def test_what_cannot_take_the_message_is_refused(handler: object, reason: str) -> None:
    """Once, at subscribe, instead of a dead letter for every message; values of parameters are not shown."""
    said = refused(check_handler, handler)
    assert said == f"the handler must take one positional argument, message: {reason}"


def test_middleware_and_hooks_obey_the_same_rule() -> None:
    """Middleware and hooks run in the threads of the handlers."""
    assert "a middleware must be a plain function" in refused(SubscriptionConfig, middleware=(coroutine,))
    assert "on_dead_letter must be a plain function" in refused(SubscriptionConfig, on_dead_letter=coroutine)
