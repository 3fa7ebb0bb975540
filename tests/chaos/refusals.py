"""Names errors and warnings without a reason, and a warning that nobody gave: the checker's rules about what is told.

Owns the list of faults that excuse nothing here. It is pure like the checker, which calls it.
"""

from collections.abc import Iterator
from typing import Final

from chaos.account import History
from chaos.bounds import Late
from chaos.history import Fault, Publish, Warned

NO_EXCUSE: Final = frozenset({"interrupt", "fork", "clock", "grow", "expiry"})
"""What is done to one thread, to a child, or to workers."""

HELD: Final = 15.0
"""Seconds for which a server keeps the locks of a client that it has lost."""

TIMED_OUT: Final = 4.0
"""Seconds: what fails sooner does not fail because the machine is slow."""

CERTAIN: Final = frozenset({"alternate", "copy"})
"""Who comes to a server that takes no writes knows that nothing was committed. Only a cut leaves a doubt meanwhile."""

BY_TURNS: Final = frozenset({"alternate", "astray"})
"""Connections lead to another server, and then back."""

REMEMBERED: Final = 60.0
"""Seconds after which a client that was led to two servers by turns would say so again."""


def refused(history: History) -> Iterator[Late]:
    """A publisher got an error, and neither its network nor the server had a reason."""
    attempts = {event.id: event.at for event in history.events if isinstance(event, Publish) if not event.error}
    for event in history.events:
        if not isinstance(event, Publish) or not event.error:
            continue
        began = attempts.get(event.id, event.at)
        none = NO_EXCUSE | {"slow"} if event.at - began < TIMED_OUT else NO_EXCUSE
        reasons = [
            fault
            for fault in history.faults
            if fault.kind not in none and fault.start <= event.at and began - HELD <= fault.end
        ]
        if event.outcome == "unknown" and any(fault.kind == "alternate" for fault in reasons):
            cut_before = [fault for fault in reasons if fault.kind == "cut" and fault.end < began]
            reasons = [fault for fault in reasons if fault.kind not in CERTAIN and fault not in cut_before]
        if not reasons:
            detail = f"a publish failed at {event.at:.3f}, {event.outcome}: {event.error}"
            yield "", (event.topic, event.key), None, event.offset, event.id, detail


def unwarned(history: History) -> Iterator[Late]:
    """Two servers answered by turns, and no process said so; or one did, and only one server had answered it."""
    warnings = [event for event in history.events if isinstance(event, Warned)]
    faults = [fault for fault in history.faults if fault.kind in BY_TURNS]
    for fault in faults:
        known = any(_remembered(other, fault.start) for other in faults if other is not fault)
        if fault.kind != "alternate" or known:
            continue  # a client that has said so is silent for a while
        if not any(
            fault.start <= said.at <= fault.end + history.settling and fault.met((said.process,)) for said in warnings
        ):
            detail = f"nobody said that two servers answered by turns from {fault.start:.3f} to {fault.end:.3f}"
            yield "", ("", ""), None, None, "", detail
    for said in warnings:
        if not any(fault.met((said.process,)) and _remembered(fault, said.at) for fault in faults):
            detail = f"{said.process} said at {said.at:.3f} that two servers answered by turns"
            yield "", ("", ""), None, None, "", detail


def _remembered(fault: Fault, at: float) -> bool:
    return fault.start < at <= fault.end + REMEMBERED
