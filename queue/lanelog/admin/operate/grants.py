"""The statements that grant a role its privileges.

Owns their form; `roles` says which privileges a role has. Never talks to a database, and knows no password.
"""

from __future__ import annotations

import re

from lanelog._base.roles import ALL_TABLES, ROLES
from lanelog.errors import ConfigurationError

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_NAME_MAX, _HOST_MAX, _DATABASE_MAX = 80, 255, 64


def grants(
    role: str, *, database: str = "jobs", user: str | None = None, host: str = "%", procedures: bool = False
) -> str:
    """Return the GRANT statements for one role, below a comment that says what the role is for.

    `procedures`: those for the routines of plain SQL, too. An owner may create them, and who publishes may call them.

    Raises ConfigurationError.
    """
    if role not in ROLES:
        raise ConfigurationError(f"no role {role!r}: there are {', '.join(ROLES)}")
    chosen = ROLES[role]
    account = f"'{_quotable('user', user or role, _NAME_MAX)}'@'{_quotable('host', host, _HOST_MAX)}'"
    lines = [f"-- {role}: {chosen.purpose}" if chosen.purpose else f"-- {role}"]
    for table, privileges in chosen.privileges.items():
        where = _schema(database, pattern=table == ALL_TABLES)
        lines.append(f"GRANT {', '.join(privileges)} ON {where}.{table} TO {account};")
    if procedures:
        schema = _schema(database, pattern=True)
        if role == "owner":
            lines.append(f"GRANT CREATE ROUTINE, ALTER ROUTINE ON {schema}.* TO {account};")
        elif "INSERT" in chosen.privileges.get("queue_messages", ()):
            # Not on the two alone: MySQL takes that back when a routine is replaced.
            lines.append(f"GRANT EXECUTE ON {schema}.* TO {account};")
    return "\n".join(lines) + "\n"


def _schema(name: str, *, pattern: bool) -> str:
    """Return the database's name as the statement needs it.

    In a grant for all tables, `_` and `%` in it are wildcards.
    """
    _quotable("database", name, _DATABASE_MAX)
    if _PLAIN.fullmatch(name):
        return name
    escaped = re.sub(r"([_%])", r"\\\1", name) if pattern else name
    return f"`{escaped}`"


def _quotable(what: str, value: str, most: int) -> str:
    """Refuse a name that would end a quotation."""
    if not 0 < len(value) <= most or not value.isprintable() or any(mark in value for mark in "'`\\\""):
        raise ConfigurationError(f"{what} must have 1 to {most} characters, and no quotes, backslashes or line breaks")
    return value
