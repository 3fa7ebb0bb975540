"""The keeper: heartbeat, liveness, and which lanes are ours.

Owns the leases and the authority to start handlers; never reads a message. One thread and one connection of a client;
the connection holds the liveness lock that tells others within a second or two that this process is gone.

What if it dies, sleeps, or gets no answer: a dead keeper's lock is free at once and its lanes are taken after two
looks. One that slept past its lease finds other epochs at its next read-back, before which no handler starts, because
authority ages by the monotonic clock from before the read was sent. An acquisition whose COMMIT was not answered
shows up in the read-back as a lease that memory lacks, and is loaded; a release likewise as a lease that is gone.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.assignment import SERVER_START_TOLERANCE_MS
from lanelog._engine.membership_keeper import MembershipKeeper
from lanelog._telemetry import get_logger
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Session
    from lanelog._engine.host import Host
    from lanelog._engine.membership import Membership

TURN = 0.25
"""Seconds between two turns: the first message of a new key waits at most this long for an owner."""

# The liveness lock, fresh for each session: a half-open session of ours may still hold the last one.
GET_LOCK = "SELECT GET_LOCK(%s, 0)"

log = get_logger()


@define(eq=False)
class Keeper:
    """Turns of the keeper."""

    host: Host
    supervise: Callable[[float], None]  # the workers' clock
    session: Session = field(init=False)
    _lock_name: str = ""
    _generation: int = 0
    _session_since: float = 0.0
    _keepers: dict[Membership, MembershipKeeper] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.session = self.host.database.session("keeper")

    def turn(self, now: float) -> float:
        """Supervise, then look after each membership once."""
        self.supervise(now)
        if self.host.doubted:
            self.host.doubted = False
            self.session.drop()  # one of two sessions has the server's start wrong, or it was restarted: ask anew
        try:
            self._renew_session()
            for membership in self.host.memberships():
                with self.host.watch(membership, "keeper", self.session):
                    keeper = self._keeper_of(membership)
                    # What one membership does may take seconds (many lanes to load, a slow server): no other one's
                    # lease is to run out behind it.
                    for each in list(self._keepers.values()):
                        with self.host.watch(each.membership, "heartbeat", self.session):
                            each.beat_if_due()
                    keeper.turn()
        except DatabaseError:
            if not self.session.connected:
                self._withdraw_authority()
            raise
        self.host.raise_deferred("keeper")
        self.host.raise_deferred("heartbeat")
        for gone in self._keepers.keys() - set(self.host.memberships()):
            del self._keepers[gone]
        return TURN * random.uniform(0.8, 1.0)

    def close(self) -> None:
        """Give the connection back, and with it the liveness lock."""
        self.session.close()

    def _withdraw_authority(self) -> None:
        # Nothing new starts until lock and epochs are validated on a new session.
        for membership in self.host.memberships():
            membership.authority_until = 0.0

    def _renew_session(self) -> None:
        self.session.ensure()
        if self.session.generation == self._generation:
            return
        self._withdraw_authority()
        started = self.session.server_started_ms
        name = f"lanelog:{uuid.uuid4().hex}"
        got = self.session.one(GET_LOCK, (name,))
        if got is None or got[0] != 1:
            log.error("liveness_lock.refused", answer=None if got is None else got[0])
            name = ""  # others then fall back to the heartbeat's expiry
        restarted = (
            self.host.server_started_ms and abs(started - self.host.server_started_ms) > SERVER_START_TOLERANCE_MS
        )
        if restarted:
            log.warning("server.restarted")
            for membership in self.host.memberships():
                self._keeper_of(membership).reload(self.session)
        self.host.server_started_ms = started
        self._lock_name = name
        self._session_since = time.monotonic()
        self._generation = self.session.generation
        for keeper in self._keepers.values():
            keeper.new_session(name, started, self._session_since)

    def _keeper_of(self, membership: Membership) -> MembershipKeeper:
        keeper = self._keepers.get(membership)
        if keeper is None:
            keeper = self._keepers[membership] = MembershipKeeper(self.host, membership, self.session)
            keeper.new_session(self._lock_name, self.host.server_started_ms, self._session_since)
        return keeper
