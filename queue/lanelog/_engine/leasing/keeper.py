"""The keeper: heartbeat, liveness, and which lanes are ours.

Owns the leases and the authority to start handlers; never reads a message. One thread and one connection of a client;
the connection holds the liveness lock that tells others within a second or two that this process is gone.

What if it dies, sleeps, or gets no answer: a dead keeper's lock is free at once and its lanes are taken after two
looks. One that slept past its lease finds other epochs at its next read-back, before which no handler starts, because
authority ages by the monotonic clock from before the read was sent. An acquisition whose COMMIT was not answered
shows up in the read-back as a lease that memory lacks, and is loaded; a release likewise as a lease that is gone.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.leasing.coordinator import Coordinator
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Incarnation, Session
    from lanelog._engine.context import EngineContext
    from lanelog._engine.member.member import Member

TURN = 0.25
"""Seconds between two turns: the first message of a new key waits at most this long for an owner."""

UNASKED = 5.0
"""Seconds between two questions to the server who it is, while no member has a heartbeat to write."""

# The liveness lock, fresh for each session: a half-open session of ours may still hold the last one.
GET_LOCK = "SELECT GET_LOCK(%s, 0)"

# Whether this very session holds it: a proxy may have put another server, or another connection, behind ours.
HELD = "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"

# A silent session is dropped when its leases have run out, and not before: a process whose handler keeps the
# interpreter to itself for as long as its lease lasts is alive.
SET_PATIENCE = "SET SESSION wait_timeout = %s, net_read_timeout = %s, net_write_timeout = %s"
LEAST_PATIENCE = 5.0
"""Seconds: with a lease that is shorter, a busy machine would cost the session; expiry moves its lanes before."""

log = get_logger("keeper")


@define(eq=False)
class Keeper:
    """Turns of the keeper."""

    context: EngineContext
    supervise: Callable[[float], None]  # the workers' clock
    session: Session = field(init=False)
    _lock_name: str = ""
    _generation: int = 0
    _patience: float = 0.0  # as the session was told
    _check_at: float = 0.0  # when the session is asked again who answers (monotonic)
    _stood_on: Incarnation | None = None  # the last that memory was loaded from
    _keepers: dict[Member, Coordinator] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("keeper")

    def turn(self, now: float) -> float:
        """Supervise, then look after each member once."""
        self.supervise(now)
        try:
            self._hold_ground()
            with self.session.pinned():  # on another connection, what it reads may be of another server
                self._be_patient()
                for member in self.context.members():
                    self._look_after(member)
        except DatabaseError:
            if not self.session.connected:
                self._let_go()
            raise
        self.context.raise_deferred("keeper")
        self.context.raise_deferred("heartbeat")
        for gone in self._keepers.keys() - set(self.context.members()):
            del self._keepers[gone]
        return TURN * random.uniform(0.8, 1.0)

    def _look_after(self, member: Member) -> None:
        with self.context.watch(member, "keeper", self.session):
            keeper = self._keeper_of(member)
            # What one member does may take seconds (many lanes to load, a slow server): no other one's lease is to
            # run out behind it.
            for each in list(self._keepers.values()):
                with self.context.watch(each.member, "heartbeat", self.session):
                    each.beat_if_due()
            keeper.turn()

    def close(self) -> None:
        """Give the connection back, and with it the liveness lock."""
        self.session.close()

    def _let_go(self) -> None:
        """Nothing starts and nothing is written until lock, leases and lanes were read on a new session."""
        self.context.ground.lost()
        self.context.withdraw_authority()

    def _hold_ground(self) -> None:
        """Have a session that holds the lock, on the server that memory was loaded from; else make both so."""
        ground = self.context.ground
        if ground.doubted and self.session.connected:
            # Another loop has met another server. This session keeps its lock until the next one has its own.
            before, self.session = self.session, self.context.database.session("keeper")
            try:
                self._stand()
            except BaseException:
                self.session.close()
                self.session = before
                raise
            before.close()
        elif self.session.ensure() or self.session.generation != self._generation or ground.incarnation is None:
            self._stand()
        elif ground.asked or time.monotonic() >= self._check_at:
            self._check()

    def _check(self) -> None:
        """Ask who answers, with every heartbeat: a proxy changes servers behind a living connection."""
        asked, waited_for = time.monotonic(), self.context.ground.asked
        with self.session.pinned():
            held = self.session.one(HELD, (self._lock_name,)) if self._lock_name else (1,)
            incarnation = self.session.look()
        if held is None or held[0] != 1 or self._stood_on is None or not incarnation.same(self._stood_on):
            log.warning("server.changed", lock_held=bool(held and held[0]))
            self._let_go()
            self.session.drop()
            self._stand()
            return
        self.context.ground.confirmed(asked)
        self._check_at = asked + self._check_every() * random.uniform(0.8, 1.0)
        if waited_for:
            self._wake_loops()

    def _check_every(self) -> float:
        return min((each.config.lease_renewal for each in self.context.members()), default=UNASKED)

    def _stand(self) -> None:
        """Take the lock on a new session, say so in every heartbeat, and load what memory believes."""
        self._let_go()
        self.session.ensure()
        with self.session.pinned():
            asked, incarnation = time.monotonic(), self.session.incarnation
            self._generation, self._patience = self.session.generation, 0.0
            self._lock_name = self._take_lock()
            if self._stood_on is not None and not incarnation.same(self._stood_on):
                log.warning("server.restarted")
            for member in self.context.members():
                keeper = self._keeper_of(member)
                keeper.new_session(self.session, self._lock_name, incarnation)
                keeper.reload()
        self._stood_on = incarnation
        self.context.ground.loaded(incarnation, asked)
        self._check_at = asked + self._check_every()
        self._wake_loops()

    def _take_lock(self) -> str:
        name = f"lanelog:{uuid.uuid4().hex}"
        got = self.session.one(GET_LOCK, (name,))
        if got is not None and got[0] == 1:
            return name
        log.error("liveness_lock.refused", answer=None if got is None else got[0])
        return ""  # others then fall back to the heartbeat's expiry

    def _be_patient(self) -> None:
        """Let the server wait for this session as long as the longest lease lasts."""
        leases = (each.config.lease_duration for each in self.context.members())
        patience = max(LEAST_PATIENCE, *leases, self._patience)
        if patience != self._patience:
            self.session.execute(SET_PATIENCE, (math.ceil(patience),) * 3)
            self._patience = patience

    def _wake_loops(self) -> None:
        for member in self.context.members():
            member.signals.wake_fetcher()
            member.signals.wake_settler()

    def _keeper_of(self, member: Member) -> Coordinator:
        keeper = self._keepers.get(member)
        if keeper is None:
            keeper = self._keepers[member] = Coordinator(self.context, member, self.session)
            if self._stood_on is not None:
                keeper.new_session(self.session, self._lock_name, self._stood_on)
        return keeper
