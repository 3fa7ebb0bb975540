"""Dead letters: a message is copied into a dead letter topic, once for each time that it was given up.

Owns the copy, and its name: a repetition after an unanswered COMMIT finds it by its derived id. Never decides which
message is given up. It works inside the transaction of its caller, which holds the head of the dead letter lane: the
settler (`_engine/settling/dead_letters`), or `expire` for a group without a living member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from lanelog._stores.consumers import deliveries, offsets
from lanelog._stores.log import dead_letters, partitions
from lanelog._stores.log.dead_letters import derived_id

if TYPE_CHECKING:
    from lanelog._base.places import LaneId
    from lanelog._database import Executor

EXPIRED: Final = "expired"
"""`last_error` of a message whose time was over before a handler had started."""


@frozen
class DeadLetterTopics:
    """Those that are marked as such. Each of the statements commits by itself, before the transaction that copies.

    A statement whose answer was lost is repeated alone.
    """

    _done: set[tuple[str, str]] = field(factory=set, init=False)

    def prepare(self, cx: Executor, dead_topic: str) -> None:
        """Mark a topic, unless it was done before."""
        for step in (partitions.ensure_topic, partitions.mark_dead_letters):
            if (dead_topic, step.__name__) not in self._done:
                step(cx, dead_topic)
                self._done.add((dead_topic, step.__name__))


def copy(
    cx: Executor, lane: LaneId, offset: int, source: str, *, dead_topic: str, head: int, failures: int, error: str
) -> int:
    """Copy one message above the locked head. Return how far the head moves. 0: its letter exists already.

    `source`: the id of the message. The head is written by the caller.
    """
    copy_id = derived_id(lane.group, source, offset)
    while (at := dead_letters.buried(cx, dead_topic, lane.key, copy_id)) is not None:
        # The floor is read without a lock: a purge from now on may delete the letter of this failure.
        floor = offsets.floors(cx, dead_topic, [lane.key]).get(lane.key)
        released = floor is not None and at <= floor.floor
        if not released and not deliveries.is_letter_settled(cx, dead_topic, lane.key, at):
            return 0
        # That copy was redriven, deleted or purged, and a seek brought the message back: this is another failure.
        copy_id = derived_id(lane.group, copy_id, at)
    return dead_letters.bury(
        cx,
        lane,
        offset=offset,
        dead_topic=dead_topic,
        dead_offset=head + 1,
        derived_id=copy_id,
        failures=failures,
        error=error,
    )
