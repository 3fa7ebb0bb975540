"""The events of a subscription: its start, its end, and what becomes of its lanes."""

from __future__ import annotations

from collections.abc import Sequence

from lanelog._base.text import describe
from lanelog._facts.fact import Room, noticed
from lanelog._facts.log import Raised

room = Room("subscription")


@noticed("group_paused")
def group_paused(*, topic: str, group: str) -> None:
    """An operator paused the group, and this process has read it."""


@noticed("group_resumed")
def group_resumed(*, topic: str, group: str) -> None:
    """An operator resumed the group, and this process has read it."""


@noticed("lease_lost")
def lease_lost(*, topic: str, group: str, key: str, error: str) -> None:
    """A lane belongs to another process now, whether or not messages of it were in work here."""


@room.warning("delivery.given_up")
def delivery_given_up(*, topic: str, key: str, group: str, offset: int, attempt: int, seconds: float) -> None:
    """A pulled message was neither settled nor extended in time: its delivery timed out, and counts as a failed
    attempt.
    """


@room.warning("group.registered")
def group_registered(*, topic: str, group: str, start: str, again: int, passed: int) -> None:
    """A new group was registered on a topic that has had messages for a minute. `start` decides where it begins: it
    gets `again` of the stored messages, also those that an earlier group of that name has handled, and skips `passed`.
    """


@room.warning("handler.cut_off")
def handler_cut_off(*, topic: str, key: str, group: str, offset: int, attempt: int, seconds: float) -> None:
    """A handler still ran when `drain_timeout` was over, or when its process ended because another one hung: its
    message is delivered again, and the attempt does not count.
    """


@room.warning("lane.lost")
def lane_lost(*, topic: str, key: str, group: str, running: int, why: str) -> None:
    """A lane belongs to another process now, while messages of it were in work here: they are delivered there."""


@room.warning("loop.still_running")
def loop_still_running(*, loop: str) -> None:
    """A background loop did not end in time."""


@noticed("subscription_failed", error=lambda fields: describe(fields["exc_info"]))
@room.error("membership.failed")
def membership_failed(*, topic: str, group: str, exc_info: BaseException) -> None:
    """The subscription cannot go on, and stops."""


@room.error("membership.faulty")
def membership_faulty(*, loop: str, topic: str, group: str, exc_info: Raised) -> None:
    """A loop failed at the work for one subscription; the others go on."""


@room.error("scheduler.failed")
def scheduler_failed(*, error: BaseException | str) -> None:
    """Delayed messages and schedules fail again and again in this process, which tries on."""


@room.warning("settlement.refused")
def settlement_refused(*, topic: str, key: str, group: str, offset: int, messages: int, why: str) -> None:
    """The lane was lost before the outcomes of these messages were written: they are delivered again."""


@room.info("subscription.drained")
def subscription_drained(*, topic: str, group: str, handled: int, acked: int, retried: int, dead_lettered: int) -> None:
    """Nothing is in work any more, what was done is committed, and all lanes are given back."""


@room.error("subscription.evicted")
def subscription_evicted(*, group: str, topics: Sequence[str], error: BaseException | str) -> None:
    """The group was deleted while it had members: `lanelog worker` runs the other handlers, and this one only with
    `--recreate`.
    """


@room.info("subscription.started")
def subscription_started(*, topic: str, group: str, workers: int, order: str, members: int | None, owner: str) -> None:
    """This process takes part in the group; `members` counts the processes that do, this one included."""


@room.warning("subscription.still_draining")
def subscription_still_draining(*, group: str, running: int) -> None:
    """The time that `stop` was given is over, and handlers still run: their lanes are kept until they end."""


@room.info("subscription.stopped")
def subscription_stopped(*, topic: str, group: str) -> None:
    """This process takes part in the group no longer."""


@room.warning("subscription.waited")
def subscription_waited(*, topic: str, group: str, seconds: float, waits_for: str, running: int, lanes: int) -> None:
    """The end takes long: `waits_for` says what is waited for; logged every five seconds."""
