"""Whether a server is the primary: the one of several hosts on which lanelog writes.

Asks on a driver's cursor, once for each new connection. Never decides which host is used: `choice` does. With one host
in the URL nobody asks: whoever leads one address to the right server is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lanelog._base.addresses import Address
from lanelog._database import codes
from lanelog._database.server.server_facts import ServerFacts
from lanelog._database.translation import code_of
from lanelog.errors import ConfigurationError, DatabaseError

_READ_ONLY: Final = ("read_only", "super_read_only", "innodb_read_only")  # the last one on Aurora's readers
_GROUP: Final = "group_replication_group_name"
_SETTINGS: Final = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {(*_READ_ONLY, _GROUP)}"
_MEMBERS: Final = (
    "SELECT MEMBER_ID = @@server_uuid, MEMBER_STATE, MEMBER_ROLE FROM performance_schema.replication_group_members"
)
_CHANNELS_MARIADB: Final = "SHOW ALL SLAVES STATUS"
_CHANNELS_MYSQL: Final = "SHOW REPLICA STATUS"
_CHANNELS_OLD_MYSQL: Final = "SHOW SLAVE STATUS"
_RENAMED_IN_MYSQL: Final = (8, 0, 22)
_OFF: Final = ("", "OFF", "0")
_RUNNING: Final = ("Slave_IO_Running", "Slave_SQL_Running", "Replica_IO_Running", "Replica_SQL_Running")

_GRANT: Final = (
    "a host of several that is in Group Replication must show which member is the primary: "
    "GRANT SELECT ON performance_schema.replication_group_members TO this account, or name one host"
)


def check(cursor: Any, facts: ServerFacts, address: Address) -> None:
    """Raise DatabaseError, which is retriable, if a chosen host is not the primary, or not any more."""
    if why := disqualified(cursor, facts):
        raise DatabaseError(f"{address} is not the primary: {why}", retriable=True)


def disqualified(cursor: Any, facts: ServerFacts) -> str:
    """Return why this server is not the primary. Empty: it is one, as far as this account may see.

    A primary is not read-only and follows no other server. In Group Replication it is online, the only primary, and in
    a view with a majority. A member that has left its group, as after a restart, accepts writes that the group never
    sees: so a server with a group must show its members. Raises the driver's errors, and ConfigurationError if it must
    not.
    """
    cursor.execute(_SETTINGS)
    settings = {str(name).lower(): str(value).upper() for name, value in cursor.fetchall()}
    for name in _READ_ONLY:
        if settings.get(name, "OFF") not in _OFF:
            return f"its {name} is {settings[name]}"
    if settings.get(_GROUP, ""):
        return _alone_in_its_group(cursor)
    return "it follows another server" if _follows(cursor, facts) else ""


def _alone_in_its_group(cursor: Any) -> str:
    try:
        cursor.execute(_MEMBERS)
    except Exception as exc:
        if code_of(exc) in codes.DENIED_ANYWHERE:
            raise ConfigurationError(_GRANT) from exc
        raise
    return judged([(bool(own), str(state), str(role)) for own, state, role in cursor.fetchall()])


def judged(members: Sequence[tuple[bool, str, str]]) -> str:
    """Return why a member of a group is not its primary: for each member, whether it is this one, its state and role.

    A member that lost sight of the majority still calls itself ONLINE and PRIMARY, and the others UNREACHABLE.
    """
    own = next(((state, role) for itself, state, role in members if itself), ("OFFLINE", ""))
    seen = sum(state != "UNREACHABLE" for _, state, _ in members)
    if own[0] != "ONLINE":
        return f"it is {own[0]} in its group"
    if own[1] != "PRIMARY":
        return f"it is {own[1] or 'no primary'} in its group"
    if sum(role == "PRIMARY" for _, _, role in members) > 1:
        return "its group has several primaries"
    if 2 * seen <= len(members):
        return f"it sees {seen} of {len(members)} members of its group, which is no majority"
    return ""


def _follows(cursor: Any, facts: ServerFacts) -> bool:
    """Whether it follows another server, as far as the account may see that."""
    try:
        cursor.execute(_channels(facts))
    except Exception as exc:
        if code_of(exc) in codes.DENIED_ANYWHERE:
            return False
        raise
    shown = [index for index, column in enumerate(cursor.description or ()) if column[0] in _RUNNING]
    return any(str(row[index]) != "No" for row in cursor.fetchall() for index in shown)


def _channels(facts: ServerFacts) -> str:
    if facts.mariadb:
        return _CHANNELS_MARIADB
    return _CHANNELS_MYSQL if facts.version >= _RENAMED_IN_MYSQL else _CHANNELS_OLD_MYSQL
