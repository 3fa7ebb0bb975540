"""Publishes a message that is alone in one round trip: lock, insert, advance and COMMIT travel in one packet.

It never waits for a head and never repeats anything: what it cannot do, and what failed, is for `batch` to do as ever.
`batch` calls it.

A new id needs no look-up, so the whole transaction can be written down before its offset is known. What is lost on the
way may run later than anybody expects, and meets its copy then, which has the same id: it fails, and nothing is stored
twice. Only a copy that was collected meanwhile would not stop it, see `doubt.refuse_outdated`.
"""

from __future__ import annotations

from typing import Final

from lanelog._database import LATEST, Database, codes
from lanelog._stores import messages, partitions
from lanelog.errors import DatabaseError
from lanelog.publisher.draft import Draft

_LARGEST: Final = 16 * 1024
"""Bytes: so much arrives in one piece, and a longer message is not worth the trips it would save."""


def fits(database: Database, draft: Draft) -> bool:
    """Whether a message may be published that way: a new id, for now, and short.

    A caller hears of an unknown outcome after publish_timeout. By then nothing that was sent may be on its way, because
    the caller's repetition does not know that it is one.
    """
    return (
        not draft.looked_up
        and not draft.timing.scheduled
        and draft.wire_bytes <= _LARGEST
        and database.config.publish_timeout >= LATEST
    )


def publish(database: Database, draft: Draft) -> int | None:
    """Return the offset of a message when it is committed; None: nothing was written.

    The head was taken, or there is none. Raises DatabaseError.
    """
    insert = messages.insert_next(
        draft.topic,
        draft.key,
        message_id=draft.id,
        payload=draft.payload,
        metadata=draft.metadata,
        ttl_ms=draft.timing.ttl_ms,
    )
    try:
        told = database.commit_at_once(partitions.around_next(draft.topic, draft.key, insert))
    except DatabaseError as exc:
        if exc.code == codes.NULL_REFUSED:
            return None
        raise
    if told is None:
        return None
    *_, offset, _commit = told
    return offset
