"""When which fault comes in a chaos run, and when an operator does what: drawn from the seed alone.

Owns the draws; it is pure and never does anything. The runner gives the plan to the nemesis and the operations to the
operator, unit tests pin both. They are drawn apart: the faults of a seed do not depend on what operators can do.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Container
from typing import Final

from attrs import evolve, frozen

from chaos.history import FaultKind, Verb

WEIGHTS: Final[dict[FaultKind, int]] = {
    "kill": 4, "stop": 2, "term": 2, "connections": 2, "server": 3, "cut": 2, "stall": 2, "half-close": 2,
    "exhaustion": 1, "snapshot": 1, "disk": 1, "grow": 1, "shrink": 1, "promote": 2, "restore": 1, "restarts": 1,
    "freeze": 1, "step": 1, "revoke": 1, "vanish": 1, "shortage": 1, "queries": 1, "interrupt": 1, "fork": 1,
    "forgetful": 1, "alternate": 1,
}  # fmt: skip
SERVERS: Final = frozenset({"promote", "restore", "restarts", "freeze", "step", "revoke", "vanish", "shortage"}) | {
    "alternate"
}
"""Those that need servers of the run's own: a private address, a binary log, an account that may lose a right
or its connections."""

FEWEST, MOST = 3, 6
"""Workers at any time."""

FULL: Final[dict[tuple[FaultKind, int], FaultKind]] = {("grow", MOST): "shrink", ("shrink", FEWEST): "grow"}
"""What comes instead when there are too many workers or too few."""

WRONG_CLOCK: Final = 3
"""Every worker of this number that is started during the run has a clock that is an hour off."""

PAUSE: Final = (1.5, 3.5)
HOLDS: Final[dict[FaultKind, tuple[float, float]]] = {
    "server": (0.0, 1.0), "exhaustion": (2.0, 5.0), "snapshot": (10.0, 20.0), "disk": (2.0, 6.0),
    "promote": (0.5, 2.0), "restore": (2.0, 5.0), "restarts": (0.0, 0.3), "step": (3.0, 6.0), "shortage": (7.0, 9.0),
    "queries": (1.0, 2.0), "forgetful": (3.0, 4.0), "alternate": (6.0, 8.0),
}  # fmt: skip
WATCHED: Final = 6.0
"""Seconds without another fault after one of which everything has to move again within five."""

RETURNING: Final = 10.0
"""Seconds without another fault after connections were short or led elsewhere: loops ask every few seconds."""

COSTS: Final[dict[FaultKind, float]] = {
    "promote": 9.0 + WATCHED,
    "restore": 4.0 + WATCHED,
    "restarts": 3.0,
    "freeze": WATCHED,
    "step": WATCHED,
    "shortage": RETURNING,
    "alternate": 4.0 + RETURNING,
    "interrupt": 1.5,
    "fork": 1.5,
}
"""Seconds that a fault takes beside its hold."""

REPLACED: Final = 3.5
"""Seconds after a lease until which no other fault comes when a host has vanished."""

FREEZES: Final = 1.8
"""Leases: 27 seconds of the default's 15."""

VERBS: Final[dict[Verb, int]] = {"seek": 4, "release": 2, "skip": 2, "retry": 2, "pause": 2, "redrive": 2}
REST: Final = (0.5, 2.0)
PAUSED: Final = (1.5, 3.5)
FARTHEST: Final = 8
"""Messages that a seek brings back, at the most."""

BACKGROUND: Final = frozenset({"snapshot"})
"""What goes on while other faults come."""

STARTING: Final = frozenset({"kill", "term", "grow", "vanish"})
"""What starts a new worker."""


@frozen(kw_only=True)
class Planned:
    """One fault to come: `pause` seconds after the last one was over, and lasting `hold` seconds where it can.

    `victim` is a worker's place, `clock` the hours by which the clock of the worker is wrong that it starts.
    """

    kind: FaultKind
    pause: float
    hold: float
    victim: int
    seed: int
    clock: int = 0


@frozen(kw_only=True)
class Plan:
    """A run's faults, and how many workers it begins with."""

    workers: int
    faults: tuple[Planned, ...]

    def without(self, kinds: Container[str]) -> Plan:
        """What is left on a machine that cannot do these; everything else stays as it is."""
        kept = tuple(planned for planned in self.faults if planned.kind not in kinds)
        if "clock" in kinds:
            kept = tuple(evolve(planned, clock=0) for planned in kept)
        return evolve(self, faults=kept)


@frozen(kw_only=True)
class Operation:
    """One verb of an operator, `rest` seconds after the last one was done.

    `lane` is a lane's number among all keys; None: the whole group, of a pause. `back`: how many messages a seek brings
    back. `hold`: how long a pause lasts.
    """

    verb: Verb
    rest: float
    group: int
    lane: int | None
    back: int
    hold: float


def operations(seed: int, seconds: float, keys: int) -> tuple[Operation, ...]:
    """What the operator of a run does; each verb comes once before any comes again. Same arguments, same operations."""
    dice = random.Random(f"operator {seed}")
    first = list(VERBS)
    dice.shuffle(first)
    plan: list[Operation] = []
    spent = 0.0
    while True:
        verb = first.pop() if first else dice.choices(list(VERBS), list(VERBS.values()))[0]
        rest, group, lane = dice.uniform(*REST), dice.randrange(2), dice.randrange(keys)
        back, hold, whole = dice.randint(1, FARTHEST), dice.uniform(*PAUSED), dice.random() < 0.5
        spent += rest + (hold if verb == "pause" else 0.0)
        if spent > seconds:
            return tuple(plan)
        of_group = verb == "redrive" or (verb == "pause" and whole)
        plan.append(Operation(verb=verb, rest=rest, group=group, lane=None if of_group else lane, back=back, hold=hold))


def schedule(seed: int, seconds: float, lease: float, kinds: Collection[FaultKind] = tuple(WEIGHTS)) -> Plan:
    """The faults of a run. The same arguments give the same plan.

    Each of the `kinds` comes once, in a random order, before any comes again: a run of 220 seconds has met all of them.
    """
    dice = random.Random(seed)
    weights = {kind: weight for kind, weight in WEIGHTS.items() if kind in kinds}
    first = list(weights)
    dice.shuffle(first)
    begin = workers = dice.randint(FEWEST, MOST)
    plan: list[Planned] = []
    spent, started = 0.0, 0
    while True:
        kind = first.pop() if first else dice.choices(list(weights), list(weights.values()))[0]
        pause, hold = dice.uniform(*PAUSE), dice.uniform(*HOLDS.get(kind, (0.0, 0.0)))
        victim, own = dice.randrange(workers), dice.getrandbits(32)
        past_lease = lease + dice.uniform(1, 3)
        if kind == "stop" or (kind == "stall" and dice.random() < 0.5):
            hold = past_lease
        elif kind == "stall":
            hold = lease * dice.uniform(0.1, 0.5)
        elif kind == "freeze":
            hold = lease * FREEZES
        elif kind == "vanish":
            hold = lease + REPLACED
        elif kind == "revoke":
            hold = lease * dice.uniform(0.2, 0.5)
        if (kind, workers) in FULL:
            other = FULL[kind, workers]
            if other in first:
                first[first.index(other)] = kind  # the two change places
            kind = other
        spent += pause + (0.0 if kind in BACKGROUND else hold) + COSTS.get(kind, 0.0)
        if spent > seconds:
            return Plan(workers=begin, faults=tuple(plan))
        workers += {"grow": 1, "shrink": -1}.get(kind, 0)
        started += kind in STARTING
        wrong = kind in STARTING and started % WRONG_CLOCK == 0
        clock = (1 if started % (2 * WRONG_CLOCK) else -1) if wrong else 0
        plan.append(Planned(kind=kind, pause=pause, hold=hold, victim=victim, seed=own, clock=clock))
