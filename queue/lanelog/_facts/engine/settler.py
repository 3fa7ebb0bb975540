"""The events of the settler, which writes what was handled."""

from __future__ import annotations

from lanelog._facts.fact import Room, noticed
from lanelog._facts.log import Raised

room = Room("settler")


@noticed("dead_lettered")
@room.error("message.dead_lettered")
def message_dead_lettered(
    *,
    topic: str,
    key: str,
    group: str,
    offset: int,
    attempt: int,
    dead_letter_topic: str,
    error: str | None,
    exc_info: Raised,
) -> None:
    """A message was dead-lettered: it is in the dead letter topic now, from where `lanelog dlq redrive` delivers it
    again. The event has the traceback if a handler of this process raised.
    """


@noticed("dropped")
@room.error("message.dropped")
def message_dropped(
    *, topic: str, key: str, group: str, offset: int, attempt: int, error: str | None, exc_info: Raised
) -> None:
    """A message was dropped, because the subscription keeps no dead letters: it is lost to this group."""


@noticed("expired", error=lambda _: "expired")
@room.error("message.expired")
def message_expired_dropped(
    *, topic: str, key: str, group: str, offset: int, attempt: int, dead_letter_topic: None
) -> None:
    """A message's time to live was over before a handler could start, and the subscription keeps no dead letters: it
    is lost to this group.
    """


@noticed("expired", error=lambda _: "expired")
@room.warning("message.expired")
def message_expired(*, topic: str, key: str, group: str, offset: int, attempt: int, dead_letter_topic: str) -> None:
    """A message's time to live was over before a handler could start; it is in the dead letter topic now."""


@room.error("message.vanished")
def message_vanished(*, topic: str, key: str, group: str, offset: int, attempt: int, error: str | None) -> None:
    """A message that was to become a dead letter is not in the log any more."""
