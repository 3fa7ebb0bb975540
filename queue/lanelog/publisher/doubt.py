"""For how long a message of unknown outcome may be repeated: as long as its copy would still be in the log.

A repetition finds the copy by its id and adds nothing. Collection deletes the copy once every group has acked it and
the longest retention of the topic's groups has passed. After that, "not found" proves nothing. `check_retention` keeps
a subscriber's retention above the publish_timeout of its own client, but another publisher's may be longer.
`placing` asks, in the transaction that repeats; a publish whose first attempt succeeds costs no statement.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lanelog._asleep import suspended
from lanelog._database import LATEST
from lanelog._stores import groups
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from lanelog._database import Executor
    from lanelog.publisher.draft import Draft

SAFE: Final = 0.9
"""The share of the retention that counts: this machine's clock and the server's need not run equally fast."""

_NAMED: Final = 3


def now() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.monotonic() + suspended()


def refuse_outdated(cx: Executor, topic: str, missing: Sequence[Draft]) -> None:
    """Raise DatabaseError if one of these, which were not found, may have been stored and collected since.

    Call it after the lookup, in the same transaction: a process that sleeps before the lookup is noticed, and one that
    sleeps after it holds the heads. Without a group nothing is collected. A retention of 0 gives deduplication up.

    Raises a retriable one if what was sent in one packet may still arrive, and come so late that the copy written now
    is collected by then: nothing would stop it. Whoever has the head has stopped it: it takes the head first.
    """
    doubted = [draft for draft in missing if draft.doubted_at is not None]
    if not doubted:
        return
    retention = max(groups.readers(cx, topic).values(), default=0) / 1000
    if not retention:
        return
    moment = now()
    early = [draft for draft in doubted if _on_its_way(draft, moment) > SAFE * retention]
    if early:
        raise DatabaseError(
            f"topic {topic!r}: the answer to the publish of {early[0].id!r} of key {early[0].key!r} was lost, what was "
            f"sent may still arrive, and the longest retention of the topic's groups is only {retention:g} s",
            retriable=True,
        )
    outdated = [draft for draft in doubted if _seconds(draft, moment) > _bound(draft, retention)]
    if outdated:
        raise _unknown_for_good(topic, outdated, _seconds(outdated[0], moment), retention)


def _seconds(draft: Draft, moment: float) -> float:
    """For how long its outcome has been unknown."""
    return moment - (moment if draft.doubted_at is None else draft.doubted_at)


def _on_its_way(draft: Draft, moment: float) -> float:
    """For how many seconds from now what was sent for it may still arrive; not above 0: it may not."""
    return 0.0 if draft.sent_at is None else draft.sent_at + LATEST - moment


def _bound(draft: Draft, retention: float) -> float:
    """For how long a copy of it is there at least; the age of one with a delay counts from when it was due."""
    return SAFE * (retention + draft.timing.delay_ms / 1000)


def _unknown_for_good(topic: str, outdated: Sequence[Draft], seconds: float, retention: float) -> DatabaseError:
    named = ", ".join(f"{draft.id!r} of key {draft.key!r}" for draft in outdated[:_NAMED])
    more = f" and {len(outdated) - _NAMED} more" if len(outdated) > _NAMED else ""
    return DatabaseError(
        f"topic {topic!r}: a COMMIT {seconds:.0f} s ago was not answered, and whether it published {named}{more} can "
        "not be found out any more: what it stored may have been handled and deleted, as the longest retention of the "
        f"topic's groups is {retention:g} s. Nothing was published again. Find out whether it was handled, and publish "
        "it again if it was not; to rule this out, give a group a retention of twice this publish_timeout",
        outcome_unknown=True,
    )
