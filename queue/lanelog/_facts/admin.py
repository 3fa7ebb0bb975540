"""The events of administration."""

from __future__ import annotations

from typing import NotRequired, TypedDict, Unpack

from lanelog._facts.fact import Room

room = Room("admin")


class MessagesLost(TypedDict):
    """The fields of an event of messages that nobody will handle.

    `verb` is the method of `Admin`. The other names are those that it was given.
    """

    verb: str
    topic: NotRequired[str]
    group: NotRequired[str]
    key: NotRequired[str]
    why: str
    messages: int
    unsettled: int
    scheduled: int
    account: str
    host: str
    pid: int
    error: NotRequired[str]


@room.warning("messages.deleted")
def messages_deleted(**fields: Unpack[MessagesLost]) -> None:
    """An operator, or a program, deleted messages: one event for each call, after its commits."""


@room.warning("messages.passed")
def messages_passed(**fields: Unpack[MessagesLost]) -> None:
    """An operator, or a program, made a group skip messages: the group will not handle them."""
