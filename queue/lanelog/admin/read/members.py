"""Members: of one group, or of all groups, page by page.

Owns these queries. What is said of one member comes from one snapshot. A page costs a statement for the rows, and one
for each hundred of them that counts their lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._base.places import GroupTopic
from lanelog._log.lookup.known import known_group, snapshot
from lanelog._log.lookup.owners import Owners, granting
from lanelog._stores.members import leases, member_rows
from lanelog.admin.lookup.arguments import check_names, limit_of, when
from lanelog.admin.types.topology import MemberInfo
from lanelog.config import check_name
from lanelog.errors import ConfigurationError
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from lanelog._database import Database, Executor
    from lanelog._stores.members._heartbeat_rows import HeartbeatRow

_FIRST = ("", "", "")


def members(
    database: Database, topic: str | None, group: str | None, *, limit: int, after: tuple[str, str, str] | None
) -> list[MemberInfo]:
    """See `Admin.members`."""
    limit_of(limit)
    at = None
    if topic is not None and group is not None:
        at = GroupTopic(topic=topic, group=group)
        check_names(at)
    elif topic is not None or group is not None:
        raise ConfigurationError("members are listed of one group on one topic, or of all: give both names or neither")
    if after is not None:
        _check_after(after, at)

    def query(cx: Executor) -> list[MemberInfo]:
        rows = _rows(cx, at, _FIRST if after is None else after, limit, database.tables_version)
        server = granting(cx, (row for _, row in rows))
        lanes = leases.counts_of_owners(cx, [(place, row.owner) for place, row in rows])
        return [
            _member(place, row, Owners({row.owner: row}, server), count)
            for (place, row), count in zip(rows, lanes, strict=True)
        ]

    return snapshot(database, query, "reading members")


def _check_after(after: object, at: GroupTopic | None) -> None:
    if not isinstance(after, tuple) or len(after) != len(_FIRST):
        raise ConfigurationError("after must be a tuple of a topic, a group and a name")
    for each in after:
        check_name("after", each)
    if at is not None and GroupTopic(topic=after[0], group=after[1]) != at:
        raise ConfigurationError(f"after must name a member of group {at.group} of topic {at.topic}")


def _rows(
    cx: Executor, at: GroupTopic | None, after: tuple[str, str, str], limit: int, tables: int
) -> list[tuple[GroupTopic, HeartbeatRow]]:
    topic, group, name = after
    if at is None:
        return member_rows.next_of_all(cx, GroupTopic(topic=topic, group=group), name, limit, tables=tables)
    known_group(cx, at)
    return [(at, row) for row in member_rows.next_of_group(cx, at, name, limit, tables=tables)]


def _member(at: GroupTopic, row: HeartbeatRow, owners: Owners, lanes: int) -> MemberInfo:
    return MemberInfo(
        topic=at.topic,
        group=at.group,
        name=row.owner,
        state=owners.state(row.owner),
        lanes=lanes,
        heartbeat_at=utc_from_ms(row.heartbeat_at),
        expires_at=utc_from_ms(row.expires_at),
        lease_left=owners.left(row.owner),
        stopped_at=when(row.deregistered_at if row.deregistered and row.found_dead_by is None else 0),
        found_dead_by=row.found_dead_by if row.deregistered else None,
        server_started_at=when(row.incarnation.started_ms),
        workload=owners.workload(row.owner),
    )
