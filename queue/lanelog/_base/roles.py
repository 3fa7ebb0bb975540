"""The privileges that each role needs: the one table of roles.

Writes no statement and talks to no database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ALL_TABLES: Final = "*"
"""In `Role.privileges`, every table of the database."""

_SELECT: Final = {ALL_TABLES: ("SELECT",)}
_ROWS: Final = ("INSERT", "UPDATE", "DELETE")

_CONSUMER: Final = {
    **_SELECT,
    "queue_messages": ("INSERT",),
    "queue_partitions": ("INSERT", "UPDATE"),
    "queue_offsets": _ROWS,
    "queue_delivery_state": _ROWS,
    "queue_partition_leases": _ROWS,
    "queue_subscriber_heartbeats": _ROWS,
    "queue_groups": ("INSERT", "UPDATE"),
    "queue_history": ("INSERT", "UPDATE"),
    "queue_scheduled": ("INSERT", "DELETE"),
    "queue_schedules": ("INSERT", "UPDATE"),
    "queue_audit": ("INSERT",),
}
_JANITOR: Final = {
    **_CONSUMER,
    "queue_messages": ("INSERT", "DELETE"),
    "queue_partitions": _ROWS,
    "queue_history": _ROWS,
}
_DASHBOARD: Final = {
    **_SELECT,
    "queue_messages": ("INSERT", "DELETE"),
    "queue_partitions": ("INSERT", "UPDATE"),
    "queue_offsets": _ROWS,
    "queue_delivery_state": _ROWS,
    "queue_partition_leases": _ROWS,
    "queue_subscriber_heartbeats": ("DELETE",),
    "queue_groups": ("UPDATE", "DELETE"),
    "queue_history": ("INSERT", "UPDATE"),
    "queue_schedules": ("UPDATE", "DELETE"),
    "queue_audit": ("INSERT",),
}
"""Every action of the dashboard. It deletes no topic, declares no schedule, publishes nothing delayed, and
subscribes to nothing."""


@frozen
class Role:
    """What an account may do with the tables."""

    name: str
    purpose: str
    privileges: Mapping[str, tuple[str, ...]]
    """By table, or `ALL_TABLES`. No role updates a message."""


ROLES: Final = {
    role.name: role
    for role in (
        Role(
            "owner",
            "runs `lanelog migrate`",
            {
                ALL_TABLES: ("CREATE", "ALTER", "DROP", "INDEX", "SELECT", "INSERT"),
                "queue_schema": ("CREATE", "UPDATE"),
            },
        ),
        Role("reader", "people, dashboards that only read, metrics", _SELECT),
        Role(
            "publisher",
            "",
            {
                **_SELECT,
                "queue_partitions": ("INSERT", "UPDATE"),
                "queue_messages": ("INSERT",),
                "queue_offsets": ("INSERT",),
                "queue_scheduled": ("INSERT", "DELETE"),
                "queue_schedules": ("INSERT", "UPDATE"),
                "queue_audit": ("INSERT",),
            },
        ),
        Role("consumer", "handles and dead-letters; may publish, too", _CONSUMER),
        Role("janitor", "a consumer that also deletes what every group has settled", _JANITOR),
        Role("dashboard", "reads, and acts by `lanelog web --allow-actions`", _DASHBOARD),
        Role(
            "admin",
            "all rows but the history of the tables; no message is changed, no table",
            {**_JANITOR, "queue_groups": _ROWS, "queue_schedules": _ROWS, "queue_audit": ("INSERT", "DELETE")},
        ),
    )
}

_LEAST_FIRST: Final = ("reader", "publisher", "consumer", "janitor", "dashboard", "admin", "owner")


def roles_with(privileges: Collection[str], table: str) -> list[str]:
    """Return the roles that have all these privileges on the table. The role with the fewest privileges comes first."""
    return [
        name
        for name in _LEAST_FIRST
        if set(privileges) <= {*ROLES[name].privileges.get(ALL_TABLES, ()), *ROLES[name].privileges.get(table, ())}
    ]
