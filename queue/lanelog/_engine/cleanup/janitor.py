"""The janitor: collection, purge of drained lanes, old heartbeats, history and dead letters, expired messages, audits.

Owns the choice of lanes, and the times of these duties, but for those that `retention` and `auditing` have.
`collection`, `lane_purge`, `retention`, `expired` and `auditing` do the work. It writes a group's own rows in five
cases only: it purges a lane that all groups have drained, mends a lane whose tables contradict each other, deletes old
history, deletes old heartbeats, and dead-letters expired messages of a group without a living member.

It is one thread and one connection of a client. Several clients may do this at once: they skip each other's locks, or
find nothing left to do. If the account may not delete, the janitor logs that once, and leaves the work to the clients
of other accounts.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._database import codes
from lanelog._engine.cleanup import auditing, collection, retention
from lanelog._engine.cleanup.collection import Collected
from lanelog._engine.cleanup.expired import Undertaker
from lanelog._engine.cleanup.lane_purge import Purge, removable
from lanelog._facts.engine import janitor as facts
from lanelog._stores import groups, leaving, offsets, partitions
from lanelog._stores.groups import VERSION_WITH_DEAD_LETTER_TOPIC
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Session
    from lanelog._engine.context import EngineContext
    from lanelog._engine.member.member import Member

LANES_A_PASS = 200
LIST_SHARE = 199.0
"""All watermarks may be listed in a 200th of the time: after a list of d seconds, the next is 199 d later."""

SHORT_LIST = 0.002
"""Seconds. A list that takes less delays no other one."""

LONGEST_WAIT = 60.0
"""The longest wait, in seconds, before the next look at a lane that another group holds back."""

PURGES_A_PASS = 100
HEARTBEATS_EVERY = 60.0
BURYING = 0.2
"""Seconds of a turn that one such group may take. The other duties, and the end of the process, wait so long."""

DENIED_WAIT = 600.0
"""Seconds until a duty is tried again for which the account lacked a privilege."""


@frozen(kw_only=True)
class JanitorPace:
    """The times of the janitor, in seconds."""

    turn: float = 1.0
    """Between two turns, when nothing more is ready."""
    expired: float = 60.0
    """Between two passes for the groups of a topic that have no living member."""
    behind: float = 60.0
    """The longest pass of purge that is in time. With a longer `lane_idle_purge`, that is."""


@define(eq=False)
class Topic:
    """The janitor's memory of one topic. It saves statements for lanes that have not moved."""

    ready: list[str] = field(factory=list)  # lanes whose watermark has moved; they are collected page by page
    list_at: float = 0.0  # when all watermarks are compared again (monotonic)
    collected: dict[str, int] = field(factory=dict)  # key -> highest floor seen
    not_before: dict[str, float] = field(factory=dict)  # key -> when its oldest message is old enough (monotonic)
    waits: dict[str, float] = field(factory=dict)  # key -> the length of its last wait (seconds)
    purge_at: float = 0.0
    purge_after: str = ""
    purge_began: float = 0.0  # when the pass over drained lanes began (monotonic)
    purged: int = 0  # lanes purged in this pass
    purge_behind: bool = False  # it was logged that passes take too long
    kept: retention.TopicSchedule = field(factory=retention.TopicSchedule)
    passes: auditing.Passes = field(factory=auditing.Passes)
    expired_at: float = 0.0
    expired_after: str = ""
    heartbeats_at: dict[str, float] = field(factory=dict)  # group -> when its old members are looked for again
    denied_until: dict[str, float] = field(factory=dict)  # duty -> when it is tried again (monotonic)

    def put_off(self, key: str, first: float) -> None:
        """Nothing of this lane can be released now. The first wait takes `first` seconds, and each other one is longer.

        So a sleeping group costs little.
        """
        wait = self.waits[key] = min(LONGEST_WAIT, 2 * self.waits.get(key, first / 2))
        self.not_before[key] = time.monotonic() + wait

    def forget(self, key: str) -> None:
        """Forget a lane."""
        for remembered in (self.collected, self.not_before, self.waits):
            remembered.pop(key, None)


@define(eq=False)
class Janitor:
    """Turns of the janitor."""

    context: EngineContext
    pace: JanitorPace = field(factory=JanitorPace)
    session: Session = field(init=False)
    _purge: Purge = field(init=False)
    _topics: dict[str, Topic] = field(factory=dict)
    _generation: int = 0

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("janitor")
        self._purge = Purge(self.session)

    def turn(self, now: float) -> float:
        """One bounded pass over every topic this client reads."""
        more = False
        if self._generation != self.context.ground.generation:
            if self._generation:
                self._topics.clear()  # this memory was true for the server before
            self._generation = self.context.ground.generation
        topics = {member.topic for member in self.context.members()}
        for gone in self._topics.keys() - topics:
            del self._topics[gone]
        if topics:
            self.session.ensure()  # a missing connection must show, even while nothing is to be collected
        for member in self.context.members():
            with self.context.watch(member, "janitor", self.session):
                state = self._topics.setdefault(member.topic, Topic())
                more |= self._if_allowed("collection", state, member, self._collect)
                more |= self._if_allowed("purge", state, member, partial(self._purge_drained, now=now))
                more |= self._if_allowed("heartbeats", state, member, partial(self._forget_members, now=now))
                more |= self._if_allowed("history", state, member, partial(self._purge_history, now=now))
                more |= self._if_allowed("dead letters", state, member, partial(self._purge_letters, now=now))
                more |= self._if_allowed("expired", state, member, partial(self._bury_expired, now=now))
                more |= self._if_allowed("mending", state, member, partial(self._audit, now=now))
        self.context.raise_deferred("janitor")
        self.session.ping_if_idle()
        return 0.0 if more else self.pace.turn

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    @staticmethod
    def _if_allowed(duty: str, state: Topic, member: Member, work: Callable[[Member, Topic], bool]) -> bool:
        """Do a duty, unless the account lacks the privilege. That is no fault: a consumer's account need not delete."""
        now = time.monotonic()
        if now < state.denied_until.get(duty, 0.0):
            return False
        try:
            return work(member, state)
        except DatabaseError as error:
            if error.code not in codes.DENIED:
                raise
            if duty not in state.denied_until:
                facts.deletion_denied(topic=member.topic, group=member.group, duty=duty, error=error)
            state.denied_until[duty] = now + DENIED_WAIT
            return False

    def _collect(self, member: Member, state: Topic) -> bool:
        """Release and delete messages of lanes whose watermark has moved. True when more may be ready at once."""
        now = time.monotonic()
        if not state.ready and now >= state.list_at:
            used = time.thread_time()
            state.ready = [
                key
                for key, acked in member.writing.flushed_watermarks()
                if acked > state.collected.get(key, -1) and now >= state.not_before.get(key, 0.0)
            ]
            used = time.thread_time() - used
            state.list_at = now + LIST_SHARE * used if used > SHORT_LIST else now
        if not state.ready:
            return False
        keys, state.ready = state.ready[:LANES_A_PASS], state.ready[LANES_A_PASS:]
        topic = member.topic
        readers = groups.readers(self.session, topic)
        retention_ms = max(readers.values(), default=0)
        if retention_ms:
            keys = self._old_enough(topic, keys, state, retention_ms, now)
        released = self._release(topic, keys, state, retention_ms) if keys else Collected()
        try:
            collection.delete(self.session, topic, released.lanes)
        except BaseException:
            for key in released.lanes:
                state.forget(key)  # the floors are raised, and the deletion must be repeated
            raise
        return bool(state.ready) or released.more

    def _old_enough(self, topic: str, keys: list[str], state: Topic, retention_ms: int, now: float) -> list[str]:
        """The lanes whose oldest message is beyond the retention. For the others it notes when that will be."""
        floors = offsets.floors(self.session, topic, keys)
        lanes = [(key, floors[key].floor) for key in keys if key in floors]
        ages = leaving.ages(self.session, topic, lanes)
        ripe = []
        for key in keys:
            age = ages.get(key)
            if age is None or age * 1000 >= retention_ms:
                ripe.append(key)  # age None: there is no message above the floor to wait for
            else:
                state.not_before[key] = now + retention_ms / 1000 - age
        return ripe

    def _release(self, topic: str, keys: list[str], state: Topic, retention_ms: int) -> Collected:
        """Raise floors, and remember which lanes need no look before their watermark changes."""
        with self.session.transaction() as cx:
            released = collection.release(cx, topic, keys, retention_ms)
        if released.dead_letters:
            state.collected.update(dict.fromkeys(keys, 1 << 62))  # dead letters leave by their own retention
        if released.dead_letters or released.no_readers:
            return released  # no readers: the member's own group was deleted, and its keeper reports that
        for key in keys:
            span = released.lanes.get(key)
            if span is None:
                state.put_off(key, self.pace.turn)  # another collector has it
                continue
            state.collected[key] = span.floor
            if span.risen:
                state.waits.pop(key, None)
            else:
                state.put_off(key, self.pace.turn)  # another group is behind
        return released

    def _purge_drained(self, member: Member, state: Topic, now: float) -> bool:
        """Purge lanes that are drained and have been idle for long, one page a turn. True when more pages follow."""
        idle = self.context.database.config.lane_idle_purge
        if now < state.purge_at:
            return False
        if not state.purge_after:
            state.purge_began, state.purged = now, 0
        keys = offsets.idle_floors(self.session, member.topic, state.purge_after, idle, PURGES_A_PASS)
        tables = self.context.database.tables_version
        for key in removable(self.session, member.topic, keys, tables=tables):
            if self._purge.drained(member.topic, key):
                state.purged += 1
                state.forget(key)
        state.purge_after = keys[-1] if len(keys) == PURGES_A_PASS else ""
        self._judge_purge(member.topic, state, now - state.purge_began, max(idle, self.pace.behind))
        if not state.purge_after:
            state.purge_at = now + min(60.0, max(self.pace.turn, idle / 2))
            self._forget_others(member.topic, state)
        return bool(state.purge_after)

    @staticmethod
    def _judge_purge(topic: str, state: Topic, seconds: float, longest: float) -> None:
        """Log once that passes take so long that drained lanes pile up, until one is in time again."""
        if seconds <= longest:
            state.purge_behind = state.purge_behind and bool(state.purge_after)
        elif not state.purge_behind:
            state.purge_behind = True
            facts.purge_behind(topic=topic, seconds=round(seconds, 1), purged=state.purged)

    def _forget_others(self, topic: str, state: Topic) -> None:
        """Forget the lanes that this client does not own. Another client may have purged them."""
        members = [each for each in self.context.members() if each.topic == topic]
        owned = {key for each in members for key, _ in each.writing.flushed_watermarks()}
        for key in (state.collected.keys() | state.not_before.keys() | state.waits.keys()) - owned:
            state.forget(key)

    def _forget_members(self, member: Member, state: Topic, now: float) -> bool:
        if now >= state.heartbeats_at.get(member.group, 0.0):
            state.heartbeats_at[member.group] = now + HEARTBEATS_EVERY
            collection.forget_members(self.session, member.at, member.owner)
        return False

    def _purge_history(self, member: Member, state: Topic, now: float) -> bool:
        return retention.purge_history(self.session, member, state.kept, now)

    def _purge_letters(self, member: Member, state: Topic, now: float) -> bool:
        return retention.release_letters(self.session, member, state.kept, now, self.context.database.config.user)

    def _bury_expired(self, member: Member, state: Topic, now: float) -> bool:
        """Dead-letter expired messages of groups without a living member, a page of lanes a turn.

        True when time was too short for this page.
        """
        if now < state.expired_at or self.context.database.tables_version < VERSION_WITH_DEAD_LETTER_TOPIC:
            return False
        topic, context = member.topic, self.context
        # A group that was registered just now by this process may have no heartbeat yet.
        ours = {each.group for each in context.members() if each.topic == topic}
        unattended = [each for each in groups.unattended(self.session, topic) if each.group not in ours]
        page = partitions.page(self.session, topic, state.expired_after, LANES_A_PASS) if unattended else []
        undertaker = Undertaker(
            topic,
            lambda: nullcontext(self.session),
            self.session.transaction,
            context.appender,
            member.signals.notices,
        )
        keys = [key for key, _ in page if key]
        if not all(undertaker.bury(group, keys, seconds=BURYING).complete for group in unattended):
            return True
        full = len(page) == LANES_A_PASS
        state.expired_after = page[-1][0] if full else ""
        if not full:
            state.expired_at = now + self.pace.expired
        return False

    def _audit(self, member: Member, state: Topic, now: float) -> bool:
        return auditing.audit(self.session, member, state.passes, now)
