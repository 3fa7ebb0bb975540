"""The group that keeps replayed messages in the log until the replay is over, and the right to publish for the replay.

Owns deletion of that group, and the fence of its leases. Never publishes, and keeps no account.

The group starts after all messages of the log and never moves. So no message of the replay is collected, and each is
found under its id. One run at a time: a run leases each topic (see `spark.leases`). Every transaction that
publishes share-locks the lease and compares its epoch. Two runs at once would mix their rows within a lane. A run that
goes on when another one has finished, and has deleted the group, would deliver collected messages a second time.

If the run dies or sleeps, before it has taken every topic or at any later step, the next run takes over. Tasks that
still run find another epoch, or no group, and publish nothing. If the run fails or is interrupted, it gives the topics
back, with the same effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._base.places import GroupTopic
from lanelog._facts import spark as facts
from lanelog._log import end_groups
from lanelog._log.lookup import owners
from lanelog._log.lookup.known import read, repeated
from lanelog._log.lookup.names import readers
from lanelog._stores.members import leases
from lanelog.config import SubscriptionConfig
from lanelog.errors import LeaseLost
from lanelog.spark.leases import LEASE, Terms, TopicLeases
from lanelog.spark.replaying.options import ORDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Database, Executor
    from lanelog.spark.presence import Presence

TERMS: Final = Terms(
    order=ORDER,
    config=SubscriptionConfig(start="latest"),
    refusal="topic {topic!r} is being replayed to by {owner} for group {group!r}: one run of a replay at a time; "
    "stop it first, or wait until it is done",
    taken_over=facts.replay_taken_over,
    leave_failed=facts.replay_leave_failed,
)


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
    _held: TopicLeases = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._held = TopicLeases(TERMS, self.database, self.group, self.owner)

    @property
    def fence(self) -> ReplayFence:
        """The fence for the tasks of this run."""
        return ReplayFence(self.group, self.owner, dict(self._held.epochs))

    def take(self, topics: Sequence[str], presence: Presence) -> None:
        """Register the group for these topics and hold them. Raises ConfigurationError while another run is alive."""
        for topic in topics:  # first, so that a run that is refused registers nothing
            read(self.database, self._refuse_second, "finding other runs", topic)
        for topic in topics:
            self._held.take(topic, presence)

    def _refuse_second(self, cx: Executor, topic: str) -> None:
        at = self._held.at(topic)
        members = owners.load(cx, at)
        for owner in members.rows:
            if members.alive(owner):
                raise TERMS.at_work(at, owner)

    def leave(self) -> None:
        """Give the topics back. Tasks of this run that still run publish nothing more.

        If the database does not answer, they may publish until the next run takes over.
        """
        for topic in self._held.epochs:
            if self._held.give_back(topic) is not None:
                return


def let_go(database: Database, group: str, but: str = "") -> None:
    """Delete the group, so that collection does not wait any more.

    If a run other than `but` holds it, that run deletes it.

    The heartbeat of `but` itself is ignored: it may seem alive for a while, if a restarted server did not learn that
    the run stopped. If a run dies before this, the next one deletes the group. A run that begins right now loses the
    group, and fails with LeaseLost.
    """
    for topic, names in read(database, readers, "finding the group").items():
        if group not in names:
            continue
        at = GroupTopic(topic=topic, group=group)
        members = read(database, owners.load, "finding other runs", at)
        others = [owner for owner in members.rows if owner != but and members.alive(owner)]
        if others:
            facts.replay_still_held(topic=topic, group=group, owner=others[0])
        else:
            repeated(database, end_groups.try_to_delete, "finding the privilege to delete", database)
            repeated(database, end_groups.end, "deleting the group", database, topic, [group])
            end_groups.clear(database, at, list(members.rows))
