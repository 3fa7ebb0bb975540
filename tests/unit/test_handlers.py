from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from lanelog.config import (
    SubscriptionConfig,
    check_handler,
)
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def refused(function: Callable[..., object], *args: object, **options: object) -> str:
    """The one clear line with which the call is refused."""
    with pytest.raises(ConfigurationError) as caught:
        function(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def plain(message: object) -> None:
    """A handler."""


async def coroutine(message: object) -> None:
    """Not a handler."""


def generator(message: object) -> Iterator[object]:
    """Not a handler."""
    yield message


async def async_generator(message: object) -> AsyncIterator[object]:
    """Not a handler."""
    yield message


class Plain:
    """Callable, with a plain method."""

    def __call__(self, message: object) -> None:
        """Handle."""

    def method(self, message: object) -> None:
        """Handle."""

    @classmethod
    def of_class(cls, message: object) -> None:
        """Handle."""

    @staticmethod
    def static(message: object) -> None:
        """Handle."""


class Deferred:
    """Callable, but calling it runs nothing."""

    async def __call__(self, message: object) -> None:
        """Not a handler."""

    async def method(self, message: object) -> None:
        """Not a handler."""

    @classmethod
    async def of_class(cls, message: object) -> None:
        """Not a handler."""

    @staticmethod
    async def static(message: object) -> None:
        """Not a handler."""

    def generating(self, message: object) -> Iterator[object]:
        """Not a handler."""
        yield message


class GeneratingCall:
    """Callable, but calling it runs nothing."""

    def __call__(self, message: object) -> Iterator[object]:
        """Not a handler."""
        yield message


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


class TestHandlers:
    """check_handler."""

    @pytest.mark.parametrize(
        "handler",
        [
            plain,
            lambda _: None,
            print,
            functools.partial(plain),
            Plain(),
            Plain().method,
            Plain.of_class,
            Plain.static,
            functools.partial(Plain().method),
            functools.partial(functools.partial(Plain())),
            decorated(plain),
            functools.lru_cache(plain),
            Anything(),
        ],
    )
    def test_what_a_thread_can_call_is_a_handler(self, handler: object) -> None:
        """Functions, methods, partials, callable objects and decorated ones."""
        assert check_handler(handler) is handler

    @pytest.mark.parametrize(
        "handler",
        [
            coroutine,
            generator,
            async_generator,
            functools.partial(coroutine),
            functools.partial(functools.partial(generator)),
            functools.partial(Deferred()),
            functools.partial(Deferred().method),
            Deferred(),
            Deferred().method,
            Deferred().generating,
            Deferred.of_class,
            Deferred.static,
            GeneratingCall(),
            decorated(coroutine),
            decorated(decorated(generator)),
            decorated(functools.partial(async_generator)),
            functools.lru_cache(coroutine),
        ],
    )
    def test_what_would_run_nothing_is_refused(self, handler: object) -> None:
        """An async def or a generator, however wrapped, would be acked without having run."""
        assert refused(check_handler, handler).startswith("the handler must be a plain function")

    @pytest.mark.parametrize("handler", [None, "handle", 7, [plain]])
    def test_what_is_not_callable_is_refused(self, handler: object) -> None:
        """The error names the type."""
        assert f"must be callable, not {type(handler).__name__}" in refused(check_handler, handler)

    def test_middleware_and_hooks_obey_the_same_rule(self) -> None:
        """They run in the same threads."""
        assert "a middleware must be a plain function" in refused(SubscriptionConfig, middleware=(coroutine,))
        assert "on_dead_letter must be a plain function" in refused(SubscriptionConfig, on_dead_letter=coroutine)
