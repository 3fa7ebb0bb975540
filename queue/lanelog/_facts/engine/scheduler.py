"""The events of the scheduler: delayed messages and schedules."""

from __future__ import annotations

from lanelog._facts.fact import Room

room = Room("scheduler")


@room.warning("schedule.clock_went_back")
def schedule_clock_went_back(*, schedule: str, topic: str, key: str, next_fire_at: str) -> None:
    """The server's clock went back: a schedule waits until the time that it had reached."""


@room.error("schedule.faulty")
def schedule_faulty(*, schedule: str, error: BaseException | str) -> None:
    """A schedule's row cannot be used; the others go on. Declare it anew, or remove it."""


@room.warning("schedule.missed")
def schedule_missed(*, schedule: str, topic: str, key: str, since: str, catch_up: str, published: int) -> None:
    """No process was there when a schedule was due; `published` of the missed times are published now."""


@room.warning("schedule.tzdata_differs")
def schedule_tzdata_differs(
    *, schedule: str, topic: str, key: str, timezone: str, next_fire_at: str, planned_with: str, tzdata: str
) -> None:
    """A schedule's next time was planned by a process with other time zone data, `planned_with`; this one has
    `tzdata`. Nothing is published twice. Give all processes the same version.
    """


@room.warning("scheduling.denied")
def scheduling_denied(*, duty: str, error: BaseException | str) -> None:
    """The account may not do what delayed messages or schedules need; `lanelog grants` prints what is missing."""
