"""The events of handlers, and of the workers that call them."""

from __future__ import annotations

from lanelog._facts.fact import Room, noticed
from lanelog._facts.log import Raised

room = Room("worker")


@noticed("retried")
def attempt_retried(*, topic: str, key: str, group: str, offset: int, attempt: int, error: str | None) -> None:
    """An attempt failed, and another one follows."""


@noticed("timed_out")
def attempt_timed_out(*, topic: str, key: str, group: str, offset: int, attempt: int, error: str | None) -> None:
    """An attempt reached its time limit."""


@room.warning("batch.halved")
def batch_halved(*, topic: str, group: str, messages: int, error: BaseException | str, exc_info: Raised) -> None:
    """A handler raised for a batch of so many messages: they are tried again in halves, which counts no attempt."""


@room.warning("handler.abandoned")
def handler_abandoned(*, topic: str, key: str, group: str, offset: int, attempt: int, seconds: float) -> None:
    """A handler ran longer than it may, and another thread takes the next message. The message counts as failed; those
    of a batch come again in halves.
    """


@room.warning("handler.failed")
def handler_failed(
    *,
    topic: str,
    key: str,
    group: str,
    offset: int,
    attempt: int,
    error: BaseException | str,
    outcome: str,
    exc_info: Raised,
) -> None:
    """A handler raised; `outcome` says what becomes of the message."""


@room.error("handler.hung")
def handler_hung(
    *, topic: str, key: str, group: str, offset: int, attempt: int, seconds: float, why: str, stack: str
) -> None:
    """A handler hangs, as `why` says, and its process ends: the attempt counts, as after a crash. `stack` says
    where.
    """


@room.warning("handler.raised_after_settling")
def handler_raised_after_settling(
    *, topic: str, key: str, group: str, offset: int, attempt: int, exc_info: Raised
) -> None:
    """A handler raised when its message was settled already: that stays."""


@noticed("handler_slow", error=lambda fields: f"it has run for {fields['seconds']:.1f} s")
@room.warning("handler.slow")
def handler_slow(*, topic: str, key: str, group: str, offset: int, attempt: int, seconds: float, stack: str) -> None:
    """A handler runs for longer than the visibility time-out. `stack` says where: one row a frame, no variables."""


@room.error("hook.failed")
def hook_failed(*, exc_info: Raised) -> None:
    """A hook of the application raised; nothing else changes."""


@room.error("process.end_failed")
def process_end_failed(*, exc_info: Raised) -> None:
    """A subscription raised while its process ends, because handlers hang: its messages may count as crashed."""


@room.error("process.ends")
def process_ends(*, status: int, written: bool, seconds: float) -> None:
    """The process ends with this exit status, because handlers hang. `written`: true if the other messages were
    returned without counting an attempt; false: they count as crashed.
    """


@room.error("retry_policy.failed")
def retry_policy_failed(*, error: BaseException | str, attempt: int) -> None:
    """The retry policy raised, or gave no number of seconds: the message is tried again after one."""


@room.warning("settlement.refused")
def settlement_refused(*, topic: str, key: str, group: str, offset: int, attempt: int, why: str) -> None:
    """A handler ended when its delivery had timed out, or its lane was lost: the message is delivered again."""
