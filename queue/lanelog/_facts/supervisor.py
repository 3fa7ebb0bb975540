"""The events of `lanelog worker`: its supervisor, and the metrics of its processes."""

from __future__ import annotations

from lanelog._facts.fact import Room
from lanelog._facts.log import Raised

room = Room("supervisor")


@room.error("metrics.failed")
def metrics_failed(*, exc_info: Raised) -> None:
    """A process could not show its metrics: a collector of the application raised."""


@room.warning("process.died")
def process_died(*, number: int, died: int, how: str, seconds: float) -> None:
    """A process ended by itself or was killed; another one is started after `seconds`. What it had in work is
    delivered again.
    """


@room.error("process.hung")
def process_hung(*, number: int, hung: int, why: str) -> None:
    """All workers of a group hang in a process, for longer than its `unhealthy_after`: the process is asked to end. An
    attempt is counted only for messages whose handlers hang.
    """


@room.error("process.killed")
def process_killed(*, number: int, killed: int, why: str, seconds: float) -> None:
    """A process hung: it said nothing, a loop of it stood still, or its import did not end; or it did not end when
    it was asked to, or long after `--drain-timeout`. What it had in work is delivered again, and counts an
    attempt.
    """


@room.error("process.not_started")
def process_not_started(*, number: int, error: BaseException | str) -> None:
    """The system refused another process; it is tried again."""


@room.info("process.recycled")
def process_recycled(*, number: int, recycled: int, why: str) -> None:
    """A process was asked to drain, and another one follows; `why` names the limit that it has reached."""


@room.info("process.started")
def process_started(*, number: int, started: int) -> None:
    """A process was started."""


@room.info("signal.received")
def signal_received(*, signal: str) -> None:
    """A signal began the end of `lanelog worker`."""


@room.error("supervisor.gave_up")
def supervisor_gave_up(*, processes: int, how: str) -> None:
    """No process could start, the last one for a reason that it has printed: the command ends."""
