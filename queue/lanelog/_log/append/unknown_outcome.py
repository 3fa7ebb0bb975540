"""The time in which a message of unknown outcome may be repeated: its copy would still be in the log.

Never writes. A repetition finds the copy by its id and adds nothing. Collection deletes the copy once every group has
settled it and the longest retention of the topic's groups has passed. After that, "not found" proves nothing.
`check_retention` compares a subscriber's retention with the publish_timeout of its own client. Another publisher may
have a longer one. So the transaction that repeats asks for the retentions. A publish without an unknown outcome costs
no statement here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lanelog._database import LATEST
from lanelog._process import asleep
from lanelog._stores.consumers import groups
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from lanelog._database import Executor
    from lanelog._log.append.draft import Draft

SAFE: Final = 0.9
"""The share of the retention that is relied on. This machine's clock and the server's need not run equally fast."""

_NAMED: Final = 3


def refuse_outdated(cx: Executor, topic: str, missing: Sequence[Draft]) -> None:
    """Raise DatabaseError if a draft that was not found may have been stored, and collected since.

    Call it after the look-up, in the same transaction. If the process sleeps before the look-up, this check notices it.
    If the process sleeps after it, the transaction holds the heads, and no other one stores the message meanwhile.
    Without a group nothing is collected. A retention of 0 gives up deduplication.

    The error is retriable if an earlier packet may still arrive after the copy that would be written now has been
    collected: the message would be stored a second time. While this transaction holds the head, a packet fails: it
    needs the head first.
    """
    unknown = [draft for draft in missing if draft.unknown_since is not None]
    if not unknown:
        return
    retention = max(groups.readers(cx, topic).values(), default=0) / 1000
    if not retention:
        return
    moment = asleep.now()
    early = [draft for draft in unknown if _on_its_way(draft, moment) > SAFE * retention]
    if early:
        raise DatabaseError(
            f"topic {topic!r}: the answer to the publish of {early[0].id!r} of key {early[0].key!r} was lost, what was "
            f"sent may still arrive, and the longest retention of the topic's groups is only {retention:g} s",
            retriable=True,
        )
    outdated = [draft for draft in unknown if _seconds(draft, moment) > _bound(draft, retention)]
    if outdated:
        raise _unknown_for_good(topic, outdated, _seconds(outdated[0], moment), retention)


def _seconds(draft: Draft, moment: float) -> float:
    """Return for how many seconds its outcome has been unknown."""
    return moment - (moment if draft.unknown_since is None else draft.unknown_since)


def _on_its_way(draft: Draft, moment: float) -> float:
    """Return for how many more seconds its packet may arrive. 0 or less: no packet of it can arrive."""
    return 0.0 if draft.sent_at is None else draft.sent_at + LATEST - moment


def _bound(draft: Draft, retention: float) -> float:
    """Return for how many seconds a copy of it is surely there. A message with a delay ages from its due time on."""
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
