"""The lanes of groups added up, and the owners of their lanes. What is said of one group comes from one snapshot.

Owns how many groups and topics share a snapshot. Reads no message. Several snapshots are read at the same time.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import frozen

from lanelog._log.lookup import owners as _owners
from lanelog._log.lookup.known import repeated
from lanelog._stores._points import GROUPS_TOGETHER, chunked
from lanelog._stores.members import leases
from lanelog.admin.lookup.parallel import AT_ONCE, in_parallel
from lanelog.admin.totals import lane_totals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._base.places import GroupTopic
    from lanelog._database import Database
    from lanelog._log.lookup.owners import Owners
    from lanelog.admin.totals.lane_totals import GroupFacts

T = TypeVar("T")

SHARING: Final = 10
"""Parts, at most, that share a snapshot: to begin and end one costs half as much as to read a topic with few lanes."""
LONG: Final = 5000
"""Lanes after which a snapshot is given back: while it is open, the server keeps all rows that others delete."""
_SHARES: Final = 4
"""Shares of each connection, so that none has to wait long for the last one."""


@frozen(kw_only=True)
class GroupSums:
    """The lanes of a group, added up, and its owners, from one snapshot."""

    facts: GroupFacts
    owners: Owners
    lanes: dict[str, int]
    """How many are in the name of each owner."""


def parts(groups: Sequence[T], topic_of: Callable[[T], str]) -> list[list[T]]:
    """Cut groups, in order of their topics, into parts of a few groups of one topic."""
    return [
        list(chunk)
        for _, of_topic in groupby(groups, key=topic_of)
        for chunk in chunked(list(of_topic), GROUPS_TOGETHER)
    ]


def load(database: Database, some: Sequence[Sequence[GroupTopic]], candidates: int) -> dict[GroupTopic, GroupSums]:
    """Return the sums of each group of these parts. Of its lanes, `candidates` are named: see `lane_totals.totals`."""
    size = min(SHARING, 1 + len(some) // (AT_ONCE * _SHARES))
    shares = [some[start : start + size] for start in range(0, len(some), size)]
    return dict(chain.from_iterable(in_parallel([partial(_share, database, share, candidates) for share in shares])))


def _share(
    database: Database, some: Sequence[Sequence[GroupTopic]], candidates: int
) -> list[tuple[GroupTopic, GroupSums]]:
    found: list[tuple[GroupTopic, GroupSums]] = []
    while some:
        read, some = repeated(database, _snapshot, "reading groups", database, some, candidates)
        found += read
    return found


def _snapshot(
    database: Database, some: Sequence[Sequence[GroupTopic]], candidates: int
) -> tuple[list[tuple[GroupTopic, GroupSums]], Sequence[Sequence[GroupTopic]]]:
    """Return the sums of the first of these parts, and the parts that are left for another snapshot."""
    found: list[tuple[GroupTopic, GroupSums]] = []
    done = lanes = 0
    with database.snapshot() as cx:
        for places in some:
            topic, groups = places[0].topic, [at.group for at in places]
            facts = lane_totals.totals(cx, topic, groups, candidates)
            owners = _owners.at_work(cx, topic, groups, tables=database.tables_version)
            counts = leases.counts_of(cx, topic, groups)
            for at in places:
                found.append((at, GroupSums(facts=facts[at.group], owners=owners[at.group], lanes=counts[at.group])))
                lanes += facts[at.group].lanes.count
            done += 1
            if lanes >= LONG:
                break
    return found, some[done:]
