"""What the workers of a member do: how many are busy, since when none has ended, and where the longest stand.

Beside it: how often threads of that client waited for a connection.

Owns these values, their form in a heartbeat row, and what *hung* means. Reads no thread and no table.
"""

from __future__ import annotations

import json
from typing import Final

from attrs import asdict, evolve, frozen

QUIET_SECONDS: Final = 30.0
"""The least time for which no worker has ended before all are called hung."""
TIMES_LONGEST: Final = 3
"""A run is normal until it has taken so many times the longest one that ended."""
COLUMN_BYTES: Final = 60_000
"""The longest text in a heartbeat row. The column holds 65,535 bytes."""
_BEYOND: Final = 2**53
"""No count, process or time reaches this."""


def patience(visibility_timeout: float, longest: float) -> float:
    """Return the seconds after which a run is no normal one of its subscription. `longest`: of the runs that ended."""
    return max(QUIET_SECONDS, visibility_timeout / 2, TIMES_LONGEST * longest)


@frozen(kw_only=True)
class RunningHandler:
    """A handler that had run for 10 seconds or more at its member's last heartbeat."""

    topic: str
    key: str
    offset: int
    seconds: float
    """For how long it had run."""
    stack: str
    """Where its thread stood: one line a frame, the innermost last. No variables, and 4 KiB at most."""


@frozen(kw_only=True)
class OpenAck:
    """An ack in a transaction of its handler's that was open when the handler had returned, or of a pulled message."""

    topic: str
    key: str
    offset: int
    seconds: float
    """Since the ack."""
    connection: int
    """The number of its session at the server. 0: the driver does not say."""


@frozen(kw_only=True)
class Workload:
    """The workers of one subscription at one moment, which a heartbeat row has of its last heartbeat."""

    host: str
    pid: int
    """The process, as its host or its container numbers it."""
    workers: int
    """0: its messages are pulled."""
    busy: int
    """Workers in a handler, and those that wait because a quarantined message runs alone or is about to."""
    quiet: float
    """Seconds since a handler, or such a wait, last began. If all workers are busy, none has ended for so long."""
    longest: float
    """Seconds of the longest handler that ended in this subscription since its start."""
    patience: float
    """Seconds after which a handler has run for longer than is normal there.

    At least 30, half of `visibility_timeout`, and three times `longest`.
    """
    pool_waits: int = 0
    """How often a thread has waited for a connection of that client's pool, since the client was made."""
    acks: tuple[OpenAck, ...] = ()
    """Those that have been open for 5 seconds or more, the oldest first: up to eight."""
    handlers: tuple[RunningHandler, ...] = ()  # the last field: who needs no stacks reads a row up to here
    """Those that had run for 10 seconds or more, the longest first: up to eight."""

    @property
    def all_busy(self) -> bool:
        """Whether no worker is free: `quiet` is then for how long none has ended."""
        return 0 < self.workers <= self.busy

    @property
    def hung(self) -> bool:
        """Whether all workers are busy, and none has ended for longer than is normal there."""
        return self.all_busy and self.quiet >= self.patience

    def hung_for(self, seconds: float | None) -> bool:
        """Whether it has been hung for so long. None: never."""
        return seconds is not None and self.hung and self.quiet - self.patience >= seconds

    def dumped(self) -> str:
        """Return it as the text of a heartbeat row. If it does not fit, the handlers that began last are left out."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        if len(text) > COLUMN_BYTES:  # ASCII alone, so characters are bytes
            return evolve(self, handlers=self.handlers[:-1]).dumped()
        return text


def parsed(text: str) -> Workload | None:
    """Return what a heartbeat row says. None: another program wrote it.

    Fields that a newer version has added are ignored.
    """
    try:
        found = json.loads(text)
        return Workload(
            host=_text(found["host"]),
            pid=int(_usable(found["pid"], least=1)),  # `kill -1` would end all processes
            workers=int(_usable(found["workers"])),
            busy=int(_usable(found["busy"])),
            quiet=float(_usable(found["quiet"])),
            longest=float(_usable(found["longest"])),
            patience=float(_usable(found["patience"])),
            pool_waits=int(_usable(found.get("pool_waits", 0))),
            acks=tuple(
                OpenAck(
                    topic=_text(each["topic"]),
                    key=_text(each["key"]),
                    offset=int(each["offset"]),
                    seconds=float(_usable(each["seconds"])),
                    connection=int(_usable(each["connection"])),
                )
                for each in found.get("acks", ())
            ),
            handlers=tuple(
                RunningHandler(
                    topic=_text(each["topic"]),
                    key=_text(each["key"]),
                    offset=int(each["offset"]),
                    seconds=float(_usable(each["seconds"])),
                    stack=_text(each["stack"]),
                )
                for each in found["handlers"]
            ),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _text(value: object) -> str:
    """Return a text of a row. A lone surrogate, as of a file name, is escaped: no page can encode it."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _usable(number: float, *, least: int = 0) -> float:
    """Return a number of a row. Raises ValueError if lanelog would not write it."""
    if least <= number < _BEYOND:
        return number
    raise ValueError(number)
