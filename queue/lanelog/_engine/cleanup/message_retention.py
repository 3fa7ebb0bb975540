"""Message retention: which lanes the janitor collects, and when.

Owns the choice of lanes, and the memory of those that need no collection. `_log/collect` does the work.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from attrs import define, field

from lanelog._base.duty_cycle import DutyCycle
from lanelog._log import collect
from lanelog._log.collect import Collected
from lanelog._stores.consumers import groups, offsets
from lanelog._stores.log import leaving

if TYPE_CHECKING:
    from collections.abc import Collection

    from lanelog._base.backoff import Backoff
    from lanelog._database import Session
    from lanelog._engine.member.member import Member


@define(eq=False)
class MessageRetention:
    """Releases and deletes messages of lanes whose watermark has moved."""

    name: ClassVar[str] = "collection"
    held_back: Backoff
    """The wait for a lane that another group, or another collector, holds back: so a sleeping group costs little."""
    list_cycle: DutyCycle = DutyCycle(1 / 200)
    """The share of time for the lists of all watermarks."""
    short_list_seconds: float = 0.002
    """A list that takes less delays no other one."""
    page_lanes: int = 200
    collected: dict[str, int] = field(factory=dict)  # key -> highest floor seen
    not_before: dict[str, float] = field(factory=dict)  # key -> when its oldest message is old enough (monotonic)
    waits: dict[str, float] = field(factory=dict)  # key -> the length of its last wait (seconds)
    _ready: list[str] = field(factory=list)  # lanes whose watermark has moved; they are collected page by page
    _list_at: float = 0.0  # when all watermarks are compared again (monotonic)

    def due(self, member: Member, now: float) -> bool:  # noqa: ARG002 - see `Duty`
        """Whether lanes are ready, or all watermarks may be compared again."""
        return bool(self._ready) or now >= self._list_at

    def run(self, session: Session, member: Member, now: float) -> bool:
        """Collect one page of lanes."""
        if not self._ready:
            self._list(member, now)
        if not self._ready:
            return False
        keys, self._ready = self._ready[: self.page_lanes], self._ready[self.page_lanes :]
        topic = member.topic
        readers = groups.readers(session, topic)
        retention_ms = max(readers.values(), default=0)
        if retention_ms:
            keys = self._old_enough(session, topic, keys, retention_ms)
        released = self._release(session, topic, keys, retention_ms) if keys else Collected()
        try:
            collect.delete(session, topic, released.lanes)
        except BaseException:
            for key in released.lanes:
                self.forget(key)  # the floors are raised, and the deletion must be repeated
            raise
        return bool(self._ready) or released.more

    def forget(self, key: str) -> None:
        """Forget a lane."""
        for remembered in (self.collected, self.not_before, self.waits):
            remembered.pop(key, None)

    def forget_all_but(self, keys: Collection[str]) -> None:
        """Forget all lanes but these."""
        for key in (self.collected.keys() | self.not_before.keys() | self.waits.keys()) - set(keys):
            self.forget(key)

    def _list(self, member: Member, now: float) -> None:
        used = time.thread_time()
        self._ready = [
            key
            for key, acked in member.writing.flushed_watermarks()
            if acked > self.collected.get(key, -1) and now >= self.not_before.get(key, 0.0)
        ]
        used = time.thread_time() - used
        self._list_at = time.monotonic() + self.list_cycle.rest(used) if used > self.short_list_seconds else now

    def _old_enough(self, session: Session, topic: str, keys: list[str], retention_ms: int) -> list[str]:
        """The lanes whose oldest message is beyond the retention. For the others it notes when that will be."""
        floors = offsets.floors(session, topic, keys)
        lanes = [(key, floors[key].floor) for key in keys if key in floors]
        ages = leaving.ages(session, topic, lanes)
        ripe = []
        for key in keys:
            age = ages.get(key)
            if age is None or age * 1000 >= retention_ms:
                ripe.append(key)  # age None: there is no message above the floor to wait for
            else:
                self.not_before[key] = time.monotonic() + retention_ms / 1000 - age
        return ripe

    def _release(self, session: Session, topic: str, keys: list[str], retention_ms: int) -> Collected:
        """Raise floors, and remember which lanes need no collection before their watermark changes."""
        with session.transaction() as cx:
            released = collect.release(cx, topic, keys, retention_ms)
        if released.dead_letters:
            self.collected.update(dict.fromkeys(keys, 1 << 62))  # dead letters leave by their own retention
        if released.dead_letters or released.no_readers:
            return released  # no readers: the member's own group was deleted, and its keeper reports that
        for key in keys:
            span = released.lanes.get(key)
            if span is None:
                self._put_off(key)  # another collector has it
                continue
            self.collected[key] = span.floor
            if span.risen:
                self.waits.pop(key, None)
            else:
                self._put_off(key)  # another group is behind
        return released

    def _put_off(self, key: str) -> None:
        wait = self.waits[key] = self.held_back.following(self.waits.get(key, 0.0))
        self.not_before[key] = time.monotonic() + wait
