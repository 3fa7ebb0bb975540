"""Histories made by hand, for the tests of the chaos runs' checker: one lane, times in seconds."""

from __future__ import annotations

from chaos.checker import Anomaly
from chaos.history import (
    Begin,
    Drained,
    Effect,
    End,
    Event,
    Fault,
    Head,
    Logged,
    Publish,
    Redriven,
    Settle,
    Steer,
)

TOPIC, KEY = "jobs", "k"


def sent(number: int, *, at: float = 0.0, outcome: str = "acknowledged", name: str = "") -> list[Event]:
    """A message of this offset, and what became of its publish."""
    name = name or f"m{number}"
    offset = number if outcome == "acknowledged" else None
    return [
        Publish(at=at, outcome="attempted", topic=TOPIC, key=KEY, id=name),
        Publish(at=at + 0.1, outcome=outcome, topic=TOPIC, key=KEY, id=name, offset=offset),  # type: ignore[arg-type]
    ]


def handled(
    number: int,
    at: float,
    *,
    until: float | None = None,
    outcome: str | None = "returned",
    settled: bool | None = None,
    asked: float | None = None,
    effect: bool = False,
    group: str = "g",
    process: str = "p1",
    epoch: int = 1,
    attempt: int = 1,
    name: str = "",
) -> list[Event]:
    """A handler that runs from `at` for half a second, and how it ends (None: nobody knows)."""
    name = name or f"m{number}"
    until = at + 0.5 if until is None else until
    run = f"{group}/{process}/{at}"
    place = {"topic": TOPIC, "key": KEY, "offset": number, "id": name}
    events: list[Event] = [
        Begin(at=at, run=run, process=process, group=group, attempt=attempt, epoch=epoch, **place)  # type: ignore[arg-type]
    ]
    if settled is not None:
        events.append(Settle(at=until, asked=until - 0.1 if asked is None else asked, run=run, accepted=settled))
    if outcome is not None:
        events.append(End(at=until, run=run, outcome=outcome))  # type: ignore[arg-type]
    if effect:
        events.append(Effect(run=run, group=group, **place))  # type: ignore[arg-type]
    return events


def fault(kind: str, start: float, end: float, process: str | None = "p1") -> list[Event]:
    return [Fault(kind=kind, start=start, end=end, processes=process and (process,))]  # type: ignore[arg-type]


def steered(
    verb: str,
    start: float,
    *,
    offset: int | None = None,
    before: int | None = None,
    until: float | None = None,
    group: str = "g",
    key: str | None = KEY,
    certain: bool = True,
) -> list[Event]:
    """What an operator did, within a tenth of a second."""
    return [
        Steer(
            verb=verb,  # type: ignore[arg-type]
            group=group,
            topic=TOPIC,
            key=key,
            start=start,
            end=start + 0.1,
            certain=certain,
            offset=offset,
            before=before,
            until=until,
        )
    ]


def redriven(number: int, original: int, *, at: float = 0.0, group: str = "g") -> list[Event]:
    """A message that was brought back at this offset, which was first another."""
    place = {"topic": TOPIC, "key": KEY, "offset": number, "id": f"m{number}"}
    return [Redriven(at=at, group=group, original=f"m{original}", **place)]  # type: ignore[arg-type]


def logged(number: int, *, head: int = 0, name: str = "") -> list[Event]:
    """A row that is in the log at the end, or (head) that is at least known to have been there."""
    row = Logged(topic=TOPIC, key=KEY, offset=number, id=name or f"m{number}")
    return [Head(topic=TOPIC, key=KEY, offset=head)] if head else [row]


def drained(group: str = "g") -> list[Event]:
    return [Drained(at=1000.0, group=group)]


def kinds(anomalies: list[Anomaly]) -> set[str]:
    return {anomaly.kind for anomaly in anomalies}
