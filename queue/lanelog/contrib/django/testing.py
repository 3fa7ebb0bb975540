"""A mixin for Django's TestCase: what the code under test publishes, without a commit and without lanelog's tables."""

from __future__ import annotations

from lanelog.contrib.django.transactions import Pending, pending
from lanelog.message import Outgoing


class PublishedMixin:
    """For a `TestCase`, whose transaction is never committed, so that nothing is sent.

    Example::

        class OrderTest(PublishedMixin, TestCase):
            def test_a_paid_order_is_published(self):
                pay(order)
                (message,) = self.published("orders")
                self.assertEqual(message.payload, {"id": order.id})
    """

    def published(self, topic: str, using: str | None = None) -> list[Outgoing]:
        """Return what `publish` was called with for a topic in this test and in `setUpTestData`, in order.

        An inner `atomic()` that was rolled back has taken its messages along.
        """
        found: list[Pending] = pending(using)
        return [each.outgoing for each in found if each.topic == topic]
