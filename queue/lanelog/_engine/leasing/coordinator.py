"""The keeper's work for one member: beat, read back, learn of members and lanes, acquire, shed, release, leave.

Owns the order of these steps; the arithmetic is `assignment`'s, the SQL the stores'. Called by the keeper alone, in its
thread and on its connection.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._asleep import suspended
from lanelog._database import Incarnation
from lanelog._engine import life
from lanelog._engine.leasing import acquisition, loading
from lanelog._engine.leasing.assignment import DeadOwner, LivenessMonitor, LivenessView, fair_share, fair_shares
from lanelog._engine.leasing.sharing import Kind, Plan, Sharing
from lanelog._open_lanes import is_open
from lanelog._stores import groups, heartbeats, leases, offsets, partitions
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lanelog._database import Session
    from lanelog._engine.context import EngineContext
    from lanelog._engine.member.member import Member

MEMBERS_EVERY = 0.4
"""Seconds between two looks at the members while nobody is suspected; in every turn while somebody is."""

BEAT_AGAIN = 1.0
"""Seconds until a heartbeat that could not be written is tried again."""

CLAIM_EVERY = 1.0
"""Seconds between two tries to get up to the share when nothing has changed."""

NEW_LANES_AGE = 5.0
"""How far back each look for new lanes goes: longer than any lane's creation takes to commit."""

ALL = 1_000_000
NOT_READ = -1
NEVER = float("-inf")
PAGE = 5000

log = get_logger("keeper")


@define(eq=False)
class Coordinator:
    """One member's state between two turns."""

    context: EngineContext
    member: Member
    session: Session
    watch: LivenessMonitor = field(init=False)
    known: set[str] = field(factory=set)  # every lane of the topic that was ever seen since the last full pass
    _recent: set[str] = field(factory=set)  # what the last look for new lanes found
    resting: set[str] = field(factory=set)  # lanes that an operator paused
    _lane_pauses: int = NOT_READ  # what the group's row said when they were read
    _open: set[str] = field(factory=set)  # the open lanes among them
    _sharing: Sharing = field(factory=Sharing)
    view: LivenessView | None = None  # None: the heartbeats cannot be read
    _lock_name: str = ""
    _incarnation: Incarnation = field(factory=lambda: Incarnation(0, ""))  # before there is a session
    _beat_at: float = 0.0
    _beaten_at: float = NEVER  # before the last heartbeat that was written was sent
    _beaten_asleep: float = 0.0  # what `suspended` said then
    _members_at: float = 0.0
    _full_pass_at: float = 0.0
    _claim_at: float = 0.0
    _sweep_at: float = 0.0
    _unheard_since: float | None = None  # when the first of the heartbeats in a row failed that could not be written
    _members_failed: bool = False
    _started: bool = False  # its start has been told
    _drained: bool = False  # its last lane was given back
    _deregistered: set[DeadOwner] = field(factory=set)  # of the last view

    def __attrs_post_init__(self) -> None:
        member = self.member
        self.watch = LivenessMonitor(me=member.owner, lease_duration=member.config.lease_duration)
        self._sweep_at = time.monotonic() + 2 * member.config.lease_duration

    def new_session(self, session: Session, lock_name: str, incarnation: Incarnation) -> None:
        """The keeper has a new connection: say so in the next heartbeat, and forget what was read on the last one."""
        self.session, self._lock_name, self._incarnation = session, lock_name, incarnation
        self._beat_at = self._members_at = self._full_pass_at = self._claim_at = 0.0
        self.watch = LivenessMonitor(me=self.member.owner, lease_duration=self.member.config.lease_duration)
        self.view, self._deregistered = None, set()
        self._recent, self._lane_pauses = set(), NOT_READ

    def reload(self) -> None:
        """Tell the others of the new lock first, then compare what memory believes with what the server has.

        A lease that memory lacks, or has under another epoch, is met by the next read-back.
        """
        member = self.member
        self.beat_if_due()
        owned = leases.owned(self.session, member.group, member.topic, member.owner)
        loading.lose_others(member, owned, "found on a new connection with another owner or epoch")
        loading.reload(self.session, member, owned)

    def turn(self) -> None:
        """One look after everything, in the order in which each step needs the one before."""
        member = self.member
        now = time.monotonic()
        self.beat_if_due()
        if not member.leasing.stopping:
            steered = self._check_group()  # before the read-back, which passes its pause on to the lanes: in this turn
        self._read_back()
        if member.leasing.stopping:
            self._release()
            self._leave()
            return
        changed = self._look_at_members(now)
        if not self._started:
            self._started = True
            life.started(member, None if self.view is None else len(self.view.live))
        changed = self._look_for_lanes(now) or changed
        self._balance(now, changed=changed or steered)
        self._release()
        if self.view is not None:
            acquisition.deregister_dead(self.session, member, self.view.dead, self._deregistered)

    # -- liveness ------------------------------------------------------------------------------------------------------

    def beat_if_due(self) -> None:
        """Renew the leases when a renewal is due; never after it has left, which would bring the owner back to life."""
        now = time.monotonic()
        if now >= self._beat_at and not self.member.ended.is_set():
            self._beat(now)

    def _beat(self, now: float) -> None:
        member, config, slept = self.member, self.member.config, suspended()
        self._beat_at = now + min(BEAT_AGAIN, config.lease_renewal)  # unless it succeeds
        try:
            heartbeats.beat(
                self.session,
                member.group,
                member.topic,
                member.owner,
                duration=config.lease_duration,
                lock=self._lock_name,
                incarnation=self._incarnation,
                tables=self.context.database.tables_version,
            )
        except DatabaseError as error:
            if error.retriable:
                raise
            self._not_heard(error, now)
        else:
            self._unheard_since = None
            self._beaten_at, self._beaten_asleep = now, slept
            self._beat_at = now + config.lease_renewal * random.uniform(0.8, 1.0)

    def _not_heard(self, error: DatabaseError, now: float) -> None:
        """A heartbeat cannot be written, and a repetition alone does not mend it: for a missing grant, say.

        Whoever sees no heartbeat of ours takes our lanes when it has run out, and our authority ends before that. So
        this goes on for one lease, in which somebody may give the grant back, and then the subscription fails.
        """
        member = self.member
        if self._unheard_since is None:
            self._unheard_since = now
            log.error("heartbeat.write_failed", topic=member.topic, group=member.group, error=error)
        if now - self._unheard_since >= member.config.lease_duration:
            member.fail(
                LanelogError(
                    f"group {member.group!r} of topic {member.topic!r}: no heartbeat could be written for "
                    f"{member.config.lease_duration:g} s ({error}). Others take the lanes of who gives no sign of "
                    "life; let the account INSERT and UPDATE queue_subscriber_heartbeats, and subscribe again"
                )
            )

    def _look_at_members(self, now: float) -> bool:
        """Who is alive; True when that has changed."""
        if now < self._members_at and not self.watch.suspects:
            return False
        self._members_at = now + MEMBERS_EVERY
        member = self.member
        before = self.view
        try:
            tables = self.context.database.tables_version
            rows = heartbeats.members(self.session, member.group, member.topic, tables=tables)
        except DatabaseError as error:
            if error.retriable:
                raise
            if not self._members_failed:
                log.error("heartbeat.read_failed", topic=member.topic, group=member.group, error=error)
            self._members_failed = True
            self.view = None
            return before is not None
        self._members_failed = False
        self.view = self.watch.judge(
            rows, now=time.monotonic(), steady_since=self.session.steady_since, incarnation=self._incarnation
        )
        self._deregistered.intersection_update(self.view.dead)
        return before != self.view

    # -- authority -----------------------------------------------------------------------------------------------------

    def _read_back(self) -> None:
        """Which lanes the database says are ours: the authority to start handlers, counted from before it was asked."""
        member = self.member
        slept, asked = suspended(), time.monotonic()
        owned = leases.owned(self.session, member.group, member.topic, member.owner)
        mine = loading.lose_others(member, owned, "the read-back shows another owner or epoch")
        had_authority = member.leasing.has_authority(asked)
        # Nor longer than the heartbeat says: a process that slept must not go on with lanes that were taken meanwhile.
        if asked > self.context.withdrawn_at:
            beaten = self._beaten_at + self._beaten_asleep - slept  # what the machine has slept since makes it older
            member.leasing.grant_authority(min(asked, beaten) + member.config.lease_duration, slept)
        if not had_authority:
            member.leasing.pump()
        missing = {(lease.key, lease.epoch): lease for lease in owned if lease.key not in member.leasing.lanes}
        unwanted = missing.keys() if member.leasing.stopping else missing.keys() & member.leasing.disowned
        if unwanted:
            with self.session.transaction() as cx:
                leases.release(cx, member.group, member.topic, member.owner, unwanted)
            member.leasing.forget_disowned(unwanted)
        ours = [lease for place, lease in missing.items() if place not in unwanted]
        loaded = list(loading.load(self.session, member, ours)) if ours else []
        for lane in loaded:
            member.leasing.open_lane(lane)
        life.acquired(member, [lane.key for lane in loaded])
        for lane in list(member.leasing.lanes.values()):
            lease = mine.get(lane.key)
            wanted = member.leasing.pausing or (lease is not None and lease.paused)
            member.leasing.set_paused(lane, paused=wanted)

    def _check_group(self) -> bool:
        """Is it still registered, what is paused; True when an operator paused or resumed something.

        What is paused is given back when it is idle, taken by nobody, and no part of the fair shares.
        """
        member = self.member
        row = groups.get(self.session, member.group, member.topic)
        if row is None or row.created_at != member.registered_at:
            member.fail(
                LanelogError(
                    f"group {member.group!r} of topic {member.topic!r} was deleted under this subscription; "
                    "subscribe again to register it anew"
                )
            )
            return False
        if row.due_in_ms is not None:
            self.context.due_in(row.due_in_ms / 1000)
        steered = row.paused != member.leasing.group_paused or row.lane_pauses != self._lane_pauses
        member.leasing.set_group_paused(paused=row.paused)
        if row.lane_pauses != self._lane_pauses:
            self.resting = offsets.paused(self.session, member.group, member.topic)
            self._lane_pauses = row.lane_pauses
        return steered

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _look_for_lanes(self, now: float) -> bool:
        """Which lanes there are; True when some are new."""
        member = self.member
        if now >= self._full_pass_at:
            before, self.known, self._open = self.known, set(), set()
            after = ""
            while True:
                page = partitions.page(self.session, member.topic, after, PAGE)
                self._know(key for key, _ in page if key)
                if len(page) < PAGE:
                    break
                after = page[-1][0]
            self._full_pass_at = now + member.config.lease_duration * random.uniform(0.8, 1.0)
            return self.known != before
        # Not compared with `known`: a lane that was purged and came back is there, and has no lease row.
        recent = set(partitions.new_lanes(self.session, member.topic, NEW_LANES_AGE))
        new, self._recent = recent - self._recent, recent
        self._know(new)
        return bool(new)

    def _know(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.known.add(key)
            if is_open(key):
                self._open.add(key)

    def _balance(self, now: float, *, changed: bool) -> None:
        member = self.member
        if member.failure is not None or member.leasing.group_paused:
            return
        # Availability before fairness: without knowing who lives, whatever is unowned is taken and nothing is stolen.
        plan = Plan(claim={Kind.ANY: ALL}) if self.view is None else self._plan(self.view, now)
        for lane in plan.shed:
            member.leasing.close_lane(lane)
        claim = plan.claim
        if now >= self._sweep_at:
            self._sweep_at = now + 2 * member.config.lease_duration
            if not claim and self._everybody_has_enough():
                claim = {Kind.ANY: ALL}
        if self._unheard_since is not None or self._beaten_at == NEVER:
            claim = {}  # what it took now, the others would take from it: they see no heartbeat
        if claim and (changed or now >= self._claim_at):
            self._claim_at = 0.0  # a claim that raises is repeated in the next turn: five in a row are a failure
            taken = self._claim(claim, now)
            self._claim_at = now + CLAIM_EVERY * random.uniform(0.8, 1.0)
            if taken:
                self.beat_if_due()
                self._read_back()

    def _plan(self, view: LivenessView, now: float) -> Plan:
        """What to give back and to take, so that every member has its share of open lanes and of the others."""
        held = [
            lane
            for lane in list(self.member.leasing.lanes.values())
            if not (lane.state.closing or lane.key in self.resting)
        ]
        opened = len(self._open - self.resting)
        share = fair_shares(opened, self._shared_out - opened, view.heirs, self.member.owner)
        return self._sharing.plan(
            [lane for lane in held if is_open(lane.key)],
            [lane for lane in held if not is_open(lane.key)],
            share,
            view.live,
            now,
        )

    def _claim(self, claim: Mapping[Kind, int], now: float) -> bool:
        """Take so many lanes of each kind, as far as they are there; of any kind only if there is no other."""
        taken = False
        for kind, count in claim.items():
            if not (taken and kind is Kind.ANY) and acquisition.acquire(
                self.session, self.member, self.view, count, kind
            ):
                taken = True
                if self.view is not None:
                    self._sharing.took(kind, self.view.live, now)
        return taken

    def _everybody_has_enough(self) -> bool:
        """Whether no member is below its share, so that a lane which nobody claimed will not be claimed."""
        if self.view is None:
            return True
        counts = leases.counts(self.session, self.member.group, self.member.topic)
        live = self.view.live
        return all(counts.get(owner, 0) >= fair_share(self._shared_out, live, owner) for owner in live)

    @property
    def _shared_out(self) -> int:
        """How many lanes the members share: those that are paused are nobody's."""
        return len(self.known) - len(self.resting & self.known)

    def _release(self) -> None:
        """Give back closed lanes whose last handler has ended and whose last flush has committed; and paused ones."""
        member = self.member
        failed = member.failure is not None
        idle = member.leasing.take_idle(self.resting, failed=failed)
        if not idle:
            return
        with self.session.transaction() as cx:
            released = [(lane.key, lane.epoch) for lane in idle]
            leases.release(cx, member.group, member.topic, member.owner, released)
        for lane in idle:
            if failed:
                member.lose_lane(lane.term, "the subscription failed")
            else:
                member.leasing.forget_lane(lane)
        if not failed:
            life.released(member, [lane.key for lane in idle])

    def _leave(self) -> None:
        """Deregister, once nothing is held any more; the keeper goes on as long as something is."""
        member = self.member
        if member.leasing.lanes or member.ended.is_set():
            return
        if not self._drained:
            self._drained = True
            life.drained(member)
        try:
            heartbeats.deregister(self.session, member.group, member.topic, member.owner)
        except DatabaseError as error:
            if error.retriable:
                raise
            log.error("heartbeat.write_failed", topic=member.topic, group=member.group, error=error)
        life.stopped(member)
        member.ended.set()
        self.context.remove(member)
