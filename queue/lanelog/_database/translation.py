"""The one seam where errors of a database driver become errors of lanelog, with what the operator can do about them.

It never raises and never imports a driver: PyMySQL, mysqlclient and MySQL's own connector all carry the server's
number. `wire` calls it for every failed statement, the publisher for statements on a caller's connection.
"""

from __future__ import annotations

import re
import ssl
import struct
from typing import Final

from lanelog._roles import ROLES, roles_with
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, PayloadTooLarge, SchemaError

# The connection is gone, or so unclear that it must be: what is needed next is a new one.
LOST: Final = frozenset(
    {
        0,  # the driver: the connection was closed before
        1053,  # the server is shutting down
        1152,  # connection aborted
        1158,  # network error on read
        1159,  # network time-out on read
        1160,  # network error on write
        1161,  # network time-out on write
        1184,  # connection aborted
        1927,  # connection was killed (MariaDB)
        2006,  # server has gone away
        2013,  # lost connection during the query
        2014,  # commands out of sync
        2027,  # malformed packet
        2055,  # lost connection
        3169,  # session was killed
        4031,  # disconnected by the server because of inactivity
    }
)

# No connection could be made; trying again later may help.
UNREACHABLE: Final = frozenset(
    {
        1040,  # too many connections
        1203,  # too many connections of this user
        1226,  # the user's limit per hour
        2002,  # cannot connect through the socket
        2003,  # cannot connect to the host
        2005,  # unknown host: a name service can be down, too
        2012,  # error in server handshake
    }
)

# Nobody answered, or not as a server does: the address may be wrong.
_NOBODY_ANSWERED: Final = frozenset({2002, 2003, 2005, 2012, 2013})

# The server is read-only: a failover is going on; the next connection may meet the new primary.
READ_ONLY: Final = frozenset({1290, 1792, 1836})

# The server has rolled back, or undone half of it: nothing of this transaction may be committed.
TRANSACTION_GONE: Final = frozenset(
    {
        1020,  # the row changed since the snapshot (MariaDB >= 11.6.2 under REPEATABLE READ)
        1205,  # lock wait time-out: the statement only, or everything, as the server is configured
        1213,  # deadlock
    }
)

_OTHER_RETRIABLE: Final = frozenset(
    {
        1317,  # the query was interrupted (KILL QUERY)
        1412,  # the table was altered meanwhile
        1637,  # too many transactions
        1969,  # max_statement_time (MariaDB)
        3024,  # max_execution_time (MySQL)
        3572,  # NOWAIT met a lock
    }
)

RETRIABLE: Final = LOST | UNREACHABLE | READ_ONLY | TRANSACTION_GONE | _OTHER_RETRIABLE

# Refused before anything was made durable, even when it answers a COMMIT.
_NOT_COMMITTED: Final = TRANSACTION_GONE | READ_ONLY | {3101}  # 3101: rolled back by a group replication plugin

_NO_SUCH_COLUMN_OR_TABLE: Final = frozenset({1054, 1146})
_PACKET_TOO_LARGE: Final = 1153

_REMEDIES: Final = {
    1044: f"grant the user a role there; `lanelog grants --role ROLE` prints how, ROLE is one of {', '.join(ROLES)}",
    1045: "check user and password, and add ssl=true to the URL if the server or the account insists on TLS",
    1049: "create the database first: lanelog makes tables, not databases",
    1129: "the server blocked this host after too many errors: FLUSH HOSTS there",
    1227: "grant the user this privilege",
    1698: "check the user and how it authenticates",
    2026: "check ssl, ssl_ca, ssl_cert and ssl_key",
    3159: "the server insists on TLS: add ssl=true to the URL",
    2059: "the driver cannot do this authentication; choose another for the user",
}

_DENIED: Final = frozenset({1142, 1143})
# "INSERT command denied to user 'u'@'h' for table 'queue_messages'"; MariaDB names the database, too.
_WHAT_WAS_DENIED = re.compile(r"([A-Z][A-Z, ]*?)( with locking clause)? command denied to user .* for .*?(queue_\w+)")


def code_of(exc: BaseException) -> int | None:
    """Return the server's or the driver's error number; None if the exception carries none."""
    for candidate in (exc.args[0] if exc.args else None, getattr(exc, "errno", None)):
        if isinstance(candidate, int) and not isinstance(candidate, bool):
            return candidate
    return None


def comes_from_driver(exc: BaseException) -> bool:
    """Whether a driver, the network or lanelog itself raised it; anything else is a mistake, to be shown as it is."""
    # struct.error: who answers speaks another protocol, or was cut off in the middle of a number.
    if isinstance(exc, LanelogError | OSError | UnicodeError | struct.error):
        return True
    # DB-API 2.0 prescribes the name, and every driver has a module of its own.
    return any(base.__name__ == "Error" for base in type(exc).__mro__)


def unreachable(error: LanelogError, where: str) -> LanelogError:
    """Return the error that a new connection met, saying `where` it was to go: drivers leave the port out."""
    if not isinstance(error, DatabaseError) or error.code not in _NOBODY_ANSWERED or not error.retriable:
        return error
    return DatabaseError(
        f"no connection to {where}: check that the server runs there, and the URL ({error})",
        code=error.code,
        retriable=True,
    )


def translate(exc: BaseException, *, committing: bool = False) -> LanelogError:
    """Return the error of lanelog's tree for an error of a driver; one of the tree is returned as it is.

    `committing`: it answered a COMMIT, so unless the server clearly refused, the outcome is unknown.
    """
    if isinstance(exc, LanelogError):
        return exc
    code = code_of(exc)
    text = _text_of(exc)
    special = _special(exc, code, text)
    if special is not None:
        return special
    if committing:
        unknown = code not in _NOT_COMMITTED
        return DatabaseError(
            f"the outcome of COMMIT is unknown: {text}" if unknown else text,
            code=code,
            retriable=unknown or code in RETRIABLE,
            outcome_unknown=unknown,
        )
    remedy = _grant(text) if code in _DENIED else _REMEDIES.get(code or 0)
    return DatabaseError(
        f"{text}: {remedy}" if remedy else text,
        code=code,
        # An error without a number means that the driver lost track of the protocol: as bad as a lost connection.
        retriable=code is None or code in RETRIABLE,
    )


def _special(exc: BaseException, code: int | None, text: str) -> LanelogError | None:
    """Errors that no repetition mends, and that say more than their number."""
    if isinstance(exc, UnicodeEncodeError):
        return ConfigurationError(
            f"the connection's character set cannot carry this text: open it with utf8mb4 ({exc})"
        )
    if code in _NO_SUCH_COLUMN_OR_TABLE:
        return SchemaError(
            f"lanelog's tables are missing or differ: run `client.migrate()` or `lanelog migrate` ({text})"
        )
    if code == _PACKET_TOO_LARGE:
        return PayloadTooLarge(f"the server's max_allowed_packet is too small for this: raise it there ({text})")
    cause = getattr(exc, "original_exception", None) or exc
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DatabaseError(f"the server's certificate was refused: check ssl_ca and the host ({text})", code=code)
    return None


def _grant(text: str) -> str:
    """Which role has what the server refused, and how it is granted."""
    found = _WHAT_WAS_DENIED.search(text)
    privileges = found[1].split(", ") if found else []
    if found and found[2]:
        privileges.append("UPDATE")  # what MySQL wants to see for FOR UPDATE
    roles = roles_with(privileges, found[3]) if found else []
    if not roles:
        return f"grant the user its role: `lanelog grants --role ROLE` prints how, ROLE is one of {', '.join(ROLES)}"
    others = f" (so have {', '.join(roles[1:])})" if roles[1:] else ""
    return f"the role {roles[0]} has this privilege{others}; `lanelog grants --role {roles[0]}` prints its grants"


def breaks_connection(error: LanelogError) -> bool:
    """Whether the connection that reported it must not be used again."""
    return isinstance(error, DatabaseError) and (error.code is None or error.code in LOST or error.code in READ_ONLY)


def breaks_transaction(error: LanelogError) -> bool:
    """Whether nothing of the transaction that reported it may be committed."""
    return breaks_connection(error) or (isinstance(error, DatabaseError) and error.code in TRANSACTION_GONE)


def _text_of(exc: BaseException) -> str:
    """The server's sentence and its number; a driver's text holds no secret, unlike the objects around it."""
    code = code_of(exc)
    if len(exc.args) > 1 and code is not None:
        return f"{exc.args[1] or 'the connection was closed'} (error {code})"
    if isinstance(exc, struct.error):
        return f"the answer is none of a MySQL or MariaDB server ({exc})"
    return str(exc) or type(exc).__name__
