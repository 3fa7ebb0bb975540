"""The pull style: messages one by one, settled by whoever takes them.

Owns the iterator and its end; everything else is its subscription's. Made by `client.deliveries()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attrs import define, field

from lanelog._checks import check_timeout
from lanelog.subscriber import Subscription, SubscriptionState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from lanelog._checks import Duration
    from lanelog.message import Message


def _timeout(value: Duration | None) -> float | None:
    return check_timeout("timeout", value)


@define(eq=False, repr=False)
class Deliveries:
    """Messages one by one, to be settled by whoever takes them; an iterator and a context manager.

    A message that is neither settled nor extended within visibility_timeout is delivered again. The iterator ends after
    `timeout` seconds without a message, and stops its subscription when it ends or its block is left.
    """

    subscription: Subscription
    _timeout: float | None = field(converter=_timeout)

    def __repr__(self) -> str:
        return f"<Deliveries of {self.subscription!r}>"

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if self.subscription.state is SubscriptionState.NEW:
            self.subscription.start()  # else it runs, or it has ended, and so has this iterator
        message = self.subscription.pull(self._timeout)
        if message is None:
            self.close()
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        self.subscription.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back that was not settled; idempotent."""
        if self.subscription.inherited:
            return  # the parent's: nothing of it is ours to give back
        self.subscription.ask_to_stop()
        for member in self.subscription.members:
            member.attempts.hand_back()
        self.subscription.drain()
        self.subscription.stop()
