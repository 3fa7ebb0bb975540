"""The orders that a process gets from the command, and the reports that it sends.

Owns these values, and their form on the way between two processes. Does nothing with them.
"""

from __future__ import annotations

import json
from typing import Any, Final, Self

from attrs import asdict, frozen

ASK: Final = b"?"
"""The supervisor asks for the metrics."""
END: Final = b"!"
"""The supervisor asks the process to end itself, if its workers still hang."""
REFUSED: Final = 2
"""Exit status of a process that another attempt would not help: its module or its options are wrong."""


@frozen(kw_only=True)
class Orders:
    """What a process runs."""

    target: str
    """`package.module:name` of its client."""
    workers: int | None = None
    drain_timeout: float | None = None
    metrics: bool = False
    """Whether it reports its metrics when it is asked, and at its end."""
    recreate: bool = False
    """Whether it registers groups again that were evicted."""

    def to_json(self) -> str:
        """Return it as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))


@frozen(kw_only=True)
class Limits:
    """When a process is replaced by a fresh one. None: never."""

    messages: int | None = None
    """After it has handled this number of messages."""
    memory: int | None = None
    """When it uses this many bytes of memory."""

    def exceeded(self, report: Report) -> str:
        """Return which limit is reached. Empty: none."""
        if self.messages is not None and report.handled >= self.messages:
            return f"it has handled {report.handled:,} messages"
        if self.memory is not None and report.memory >= self.memory:
            return f"it has {report.memory // 2**20:,} MiB of memory"
        return ""


@frozen(kw_only=True)
class Report:
    """What a process reports to its supervisor, once a second."""

    dying: tuple[str, ...] = ()
    """Each begins with what it is about: `loop settler: …`, `group 'billing': …`."""
    hung: tuple[str, ...] = ()
    """Those of them that say of a group that its workers hang, for longer than its `unhealthy_after`."""
    lacking: tuple[str, ...] = ()
    handled: int = 0
    memory: int = 0
    """Bytes of memory that it uses."""
    metrics: str | None = None
    """Its metrics as Prometheus reads them. None: the supervisor has not asked."""

    def to_line(self) -> bytes:
        """Return it as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what `to_line` wrote."""
        found: dict[str, Any] = json.loads(line)
        return cls(**found | {name: tuple(found[name]) for name in ("dying", "hung", "lacking")})
