"""The figures of the log for a monitor: one read of topics, groups, lanes that are stuck, and the server.

Owns the choice of what is read. The figures are those of `status`, so that an alert and `lanelog status` never
disagree. Judges nothing and changes nothing. The parts are read together and may differ by a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._log.lookup.known import permitted, read
from lanelog._stores.later import scheduled
from lanelog.admin.operate import server, status
from lanelog.admin.operate.problem import FAILING, Rank
from lanelog.admin.operate.server import TableSize
from lanelog.admin.operate.status import InsideGroup
from lanelog.admin.totals.topics import GroupRead
from lanelog.admin.types.topology import GroupInfo, TopicInfo

if TYPE_CHECKING:
    from lanelog._database import Database, Executor


@frozen(kw_only=True)
class ServerFigures:
    """What the server says of itself. None, or a table that is missing: the account may not see it."""

    oldest_transaction: float | None
    """Seconds for which the oldest transaction of another connection has been open; 0: none is."""
    history_list_length: int | None
    """Transactions whose deleted rows are still in the indexes."""
    tables: Mapping[str, TableSize]
    """lanelog's tables by name. Sizes are the server's estimates; MySQL renews them once a day."""


@frozen(kw_only=True)
class GroupFigures:
    """One group, and how many of its lanes are stuck."""

    info: GroupInfo
    stuck_lanes: int
    """Lanes that `status` calls failing, slow, without owner, or whose owner is gone.

    Of each group, the 100 lanes with the oldest messages are read.
    """
    failing_lanes: int
    """Those of them whose first message failed and waits for its next attempt."""
    hung_members: int = 0
    """Members that `status` calls hung: all workers are busy, and none has ended for longer than is normal there."""


@frozen(kw_only=True)
class Figures:
    """The figures of the log."""

    topics: tuple[TopicInfo, ...]
    """Up to 1,000 topics."""
    groups: tuple[GroupFigures, ...]
    """Up to 1,000 groups."""
    delayed: Mapping[str, int]
    """Messages that are not in the log yet, by topic; topics without one are missing."""
    contradictions: int
    """Contradictions between tables; no more than 20 are counted."""
    held_head: float | None = None
    """Seconds for which the oldest transaction has been open that publishers wait for; 0: they wait for none.

    None: the account may not see it.
    """
    server: ServerFigures
    topics_left_out: int = 0
    """Topics that were not read."""
    groups_left_out: int = 0
    """Groups that were not read."""
    topics_not_compared: int = 0
    """Topics whose tables were not compared with each other, because that took too long."""
    members_known: bool = True
    """False: the server takes no writes, or is not the one that members write to: `Status.members_known`."""


def figures(database: Database) -> Figures:
    """See `Admin.figures`."""
    seen = status.read_parts(database, None)
    believed = seen.unwritten is None
    return Figures(
        topics=tuple(seen.topics),
        groups=tuple(map(_group, seen.groups, status.inside_groups(database, seen.groups, believed=believed))),
        delayed=read(database, scheduled.counts, "counting delayed messages"),
        contradictions=len(seen.wrong),
        held_head=None if seen.held is None else max((each.seconds for each in seen.held), default=0.0),
        server=server_figures(database),
        topics_left_out=seen.topics_left_out,
        groups_left_out=seen.groups_left_out,
        topics_not_compared=seen.topics_not_compared,
        members_known=believed,
    )


def server_figures(database: Database) -> ServerFigures:
    """See `Admin.server`."""
    return read(database, _server, "asking the server", mariadb=database.facts().mariadb)


def _group(group: GroupRead, inside: InsideGroup) -> GroupFigures:
    stuck = [each.what for each in inside.lanes if each.rank is Rank.STUCK]
    return GroupFigures(
        info=group.info,
        stuck_lanes=len(stuck),
        failing_lanes=stuck.count(FAILING),
        hung_members=len(inside.hung),
    )


def _server(cx: Executor, *, mariadb: bool) -> ServerFigures:
    return ServerFigures(
        oldest_transaction=permitted(_oldest, cx),
        history_list_length=permitted(server.history_list_length, cx, mariadb=mariadb),
        tables=permitted(server.table_sizes, cx) or {},
    )


def _oldest(cx: Executor) -> float:
    found = server.oldest_transaction(cx)
    return 0.0 if found is None else found.seconds
