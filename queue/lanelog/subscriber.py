"""A subscription as its user sees it: start, pause, stop, its state and what it has done.

Owns nothing but these names; the work is its core's. Made by the client; `Deliveries` is the pull style of the same
thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attrs import define

from lanelog._subscription import SubscriptionState, SubscriptionStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lanelog._checks import Duration
    from lanelog._subscription import SubscriptionCore
    from lanelog.config import SubscriptionConfig

__all__ = ["Subscription", "SubscriptionState", "SubscriptionStats"]


@define(eq=False, repr=False)
class Subscription:
    """One group's handler on one or more topics; a context manager that stops it at the end."""

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
        """The group whose handler it is."""
        return self._core.group

    @property
    def topics(self) -> tuple[str, ...]:
        """What it reads."""
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
        """Why it failed, or None."""
        return self._core.failure

    @property
    def owner(self) -> str:
        """The name under which its leases stand: `name` and a random incarnation."""
        return self._core.owner

    def start(self) -> Self:
        """Register the group (committed when this returns) and start; idempotent while it runs.

        Raises ConfigurationError when the group has another order, SchemaError when the tables are missing or do not
        admit this version, ClosedError after a stop.
        """
        self._core.start()
        return self

    def pause(self) -> None:
        """Hand out nothing more in this process; running handlers finish, leases are kept. Idempotent."""
        self._core.pause()

    def resume(self) -> None:
        """Go on after `pause`. Idempotent."""
        self._core.resume()

    def stop(self, timeout: Duration | None = 30.0) -> bool:
        """Drain and leave: no new handler starts, running ones end, their outcomes commit, the lanes are released.

        Waits at most `timeout` (None: as long as it takes); True when everything is released. A lane whose handler
        still runs then is kept, and released when it ends. Idempotent, from any thread but a handler's own.
        """
        return self._core.stop(timeout)

    def stats(self) -> SubscriptionStats:
        """What it holds and what it has done, over all its topics. Raises ClosedError in a forked child."""
        return self._core.stats()

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the subscription fails; at once if it has."""
        self._core.on_failure(callback)
