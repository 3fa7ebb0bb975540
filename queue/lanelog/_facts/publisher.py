"""The events of publishing."""

from __future__ import annotations

from lanelog._facts.fact import Room
from lanelog._facts.log import Raised

room = Room("publisher")


@room.error("publish.notification_failed")
def publish_notification_failed(*, topic: str = ..., exc_info: Raised) -> None:
    """What was published is committed, but this process's own subscriptions could not be notified: they find it at
    their next poll.
    """
