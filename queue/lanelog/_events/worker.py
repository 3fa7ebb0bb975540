"""The events of `lanelog worker`: its supervisor."""

from __future__ import annotations

from typing import Final

from lanelog._events.event import Event

EVENTS: Final = (
    Event(
        "metrics.failed",
        "ERROR",
        "supervisor",
        "A process could not show its metrics: a collector of the application raised.",
        "exc_info",
    ),
    Event(
        "process.died",
        "WARNING",
        "supervisor",
        "A process ended by itself or was killed; another one is started after `seconds`. What it had in work is "
        "delivered again.",
        "number died how seconds",
    ),
    Event(
        "process.hung",
        "ERROR",
        "supervisor",
        "All workers of a group hang in a process, for longer than its `unhealthy_after`: the process is asked to end. "
        "What hangs counts an attempt, and all else goes back uncounted.",
        "number hung why",
    ),
    Event(
        "process.killed",
        "ERROR",
        "supervisor",
        "A process hung: it said nothing, a loop of it stood still, or its import did not end; or it did not end when "
        "it was asked to, or long after `--drain-timeout`. What it had in work is delivered again, and counts an "
        "attempt.",
        "number killed why seconds",
    ),
    Event(
        "process.not_started",
        "ERROR",
        "supervisor",
        "The system refused another process; it is tried again.",
        "number error",
    ),
    Event(
        "process.recycled",
        "INFO",
        "supervisor",
        "A process was asked to drain, and another one follows; `why` names the limit that it has reached.",
        "number recycled why",
    ),
    Event("process.started", "INFO", "supervisor", "A process was started.", "number started"),
    Event("signal.received", "INFO", "supervisor", "A signal began the end of `lanelog worker`.", "signal"),
    Event(
        "supervisor.gave_up",
        "ERROR",
        "supervisor",
        "No process could start, the last one for a reason that it has printed: the command ends.",
        "processes how",
    ),
)
