"""The health of an engine: which of its loops are late, and whether heartbeats and database are fresh.

Owns the judgement. Reads the loops' pulses and asks the database nothing, so that it answers while the database does
not. Any thread may ask.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog.health import DatabaseHealth, HeartbeatHealth, LoopHealth
from lanelog.measures import LoopMeasures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lanelog._engine.member.member import Member
    from lanelog._process.loop import Loop

UNASKED: Final = DatabaseHealth(answered=None, fresh=False, why="nothing runs that asks it")


@frozen(kw_only=True)
class Bounds:
    """How long a healthy process may be silent, in seconds."""

    stuck: float = 30.0
    """A loop that does not wait for the database. Longer than any turn works between two statements."""
    unanswered: float
    """A loop that waits for the database."""
    silence: float = 5.0
    """The database, which the keeper asks several times a second."""


def of_loop(loop: Loop, bounds: Bounds) -> LoopHealth:
    """Judge one loop. It was started, and nobody has stopped it."""
    pulse, error, running = loop.pulse, loop.error, loop.running
    asked, expected, turned = pulse.asked, pulse.expected, pulse.turned
    now = time.monotonic()  # after the times were read: none of them is in the future
    if not running:
        late, why = True, "its thread has ended"
    elif asked:
        late = now - asked > bounds.unanswered
        why = f"the database has not answered for {now - asked:.1f} s" if now - asked > bounds.silence else ""
    else:
        late = now - expected > bounds.stuck
        why = f"it has not turned for {now - expected:.1f} s" if late else ""
    return LoopHealth(
        name=loop.name,
        turned=now - turned if turned else None,
        waits=now - asked if asked else None,
        late=late,
        why=why or error,
        failing=bool(error),
    )


def measured(loop: Loop) -> LoopMeasures:
    """Count the turns of one loop."""
    turned = loop.pulse.turned
    return LoopMeasures(name=loop.name, turns=loop.pulse.turns, age=time.monotonic() - turned if turned else None)


def of_database(keeper: Loop, bounds: Bounds) -> DatabaseHealth:
    """Judge the database by the keeper, which asks it in each turn."""
    answered, error, asked = keeper.pulse.answered, keeper.error, keeper.pulse.asked
    now = time.monotonic()
    silent = now - answered
    if error:
        why = error
    elif not answered:
        why = "it has not answered yet"
    elif silent > bounds.silence:
        why = f"no answer for {silent:.1f} s" if asked else f"the keeper has not asked it for {silent:.1f} s"
    else:
        why = ""
    return DatabaseHealth(answered=silent if answered else None, fresh=not why, why=why)


def of_heartbeats(
    members: Iterable[Member], beaten: Callable[[Member], tuple[float | None, str]], keeper: Loop
) -> tuple[HeartbeatHealth, ...]:
    """Judge the heartbeat of each member. `beaten`: when (monotonic) it was last written, and why not since."""
    found = []
    for member in members:
        at, refused = beaten(member)
        age = None if at is None else time.monotonic() - at
        fresh = age is not None and age < member.config.lease_duration
        found.append(
            HeartbeatHealth(
                topic=member.topic,
                group=member.group,
                written=age,
                fresh=fresh,
                why=refused or ("" if fresh else keeper.error),
            )
        )
    return tuple(found)
