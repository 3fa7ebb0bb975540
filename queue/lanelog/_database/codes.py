"""The error numbers of servers and drivers, in sets that each have one consequence.

Owns the numbers alone: `translation` makes errors of them. Numbers without name in `pymysql.constants` get one here.
"""

from __future__ import annotations

from typing import Final

from pymysql.constants import CR, ER

DUPLICATE: Final = ER.DUP_ENTRY
DUPLICATE_COLUMN: Final = ER.DUP_FIELDNAME
NULL_REFUSED: Final = ER.BAD_NULL_ERROR
"""NULL for a column that is NOT NULL."""
NO_SUCH_DATABASE: Final = ER.BAD_DB_ERROR
NO_SUCH_SAVEPOINT: Final = ER.SP_DOES_NOT_EXIST
NOT_UNDERSTOOD: Final = ER.PARSE_ERROR
"""A syntax error, also of a server that takes one statement in a packet."""
OUT_OF_STEP: Final = CR.CR_COMMANDS_OUT_OF_SYNC
"""The driver has not sent the statement: an answer to an earlier one was not read whole."""
CLOSED_BEFORE: Final = 0
"""The driver has not sent the statement: the connection was closed before."""
NOT_RUN: Final = frozenset({OUT_OF_STEP, CLOSED_BEFORE})
"""Nothing of what was to be sent was run."""
VALUE_REFUSED: Final = ER.WRONG_VALUE_FOR_VAR
"""A variable cannot have this value."""
UNKNOWN: Final = ER.UNKNOWN_ERROR
ZERO_DOWNTIME_PATCH: Final = "Zero Downtime Patch"
"""Aurora says this with `UNKNOWN` when it was patched below a connection. The transaction was rolled back."""
LOCK_WAIT_TIMEOUT: Final = ER.LOCK_WAIT_TIMEOUT
"""The statement is undone. With `innodb_rollback_on_timeout` the whole transaction is."""
DEADLOCK: Final = ER.LOCK_DEADLOCK
TWO_ROWS: Final = ER.SUBQUERY_NO_1_ROW
"""A subquery that must give one value has found two rows."""
PACKET_TOO_LARGE: Final = ER.NET_PACKET_TOO_LARGE
KEY_TOO_LONG: Final = ER.TOO_LONG_KEY
"""An index entry is too long for the server's page size."""
OPTION_PREVENTS: Final = ER.OPTION_PREVENTS_STATEMENT
"""An option of the server refuses the statement. Usually it is `read_only`."""

READ_ONLY_TRANSACTION: Final = 1792
READ_ONLY_MODE: Final = 1836
GROUP_REPLICATION_ROLLED_BACK: Final = 3101
TLS_REQUIRED: Final = 3159
ACCESS_DENIED_NO_PASSWORD: Final = 1698
_TOO_MANY_TRANSACTIONS: Final = 1637
XA_RUNNING: Final = 1399
XA_OUTSIDE: Final = 1400
"""XA START in a distributed transaction, and in another one."""
_CONNECTION_KILLED: Final = 1927  # MariaDB
_SESSION_WAS_KILLED: Final = 3169
_NOWAIT_MET_A_LOCK: Final = 3572
_DISCONNECTED_WHEN_IDLE: Final = 4031
_ALTER_NOT_SUPPORTED: Final = 1845
_ALTER_NOT_SUPPORTED_FOR_REASON: Final = 1846
_TOO_MANY_INSTANT_COLUMNS: Final = 4092  # MySQL
ROUTINE_REFUSED: Final = frozenset({1418, ER.BINLOG_CREATE_ROUTINE_NEED_SUPER})
"""A server with a binary log refuses a function that writes."""
ROUTINE_EXISTS: Final = ER.SP_ALREADY_EXISTS
NOT_CONVERTIBLE: Final = 3854
"""MySQL cannot write the statement of some session into a column of three-byte characters. It refuses all rows."""

LOCKED: Final = frozenset({LOCK_WAIT_TIMEOUT, _NOWAIT_MET_A_LOCK})
"""NOWAIT has met a lock, on MariaDB and on MySQL."""

LOST: Final = frozenset(
    {
        CLOSED_BEFORE,
        ER.SERVER_SHUTDOWN,
        ER.ABORTING_CONNECTION,
        ER.NET_READ_ERROR,
        ER.NET_READ_INTERRUPTED,
        ER.NET_ERROR_ON_WRITE,
        ER.NET_WRITE_INTERRUPTED,
        ER.NEW_ABORTING_CONNECTION,
        _CONNECTION_KILLED,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        OUT_OF_STEP,
        CR.CR_MALFORMED_PACKET,
        CR.CR_SERVER_LOST_EXTENDED,
        _SESSION_WAS_KILLED,
        _DISCONNECTED_WHEN_IDLE,
    }
)
"""The connection is gone, or out of step with the server. It must be replaced."""

NO_CONNECTION_LEFT: Final = ER.CON_COUNT_ERROR
USER_HAS_TOO_MANY: Final = ER.TOO_MANY_USER_CONNECTIONS
"""By `max_user_connections` of the server, which bounds each account."""
ACCOUNT_HAS_TOO_MANY: Final = ER.USER_LIMIT_REACHED
"""By a limit of this account alone."""
TOO_MANY: Final = frozenset({NO_CONNECTION_LEFT, USER_HAS_TOO_MANY, ACCOUNT_HAS_TOO_MANY})
"""The server has no connection left, by its own limit, the user's or the account's."""

_NO_CONNECTION: Final = frozenset(
    {
        CR.CR_CONNECTION_ERROR,
        CR.CR_CONN_HOST_ERROR,
        CR.CR_UNKNOWN_HOST,  # the name service may be down
        CR.CR_SERVER_HANDSHAKE_ERR,
    }
)

UNREACHABLE: Final = TOO_MANY | _NO_CONNECTION
"""No connection could be made. Another attempt may help."""

NOBODY_ANSWERED: Final = _NO_CONNECTION | {CR.CR_SERVER_LOST}
"""No server answered, or the answer is not that of a server. The address may be wrong."""

NO_USE_TO_CONNECT: Final = NOBODY_ANSWERED | {NO_SUCH_DATABASE, CR.CR_SSL_CONNECTION_ERROR}
"""Errors of a new connection that an earlier connection makes no more retriable. A refused certificate has the number
of an unreachable server."""

READ_ONLY: Final = frozenset({OPTION_PREVENTS, READ_ONLY_TRANSACTION, READ_ONLY_MODE})
"""The server is read-only, as in a failover. A new connection may meet the new primary."""

_HOOK_FAILED: Final = 3100
"""Group Replication could not send the transaction to its group."""

NO_PRIMARY: Final = READ_ONLY | {_HOOK_FAILED, GROUP_REPLICATION_ROLLED_BACK}
"""The server writes nothing any more. Of several hosts, another one may be the primary now."""

TRANSACTION_GONE: Final = frozenset(
    {
        ER.CHECKREAD,  # the row changed since the snapshot (MariaDB >= 11.6.2 under REPEATABLE READ)
        LOCK_WAIT_TIMEOUT,
        DEADLOCK,
    }
)
"""The server has undone the transaction or a part of it. The rest must not be committed."""

_MAY_PASS: Final = frozenset(
    {
        ER.QUERY_INTERRUPTED,  # KILL QUERY
        ER.TABLE_DEF_CHANGED,
        _TOO_MANY_TRANSACTIONS,
        ER.STATEMENT_TIMEOUT,  # max_statement_time (MariaDB)
        ER.QUERY_TIMEOUT,  # max_execution_time (MySQL)
        _NOWAIT_MET_A_LOCK,
        GROUP_REPLICATION_ROLLED_BACK,  # another member, or the primary before, has changed the same row
    }
)

RETRIABLE: Final = LOST | UNREACHABLE | READ_ONLY | TRANSACTION_GONE | _MAY_PASS

NOT_COMMITTED: Final = TRANSACTION_GONE | READ_ONLY | {GROUP_REPLICATION_ROLLED_BACK}
"""Nothing was committed, even if the error answers a COMMIT."""

DENIED: Final = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR})
"""The account lacks a privilege on a table or column."""

FOR_AN_OPERATOR: Final = DENIED | {NO_SUCH_DATABASE}
"""Database or grants are missing. That rarely passes by itself."""

DENIED_ANYWHERE: Final = DENIED | {
    ER.DBACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
    ER.PROCACCESS_DENIED_ERROR,
}
"""The account lacks a privilege on a table, column, database, routine or the server."""

NOT_AT_ONCE: Final = frozenset({_ALTER_NOT_SUPPORTED, _ALTER_NOT_SUPPORTED_FOR_REASON, _TOO_MANY_INSTANT_COLUMNS})
"""The table cannot be altered without a copy: on MariaDB by a setting, on MySQL after too many instant columns."""

NO_SUCH_TABLE: Final = ER.NO_SUCH_TABLE
NO_SUCH_COLUMN_OR_TABLE: Final = frozenset({ER.BAD_FIELD_ERROR, NO_SUCH_TABLE})
