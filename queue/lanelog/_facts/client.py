"""The events of a client: what the program gave it, and its end by a signal."""

from __future__ import annotations

from lanelog._facts.fact import Room
from lanelog._facts.log import Raised

room = Room("client")


@room.error("listener.failed")
def listener_failed(*, notice: str, topic: str, group: str, exc_info: Raised) -> None:
    """A function given to `client.on` raised; nothing else changes."""


@room.error("observer.failed")
def observer_failed(*, exc_info: Raised) -> None:
    """An observer given to `client.observe` raised; nothing else changes."""


@room.error("publish.notification_failed")
def publish_notification_failed(*, schedule: str, exc_info: Raised) -> None:
    """A schedule is declared, but this process's own scheduler could not be notified: it finds it at its next poll."""


@room.info("signal.received")
def signal_received(*, signal: str) -> None:
    """A signal began the end of `client.run()`."""
