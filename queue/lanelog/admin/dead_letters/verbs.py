"""The part of `Admin` that is about dead letters.

Owns these methods' names and documentation; `listing`, `redrive` and `delete` do the work. Inherited by
`Admin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog.admin.dead_letters import listing
from lanelog.admin.lookup.arguments import decided

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lanelog._checks import Duration
    from lanelog._database import Database
    from lanelog.admin.views import DeadLetterInfo, DeadLetterReason, Deleted, Redriven


class Letters:
    """Dead letters, as `client.admin` shows, redrives and deletes them."""

    __slots__ = ()

    _database: Database
    _ensure_lanes: Callable[[str, Sequence[str]], None]
    _published: Callable[[str], None]
    _delayed: Callable[[], None]

    def dead_letters(self, topic: str, group: str | None = None, *, limit: int = 100) -> list[DeadLetterInfo]:
        """Dead letters of a topic, of one group if given, by key and offset, at most `limit` (1 to 10,000).

        `topic` is the original topic or a dead letter topic's own name. Those redriven or deleted are left out. Locks
        nothing.
        """
        return listing.dead_letters(self._database, topic, group, limit=limit)

    def dead_letter_reasons(self, topic: str, group: str | None = None) -> list[DeadLetterReason]:
        """The same dead letters counted by group and reason (the first line of the error), the most frequent first.

        Reads every dead letter of the topic, but no payload; at most 1,000 reasons. Locks nothing.
        """
        return listing.dead_letter_reasons(self._database, topic, group)

    def redrive(
        self,
        topic: str,
        group: str,
        *,
        ids: Collection[str] | None = None,
        reason: str | None = None,
        all: bool = False,  # noqa: A002 - reads as it should: redrive(…, all=True)
        rate: float | None = None,
        delay: Duration = 0.0,
        ttl: Duration | None = None,
        max_deliveries: int | None = None,
        to_topic: str | None = None,
        dry_run: bool,
    ) -> Redriven:
        """Put a group's dead letters back into their original topic, for this group only and in per-key order.

        Exactly one choice: `ids` (of the dead letters, see `DeadLetterInfo.id`, or of their original messages),
        `reason` (see `DeadLetterInfo.reason`) or `all`. `rate`: at most so many messages a second. `delay`: for how
        long they wait first, outside the log, as delayed messages do. `ttl`: for how long they may be delivered, from
        now or from when they are due (None: for ever, whatever the original's was). `max_deliveries`: how often each
        may be delivered, if that is less than the subscription's own. `to_topic`: another topic than the original, for
        all of its groups unless this group is registered there, and then for it alone.
        The copies have ids of their own, keep `published_at`, and the first id as metadata `lanelog.original_id`; one
        that fails again is dead-lettered again.

        Each dead letter is settled in the transaction that writes its copy, so that repeating the call, also after a
        lost connection, adds nothing. Locks the heads of the lanes it writes to; a lane that somebody holds is left for
        later, see `Redriven.remaining`.
        """
        from lanelog.admin.dead_letters import redrive as _redrive

        return _redrive.redrive(
            self._database,
            topic,
            group,
            ids=ids,
            reason=reason,
            everything=all,
            rate=rate,
            delay=delay,
            ttl=ttl,
            max_deliveries=max_deliveries,
            to_topic=to_topic,
            dry_run=decided(dry_run),
            ensure_lanes=self._ensure_lanes,
            published=self._published,
            wake_scheduler=self._delayed,
        )

    def delete_dead_letters(
        self,
        topic: str,
        group: str,
        *,
        ids: Collection[str] | None = None,
        reason: str | None = None,
        all: bool = False,  # noqa: A002 - as redrive
        dry_run: bool,
    ) -> Deleted:
        """Settle a group's dead letters for ever; the choice as in `redrive`. Their rows leave with collection."""
        from lanelog.admin.dead_letters import delete

        return delete.delete_dead_letters(
            self._database, topic, group, ids=ids, reason=reason, everything=all, dry_run=decided(dry_run)
        )
