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
from lanelog._engine.leasing.read_back import Beaten, ReadBack
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
"""Lanes that are read, or taken, at once."""

FIRST_PAGE = 250
"""Lanes that are taken at first, and then as many as are held: the first messages do not wait for the last lanes."""

log = get_logger("keeper")


@define(eq=False)
class Coordinator:
    """One member's state between two turns."""

    context: EngineContext
    member: Member
    session: Session
    watch: LivenessMonitor = field(init=False)
    known: set[str] = field(factory=set)  # every lane of the topic that was ever seen since the last full pass
    _passed: partitions.HeadsDigest | None = None  # before the last full pass
    _recent: set[str] = field(factory=set)  # what the last look for new lanes found
    resting: set[str] = field(factory=set)  # lanes that an operator paused
    _lane_pauses: int = NOT_READ  # what the group's row said when they were read
    _open: set[str] = field(factory=set)  # the open lanes among them
    _sharing: Sharing = field(factory=Sharing)
    view: LivenessView | None = None  # None: the heartbeats cannot be read
    _lock_name: str = ""
    _incarnation: Incarnation = field(factory=lambda: Incarnation(0, ""))  # before there is a session
    _read_back: ReadBack = field(init=False)
    _beat_at: float = 0.0
    _beaten: Beaten = field(factory=Beaten)
    _members_at: float = 0.0
    _full_pass_at: float = 0.0
    _claim_at: float = 0.0  # when it is planned again, although nothing has changed
    _planned: int = NOT_READ  # `MemberState.changes` at the last plan
    _sweep_at: float = 0.0
    _unheard_since: float | None = None  # when the first of the heartbeats in a row failed that could not be written
    _members_failed: bool = False
    _started: bool = False  # its start has been told
    _drained: bool = False  # its last lane was given back
    _deregistered: set[DeadOwner] = field(factory=set)  # of the last view

    def __attrs_post_init__(self) -> None:
        member = self.member
        self.watch = LivenessMonitor(me=member.owner, lease_duration=member.config.lease_duration)
        self._read_back = ReadBack(self.context, member)
        self._sweep_at = time.monotonic() + 2 * member.config.lease_duration

    def new_session(self, session: Session, lock_name: str, incarnation: Incarnation) -> None:
        """The keeper has a new connection: say so in the next heartbeat, and forget what was read on the last one."""
        self.session, self._lock_name, self._incarnation = session, lock_name, incarnation
        self._beat_at = self._members_at = self._full_pass_at = self._claim_at = 0.0
        self.watch = LivenessMonitor(me=self.member.owner, lease_duration=self.member.config.lease_duration)
        self.view, self._deregistered = None, set()
        self._recent, self._lane_pauses, self._passed = set(), NOT_READ, None
        self._read_back.forget()

    def reload(self) -> None:
        """Tell the others of the new lock first, then compare what memory believes with what the server has.

        A lease that memory lacks, or has under another epoch, is met by the next read-back.
        """
        member = self.member
        self.beat_if_due()
        owned = leases.owned(self.session, member.at, member.owner)
        loading.lose_others(member, owned, "found on a new connection with another owner or epoch")
        loading.reload(self.session, member, owned)

    def turn(self) -> None:
        """One look after everything, in the order in which each step needs the one before."""
        member = self.member
        now = time.monotonic()
        self.beat_if_due()
        if not member.leasing.stopping:
            steered = self._check_group()  # before the read-back, which passes its pause on to the lanes: in this turn
        self._read_back.turn(self.session, self._beaten)
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
                member.at,
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
            self._beaten = Beaten(now, slept)
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
            rows = heartbeats.members(self.session, member.at, tables=tables)
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

    def _check_group(self) -> bool:
        """Is it still registered, what is paused; True when an operator paused or resumed something.

        What is paused is given back when it is idle, taken by nobody, and no part of the fair shares.
        """
        member = self.member
        row = groups.get(self.session, member.at)
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
        if steered:
            self._read_back.forget()
        if row.lane_pauses != self._lane_pauses:
            self.resting = offsets.paused(self.session, member.at)
            self._lane_pauses = row.lane_pauses
        return steered

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _look_for_lanes(self, now: float) -> bool:
        """Which lanes there are; True when some are new."""
        member = self.member
        if now >= self._full_pass_at:
            self._full_pass_at = 0.0  # unless it succeeds
            changed = self._full_pass()
            self._full_pass_at = now + member.config.lease_duration * random.uniform(0.8, 1.0)
            return changed
        # Not compared with `known`: a lane that was purged and came back is there, and has no lease row.
        recent = set(partitions.new_lanes(self.session, member.topic, NEW_LANES_AGE))
        new, self._recent = recent - self._recent, recent
        self._know(new)
        return bool(new)

    def _full_pass(self) -> bool:
        """Read every lane's key, unless they are those of the last full pass; True when they have changed."""
        digest = partitions.digest(self.session, self.member.topic)
        if self._passed is not None and digest.same_lanes(self._passed):
            return False
        before, self.known, self._open = self.known, set(), set()
        after = ""
        while True:
            page = partitions.page(self.session, self.member.topic, after, PAGE)
            self._know(key for key, _ in page if key)
            if len(page) < PAGE:
                break
            after = page[-1][0]
        self._passed = digest  # older than what was read: what came in between is met again
        return self.known != before

    def _know(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.known.add(key)
            if is_open(key):
                self._open.add(key)

    def _balance(self, now: float, *, changed: bool) -> None:
        member = self.member
        if member.failure is not None or member.leasing.group_paused:
            return
        if not changed and now < self._claim_at and self._planned == member.leasing.changes:
            return
        self._planned = member.leasing.changes
        # Availability before fairness: without knowing who lives, whatever is unowned is taken and nothing is stolen.
        plan = Plan(claim={Kind.ANY: ALL}) if self.view is None else self._plan(self.view, now)
        for lane in plan.shed:
            member.leasing.close_lane(lane)
        claim = plan.claim
        if now >= self._sweep_at:
            self._sweep_at = now + 2 * member.config.lease_duration
            if not claim and self._everybody_has_enough():
                claim = {Kind.ANY: ALL}
        if self._unheard_since is not None or self._beaten.at == NEVER:
            claim = {}  # what it took now, the others would take from it: they see no heartbeat
        self._claim_at = 0.0  # a claim that raises is repeated in the next turn: five in a row are a failure
        page = min(PAGE, max(FIRST_PAGE, len(member.leasing.lanes)))
        if claim:
            self._read_back.forget()  # what is taken is loaded in this turn, or it would be planned without it
        taken = self._claim(claim, page, now)
        if taken:
            self.beat_if_due()
            self._read_back.turn(self.session, self._beaten)
        if taken >= page:
            member.signals.wake_keeper()  # there may be more
        else:
            self._claim_at = now + CLAIM_EVERY * random.uniform(0.8, 1.0)

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

    def _claim(self, claim: Mapping[Kind, int], page: int, now: float) -> int:
        """Take so many lanes of each kind, as far as they are there; of any kind only if there is no other."""
        taken = 0
        for kind, count in claim.items():
            if taken and kind is Kind.ANY:
                continue
            got = acquisition.acquire(self.session, self.member, self.view, min(count, page), kind)
            if got:
                taken += got
                if self.view is not None:
                    self._sharing.took(kind, self.view.live, now)
        return taken

    def _everybody_has_enough(self) -> bool:
        """Whether no member is below its share, so that a lane which nobody claimed will not be claimed."""
        if self.view is None:
            return True
        counts = leases.counts(self.session, self.member.at)
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
            leases.release(cx, member.at, member.owner, released)
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
            heartbeats.deregister(self.session, member.at, member.owner)
        except DatabaseError as error:
            if error.retriable:
                raise
            log.error("heartbeat.write_failed", topic=member.topic, group=member.group, error=error)
        life.stopped(member)
        member.ended.set()
        self.context.remove(member)
