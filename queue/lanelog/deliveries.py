"""The pull style: an iterator over messages, which the caller settles.

Owns the iterator and its end. Everything else belongs to its subscription.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attrs import define, field

from lanelog._base.checks import check_timeout
from lanelog._client.subscription_facts import SubscriptionState
from lanelog.subscriber import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from lanelog._base.checks import Duration
    from lanelog._client.subscription import SubscriptionCore
    from lanelog.message import Message


def _timeout(value: Duration | None) -> float | None:
    return check_timeout("timeout", value)


@define(eq=False, repr=False)
class Deliveries:
    """An iterator over messages that the caller settles, and a context manager.

    A message that is neither settled nor extended within the visibility time-out is delivered again. The iterator ends
    after `timeout` seconds without a message. Its end stops the subscription, and so does the end of its block.
    """

    _core: SubscriptionCore
    _timeout: float | None = field(converter=_timeout)
    subscription: Subscription = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.subscription = Subscription(self._core)

    def __repr__(self) -> str:
        return f"<Deliveries of {self._core!r}>"

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if self._core.state is SubscriptionState.NEW:
            self._core.start()  # in any other state it runs, or has ended, and with it this iterator
        message = self._core.pull(self._timeout)
        if message is None:
            self.close()
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        self._core.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back all messages that were not settled, and stop the subscription. Idempotent."""
        if self._core.inherited:
            return  # its messages belong to the parent process
        self._core.ask_to_stop()
        for member in self._core.members:
            member.handing_back.hand_back()
        self._core.drain()
        self._core.stop()
