"""The keeper's work for one member: beat, read back, find members and lanes, acquire, shed, release, leave.

Owns the order of these steps. The arithmetic is in `liveness`, `fair_share` and `sharing`, the SQL in the stores. It
runs in the keeper's thread, on the keeper's connection.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._base.backoff import RANDOM
from lanelog._base.open_lane_keys import is_open
from lanelog._database import Incarnation, codes, outage
from lanelog._engine import lifecycle
from lanelog._engine.leasing import acquisition, loading
from lanelog._engine.leasing.acquisition import Taken
from lanelog._engine.leasing.fair_share import fair_share, fair_shares
from lanelog._engine.leasing.known_lanes import KnownLanes
from lanelog._engine.leasing.liveness import DeadOwner, LivenessMonitor, LivenessView
from lanelog._engine.leasing.pace import KeeperPace
from lanelog._engine.leasing.read_back import Beaten, ReadBack, lose_others
from lanelog._engine.leasing.sharing import Kind, Plan, Sharing
from lanelog._facts.engine import keeper as facts
from lanelog._process.asleep import suspended
from lanelog._stores.consumers import groups, offsets
from lanelog._stores.members import heartbeats, leases
from lanelog.errors import DatabaseError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lanelog._database import Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.member.member import Member

ALL = 1_000_000
NOT_READ = -1
NEVER = float("-inf")


@define(eq=False)
class Coordinator:
    """One member's state between two turns."""

    context: EngineContext
    member: Member
    session: Session
    pace: KeeperPace = field(factory=KeeperPace)
    watch: LivenessMonitor = field(init=False)
    _known: KnownLanes = field(factory=KnownLanes)
    paused: set[str] = field(factory=set)  # lanes that an operator paused
    _lane_pauses: int = NOT_READ  # the group row's count of pauses when `paused` was read
    _sharing: Sharing = field(factory=Sharing)
    view: LivenessView | None = None  # None: the heartbeats cannot be read
    _lock_name: str = ""
    _incarnation: Incarnation = field(factory=lambda: Incarnation(0, ""))  # before there is a session
    _read_back: ReadBack = field(init=False)
    _beat_at: float = 0.0
    _beaten: Beaten = field(factory=Beaten)
    _members_at: float = 0.0
    _claim_at: float = 0.0  # when the next plan is made, even if nothing has changed
    _planned: int = NOT_READ  # `MemberState.changes` at the last plan
    _sweep_at: float = 0.0
    beat_error: str = ""  # the last heartbeat's error; empty: it was written, or a repetition helps
    _beat_failing_since: float | None = None  # since when no heartbeat could be written; None: the last one was
    _members_failed: bool = False
    _waits_for_lock: bool = False  # the last claim met a lock, and that was logged
    _started: bool = False  # its start was logged
    _drained: bool = False  # its last lane was given back
    _deregistered: set[DeadOwner] = field(factory=set)  # the dead owners of the last view that are deregistered

    def __attrs_post_init__(self) -> None:
        member = self.member
        self.watch = LivenessMonitor(me=member.owner, lease_duration=member.config.lease_duration)
        self._read_back = ReadBack(self.context, member)
        self._sweep_at = time.monotonic() + 2 * member.config.lease_duration

    def new_session(self, session: Session, lock_name: str, incarnation: Incarnation) -> None:
        """The keeper has a new connection: name it in the next heartbeat, and forget all that the last one read."""
        self.session, self._lock_name, self._incarnation = session, lock_name, incarnation
        self._beat_at = self._members_at = self._claim_at = 0.0
        self.watch = LivenessMonitor(me=self.member.owner, lease_duration=self.member.config.lease_duration)
        self.view, self._deregistered = None, set()
        self._lane_pauses = NOT_READ
        self._known.forget()
        self._read_back.forget()

    def reload(self) -> None:
        """Write the new lock's name into the heartbeat, then compare memory with the server.

        The next read-back loads a lease that memory lacks, or has under another epoch.
        """
        member = self.member
        self.beat_if_due()
        owned = leases.owned(self.session, member.at, member.owner)
        lose_others(member, owned, "found on a new connection with another owner or epoch")
        loading.reload(self.session, member, owned)

    def turn(self, *, hurried: bool = False) -> None:
        """Do each step once. Each step needs the result of the steps before it.

        `hurried`: lanes are new, and their first messages wait. Steps that can wait are left to the next turn.
        """
        member = self.member
        now = time.monotonic()
        self.beat_if_due()
        if not member.stopping:
            pauses_changed = self._check_group()  # before the read-back, which passes a pause on to the lanes
        patience = self.pace.turn_seconds if hurried else 0.0
        self._read_back.turn(self.session, self._beaten, patience)
        if member.stopping:
            self._release()
            self._leave()
            return
        changed = self._read_members(now - patience)
        if not self._started:
            self._started = True
            lifecycle.started(member, None if self.view is None else len(self.view.live))
        new = self._known.read(self.session, member.topic, now, lasting=member.config.lease_duration)
        self._balance(now, new, changed=changed or pauses_changed)
        self._release()
        if self.view is not None:
            acquisition.deregister_dead(self.session, member, self.view.dead, self._deregistered)

    @property
    def beaten_at(self) -> float | None:
        """When (monotonic) the last heartbeat was written. None: never. Any thread may ask."""
        return None if self._beaten.at == NEVER else self._beaten.at

    # -- liveness ------------------------------------------------------------------------------------------------------

    def beat_if_due(self) -> None:
        """Renew the leases when that is due. Never after the member has left: a heartbeat would register it again."""
        now = time.monotonic()
        late = now >= self._beat_at or self._beaten.aside is not self.context.shortage.aside
        if late and not self.member.ended.is_set():
            self._beat(now)

    def _beat(self, now: float) -> None:
        member, config, slept, aside = self.member, self.member.config, suspended(), self.context.shortage.aside
        # This holds if the heartbeat fails.
        self._beat_at = now + min(self.pace.beat_again_seconds, config.lease_renewal)
        try:
            heartbeats.beat(
                self.session,
                member.at,
                member.owner,
                duration=config.lease_duration,
                lock=self._lock_name,
                incarnation=self._incarnation,
                tables=self.context.database.tables_version,
                wake=self.context.receiver.endpoint,
                aside=aside,
                workload=None if (workload := member.workload()) is None else workload.dumped(),
            )
        except DatabaseError as error:
            if outage.is_away(error):
                raise
            self._beat_failed(error, now)
        else:
            self._beat_failing_since, self.beat_error = None, ""
            self._beaten = Beaten(now, slept, aside)
            self._beat_at = now + config.lease_renewal * RANDOM.uniform(0.8, 1.0)

    def _beat_failed(self, error: DatabaseError, now: float) -> None:
        """A heartbeat cannot be written, and a repetition alone does not help. A grant may be missing.

        Other members take our lanes when our heartbeat has run out. Our authority ends before that. So the member tries
        on for one lease, in which an operator may give the grant back. Then the subscription fails.
        """
        member, self.beat_error = self.member, f"{type(error).__name__}: {error}"
        if self._beat_failing_since is None:
            self._beat_failing_since = now
            facts.heartbeat_write_failed(topic=member.topic, group=member.group, error=error)
        if now - self._beat_failing_since >= member.config.lease_duration:
            member.fail(
                LanelogError(
                    f"group {member.group!r} of topic {member.topic!r}: no heartbeat could be written for "
                    f"{member.config.lease_duration:g} s ({error}). Other members take the lanes of a member "
                    "whose heartbeat has run out; let the account INSERT and UPDATE queue_subscriber_heartbeats, and "
                    "subscribe again"
                )
            )

    def _read_members(self, now: float) -> bool:
        """Read the heartbeats, and judge which owners are alive. True when the view has changed."""
        if now < self._members_at and not self.watch.second_check_due:
            return False
        self._members_at = now + self.pace.members_seconds
        member = self.member
        before = self.view
        try:
            rows = heartbeats.members(self.session, member.at, tables=self.context.database.tables_version)
        except DatabaseError as error:
            if outage.is_away(error):
                raise
            if not self._members_failed:
                facts.heartbeat_read_failed(topic=member.topic, group=member.group, error=error)
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
        """Check that the group is still registered, and read its pauses. True when an operator changed a pause.

        A paused lane is given back when it is idle. No member takes it, and it counts in no fair share.
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
        pauses_changed = row.paused != member.group_paused or row.lane_pauses != self._lane_pauses
        member.leasing.set_group_paused(paused=row.paused)
        if pauses_changed:
            self._read_back.forget()
        if row.lane_pauses != self._lane_pauses:
            self.paused = offsets.paused(self.session, member.at)
            self._lane_pauses = row.lane_pauses
        return pauses_changed

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _balance(self, now: float, new: Collection[str] | None, *, changed: bool) -> None:
        """Give back and take lanes, when something has changed or it is time. If only `new` lanes came, take those."""
        member = self.member
        if member.failure is not None or member.group_paused:
            return
        if self.context.shortage.aside:
            member.leasing.close_lanes()
            self._claim_at = 0.0  # when it is back, it scans all lanes
            return
        due = now >= min(self._claim_at, self._sweep_at) or self._planned != member.changes
        if changed or due or new is None or len(new) > self.pace.few_lanes:
            self._reach_share(now)
        elif new:
            self._take_new(sorted(new), now)

    def _reach_share(self, now: float) -> None:
        """Give back what is too much, and scan all lanes for what is missing."""
        member = self.member
        plan = self._plan(now)
        for lane in plan.shed:
            member.leasing.close_lane(lane)
        claim = plan.claim
        content = not (plan.shed or claim or self.view is None or self.view.dead)
        if now >= self._sweep_at:
            self._sweep_at = now + 2 * member.config.lease_duration
            if not claim and self._everybody_has_enough():
                claim = {Kind.ANY: ALL}
        self._claim_at = 0.0  # a claim that raises is repeated in the next turn; five in a row fail the member
        page = min(self.pace.page_lanes, max(self.pace.first_page_lanes, len(member.lanes)))
        if self._take(claim, page, now):
            member.signals.wake_keeper()
        else:
            seconds = self.pace.content_seconds if content else self.pace.claim_seconds
            self._claim_at = now + seconds * RANDOM.uniform(0.8, 1.0)

    def _take_new(self, new: Sequence[str], now: float) -> None:
        """Take lanes that were created just now: their first messages need not wait for a scan of all lanes."""
        plan = self._plan(now)
        if plan.shed:
            self._reach_share(now)
        elif plan.claim:
            # Lanes of any kind come last, after a scan of all lanes for each kind.
            claim: Mapping[Kind, int] = {kind: plan.claim[kind] for kind in plan.claim if kind is not Kind.ANY}
            self._claim_at, claim_at = 0.0, self._claim_at  # as above
            if self._take(claim or plan.claim, ALL, now, new):
                self.member.signals.wake_keeper()
            else:
                self._claim_at = min(claim_at, now + self.pace.claim_seconds * RANDOM.uniform(0.8, 1.0))

    def _take(self, claim: Mapping[Kind, int], page: int, now: float, among: Sequence[str] = ()) -> bool:
        """Take up to `page` of these lanes, and load them in this turn, so that the next plan counts them.

        Returns whether more lanes may be free: the page was full, or other members took some candidates first.
        """
        if self._beat_failing_since is not None or self._beaten.at == NEVER:
            return False  # without a heartbeat, the others would take the lanes away again
        try:
            taken = self._claim(claim, page, now, among)
        except BaseException as error:
            self._read_back.forget()  # some may have been taken: the next turn loads them
            if not (isinstance(error, DatabaseError) and error.code == codes.LOCK_WAIT_TIMEOUT):
                raise
            if not self._waits_for_lock:
                facts.lanes_held_up(topic=self.member.topic, group=self.member.group, error=error)
            self._waits_for_lock = True
            return False
        self._waits_for_lock = False
        loaded = 0
        if taken.lanes:
            self.beat_if_due()
            loaded = self._read_back.take_in(self.session, taken.among)
        if among and self.member.changes == self._planned + loaded:
            self._planned += loaded  # nothing else has changed, so no other plan is due
        return taken.lanes >= page or loaded < taken.lanes

    def _plan(self, now: float) -> Plan:
        """The lanes to give back and to take, so that every member has its share of open and of keyed lanes."""
        self._planned = self.member.changes
        if self.view is None:  # availability before fairness: every unowned lane is taken, and none is stolen
            return Plan(claim={Kind.ANY: ALL})
        held = [
            lane for lane in list(self.member.lanes.values()) if not (lane.state.closing or lane.key in self.paused)
        ]
        opened = len(self._known.open - self.paused)
        share = fair_shares(opened, self._shared_out - opened, self.view.sharers, self.member.owner)
        return self._sharing.plan(
            [lane for lane in held if is_open(lane.key)],
            [lane for lane in held if not is_open(lane.key)],
            share,
            self.view.live,
            now,
        )

    def _claim(self, claim: Mapping[Kind, int], page: int, now: float, among: Sequence[str]) -> Taken:
        """Take up to the claimed number of each kind. `Kind.ANY` is tried only when no other kind had a lane.

        `among`: only of these, which are new. Empty: of all.
        """
        taken = Taken()
        for kind, count in claim.items():
            if taken.lanes and kind is Kind.ANY:
                continue
            if among:
                got = acquisition.acquire_new(self.session, self.member, among, count, kind)
            else:
                got = acquisition.acquire(self.session, self.member, self.view, min(count, page), kind)
            taken += got
            if got.lanes and self.view is not None:
                self._sharing.took(kind, self.view.live, now)
        return taken

    def _everybody_has_enough(self) -> bool:
        """Whether no member is below its share, so that no member will claim a lane that is still free."""
        if self.view is None:
            return True
        counts = leases.counts(self.session, self.member.at)
        live = self.view.live
        return all(counts.get(owner, 0) >= fair_share(self._shared_out, live, owner) for owner in live)

    @property
    def _shared_out(self) -> int:
        """How many lanes the members share. Paused lanes do not count."""
        return len(self._known.keys) - len(self.paused & self._known.keys)

    def _release(self) -> None:
        """Give back closed and paused lanes whose last handler has ended, and whose last flush has committed."""
        member = self.member
        failed = member.failure is not None
        idle = member.leasing.take_idle(self.paused, time.monotonic(), failed=failed)
        if not idle:
            return
        with self.session.brief_lock_waits(), self.session.transaction() as cx:
            released = [(lane.key, lane.epoch) for lane in idle]
            leases.release(cx, member.at, member.owner, released)
        for lane in idle:
            if failed:
                member.lose_lane(lane.term, "the subscription failed")
            else:
                member.leasing.forget_lane(lane)
        if not failed:
            lifecycle.released(member, [lane.key for lane in idle])

    def _leave(self) -> None:
        """Deregister when no lane is held any more. Until then the keeper goes on."""
        member = self.member
        if member.lanes or member.ended.is_set():
            return
        if not self._drained:
            self._drained = True
            lifecycle.drained(member)
        try:
            heartbeats.deregister(self.session, member.at, member.owner)
        except DatabaseError as error:
            if outage.is_away(error):
                raise
            facts.heartbeat_write_failed(topic=member.topic, group=member.group, error=error)
        lifecycle.stopped(member)
        member.ended.set()
        self.context.remove(member)
