"""Whether members of a group live, as the transaction that would delete the group asks it.

Owns what a deletion waits for; `_log/lookup/liveness` judges. Never deletes anything, and never decides that a lane is
taken.

A member lives as long as it has not deregistered, and the server holds its lock or its heartbeat has not ended. A lock
says more than a heartbeat: while the server takes no writes, as under a global read lock, heartbeats end and the
members go on. The judgement is made after the transaction's last lock. A statement that waits for a read lock goes on
when the lock is released, and what was known before the wait is not true any more.

A member without a lock is known by its heartbeat alone. So its silence counts only after a time of its own lease in
which writes went through without a stall: it would have written one.
"""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Final

from attrs import define, field

from lanelog._base.places import GroupTopic
from lanelog._base.text import plural
from lanelog._database import Incarnation, server_start
from lanelog._log.lookup.liveness import may_live
from lanelog._stores.members import heartbeats
from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow

STALL: Final = 2.0
"""Seconds between two writes that went through, after which heartbeats may have been held up."""
PAUSE: Final = 0.5
"""Seconds between two such writes."""
LONGEST: Final = 60.0
"""Seconds for which silence is waited for at most. A member with a longer lease is judged by an operator."""
EVICT: Final = "or evict them (--evict, evict=True)"
EVICT_FIRST: Final = "or delete the group first and evict them (delete-group --evict, evict=True)"
"""The same advice where a topic is deleted, which evicts nobody."""

_NOWHERE: Final = GroupTopic(topic="", group="")


@define(eq=False)
class Silence:
    """Proof that members without a lock are dead: they wrote no heartbeat for a lease, while the server took writes."""

    _last_heartbeats: Mapping[tuple[GroupTopic, str], int] = field(factory=dict)
    """The last heartbeat of each member that wrote none for its own lease, while writes went through."""
    _writable_until: float = float("-inf")
    """When (monotonic) the last write of a series went through, in which none took long."""

    def went_on(self) -> None:
        """Note that a statement has just gone through that a read lock would have held up."""
        now = time.monotonic()
        if now - self._writable_until <= STALL:
            self._writable_until = now

    def proves(self, at: GroupTopic, row: HeartbeatRow) -> bool:
        """Return whether this owner is dead. Raises DatabaseError, retriable, if that is too long ago to say."""
        if self._last_heartbeats.get((at, row.owner)) != row.heartbeat_at:
            return False
        if time.monotonic() - self._writable_until > STALL:
            raise DatabaseError(
                "the server made the deletion wait, and members may have had to wait, too", retriable=True
            )
        return True


def listen(database: Database, places: Sequence[GroupTopic], *, whole_topic: bool = False) -> Silence:
    """Wait until the members that have no lock would have written a heartbeat. Without such members, do not wait.

    `whole_topic`: the groups are deleted with their topic.

    Raises DatabaseError if the server takes no writes, and ConfigurationError if it would take too long.
    """
    with database.autocommit() as cx:
        unsure = {(at, row.owner): row for at in places for row, lives in _judged(cx, at) if lives is None}
    if not unsure:
        return Silence()
    needed = max(row.expires_at - row.heartbeat_at for row in unsure.values()) / 1000
    if needed > LONGEST:
        at, owner = min(unsure, key=lambda each: each[1])
        raise ConfigurationError(
            f"member {owner!r} of group {at.group!r} of topic {at.topic!r} may be alive: it has no lock, and its lease "
            f"lasts {needed:.0f} s. Make sure that its process has ended, {EVICT_FIRST if whole_topic else EVICT}"
        )
    since = last = _write(database)
    while last - since < needed:
        Event().wait(min(PAUSE, needed))
        before, last = last, _write(database)
        if last - before > PAUSE + STALL:
            since = last
    return Silence({member: row.heartbeat_at for member, row in unsure.items()}, last)


def _write(database: Database) -> float:
    """Run a statement that a read lock would hold up as it does a heartbeat. It changes nothing. Return the time."""
    with database.transaction(hasty=True) as cx:
        heartbeats.delete(cx, _NOWHERE, "")
    return time.monotonic()


def living(cx: Executor, at: GroupTopic, silence: Silence | None) -> list[str]:
    """Return the living members of a group, in order.

    `silence`: None counts a member that may be dead as dead, in a preview and for the mark of an eviction.
    """
    return sorted(
        row.owner
        for row, lives in _judged(cx, at)
        if lives or (lives is None and silence is not None and not silence.proves(at, row))
    )


def _judged(cx: Executor, at: GroupTopic) -> list[tuple[HeartbeatRow, bool | None]]:
    """Return the members, each with whether it lives. None: no lock says so, and its heartbeat has ended."""
    # The columns of version 1 of the tables are enough: they say when the server that granted a lock started.
    rows = heartbeats.members(cx, at, tables=1)
    server = Incarnation(server_start(cx) if any(row.lock_free for row in rows) else 0, "")
    return [(row, _lives(row, server)) for row in rows]


def _lives(row: HeartbeatRow, server: Incarnation) -> bool | None:
    if may_live(row):
        return True
    # A lock that another run of the server granted was freed by the restart.
    return False if row.deregistered or row.lock_free_on(server) else None


def refusal(at: GroupTopic, alive: Sequence[str], *, whole_topic: bool = False) -> ConfigurationError:
    """Return the refusal to delete a group that lives. `whole_topic`: it is deleted with its topic."""
    members = f"{plural(len(alive), 'member')} of group {at.group!r}"
    if whole_topic:
        return ConfigurationError(f"topic {at.topic!r} is being read: stop the {members} first ({alive[0]}, …)")
    return ConfigurationError(
        f"topic {at.topic!r} is being read: stop the {members} first ({alive[0]}, …), {EVICT}: their subscriptions fail"
    )
