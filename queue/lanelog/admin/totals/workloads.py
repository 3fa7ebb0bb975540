"""What the workers of groups do, as their members' last heartbeats say.

Owns the selection of the living ones. Judges nothing: `_log/lookup` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._log.lookup import owners as _owners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lanelog._database import Executor
    from lanelog._process.workload import Workload


def of_groups(cx: Executor, topic: str, groups: Sequence[str], *, tables: int) -> Mapping[tuple[str, str], Workload]:
    """Return what the living members of a few groups do, by group and owner. `tables`: the version of the tables.

    Members that say nothing are missing: they pull, or their version is older.
    """
    owners = _owners.at_work(cx, topic, groups, tables=tables, handlers=True)
    return {
        (group, owner): found
        for group, each in owners.items()
        for owner in each.rows
        if (found := each.workload(owner)) is not None
    }
