"""The keeper: heartbeat, liveness, and the leases of lanes.

Owns the leases, the authority to start handlers, and the check that the server is still the one that memory was loaded
from (`server_identity` only keeps the answer). Never reads a message. It is one thread and one connection of a client.
The connection holds the liveness lock. When the process dies, others see that by the lock within a second or two. With
`liveness="lease"` there is no lock, and others wait until the heartbeat has run out.

If the keeper dies: its lock is free at once, and its lanes are taken after two checks. If it sleeps for longer than its
lease: its next read-back finds other epochs. No handler starts before that read-back, because authority is counted from
a time before the last read was sent. If the COMMIT of an acquisition is not answered: the read-back finds a lease that
memory lacks, and loads it. If the COMMIT of a release is not answered: the read-back finds that the lease is gone.
"""

from __future__ import annotations

import math
import time
import uuid
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._base.backoff import RANDOM
from lanelog._database import codes
from lanelog._engine import lifecycle
from lanelog._engine.leasing.coordinator import Coordinator
from lanelog._engine.leasing.pace import KeeperPace
from lanelog._engine.leasing.row_locks import RowLocks
from lanelog._facts.engine import keeper as facts
from lanelog._hints.allowance import Allowance
from lanelog._stores import origins
from lanelog._stores.members import heartbeats
from lanelog.errors import DatabaseError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Incarnation, Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.member.member import Member

# The liveness lock. Each session takes a new name: a half-open session of ours may still hold the last one.
GET_LOCK = "SELECT GET_LOCK(%s, 0)"

# Whether this session holds the lock. A proxy may have put another server, or another connection, behind ours.
HELD = "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"

# The server drops a silent session when its leases have run out, and not before. A handler may block the interpreter
# for almost a lease, and the process is still alive.
SET_PATIENCE = "SET SESSION wait_timeout = %s, net_read_timeout = %s, net_write_timeout = %s"


@define(eq=False)
class Keeper:
    """Turns of the keeper."""

    context: EngineContext
    supervise: Callable[[float], None]  # the workers' clock
    pace: KeeperPace
    session: Session = field(init=False)
    _row_locks: RowLocks = field(init=False)
    _lock_name: str = ""
    _generation: int = 0
    _patience: float = 0.0  # the patience that was set on the session
    _check_at: float = 0.0  # when the server's identity is checked again (monotonic)
    _loaded_from: Incarnation | None = None  # the server that memory was last loaded from
    _coordinators: dict[Member, Coordinator] = field(factory=dict)
    _allowance: Allowance = field(init=False)  # for turns that hints ask for
    _hurried: bool = False  # a hint asked for the next turn

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("keeper")
        self._row_locks = RowLocks(self.context.database)
        self._allowance = Allowance(self.pace.hurried_cycle)

    def turn(self, now: float) -> float:
        """Supervise, then serve each member once."""
        # Taken here: a hint that comes during this turn asks for the next one, which is paid for as well.
        hurried, self._hurried = self._hurried, False
        self.supervise(now)
        try:
            self._serve_all(hurried=hurried)
        finally:
            if hurried:
                ended = time.monotonic()
                self._allowance.spend(ended, ended - now)
        return self.pace.turn_seconds * RANDOM.uniform(0.8, 1.0)

    def may_hurry(self) -> bool:
        """Whether a hint of new lanes may wake the keeper now. The turn is paid for. Else the next turn finds them."""
        now = time.monotonic()
        self._hurried = self._hurried or self._allowance.free_at(now) <= now
        return self._hurried

    def beaten(self, member: Member) -> tuple[float | None, str]:
        """When (monotonic) the member's last heartbeat was written, and why not since. Any thread may ask.

        None: never. The reason is empty if there is none, or if it is the keeper's own.
        """
        coordinator = self._coordinators.get(member)
        return (None, "") if coordinator is None else (coordinator.beaten_at, coordinator.beat_error)

    def _serve_all(self, *, hurried: bool) -> None:
        shortage = self.context.shortage
        if shortage.judge(time.monotonic(), self.session):
            lifecycle.stood_aside(shortage.lacking()) if shortage.aside else lifecycle.came_back()
        try:
            self._ensure_same_server()
            with self.session.pinned():  # another connection may lead to another server
                self._be_patient()
                for member in self.context.members():
                    self._serve(member, hurried=hurried)
        except DatabaseError:
            if not self.session.connected:
                self._let_go()
            raise
        self.context.raise_deferred("keeper")
        self.context.raise_deferred("heartbeat")
        for gone in self._coordinators.keys() - set(self.context.members()):
            del self._coordinators[gone]

    def _serve(self, member: Member, *, hurried: bool) -> None:
        with self.context.watch(member, "keeper", self.session):
            coordinator = self._coordinator_of(member)
            # One member's turn may take seconds, with many lanes or a slow server. No other member's lease may run out
            # meanwhile.
            for each in list(self._coordinators.values()):
                with self.context.watch(each.member, "heartbeat", self.session):
                    each.beat_if_due()
            if not member.stopping:
                self._row_locks.check(self.session, member.at, member.owner)
            coordinator.turn(hurried=hurried)

    def close(self) -> None:
        """Give the connection back, and with it the liveness lock."""
        self.session.close()

    def _let_go(self) -> None:
        """Let no handler start and no loop write until a new session has taken the lock and loaded the lanes."""
        self.context.server_identity.lost()
        self.context.withdraw_authority()

    def _ensure_same_server(self) -> None:
        """Make sure that the session holds the lock, on the server that memory was loaded from."""
        identity = self.context.server_identity
        if identity.suspect and self.session.connected and not identity.by_turns:
            # Another loop has met another server. The old session keeps its lock until the new one has its own.
            before, self.session = self.session, self.context.database.session("keeper")
            try:
                self._load_from_server()
            except BaseException:
                self.session.close()
                self.session = before
                raise
            before.close()
        elif self.session.ensure() or self.session.generation != self._generation or identity.incarnation is None:
            self._load_from_server()
        elif identity.suspect or identity.asked or time.monotonic() >= self._check_at:
            identity.suspect = False  # two servers answer by turns: this one is as good, as long as it is the same
            self._check()

    def _check(self) -> None:
        """Check the server's identity about once a heartbeat. A proxy may change servers behind a living connection."""
        asked, waited_for = time.monotonic(), self.context.server_identity.asked
        with self.session.pinned():
            held = self.session.one(HELD, (self._lock_name,)) if self._lock_name else (1,)
            incarnation = self.session.ask_incarnation()
        if held is None or held[0] != 1 or self._loaded_from is None or not incarnation.same(self._loaded_from):
            facts.server_changed(lock_held=bool(held and held[0]))
            self._let_go()
            self.session.drop()
            self._load_from_server()
            return
        self.context.server_identity.confirmed(asked)
        self._check_at = asked + self._check_every() * RANDOM.uniform(0.8, 1.0)
        if waited_for:
            self._wake_loops()

    def _check_every(self) -> float:
        beats = (each.config.lease_renewal for each in self.context.members())
        return min(beats, default=self.pace.memberless_check_seconds)

    def _load_from_server(self) -> None:
        """Take the lock on a new session, name it in every heartbeat, and reload all lanes."""
        self._let_go()
        self.session.ensure()
        self.context.server_identity.note(self.session)
        with self.session.pinned():
            asked, incarnation = time.monotonic(), self.session.incarnation
            self._generation, self._patience = self.session.generation, 0.0
            self._lock_name = self._take_lock()
            if self._loaded_from is None:
                self._note_origin()
            if self._loaded_from is not None and not incarnation.same(self._loaded_from):
                facts.server_restarted()
            for member in self.context.members():
                coordinator = self._coordinator_of(member)
                coordinator.new_session(self.session, self._lock_name, incarnation)
                coordinator.reload()
        self._loaded_from = incarnation
        self.context.server_identity.loaded(incarnation, asked)
        self._check_at = asked + self._check_every()
        self._wake_loops()

    def _note_origin(self) -> None:
        """Say that the tables are a copy, before a heartbeat of this server is there."""
        database = self.context.database
        if database.tables_version < heartbeats.VERSION_WITH_INCARNATION:
            return
        try:
            found = origins.load(self.session, mariadb=database.facts().mariadb)
        except DatabaseError as error:
            if error.code not in codes.DENIED:
                raise
            return  # an account that may not read heartbeats works all the same
        if found.copied:
            facts.tables_of_another_server(
                database=database.config.database,
                heartbeats=found.elsewhere,
                latest=utc_from_ms(found.latest_elsewhere).isoformat(),
            )

    def _take_lock(self) -> str:
        if not self.context.database.config.by_lock:
            return ""
        name = f"lanelog:{uuid.uuid4().hex}"
        got = self.session.one(GET_LOCK, (name,))
        if got is not None and got[0] == 1:
            return name
        facts.liveness_lock_refused(answer=None if got is None else got[0])
        return ""  # others then fall back to the heartbeat's expiry

    def _be_patient(self) -> None:
        """Let the server wait for this session as long as the longest lease lasts."""
        leases = (each.config.lease_duration for each in self.context.members())
        patience = max(self.pace.least_session_seconds, *leases, self._patience)
        if patience != self._patience:
            self.session.execute(SET_PATIENCE, (math.ceil(patience),) * 3)
            self._patience = patience

    def _wake_loops(self) -> None:
        for member in self.context.members():
            member.signals.wake_fetcher()
            member.signals.wake_settler()

    def _coordinator_of(self, member: Member) -> Coordinator:
        coordinator = self._coordinators.get(member)
        if coordinator is None:
            coordinator = self._coordinators[member] = Coordinator(self.context, member, self.session, self.pace)
            if self._loaded_from is not None:
                coordinator.new_session(self.session, self._lock_name, self._loaded_from)
        return coordinator
