"""The statements that grant a role its privileges.

Owns their form: the command `lanelog grants` and the README come from it, the roles are those of `_roles`. Never talks
to a database, and knows no password. Called by the command line.
"""

from __future__ import annotations

import re

from lanelog._roles import ALL_TABLES, ROLES
from lanelog.errors import ConfigurationError

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
