"""The janitor: collection of what everybody has acked, purge of drained lanes, old heartbeats.

Owns the floors and the deletes behind them; never touches a group's own rows but when it purges a lane that everybody
has drained. One thread and one connection of a client; several clients may do this at once and skip each other's locks.

A crash between raising a floor and deleting leaves released messages in the log; the next pass deletes them, because
the floor row also says how far the deletion got.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.purge import Purge
from lanelog._stores.discovery import Discovery
from lanelog._stores.groups import Groups
from lanelog._stores.heartbeats import Heartbeats
from lanelog._stores.moves import Moves
from lanelog._stores.offsets import Offsets

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.host import Host
    from lanelog._engine.membership import Membership

TURN = 1.0
LANES_A_PASS = 200
STEP = 1000
"""Offsets of one lane that one pass may release."""

LONGEST_WAIT = 60.0
"""Seconds until a lane that another group holds back is looked at again."""

PURGES_A_PASS = 100
HEARTBEATS_KEPT = 600.0
HEARTBEATS_EVERY = 60.0


@define(eq=False)
class Topic:
    """What the janitor remembers of one topic, so that an idle one costs no statement."""

    collected: dict[str, int] = field(factory=dict)  # key -> highest floor seen
    not_before: dict[str, float] = field(factory=dict)  # key -> when its oldest message is old enough (monotonic)
    waits: dict[str, float] = field(factory=dict)  # key -> how long it was put off the last time
    purge_at: float = 0.0
    purge_after: str = ""
    heartbeats_at: dict[str, float] = field(factory=dict)  # group -> when its old members are looked for again

    def put_off(self, key: str) -> None:
        """Nothing can be released: look again ever later, so that waiting for a sleeping group costs little."""
        wait = self.waits[key] = min(LONGEST_WAIT, 2 * self.waits.get(key, TURN / 2))
        self.not_before[key] = time.monotonic() + wait

    def forget(self, key: str) -> None:
        """The lane is gone."""
        for remembered in (self.collected, self.not_before, self.waits):
            remembered.pop(key, None)


@define(eq=False)
class Janitor:
    """Turns of the janitor."""

    host: Host
    session: Session = field(init=False)
    _purge: Purge = field(init=False)
    _topics: dict[str, Topic] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.session = self.host.database.session("janitor")
        self._purge = Purge(self.session)

    def turn(self, now: float) -> float:
        """One bounded pass over every topic this client reads."""
        more = False
        topics = {membership.topic for membership in self.host.memberships()}
        for gone in self._topics.keys() - topics:
            del self._topics[gone]
        for membership in self.host.memberships():
            with self.host.watch(membership, "janitor", self.session):
                state = self._topics.setdefault(membership.topic, Topic())
                more |= self._collect(membership, state)
                more |= self._purge_drained(membership, state, now)
                self._forget_members(membership, state, now)
        self.host.raise_deferred("janitor")
        self.session.ping_if_idle()
        return 0.0 if more else TURN

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    def _collect(self, membership: Membership, state: Topic) -> bool:
        """Release and delete for lanes whose watermark has moved; True when more is ready at once."""
        now = time.monotonic()
        ready = [
            key
            for key, acked in membership.flushed_watermarks()
            if acked > state.collected.get(key, -1) and now >= state.not_before.get(key, 0.0)
        ]
        if not ready:
            return False
        keys = ready[:LANES_A_PASS]
        topic = membership.topic
        readers = Groups().readers(self.session, topic)
        retention_ms = max(readers.values(), default=0)
        if retention_ms:
            keys = self._old_enough(topic, keys, state, retention_ms, now)
        released = self._release(topic, keys, state, retention_ms) if keys else {}
        points = [(key, o) for key, (deleted, floor) in released.items() for o in range(deleted + 1, floor + 1)]
        try:
            self._delete(topic, released, points)
        except BaseException:
            for key in released:
                state.forget(key)  # the floor is raised, the deletion is to be repeated
            raise
        return len(ready) > LANES_A_PASS or any(floor - deleted >= STEP for deleted, floor in released.values())

    def _delete(self, topic: str, released: dict[str, tuple[int, int]], points: list[tuple[str, int]]) -> None:
        if points:
            # Messages only: no other lock is held. Repeated by the next pass if this one dies here.
            Moves().delete(self.session, topic, points)
            Offsets().raise_deleted(
                self.session, topic, {key: floor for key, (deleted, floor) in released.items() if floor > deleted}
            )

    def _old_enough(self, topic: str, keys: list[str], state: Topic, retention_ms: int, now: float) -> list[str]:
        """Lanes whose oldest message is beyond the retention; for the others it is noted when it will be."""
        floors = Offsets().load(self.session, "", topic, keys)
        lanes = [(key, floors[("", key)].offset_acked) for key in keys if ("", key) in floors]
        ages = Moves().ages(self.session, topic, lanes)
        ripe = []
        for key in keys:
            age = ages.get(key)
            if age is None or age * 1000 >= retention_ms:
                ripe.append(key)  # without a message behind the floor there is nothing to wait for
            else:
                state.not_before[key] = now + retention_ms / 1000 - age
        return ripe

    def _release(self, topic: str, keys: list[str], state: Topic, retention_ms: int) -> dict[str, tuple[int, int]]:
        """Raise floors; (deleted through, floor) by key.

        Lock order: topic row S → floors X. The watermarks are read in a second statement, without locks: READ COMMITTED
        gives it a new snapshot, stale is safe because only seek lowers a watermark, and seek holds the floor. In one
        statement with the lock it lost messages against a concurrent seek.
        """
        released: dict[str, tuple[int, int]] = {}
        with self.session.transaction() as cx:
            topic_row = Discovery().share_topic(cx, topic)
            if topic_row is None or topic_row[2]:
                state.collected.update(dict.fromkeys(keys, 1 << 62))  # dead letters leave by their own retention
                return {}
            floors = Offsets().lock_floors(cx, topic, keys)
            groups = list(Groups().readers(cx, topic))
            if not groups:
                return {}  # the membership's own registration is gone; its keeper says so
            marks = Offsets().watermarks(cx, topic, groups, list(floors))
            acked = {key: min(marks.get((group, key), row.floor) for group in groups) for key, row in floors.items()}
            targets = {key: min(acked[key], row.floor + STEP) for key, row in floors.items()}
            if retention_ms:
                ranges = [(key, row.floor, targets[key]) for key, row in floors.items() if targets[key] > row.floor]
                targets.update(Moves().old_enough(cx, topic, ranges, retention_ms))
            raised = {key: target for key, target in targets.items() if target > floors[key].floor}
            if raised:
                Offsets().raise_floors(cx, topic, raised)
        for key in keys:
            row = floors.get(key)
            if row is None:
                state.put_off(key)  # another collector has it
                continue
            floor = max(targets[key], row.floor)
            released[key] = (row.deleted_through, floor)
            state.collected[key] = floor
            if floor == row.floor:
                state.put_off(key)  # some other group is behind
            else:
                state.waits.pop(key, None)
        return released

    def _purge_drained(self, membership: Membership, state: Topic, now: float) -> bool:
        """Remove lanes that have been drained and idle for long, page by page through the topic."""
        idle = self.host.database.config.lane_idle_purge
        if now < state.purge_at:
            return False
        keys = Offsets().idle_floors(self.session, membership.topic, state.purge_after, idle, PURGES_A_PASS)
        for key in keys:
            if self._purge.drained(membership.topic, key):
                state.forget(key)
        state.purge_after = keys[-1] if len(keys) == PURGES_A_PASS else ""
        if not state.purge_after:
            state.purge_at = now + min(60.0, max(TURN, idle / 2))
        return bool(state.purge_after)

    def _forget_members(self, membership: Membership, state: Topic, now: float) -> None:
        if now >= state.heartbeats_at.get(membership.group, 0.0):
            state.heartbeats_at[membership.group] = now + HEARTBEATS_EVERY
            Heartbeats().purge(self.session, membership.group, membership.topic, membership.owner, HEARTBEATS_KEPT)
