"""The events of the dashboard."""

from __future__ import annotations

from typing import TypedDict, Unpack

from lanelog._facts.fact import Room
from lanelog._facts.log import Raised

room = Room("dashboard")


class ActionFields(TypedDict, total=False):
    """The fields of an event of an action: who asked for which one, why, and what the form named."""

    verb: str
    by: str
    why: str
    topic: str
    group: str
    key: str
    offset: str
    to: str
    id: str
    letters: str
    rate: str
    name: str
    token: str


class FailedFields(ActionFields, total=False):
    """The same, of one that failed."""

    error: str


@room.info("action.asked")
def action_asked(**fields: Unpack[ActionFields]) -> None:
    """A user of the dashboard asked for an action; `verb` is its name. If neither `action.done` nor `action.failed`
    follows, the dashboard's process died.
    """


@room.warning("action.done")
def action_done(**fields: Unpack[ActionFields]) -> None:
    """A user of the dashboard changed something."""


@room.warning("action.failed")
def action_failed(**fields: Unpack[FailedFields]) -> None:
    """An action of the dashboard was refused, or stopped in the middle; `error` says why."""


@room.error("job.failed")
def job_failed(*, job: str, exc_info: Raised) -> None:
    """An action of the dashboard that takes long failed with an exception that is not a `LanelogError`."""


@room.warning("job.stopped")
def job_stopped(*, job: str, by: str) -> None:
    """A user of the dashboard stopped an action that takes long. What it has done stays."""


@room.debug("sample.failed")
def sample_failed(*, error: BaseException | str) -> None:
    """The charts lack a sample: the database did not answer."""
