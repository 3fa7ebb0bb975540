"""The topics that a run of an archive job or of a replay holds for its group.

Owns their registration, their leases, and the names of runs. Never decides what is done with a topic.

A run leases whole topics instead of lanes, by the lease row of the empty key, which is no lane. The lease's epoch is
the fencing token: a run writes only while the row has its name and epoch. So a run that slept, and continues after
another has taken over, changes nothing.

If a run dies, its liveness lock is free, and the next run takes over at once. If it sleeps, the next run takes over
after `presence.DURATION`. If two runs start at once, the lock of the topic row lets one through, which takes the lease;
the second finds the lease's owner alive. If a COMMIT is not answered, it is repeated, and finds that the run is the
owner, or that the group is gone.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._log.lookup import owners
from lanelog._log.lookup.known import repeated
from lanelog._log.register import register
from lanelog._stores.consumers import groups
from lanelog._stores.log import partitions
from lanelog._stores.members import leases
from lanelog.errors import ConfigurationError, DatabaseError, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from lanelog._database import Database, Executor
    from lanelog.config import SubscriptionConfig
    from lanelog.spark.presence import Presence

    Bind = Callable[[Executor, GroupTopic], None]

LEASE: Final = ""
"""The key of a topic's lease. No lane has the empty key."""


def name_of_run(work: str, mark: str) -> str:
    """Return a name for a run in this process, the owner of its leases."""
    return f"{work}@{socket.gethostname()[:200]}-{os.getpid()}-{mark}"


@frozen(kw_only=True)
class Terms:
    """The terms on which one kind of run holds topics."""

    order: str
    """`delivery_order` of the group."""
    config: SubscriptionConfig
    refusal: str
    """The error while a living run holds a topic: with {topic}, {group} and {owner}."""
    taken_over: Callable[..., None]
    """The fact that a run has taken a topic over from a dead one."""
    leave_failed: Callable[..., None]
    """The fact that a topic could not be given back."""

    def at_work(self, at: GroupTopic, owner: str) -> ConfigurationError:
        """Return the refusal of a topic that a living run holds."""
        return ConfigurationError(self.refusal.format(topic=at.topic, group=at.group, owner=owner))


@define(eq=False)
class TopicLeases:
    """The topics that one run holds for its group."""

    terms: Terms
    database: Database
    group: str
    owner: str
    epochs: dict[str, int] = field(factory=dict, init=False)
    """The fencing token of each topic that is held."""

    def at(self, topic: str) -> GroupTopic:
        """Return the group of a topic."""
        return GroupTopic(topic=topic, group=self.group)

    def take(self, topic: str, presence: Presence, bind: Bind | None = None) -> None:
        """Register the group for a topic and hold it.

        `bind` may refuse the topic, in the transaction that takes it. Raises ConfigurationError while a living run
        holds the topic, and as `bind` does.
        """
        at, order = self.at(topic), self.terms.order
        register(self.database, at, self.terms.config, order=order)
        presence.beat([topic])  # first: another run would take an owner without a heartbeat for dead
        self.epochs[topic] = repeated(self.database, self._take, f"taking a topic for the {order}", at, bind)

    def _take(self, at: GroupTopic, bind: Bind | None) -> int:
        terms = self.terms
        # topic row X -> groups X -> leases X.
        with self.database.transaction() as cx:
            row = partitions.topic_row(cx, at.topic, Lock.UPDATE)
            if row is None or groups.lock(cx, at) is None:
                raise LeaseLost(f"group {at.group!r} of topic {at.topic!r} was deleted while the {terms.order} started")
            held = leases.held(cx, at.lane(LEASE), Lock.UPDATE)
            if held is not None and held.owner not in ("", self.owner):
                state = owners.load(cx, at).state(held.owner)
                if state.lives:
                    raise terms.at_work(at, held.owner)
                terms.taken_over(topic=at.topic, group=at.group, owner=held.owner, state=state.value)
            if bind is not None:
                bind(cx, at)
            leases.claim(cx, at.lane(LEASE), self.owner, row.first_epoch)
            taken = leases.held(cx, at.lane(LEASE), Lock.UPDATE)
            assert taken is not None  # noqa: S101 - it was just written
            return taken.epoch

    def give_back(self, topic: str) -> DatabaseError | None:
        """Give a topic back, and wait for the transactions that share its lease. Return the error if that failed."""
        lease = (LEASE, self.epochs[topic])
        try:
            repeated(self.database, self._release, f"leaving a topic of the {self.terms.order}", topic, lease)
        except DatabaseError as error:
            self.terms.leave_failed(topic=topic, group=self.group, error=error)
            return error
        return None

    def _release(self, topic: str, lease: tuple[str, int]) -> None:
        with self.database.transaction() as cx:
            leases.release(cx, self.at(topic), self.owner, [lease])
