"""A subscription as its user sees it: start, pause, stop, state and statistics.

Owns these names only. The core does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attrs import define

from lanelog._client.subscription_facts import SubscriptionState, SubscriptionStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lanelog._base.checks import Duration
    from lanelog._client.subscription import SubscriptionCore
    from lanelog.config import SubscriptionConfig

__all__ = ["Subscription", "SubscriptionState", "SubscriptionStats"]


@define(eq=False, repr=False)
class Subscription:
    """One group's handler on one or more topics. A context manager: it starts the subscription, and stops it."""

    _core: SubscriptionCore

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._core.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads."""
        return self._core.topics

    @property
    def config(self) -> SubscriptionConfig:
        """Its options."""
        return self._core.config

    @property
    def state(self) -> SubscriptionState:
        """Where it is in its life."""
        return self._core.state

    @property
    def failure(self) -> BaseException | None:
        """The error that made it fail, or None."""
        return self._core.failure

    @property
    def owner(self) -> str:
        """The owner's name in its leases: `name` and a random part."""
        return self._core.owner

    def start(self) -> Self:
        """Register the group, and start. The registration is committed when this returns. Idempotent while it runs.

        Raises:
            ConfigurationError: The group has another order, or was evicted and `recreate` is False.
            ClosedError: The subscription was stopped or has failed: subscribe anew.
            SchemaError: The tables are missing, or this version cannot work on them.
            DatabaseError: The group could not be registered within `publish_timeout`.
        """
        self._core.start()
        return self

    def pause(self) -> None:
        """Hand out no more messages in this process. Running handlers end, and the leases are kept. Idempotent.

        Raises:
            ClosedError: The subscription does not run.
        """
        self._core.pause()

    def resume(self) -> None:
        """Go on after `pause`. Idempotent.

        Raises:
            ClosedError: The subscription does not run.
        """
        self._core.resume()

    def stop(self, timeout: Duration | None = 30.0) -> bool:
        """Drain: no new handler starts, running ones end, their outcomes are committed, and the lanes are released.

        A lane whose handler still runs after `timeout` is kept. It is released when the handler ends. Idempotent. Call
        it from any thread but a handler's own.

        Args:
            timeout: How long to wait, in seconds or as a timedelta. None: as long as it takes.

        Returns:
            Whether everything is released.

        Raises:
            ClosedError: This is a forked child of the process that started it.
        """
        return self._core.stop(timeout)

    def stats(self) -> SubscriptionStats:
        """Return what it holds, and what it has done since its start, over all its topics.

        Raises:
            ClosedError: This is a forked child of the process that started it.
        """
        return self._core.stats()

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the subscription fails. If it has failed already, call it now.

        Args:
            callback: Called without an argument, in a thread of lanelog. It replaces an earlier one.
        """
        self._core.on_failure(callback)
