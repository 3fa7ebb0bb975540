"""The server at the other end of a connection: its facts, and whether lanelog can work on it.

Asks nothing itself: `driver` asks.
"""

from __future__ import annotations

import re
from typing import Final

from attrs import frozen

from lanelog.errors import ConfigurationError

_OLDEST_MARIADB = (10, 6)
_OLDEST_MYSQL = (8, 0)

_IMITATIONS: Final = {
    "tidb": "TiDB",
    "dolt": "Dolt",
    "oceanbase": "OceanBase",
    "singlestore": "SingleStore",
    "memsql": "SingleStore",
    "vitess": "Vitess",
}
"""By a part of the version, or of its comment."""


@frozen(kw_only=True)
class ServerFacts:
    """The server at the other end of a connection."""

    version: tuple[int, ...]
    mariadb: bool
    max_allowed_packet: int
    """Bytes of the longest statement it accepts."""
    connection_id: int
    """The connection's number in KILL and in the process list."""
    database: str
    """The database, as the server writes it."""
    identity: str = ""
    """The server, by `Incarnation.identity_in_sql`. Empty: not known."""
    locks_refused: str = ""
    """Why this session must hold no lock, in a sentence. Empty: it may."""
    choice: int = 0
    """The number of the choice of a host that led here, by `HostChoice`."""
    asked: int = 0
    """The number of the question after which the connection was made."""

    @property
    def family(self) -> str:
        """`mariadb` or `mysql`."""
        return "mariadb" if self.mariadb else "mysql"

    def bounded(self, query: str, seconds: float) -> str:
        """Return a SELECT that the server itself ends after `seconds`, also while it waits for a lock."""
        if self.mariadb:
            return f"SET STATEMENT max_statement_time = {seconds:g} FOR {query}"
        return query.replace("SELECT", f"SELECT /*+ MAX_EXECUTION_TIME({seconds * 1000:.0f}) */", 1)

    @classmethod
    def from_row(cls, row: tuple[str, int, int, str, str]) -> ServerFacts:
        """Build it from the answer to `_FACTS`."""
        text, packet, connection_id, database, identity = row
        return cls(
            version=tuple(int(part) for part in re.findall(r"\d+", text)[:3]),
            mariadb="mariadb" in text.lower(),
            max_allowed_packet=int(packet),
            connection_id=int(connection_id),
            database=database,
            identity=identity,
        )

    def check_locks(self) -> None:
        """Raise ConfigurationError if this session must hold no lock: a process that stops would hold it for hours."""
        if self.locks_refused:
            raise ConfigurationError(self.locks_refused)

    def check(self) -> None:
        """Raise ConfigurationError for a server that lacks what lanelog needs, SKIP LOCKED above all."""
        oldest = _OLDEST_MARIADB if self.mariadb else _OLDEST_MYSQL
        if self.version < oldest:
            name = "MariaDB" if self.mariadb else "MySQL"
            raise ConfigurationError(
                f"{name} {'.'.join(map(str, self.version))} is too old: lanelog needs {name} "
                f"{'.'.join(map(str, oldest))} or newer"
            )


def refuse_imitation(*texts: object) -> None:
    """Raise ConfigurationError if a server's version, or its comment, names a server that only speaks MySQL."""
    said = " ".join(map(str, texts)).lower()
    for part, name in _IMITATIONS.items():
        if part in said:
            raise ConfigurationError(
                f"this server is {name}: it takes SKIP LOCKED without the row locks that lanelog needs. "
                "Use MySQL or MariaDB"
            )
