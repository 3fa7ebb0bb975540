"""Which privileges each role needs, and the statements that grant them.

Owns the one table of roles: the command `lanelog grants`, the README and `doctor` all come from it. Never talks to a
database, and knows no password. Called by the command line and by `_doctor`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_TABLES: Final = "*"
"""In `Role.privileges`: every table of the database."""

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
}
_JANITOR: Final = {
    **_CONSUMER,
    "queue_messages": ("INSERT", "DELETE"),
    "queue_partitions": _ROWS,
    "queue_history": _ROWS,
}


@frozen
class Role:
    """What somebody who uses the tables may do."""

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
        Role("reader", "dashboards, people", _SELECT),
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
            },
        ),
        Role("consumer", "handles and dead-letters; may publish, too", _CONSUMER),
        Role("janitor", "a consumer that also deletes what every group is past", _JANITOR),
        Role(
            "admin",
            "all rows but the history of the tables; no message is changed, no table",
            {**_JANITOR, "queue_groups": _ROWS, "queue_schedules": _ROWS},
        ),
    )
}

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_NAME_MAX, _HOST_MAX, _DATABASE_MAX = 80, 255, 64


def grants(role: str, *, database: str = "jobs", user: str | None = None, host: str = "%") -> str:
    """The statements for one role, after a comment that says what it is for. Raises ConfigurationError."""
    if role not in ROLES:
        raise ConfigurationError(f"no role {role!r}: there are {', '.join(ROLES)}")
    chosen = ROLES[role]
    account = f"'{_quotable('user', user or role, _NAME_MAX)}'@'{_quotable('host', host, _HOST_MAX)}'"
    lines = [f"-- {role}: {chosen.purpose}" if chosen.purpose else f"-- {role}"]
    for table, privileges in chosen.privileges.items():
        where = _schema(database, pattern=table == ALL_TABLES)
        lines.append(f"GRANT {', '.join(privileges)} ON {where}.{table} TO {account};")
    return "\n".join(lines) + "\n"


def _schema(name: str, *, pattern: bool) -> str:
    """The database as the statement names it: where a grant is for all tables, `_` and `%` in it are wildcards."""
    _quotable("database", name, _DATABASE_MAX)
    if _PLAIN.fullmatch(name):
        return name
    escaped = re.sub(r"([_%])", r"\\\1", name) if pattern else name
    return f"`{escaped}`"


def _quotable(what: str, value: str, most: int) -> str:
    """Refuse what would end a quotation; no account or database is named so."""
    if not 0 < len(value) <= most or not value.isprintable() or any(mark in value for mark in "'`\\\""):
        raise ConfigurationError(f"{what} must have 1 to {most} characters, and no quotes, backslashes or line breaks")
    return value
