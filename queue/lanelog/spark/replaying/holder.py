"""The group that keeps replayed messages in the log until the replay is over, and the right to publish for the replay.

Owns registration and deletion of that group, and its leases. Never publishes, and keeps no account.

The group starts behind all messages of the log and never moves. So no message of the replay is collected, and each is
found under its id. One run at a time: a run leases each topic, by the lease row of the empty key, as an archive job
does. Every transaction that publishes share-locks that row and compares its epoch. Two runs at once would mix their
rows within a lane. A run that goes on when another one has finished, and has deleted the group, would deliver collected
messages a second time.

Dies before it has taken every topic, or at any later step: its liveness lock is free, and the next run takes over at
once; tasks that still run publish nothing from then on. Fails, or is interrupted: it gives the topics back, with the
same effect. Sleeps: after `Presence.DURATION` the next run takes over, and the tasks of the first find another epoch,
or no group. Two start at once: they take turns at the topic row, and the second is refused. A COMMIT is not answered:
it is repeated, and finds that it is the owner, or that the group is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._facts import spark as facts
from lanelog._log import end_groups
from lanelog._log.lookup import owners
from lanelog._log.lookup.known import read, repeated
from lanelog._log.lookup.names import readers
from lanelog._log.register import register
from lanelog._stores.consumers import groups
from lanelog._stores.log import partitions
from lanelog._stores.members import leases
from lanelog.config import SubscriptionConfig
from lanelog.errors import ConfigurationError, DatabaseError, LeaseLost
from lanelog.spark.archiving.group import LEASE
from lanelog.spark.replaying.options import ORDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog.spark.archiving.presence import Presence


@frozen
class ReplayFence:
    """The right of a task to publish: the epochs of a run's leases, by topic. It is sent to the executors."""

    group: str
    owner: str
    epochs: Mapping[str, int]

    def check(self, cx: Executor, topic: str) -> None:
        """Share-lock the lease until the transaction ends. Raises LeaseLost if it is not this run's any more."""
        at = GroupTopic(topic=topic, group=self.group)
        if leases.fence(cx, at, self.owner, [LEASE]).epochs.get(LEASE) != self.epochs[topic]:
            raise LeaseLost(
                f"this run of the replay does not hold topic {topic!r} any more: another run has taken over, or group "
                f"{self.group!r} was deleted; run it again to go on"
            )


@define(eq=False)
class Holder:
    """The group of a replay, held by one run."""

    database: Database
    group: str
    owner: str
    epochs: dict[str, int] = field(factory=dict)

    @property
    def fence(self) -> ReplayFence:
        """The fence for the tasks of this run."""
        return ReplayFence(self.group, self.owner, dict(self.epochs))

    def take(self, topics: Sequence[str], presence: Presence) -> None:
        """Register the group for these topics and hold them. Raises ConfigurationError while another run is alive."""
        for topic in topics:  # first, so that a run that is refused registers nothing
            read(self.database, self._refuse_second, "looking for other runs", topic)
        for topic in topics:
            register(self.database, self._at(topic), SubscriptionConfig(start="latest"), order=ORDER)
            presence.beat([topic])  # first: another run would take an owner without heartbeat for dead
            self.epochs[topic] = repeated(self.database, self._take, "taking a topic for the replay", topic)

    def _at(self, topic: str) -> GroupTopic:
        return GroupTopic(topic=topic, group=self.group)

    def _refuse_second(self, cx: Executor, topic: str) -> None:
        members = owners.load(cx, self._at(topic))
        for owner in members.rows:
            if members.alive(owner):
                raise self._at_work(topic, owner)

    def _take(self, topic: str) -> int:
        # topic row X -> groups S -> leases X. Two runs that start at once take turns at the topic row: the first takes
        # the lease, and the second finds the lease's owner alive.
        with self.database.transaction() as cx:
            row = partitions.topic_row(cx, topic, Lock.UPDATE)
            if row is None or groups.lock_shared(cx, self._at(topic)) is None:
                raise LeaseLost(f"group {self.group!r} of topic {topic!r} was deleted while the replay started")
            leases.create(cx, self._at(topic), "", [LEASE], row.first_epoch)
            held = leases.held(cx, self._at(topic).lane(LEASE), Lock.UPDATE)
            assert held is not None  # noqa: S101 - it was just made, if it was not there
            if held.owner not in ("", self.owner):
                state = owners.load(cx, self._at(topic)).state(held.owner)
                if state.lives:
                    raise self._at_work(topic, held.owner)
                facts.replay_taken_over(topic=topic, group=self.group, owner=held.owner, state=state.value)
            leases.take(cx, self._at(topic), self.owner, [LEASE], [held.owner])
            taken = leases.held(cx, self._at(topic).lane(LEASE), Lock.UPDATE)
            assert taken is not None  # noqa: S101 - it is locked
            return taken.epoch

    def leave(self) -> None:
        """Give the topics back. Tasks of this run that still run publish nothing more.

        If the database does not answer, they may publish until the next run takes over.
        """
        for topic, epoch in self.epochs.items():
            try:
                repeated(self.database, self._leave, "leaving a topic of the replay", topic, epoch)
            except DatabaseError as error:
                facts.replay_leave_failed(topic=topic, group=self.group, error=error)
                return

    def _leave(self, topic: str, epoch: int) -> None:
        # leases X: waits for the transactions that publish, which share the row.
        with self.database.transaction() as cx:
            leases.release(cx, self._at(topic), self.owner, [(LEASE, epoch)])

    def _at_work(self, topic: str, owner: str) -> ConfigurationError:
        return ConfigurationError(
            f"topic {topic!r} is being replayed to by {owner} for group {self.group!r}: one run of a replay at a time; "
            "stop it first, or wait until it is done"
        )


def let_go(database: Database, group: str, but: str = "") -> None:
    """Delete the group, so that collection does not wait any more.

    If a run other than `but` holds it, that run deletes it.

    The heartbeat of `but` itself is ignored: it may look alive for a while, if a restarted server did not learn that
    the run stopped. If a run dies before this, the next one deletes the group. A run that begins right now loses the
    group, and fails with LeaseLost.
    """
    for topic, names in read(database, readers, "looking for the group").items():
        if group not in names:
            continue
        at = GroupTopic(topic=topic, group=group)
        members = read(database, owners.load, "looking for other runs", at)
        others = [owner for owner in members.rows if owner != but and members.alive(owner)]
        if others:
            facts.replay_still_held(topic=topic, group=group, owner=others[0])
        else:
            repeated(database, end_groups.try_to_delete, "looking for the privilege to delete", database)
            repeated(database, end_groups.end, "deleting the group", database, topic, [group])
            end_groups.clear(database, at, list(members.rows))
