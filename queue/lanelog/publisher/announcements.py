"""What a publisher reports after its commits, and to whom."""

from __future__ import annotations

from typing import Protocol


class Announcements(Protocol):
    """Is notified of what was published."""

    def committed(self, topic: str) -> None:
        """Messages were committed in a topic. Return fast: other publishers may wait for this thread."""

    def grown(self, topic: str) -> None:
        """Lanes were created in a topic. Their first messages are not committed yet."""

    def scheduled(self, *, committed: bool = True) -> None:
        """A delayed message or a schedule was written. `committed` False: in a caller's transaction, which is open."""

    def catch_up(self) -> None:
        """Send what `committed` deferred. No other publisher waits for this thread now."""


class NoAnnouncements(Announcements):
    """Does nothing. For a publisher in whose process nobody waits for messages."""
