"""The events of hints: datagrams between publishers and subscribers."""

from __future__ import annotations

from lanelog._facts.fact import Room

room = Room("hints")


@room.warning("hints.no_socket")
def hints_no_socket(*, error: BaseException | str) -> None:
    """A socket for hints could not be opened, or `wake_address` not be bound: its messages are found by the
    next poll.
    """


@room.warning("hints.places_unread")
def hints_places_unread(*, error: BaseException | str) -> None:
    """A publisher could not read the members' addresses for hints. It tries again each second. Until then, members find
    its messages by polling.
    """
