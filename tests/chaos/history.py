"""What a chaos run writes down: the events of publishers, handlers and nemesis, one JSON object in a line.

Owns the kinds of events and how they are written and read; it never judges them. The programs of a run append to a file
each, the checker is given all of them. Times are seconds of the machine's monotonic clock, which its processes share.
"""

import json
import os
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Literal, Self, get_args

from attrs import asdict, field, frozen

Lane = tuple[str, str]
"""Topic and key."""


def _tuple(names: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _runs(runs: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((first, through) for first, through in runs)


@frozen(kw_only=True)
class Place:
    """Where a message is."""

    topic: str
    key: str
    offset: int


@frozen(kw_only=True)
class Publish:
    """A publisher is about to send a message (`attempted`), or knows what became of it; None: no offset is known.

    `error` is what the library told, if it failed: '' also where the publisher itself changed its mind.
    """

    at: float
    outcome: Literal["attempted", "acknowledged", "unknown", "rolled-back"]
    topic: str
    key: str
    id: str
    offset: int | None = None
    error: str = ""


@frozen(kw_only=True)
class Begin(Place):
    """A handler was called. `run` names this call, in all processes of the history."""

    at: float
    run: str
    process: str
    group: str
    id: str
    attempt: int
    epoch: int


@frozen(kw_only=True)
class End:
    """The handler's work was done and it is about to return, or it raised. A later one corrects it."""

    at: float
    run: str
    outcome: Literal["returned", "raised"]


@frozen(kw_only=True)
class Settle:
    """A settlement that waited for its commit, between `asked` and `at`; refused: LeaseLost or AlreadySettled."""

    at: float
    run: str
    asked: float
    accepted: bool


@frozen(kw_only=True)
class Effect(Place):
    """A row that a handler wrote in the transaction that settled the message, read at the end."""

    run: str
    group: str
    id: str


@frozen(kw_only=True)
class Buried(Place):
    """A dead letter, read at the end."""

    group: str


@frozen(kw_only=True)
class Logged(Place):
    """A row of the log, read at the end; collection has deleted the oldest ones of a lane."""

    id: str


@frozen(kw_only=True)
class Head(Place):
    """The highest offset of a lane that began with 1, read at the end: every one up to it was published."""


FaultKind = Literal[
    "kill", "stop", "term", "connections", "server", "cut", "stall", "half-close", "exhaustion", "snapshot", "disk",
    "grow", "shrink", "promote", "restore", "restarts", "freeze", "step", "revoke", "vanish", "shortage", "queries",
    "interrupt", "fork", "forgetful", "alternate", "copy", "astray", "clock", "slow", "expiry",
]  # fmt: skip


@frozen(kw_only=True)
class Fault:
    """What the nemesis did from `start` to `end`, to these processes or (None) to everybody.

    `clock` is how long a worker lived whose clock was wrong. Nobody did `slow` and `expiry`: the first is a machine on
    which a commit takes long, the second a worker that lives and whose lease has run out. During a `copy` the server
    stands still for a moment. Who is `astray` is led to what was the primary before a failover, and is read-only now.
    """

    kind: FaultKind
    start: float
    end: float
    processes: tuple[str, ...] | None = field(default=None, converter=_tuple)

    def met(self, processes: Collection[str]) -> bool:
        """Whether it was done to one of these."""
        return self.processes is None or not set(self.processes).isdisjoint(processes)


LossKind = Literal["promote", "restore"]


@frozen(kw_only=True)
class Loss:
    """The server went on without its last commits, under the same address.

    Whatever was confirmed before `held` is there; of what came later some is gone. From `died` to `opened` nobody could
    reach a server.
    """

    kind: LossKind
    held: float
    died: float
    opened: float


@frozen(kw_only=True)
class Kept:
    """How far a lane went on a server that had lost commits, read before anybody reached it; key '': the floor.

    `loss` is the time at which that server was `opened`.
    """

    loss: float
    topic: str
    key: str
    head: int


@frozen(kw_only=True)
class Settled:
    """What a group had settled there of a lane: everything up to `watermark`, and these runs of offsets above it."""

    loss: float
    group: str
    topic: str
    key: str
    watermark: int
    above: tuple[tuple[int, int], ...] = field(default=(), converter=_runs)


Verb = Literal["seek", "pause", "release", "skip", "retry", "redrive"]


@frozen(kw_only=True)
class Steer:
    """What an operator did between `start` and `end` to one lane of a group, or (key None) to all of them.

    Of a `pause`, `end` is when it was confirmed and `until` when the first word of its end was sent. `offset` is where
    a seek has put the watermark, which was at `before`, or what was skipped. Not `certain`: whether it was done is
    unknown, and it may have been done at any time up to `end`.
    """

    verb: Verb
    group: str
    topic: str
    start: float
    end: float
    certain: bool
    key: str | None = None
    offset: int | None = None
    before: int | None = None
    until: float | None = None


@frozen(kw_only=True)
class Redriven(Place):
    """A message that a redrive wrote for one group; `original` is the id of the message that failed first."""

    at: float
    group: str
    id: str
    original: str


@frozen(kw_only=True)
class Hinted:
    """How many hints a process had sent, and how many it had received, when it ended as it was asked to."""

    at: float
    process: str
    sent: int
    heard: int


@frozen(kw_only=True)
class Warned:
    """A worker said that new connections lead to two servers by turns."""

    at: float
    process: str


@frozen(kw_only=True)
class Drained:
    """All that was published had been settled by the group when the run ended."""

    at: float
    group: str


Event = (
    Publish
    | Begin
    | End
    | Settle
    | Effect
    | Buried
    | Logged
    | Head
    | Fault
    | Loss
    | Kept
    | Settled
    | Steer
    | Redriven
    | Drained
    | Hinted
    | Warned
)
KINDS: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in get_args(Event)}


def encode(event: Event) -> str:
    """The event as one line, without the line's end."""
    return json.dumps({"event": type(event).__name__, **asdict(event)}, separators=(",", ":"))


def decode(line: str) -> Event:
    """The event of a line. Raises ValueError, KeyError or TypeError if it is none."""
    fields = json.loads(line)
    return KINDS[fields.pop("event")](**fields)


class Journal:
    """An append-only file of events that several threads write.

    Each event is one write to the kernel: what a process wrote before it was killed is there.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def write(self, *events: Event) -> None:
        """Append the events in this order."""
        lines = "".join(f"{encode(event)}\n" for event in events).encode()
        with self._lock:
            os.write(self._file, lines)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(paths: Iterable[Path]) -> list[Event]:
    """All events of all files; a last line that a killed process did not finish is left out."""
    events = []
    for path in paths:
        text = path.read_text()
        events.extend(decode(line) for line in text[: text.rfind("\n") + 1].splitlines())
    return events
