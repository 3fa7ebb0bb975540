"""What the workers of groups do, as their members' last heartbeats say.

Owns the reading of these rows as values. Judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._process.workload import parsed
from lanelog._stores.members import member_rows
from lanelog._stores.members._heartbeat_rows import VERSION_WITH_WORKLOAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._process.workload import Workload


def of_groups(cx: Executor, topic: str, groups: Sequence[str], *, tables: int) -> Mapping[tuple[str, str], Workload]:
    """Return what the living members of a few groups do, by group and owner. `tables`: the version of the tables.

    Members that say nothing are missing: they pull, or their version is older.
    """
    if tables < VERSION_WITH_WORKLOAD:
        return {}
    rows = member_rows.workloads(cx, topic, groups)
    return {(group, owner): found for group, owner, text in rows if (found := parsed(text)) is not None}
