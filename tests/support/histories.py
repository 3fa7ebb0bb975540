"""Histories of one lane made by hand, for the tests of the chaos runs' checker; times are in seconds.

`history` reads a line of events, separated by semicolons:

    sent 1 2               two messages were published at these offsets; unknown, rolled-back: what became of them
    1@4-9 p2 raised        process p2 handled offset 1 from second 4 to second 9 (without an end: for half a second);
                           raised, unfinished: how it ended, if it did not return; settled, refused: what it was told
    kill@1.2-1.3 p3        a fault of a process (p1, unless it is named), or of all
    promote@4-6 head=2     the server had lost commits; watermark, above: what the group had settled there
    warned@3 p2            a process said that two servers answer by turns
    seek@3 offset=0        what an operator did to the lane, or to the whole group
    redriven 3 original=1  a message that was brought back at offset 3
    buried 1; logged 1; head 3; drained

Group g, process p1, the epoch of the process's number, attempt 1, the id m1 at offset 1: other ones are named as
`group=e`, `epoch=3`, `attempt=2`, `name=a`.
"""

import re
from typing import Any, Final, get_args

from chaos.history import (
    Begin,
    Buried,
    Drained,
    Effect,
    End,
    Event,
    Fault,
    FaultKind,
    Head,
    Kept,
    Logged,
    Loss,
    LossKind,
    Publish,
    Redriven,
    Settle,
    Settled,
    Steer,
    Warned,
)

LANE: Final[dict[str, Any]] = {"topic": "jobs", "key": "k"}
WORDS: Final[dict[str, dict[str, Any]]] = {
    "unknown": {"outcome": "unknown"},
    "rolled-back": {"outcome": "rolled-back"},
    "told": {"outcome": "rolled-back", "error": "no"},
    "doubted": {"outcome": "unknown", "error": "no"},
    "raised": {"outcome": "raised"},
    "unfinished": {"outcome": None},
    "settled": {"settled": True},
    "refused": {"settled": False, "outcome": "raised"},
    "effect": {"effect": True},
    "uncertain": {"certain": False},
    "whole": {"key": None},
    "all": {"process": None},
}


def history(text: str) -> list[Event]:
    """The events of a line."""
    return [event for part in text.split(";") for event in _events(*part.split())]


def told(text: str) -> dict[str, list[Event]]:
    """The histories of a text by what they are examples of: a title a line, and its events, indented, below."""
    titles: dict[str, str] = {}
    title = ""
    for line in filter(None, text.splitlines()):
        if line.startswith(" "):
            titles[title] += line
        else:
            titles[title := line] = ""
    return {title: history(events) if events else [] for title, events in titles.items()}


def _events(head: str, *words: str) -> list[Event]:
    what, _, times = head.partition("@")
    numbers = [int(word) for word in words if word.isdigit()]
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            options[name] = (
                float(value) if re.fullmatch(r"\d+\.\d+", value) else int(value) if value.isdigit() else value
            )
        elif re.fullmatch(r"p\d", word):
            options["process"] = word
        elif not word.isdigit():
            options |= WORDS[word]
    if not times:
        return [event for number in numbers or [0] for event in NAMED[what](number, **options)]
    at, *until = map(float, times.split("-"))
    if what.isdigit():
        return handled(int(what), at, until=until[0] if until else None, **options)
    if what == "warned":
        return [Warned(at=at, process=options.get("process", "p1"))]
    if what in get_args(LossKind):
        return lost(what, at, until[0], **options)
    if what in get_args(FaultKind):
        return fault(what, at, until[0] if until else at, **options)
    return [Steer(verb=what, start=at, end=at + 0.1, **{"group": "g", "certain": True, **LANE, **options})]  # type: ignore[arg-type]


def sent(
    number: int, *, at: float = 0.0, outcome: str = "acknowledged", name: str = "", error: str = ""
) -> list[Event]:
    """A message of this offset, and what became of its publish."""
    place: dict[str, Any] = {**LANE, "id": name or f"m{number}"}
    offset = number if outcome == "acknowledged" else None
    return [
        Publish(at=at, outcome="attempted", **place),
        Publish(at=at + 0.1, outcome=outcome, offset=offset, error=error, **place),  # type: ignore[arg-type]
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
    epoch: int | None = None,
    attempt: int = 1,
    name: str = "",
) -> list[Event]:
    """A handler that runs from `at` for half a second, and how it ends (None: nobody knows)."""
    until = at + 0.5 if until is None else until
    run = f"{group}/{process}/{at}"
    epoch = int(process[1:]) if epoch is None else epoch
    place: dict[str, Any] = {**LANE, "group": group, "offset": number, "id": name or f"m{number}", "run": run}
    events: list[Event] = [Begin(at=at, process=process, attempt=attempt, epoch=epoch, **place)]
    if settled is not None:
        events.append(Settle(at=until, asked=until - 0.1 if asked is None else asked, run=run, accepted=settled))
    if outcome is not None:
        events.append(End(at=until, run=run, outcome=outcome))  # type: ignore[arg-type]
    return [*events, Effect(**place)] if effect else events


def fault(kind: str, start: float, end: float, process: str | None = "p1") -> list[Event]:
    return [Fault(kind=kind, start=start, end=end, processes=process and (process,))]  # type: ignore[arg-type]


def lost(
    kind: str,
    died: float,
    opened: float,
    *,
    held: float | None = None,
    head: int = 0,
    watermark: int = 0,
    above: int = 0,
    group: str = "g",
) -> list[Event]:
    """The server is another one, or an older one, which has the lane up to `head`; `above`: settled, too."""
    runs = ((above, above),) if above else ()
    return [
        Fault(kind=kind, start=died, end=opened),  # type: ignore[arg-type]
        Loss(kind=kind, held=died - 1 if held is None else held, died=died, opened=opened),  # type: ignore[arg-type]
        Kept(loss=opened, head=head, **LANE),
        Settled(loss=opened, group=group, watermark=watermark, above=runs, **LANE),
    ]


def drained(_: int = 0, group: str = "g") -> list[Event]:
    return [Drained(at=1000.0, group=group)]


def _redriven(number: int, original: int, group: str = "g") -> list[Event]:
    return [Redriven(at=0.0, group=group, offset=number, id=f"m{number}", original=f"m{original}", **LANE)]


def _logged(number: int, name: str = "") -> list[Event]:
    return [Logged(offset=number, id=name or f"m{number}", **LANE)]


NAMED: Final = {
    "sent": sent,
    "redriven": _redriven,
    "logged": _logged,
    "buried": lambda number: [Buried(group="g", offset=number, **LANE)],
    "head": lambda number: [Head(offset=number, **LANE)],
    "drained": drained,
}
