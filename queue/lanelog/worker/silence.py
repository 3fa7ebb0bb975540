"""Whether a process is hung: it says nothing, one of its loops stands still, or its import does not end.

Owns this judgement, and the clock by which it is made. Kills nothing. A process whose database is unavailable is not
hung: it says so, and its loops run. One whose workers hang judges that itself, by the options of its subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field

if TYPE_CHECKING:
    from lanelog.worker.process import Process

SILENCE: Final = 30.0
"""Seconds without a report after which a process makes /livez fail. It reports once a second."""

GRACE: Final = 60.0
"""Seconds for which a process makes /livez fail before it is killed. What only takes long is over by then."""

STARTS: Final = 600.0
"""Seconds from the start of a process to its first report, which follows its import. An application may load much."""

APART: Final = 10.0
"""Seconds between two kills. What all processes waited for may be over, and then the others speak."""

ENDS: Final = 15.0
"""Seconds in which a process whose workers hang ends itself when it is asked to. Then it is killed."""

BEAT: Final = 1.0
"""Seconds between two turns of the supervisor at most."""

_LONGEST: Final = 2 * BEAT
"""Seconds of `Awake` for which one turn counts at most."""


@define(eq=False)
class Awake:
    """A clock that runs while the supervisor turns.

    A supervisor that did not run has received no report: its machine slept, its container was frozen, or it was
    stopped. Its processes did not run either, or it did not listen to them. So that time is no silence of theirs. The
    monotonic clock leaves out only some of it.
    """

    seconds: float = 0.0
    _counted_at: float | None = None

    def turn(self, now: float) -> None:
        """Count the time since the turn before. `now` is monotonic."""
        if self._counted_at is not None:
            self.seconds += min(now - self._counted_at, _LONGEST)
        self._counted_at = now


@define(eq=False)
class Watch:
    """What one process has said, and when. All times but one are those of `Awake`."""

    _started: float = 0.0
    _said: float = 0.0
    _reported_at: float = 0.0
    """When (monotonic) the last report came. 0: none has come yet."""
    _stuck: dict[str, float] = field(factory=dict)
    """Since when it says that a loop stands still, by what it calls the loop."""

    def see(self, process: Process, now: float) -> None:
        """Take the last report of the process, if it is another one than before."""
        if process.reported_at == self._reported_at:
            return
        self._reported_at, self._said = process.reported_at, now
        loops = [reason.partition(":")[0] for reason in process.report.dying if reason not in process.report.hung]
        self._stuck = {loop: self._stuck.get(loop, now) for loop in loops}

    def hung(self, now: float) -> tuple[str, float] | None:
        """Return why it has to be killed, and for how many seconds that has been so. None: it has not."""
        if not self._reported_at:
            imports = now - self._started
            return ("its import did not end", imports) if imports > STARTS else None
        silent = now - self._said
        if silent > SILENCE + GRACE:
            return "it said nothing", silent
        for loop, since in self._stuck.items():
            if now - since > GRACE:
                return f"{loop} stood still", now - since
        return None
