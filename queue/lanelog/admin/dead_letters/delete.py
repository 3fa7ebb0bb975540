"""The deletion of dead letters: they are settled for every group, and leave the log with the next collection.

Owns these transactions. Never deletes a message itself.

Lock order: floors S of their lanes, which keep collection away → delivery.

If the process dies right before a COMMIT, nothing of the batch has happened. If it dies right after, or the COMMIT is
not answered, the repetition finds the dead letters settled, and counts those that bear the mark of this call. Beside a
redrive, the first to insert a dead letter's row settles it; the other meets a duplicate and reads again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.places import GroupTopic
from lanelog._database import Lock
from lanelog._log.lookup.known import known_group, read, repeated
from lanelog._stores._points import chunked
from lanelog._stores.consumers import deliveries, offsets
from lanelog.admin.audit_entry import Act, Call, Unanswered
from lanelog.admin.change.deletion_facts import deleting
from lanelog.admin.dead_letters import selection
from lanelog.admin.lookup.arguments import check_names
from lanelog.admin.types.results import Deleted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog.admin.dead_letters.selection import Choice, Letter


def delete_dead_letters(call: Call, at: GroupTopic, chosen: Choice, progress: Callable[[int], None]) -> Deleted:
    """See `Admin.delete_dead_letters`."""
    database, dry_run = call.database, call.dry_run
    check_names(at)
    original, dead_topics = selection.dead_topics(database, at.topic)
    at = GroupTopic(topic=original, group=at.group)
    chosen = selection.resolved(database, dead_topics, at, chosen)
    keys: set[str] = set()
    named: set[str] = set()
    count, any_letter = 0, False
    recorded = selection.recorded(chosen)
    act = Act(call, "delete_dead_letters", topic=at.topic, group=at.group, choice=recorded)
    with deleting(act) as tally:
        for found in selection.letters(database, dead_topics, at, chosen):
            any_letter = True
            for batch in chunked(found):
                named.update(name for letter in batch for name in chosen.named(letter))
                keys.update(letter.key for letter in batch)
                if dry_run:
                    count += len(batch)
                    continue
                settled = repeated(database, _settle, "deleting dead letters", act, batch, Unanswered())
                tally.add(messages=settled)
                count += settled
                progress(count)
    if not any_letter:  # a deleted group may have left dead letters: only a group without any is refused
        read(database, known_group, "finding the group", at)
    return Deleted(
        topic=at.topic,
        group=at.group,
        messages=count,
        keys=len(keys),
        missing=0 if chosen.ids is None else len(chosen.ids - named),
        dry_run=dry_run,
    )


def _settle(act: Act, letters: Sequence[Letter], unanswered: Unanswered) -> int:
    """Settle one batch of one dead letter topic. Return the number of dead letters that this call has settled."""
    by, dead_topic = f"deleted by call {act.id}", letters[0].dead_topic
    points = [(letter.key, letter.offset) for letter in letters]
    with selection.settling(), unanswered.attempt(), act.database.transaction(hasty=True) as cx:
        floors = offsets.floors(cx, dead_topic, sorted({key for key, _ in points}), Lock.SHARE)
        done = len(deliveries.letters_settled_by(cx, dead_topic, points, by)) if unanswered.happened else 0
        points = [(key, offset) for key, offset in points if key in floors and offset > floors[key].floor]
        points = selection.unsettled(cx, dead_topic, points)
        deliveries.settle_letters(cx, dead_topic, points, by)
        if points:
            act.record(cx, messages=len(points))
        return done + len(points)
