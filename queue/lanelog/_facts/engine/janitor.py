"""The events of the janitor, which deletes and expires."""

from __future__ import annotations

from lanelog._facts.fact import Room, noticed

room = Room("janitor")


@room.info("dead_letters.deleted")
def dead_letters_deleted(*, topic: str, messages: int, why: str, account: str, host: str, pid: int) -> None:
    """Dead letters that were neither redriven nor deleted by then were deleted: `dead_letter_retention` was over."""


@room.warning("deletion.denied")
def deletion_denied(*, topic: str, group: str, duty: str, error: BaseException | str) -> None:
    """The account lacks the privilege to delete expired rows, so the tables grow. Grant it, or run `lanelog maintain`
    with another account.
    """


@noticed("expired")
@room.error("message.expired")
def message_expired_dropped(
    *, topic: str, key: str, group: str, offset: int, attempt: int, dead_letter_topic: None
) -> None:
    """A message expired in a group without a living member that keeps no dead letters: it was dropped."""


@noticed("expired")
@room.warning("message.expired")
def message_expired(*, topic: str, key: str, group: str, offset: int, attempt: int, dead_letter_topic: str) -> None:
    """A message expired in a group without a living member: it is a dead letter now."""


@room.warning("purge.behind")
def purge_behind(*, topic: str, seconds: float, purged: int) -> None:
    """Drained lanes are not removed as fast as they come: a pass over them takes longer than a minute and than
    `lane_idle_purge`, and the tables grow. No message is lost. Run `lanelog maintain` beside it, or publish under fewer
    keys. Logged once until a pass is in time again.
    """
