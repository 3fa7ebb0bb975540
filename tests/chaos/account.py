"""What the events of a run amount to: handlers' runs, messages, and which fault explains what.

Owns the bookkeeping of the checker and the rules of explanation; pure, it names no anomaly. The checker's rules and the
report ask it.

A fault that explains too much hides bugs. So each kind explains only what it can have caused:

* `kill`: what the process had not settled is delivered again. It runs nothing any more, so no overlap.
* `stop`, past the lease: others take the lanes while its handlers stand still, and these go on afterwards. So does a
  thread that had asked whether it may start one and stood still before it did: at once, under the epoch before.
* `connections`, `server`: sessions are lost, and with them the locks that prove who lives. Flushes fail. Whoever has
  its new session first may take a living owner's lanes. Nobody knows whose sessions these are: it concerns everybody.
* `cut`, `half-close`: as `connections`, but only for processes behind the proxy.
* `stall`: no session is lost, and a liveness lock stays taken, so a short one explains nothing. One that outlasts what
  is left of a lease lets the heartbeats expire: then it is a `stop` of everybody behind the proxy.
* `disk`: nothing can be written, by nobody; a short one explains nothing. A long one lets heartbeats expire like a
  stall of everybody. If the server gave up or had to be restarted, that is a fault `server` of its own.
* `exhaustion`: who has its sessions keeps them; new ones are refused, so that a publish or a handler's transaction
  waits or fails and is repeated. That explains nothing. The sessions that the nemesis kills meanwhile are a
  `connections` fault of their own, which lasts until new ones are possible.
* `term`, `grow`, `shrink`: lanes are handed over in good order, and nothing is repeated.
* `expiry`, a living worker's lease was seen to run out: its lanes are anybody's, as after a `stop`. But only if
  something kept it from renewing it all the time since the renewal was due: faults, or a machine or a proxy so `slow`
  that a commit of one row took a fifth of a second, without a gap in which it could have. A lease that runs out
  without a reason is a bug, and explains nothing.
* An operator's `seek`, `release`, `skip` and `retry` take a lane from its owner, who goes on until its keeper's next
  turn: in this lane and group, what was begun under an older epoch may be begun again and may overlap. A seek alone
  takes back what was confirmed, and only above the place it went to. A skip is the end of one message. Nothing else is
  excused by them: what a seek brought back has to be delivered again, see `operators`.
* `promote`, `restore`: the server goes on without its last commits. Sessions are lost as with `server`. What was read
  from it before anybody could reach it says which messages it had and what each group had settled: a message that was
  not there is lost, and one that was not settled there comes again. Nothing else is excused, see `lives`.
* `astray`: as `cut`. `restarts`: as `server`. `vanish`: as `kill`; that the server keeps the sessions makes it longer,
  see `bounds`.
* `shortage`: as `connections`, until there are connections again. Whoever lacks one cannot renew its lease.
* `alternate`: as `cut`, until new connections lead to the primary alone. Whoever comes to the replica cannot write.
* `queries`, `forgetful`, `interrupt`, `fork`: nothing. An error that publishers are told of during the first two is
  excused, see `refusals`.
* `freeze`, `step`, `revoke`: nothing, and no lease that runs out meanwhile explains anything: a lock that is held
  vetoes that. No lane moves.
* `snapshot`, `clock`, `copy`: nothing. An old snapshot makes scans slow; clocks are never asked for anything but logs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Any, Final

from attrs import define, evolve, field

from chaos.history import (  # fmt: skip
    Begin,
    Buried,
    Drained,
    Effect,
    End,
    Event,
    Fault,
    Head,
    Lane,
    Logged,
    Publish,
    Redriven,
    Settle,
    Steer,
)
from chaos.lives import LATE, MARK, Lives, real, whole

SETTLING: Final = 5.0
"""Seconds that a fault may have consequences for: flushes are written again and sessions are replaced meanwhile."""

TURN: Final = 1.0
"""Seconds in which every living keeper has had a turn, and has seen what an operator did: four of them are due."""

AT_ONCE: Final = 0.2
"""Seconds in which a thread goes on that had been stopped: the others of its process do, too."""

LEASE: Final = 6.0
"""The workers' lease_duration, unless the run says otherwise."""

OVERLAPPING: Final = frozenset({
    "stop", "connections", "server", "cut", "half-close", "stall", "disk", "expiry", "promote", "restore", "restarts",
    "astray", "shortage", "alternate",
})  # fmt: skip
"""Faults after which an owner that lives may be taken for dead while its handler runs."""

REDELIVERING: Final = OVERLAPPING | {"kill", "vanish"}
"""Faults after which a message may be delivered once more."""

FENCING: Final = frozenset({"seek", "release", "skip", "retry"})
"""Verbs that take a lane from its owner."""

REASONS: Final = (OVERLAPPING - {"expiry"}) | {"slow", "exhaustion"}
"""What can keep a worker from renewing its lease."""

STANDING: Final = frozenset({"freeze", "step", "revoke"})
"""Leases run out, or seem to, and mean nothing: their owners live and hold their locks."""

BY_EXPIRY: Final = frozenset({"stall", "disk"})
"""They have consequences only if heartbeats expire: a renewal is due each third of a lease, so after two thirds."""


def _passed(steer: Steer) -> Iterable[int]:
    """The messages that an operator's verb has settled: one by a skip, or those that a seek went over.

    Seeks go back, but for one whose target was read from a server that then went on without its last commits.
    """
    if steer.offset is None or steer.verb not in {"skip", "seek"}:
        return ()
    if steer.verb == "skip":
        return (steer.offset,)
    return range(steer.before + 1, steer.offset + 1) if steer.certain and steer.before is not None else ()


@define(eq=False)
class Run:
    """One call of a handler, with what is known about its end; `died` is when its process was killed."""

    begin: Begin
    end: End | None = None
    settle: Settle | None = None
    effect: Effect | None = None
    died: float | None = None

    @property
    def at(self) -> float:
        """When it began."""
        return self.begin.at

    @property
    def over(self) -> float:
        """Since when it surely does not run any more."""
        return min(self.end.at if self.end else inf, self.died if self.died is not None else inf)

    @property
    def accepted(self) -> bool:
        """Whether a settlement was confirmed."""
        return self.settle is not None and self.settle.accepted

    @property
    def done_at(self) -> float:
        """When its work was done; inf: it never was. A row's commit may be recorded late or never: it counts early."""
        if self.effect:
            return self.at
        returned = self.end.at if self.end and self.end.outcome == "returned" else inf
        return min(returned, self.settle.at if self.settle and self.accepted else inf)

    def __str__(self) -> str:
        begin = self.begin
        return f"{begin.run} (epoch {begin.epoch}, attempt {begin.attempt}, {begin.at:.3f} to {self.over:.3f})"


@define(eq=False)
class History:
    """The events of a run, sorted into what the checks ask for."""

    events: Sequence[Event]
    effect_groups: frozenset[str] = frozenset()
    settling: float = SETTLING
    lease: float = LEASE
    faults: list[Fault] = field(factory=list, init=False)
    runs: dict[str, Run] = field(factory=dict, init=False)
    effects: list[Effect] = field(factory=list, init=False)
    buried: set[tuple[str, str, str, int]] = field(factory=set, init=False)
    logged: dict[tuple[str, str, int], str] = field(factory=dict, init=False)
    heads: dict[Lane, int] = field(factory=dict, init=False)
    drained: set[str] = field(factory=set, init=False)
    steers: list[Steer] = field(factory=list, init=False)
    skips: dict[tuple[str, str, str, int], float] = field(factory=dict, init=False)
    redriven: dict[tuple[str, str, str], Redriven] = field(factory=dict, init=False)
    attempted: set[tuple[str, str, str]] = field(factory=set, init=False)
    rolled_back: set[tuple[str, str, str]] = field(factory=set, init=False)
    acknowledged: dict[tuple[str, str, str], Publish] = field(factory=dict, init=False)
    lanes: dict[tuple[str, Lane], list[Run]] = field(init=False)
    groups: set[str] = field(init=False)
    _targets: dict[tuple[str, str, int], str] = field(init=False)

    lives: Lives = field(init=False)
    kept_skips: set[tuple[str, str, str, int]] = field(factory=set, init=False)
    """Those skips that the server has not lost."""
    published: set[tuple[str, str, str]] = field(factory=set, init=False)
    """What was acknowledged, lost or not."""
    whole: dict[tuple[str, Lane], list[Run]] = field(init=False)
    """As `lanes`, with lost messages in the lanes they were in."""

    def __attrs_post_init__(self) -> None:
        self.lives = Lives.told(self.events)
        self.events = self.lives.apart(self.events)
        of: dict[type[Event], list[Any]] = defaultdict(list)
        for event in self.events:
            of[type(event)].append(event)
        self._sort_publishes(of[Publish])
        self._sort_runs(of[Begin], of[End], of[Settle], of[Effect])
        self.effects, self.faults, self.steers = of[Effect], of[Fault], of[Steer]
        self.drained = {event.group for event in of[Drained]}
        self.buried = {(event.group, event.topic, event.key, event.offset) for event in of[Buried]}
        self.logged = {(event.topic, event.key, event.offset): event.id for event in of[Logged]}
        self.heads = {(event.topic, event.key): event.offset for event in of[Head]}
        for steer in self.steers:
            for offset in _passed(steer):
                key = steer.key or ""
                number = self.lives.lost_with(steer.topic, key, offset, steer.start)  # with its message, perhaps
                place = (steer.group, steer.topic, key if number is None else f"{key}{MARK}{number}", offset)
                self.skips.setdefault(place, steer.start)
                if not self.lives.taken_back(evolve(steer, offset=offset)):
                    self.kept_skips.add(place)
        self.redriven = {(event.topic, event.key, event.id): event for event in of[Redriven]}
        self._targets = {(new.topic, new.key, new.offset): new.group for new in self.redriven.values()}
        self._bury_what_was_redriven()
        killed = {
            name: fault.start
            for fault in self.faults
            if fault.kind in {"kill", "vanish"}
            for name in fault.processes or ()
        }
        lanes = defaultdict(list)
        for run in sorted(self.runs.values(), key=lambda run: run.at):
            run.died = killed.get(run.begin.process)
            lanes[run.begin.group, (run.begin.topic, run.begin.key)].append(run)
        self.lanes = dict(lanes)
        self.whole = whole(self.lanes)
        self.groups = {group for group, _ in lanes} | self.drained | self.effect_groups

    def _sort_publishes(self, publishes: Iterable[Publish]) -> None:
        for event in publishes:
            message = event.topic, event.key, event.id
            self.attempted.add((event.topic, real(event.key), event.id))
            if event.outcome == "acknowledged":
                self.acknowledged[message] = event
                self.published.add((event.topic, real(event.key), event.id))
            elif event.outcome == "rolled-back":
                self.rolled_back.add(message)

    def _sort_runs(
        self, begins: Iterable[Begin], ends: Iterable[End], settles: Iterable[Settle], effects: Iterable[Effect]
    ) -> None:
        self.runs = {begin.run: Run(begin) for begin in begins}
        for end in ends:
            self.runs[end.run].end = end
        for settle in settles:
            self.runs[settle.run].settle = settle
        for effect in effects:
            if effect.run in self.runs:
                self.runs[effect.run].effect = effect

    def _bury_what_was_redriven(self) -> None:
        """Dead letters that were brought back are collected: what was redriven says of what it failed before."""
        failed: set[tuple[str, str, str, str]] = set()
        latest: dict[tuple[str, str, str, str], Redriven] = {}
        for new in sorted(self.redriven.values(), key=lambda new: new.offset):
            first = (new.group, new.topic, new.key, new.original)
            before = latest.get(first)
            failed.update([first] if before is None else [(*first[:3], before.id)])
            latest[first] = new
        for run in self.runs.values():
            begin = run.begin
            if (begin.group, begin.topic, begin.key, begin.id) in failed:
                self.buried.add((begin.group, begin.topic, begin.key, begin.offset))

    def cause(self, kinds: Collection[str], processes: set[str], since: float, until: float) -> str | None:
        """The kind of a fault that was felt between the two times, rather one of the processes' than everybody's.

        A lease that ran out is named last: mostly it did so because of another fault.
        """
        felt = [
            fault
            for fault in self.faults
            if fault.kind in kinds
            and fault.met(processes)
            and fault.start <= until
            and since <= fault.end + self.settling
            and (fault.kind not in BY_EXPIRY or fault.end - fault.start >= self.lease * 2 / 3)
            and (fault.kind != "expiry" or self._had_reason(fault))
        ]
        nearest = sorted(felt, key=lambda fault: (fault.kind == "expiry", fault.processes is None, -fault.start))
        return nearest[0].kind if nearest else None

    def _had_reason(self, expiry: Fault) -> bool:
        """Whether faults hindered every renewal for the last two thirds of the lease: it is due each third of one.

        Each does so for another third after its end, until sessions are replaced and the next renewal is tried.
        """
        if any(
            fault.kind in STANDING and fault.start <= expiry.end and expiry.start <= fault.end + self.settling
            for fault in self.faults
        ):
            return False
        hindered = expiry.start - self.lease * 2 / 3
        for fault in sorted(self.faults, key=lambda fault: fault.start):
            if fault.kind in REASONS and fault.met(expiry.processes or ()) and fault.start <= hindered:
                hindered = max(hindered, fault.end + self.lease / 3)
        return hindered >= expiry.start

    def first_run(self, group: str, lane: Lane, offset: int, name: str) -> Run | None:
        """The first call of a handler for a message."""
        runs = self.lanes.get((group, lane), [])
        return next((run for run in runs if (run.begin.offset, run.begin.id) == (offset, name)), None)

    def burial_lost(self, group: str, lane: Lane, offset: int, at: float) -> str | None:
        """The kind of the loss with which a message's dead letter may have gone, by a time; else None."""
        failed = [
            run
            for run in self.lanes.get((group, lane), [])
            if run.begin.offset == offset and run.at < at and run.end and run.end.outcome == "raised"
        ]
        for loss in self.lives.losses:
            if any(run.at <= loss.opened for run in failed) and self.lives.forgot(loss, group, *lane, offset):
                return loss.kind if at <= loss.opened + LATE else None
        return None

    def skip_lost(self, group: str, lane: Lane, run: Run, since: float) -> str | None:
        """The kind of the loss with which a message's only end so far, a skip, has gone; else None."""
        place = (group, *lane, run.begin.offset)
        if place not in self.skips:
            return None
        losses = self.lives.between(since, run.at)
        return next((loss.kind for loss in losses if self.lives.forgot(loss, *place)), None)

    def seeks(self, group: str, lane: Lane, offset: int, since: float, until: float) -> list[Steer]:
        """The seeks between the two times that may have brought a message back, settled or not."""
        return [
            steer
            for steer in self.steers
            if steer.verb == "seek" and steer.group == group and (steer.topic, steer.key) == (lane[0], real(lane[1]))
            if (steer.offset is None or steer.offset < offset) and steer.start <= until and since <= steer.end + TURN
        ]

    def taken_away(self, one: Run, other: Run, until: float) -> str | None:
        """The operator's verb that took the lane from the owner of the earlier epoch while that had something to do."""
        early, late = sorted((one, other), key=lambda run: run.begin.epoch)
        begin = early.begin
        if begin.epoch == late.begin.epoch:
            return None
        for steer in self.steers:
            mine = (steer.group, steer.topic, steer.key) == (begin.group, begin.topic, real(begin.key))
            if mine and steer.verb in FENCING and early.at <= steer.end + TURN and steer.start <= until:
                return steer.verb
        return None

    def _woken(self, first: Run, again: Run) -> str | None:
        """`stop`, if the earlier owner's process stood still for longer than a lease, and began this as it went on."""
        stops = [fault for fault in self.faults if fault.kind == "stop" and fault.met((again.begin.process,))]
        for fault in stops:
            long = fault.end - fault.start > self.lease and fault.start <= first.at
            if long and fault.start <= again.at <= fault.end + AT_ONCE:
                return fault.kind
        return None

    def foreign(self, group: str, topic: str, key: str, offset: int) -> bool:
        """Whether this is a message that was redriven for another group."""
        return self._targets.get((topic, key, offset), group) != group

    def redelivery(self, first: Run, again: Run) -> str | None:
        """Which fault, or whose verb, explains that the message of `first` was delivered `again`."""
        begin = again.begin
        if first.begin.epoch < begin.epoch and self.seeks(
            begin.group, (begin.topic, begin.key), begin.offset, first.at, again.at
        ):
            return "seek"
        losses = self.lives.between(first.at, again.at)
        if losses:  # it comes again if its settlement is gone, and for no other reason
            place = (begin.group, begin.topic, begin.key, begin.offset)
            return next((loss.kind for loss in losses if self.lives.forgot(loss, *place)), None)
        if begin.epoch < first.begin.epoch:
            return self.taken_away(first, again, again.at) or self._woken(first, again)  # it does not know it yet
        if first.settle and first.accepted and first.settle.at <= again.at:
            return None  # a confirmed settlement is durable: no fault takes it back
        until = min(again.at, first.end.at + self.settling if first.end else inf)
        return self.taken_away(first, again, until) or self.cause(REDELIVERING, {first.begin.process}, first.at, until)
