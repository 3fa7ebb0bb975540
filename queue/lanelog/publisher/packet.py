"""Publishes a message that is alone in one round trip: lock, insert, advance and COMMIT travel in one packet.

Never waits for a head, and never repeats. A message that it cannot publish goes the usual way, in `batch`.

A new id needs no look-up. So the whole transaction can be sent before the offset is known. A packet that the network
delays may run after its message was repeated. The repeated message has the same id, so the late packet's insert fails,
and nothing is stored twice. A copy that was collected meanwhile would not stop it: see
`unknown_outcome.refuse_outdated`.
"""

from __future__ import annotations

from typing import Final

from lanelog._database import GRACE, LATEST, Database, codes
from lanelog._log.append.draft import Draft
from lanelog._stores.log import messages, partitions
from lanelog.errors import DatabaseError

_LARGEST: Final = 16 * 1024
"""The most bytes of such a message. For a longer one, the round trips are a small part of the cost."""


def fits(draft: Draft, left: float) -> bool:
    """Whether a message may be published that way. Its id must be new, and it must be short and without a delay.

    `left`: the seconds until its publish_timeout. Then a caller hears of an unknown outcome. By then no packet may be
    on its way any more: the caller's own repetition would not know of it.
    """
    return (
        not draft.looked_up and not draft.timing.scheduled and draft.wire_bytes <= _LARGEST and left + GRACE >= LATEST
    )


def publish(database: Database, draft: Draft) -> int | None:
    """Return the offset of the message when it is committed. Raises DatabaseError.

    None: nothing was written. The head is locked or missing, or the server takes one statement at a time.
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
        around = partitions.around_next(draft.topic, draft.key, insert)
        return database.commit_at_once(around, noted=partitions.NOTED_OFFSET)
    except DatabaseError as exc:
        if exc.code == codes.NULL_REFUSED:
            return None
        raise
