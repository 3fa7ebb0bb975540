"""The events of the fetcher, which reads messages."""

from __future__ import annotations

from lanelog._facts.fact import Room

room = Room("fetcher")


@room.error("lane.ahead_of_head")
def lane_ahead_of_head(*, topic: str, key: str, group: str, offset: int, head: int) -> None:
    """The lane's head is below an offset that this process has read: the database was restored, or has lost commits.
    The process reloads the lane.
    """


@room.error("log.hole_found")
def log_hole_found(*, topic: str, key: str, group: str, offset: int, head: int) -> None:
    """The log has no message at an offset between others; the group skips it."""


@room.error("message.vanished")
def message_vanished(*, topic: str, key: str, group: str, offset: int) -> None:
    """A message that waited for its next attempt is not in the log any more."""
