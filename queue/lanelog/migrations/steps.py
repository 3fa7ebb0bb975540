"""The versions of the tables, and the columns that each of them added.

A step only adds tables, and columns with defaults. Code that does not know them neither reads nor writes them. A step
never rebuilds a table. `schema/*.sql` declares the newest tables, with the columns of all steps. An older version is
the newest one without the later tables and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from attrs import evolve, field, frozen

from lanelog.migrations.declared import TableShape, declared_tables


@frozen(kw_only=True)
class Step:
    """One version of the tables."""

    version: int
    oldest_code: int
    """The oldest code that may work on tables of this version.

    Code is named by the version of the tables that it was made for.
    """
    columns: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """The columns that it adds, by table."""
    tables: tuple[str, ...] = ()
    """The tables that it adds."""


STEPS: Final = (
    Step(version=1, oldest_code=1),
    Step(
        version=2,
        oldest_code=1,
        columns={"queue_schema": ("oldest_code",), "queue_subscriber_heartbeats": ("incarnation",)},
    ),
    Step(
        version=3,
        oldest_code=1,
        columns={"queue_partitions": ("open_lanes",), "queue_groups": ("dead_letter_topic",)},
    ),
    Step(
        version=4,
        oldest_code=1,
        columns={"queue_subscriber_heartbeats": ("wake_host", "wake_address", "wake_token")},
    ),
    Step(version=5, oldest_code=1, tables=("queue_audit",)),
    Step(
        version=6,
        oldest_code=1,
        columns={
            "queue_schedules": ("next_local", "fired_local", "fired_again", "tzdata"),
            "queue_subscriber_heartbeats": ("workload",),
        },
    ),
)
"""In order, without gaps, from 1 on."""

VERSION: Final = STEPS[-1].version
"""The version of the tables that this library was made for, and creates."""


@cache
def shape(version: int) -> Mapping[str, TableShape]:
    """Return the tables by name, as they were declared at a version from 1 to `VERSION`."""
    later = {(table, column) for step in STEPS if step.version > version for table, column in _added(step)}
    later_tables = {table for step in STEPS if step.version > version for table in step.tables}
    return {
        name: evolve(
            table,
            columns={column: each for column, each in table.columns.items() if (name, column) not in later},
        )
        for name, table in declared_tables().items()
        if name not in later_tables
    }


def added() -> list[tuple[str, str]]:
    """Return table and name of every column that a step added, in the order of the steps."""
    return [each for step in STEPS for each in _added(step)]


def _added(step: Step) -> list[tuple[str, str]]:
    return [(table, column) for table, columns in step.columns.items() for column in columns]
