"""The translation of a database driver's errors into errors of lanelog, with a remedy where there is one.

Decides whether an error is retriable, by the groups of numbers in `codes`. `retries` repeats what is. That list is
closed: of several messages, the one that the database refuses must fail alone. Loops ask `outage` instead. Never
raises, and treats all drivers alike: PyMySQL, mysqlclient and MySQL's own connector carry the server's number.
"""

from __future__ import annotations

import re
import ssl
import struct
from typing import Final

from pymysql.constants import CR, ER

from lanelog._base.roles import ROLES, roles_with
from lanelog._database import codes
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, PayloadTooLarge, SchemaError

_REMEDIES: Final = {
    ER.DBACCESS_DENIED_ERROR: "grant the user a role there; `lanelog grants --role ROLE` prints how, "
    f"ROLE is one of {', '.join(ROLES)}",
    ER.ACCESS_DENIED_ERROR: "check user and password, "
    "and add ssl=true to the URL if the server or the account insists on TLS",
    ER.BAD_DB_ERROR: "create the database first: lanelog makes tables, not databases",
    ER.HOST_IS_BLOCKED: "the server blocked this host after too many errors: FLUSH HOSTS there",
    ER.SPECIFIC_ACCESS_DENIED_ERROR: "grant the user this privilege",
    codes.ACCESS_DENIED_NO_PASSWORD: "check the user and how it authenticates",
    CR.CR_SSL_CONNECTION_ERROR: "check ssl, ssl_ca, ssl_cert and ssl_key",
    codes.NO_CONNECTION_LEFT: "the server's max_connections is reached",
    codes.USER_HAS_TOO_MANY: "the account has all that max_user_connections allows it; the server may have more",
    codes.ACCOUNT_HAS_TOO_MANY: "this is a limit of the account alone; the server may have connections left",
    codes.TLS_REQUIRED: "the server insists on TLS: add ssl=true to the URL",
    CR.CR_AUTH_PLUGIN_CANNOT_LOAD: "the driver cannot do this authentication; choose another for the user",
}

# The mode in which MariaDB refuses another engine than that of enforce_storage_engine. It names only the mode.
_ENGINE_REFUSED = "NO_ENGINE_SUBSTITUTION"

# "INSERT command denied to user 'u'@'h' for table 'queue_messages'"; MariaDB names the database, too.
_WHAT_WAS_DENIED = re.compile(r"([A-Z][A-Z, ]*?)( with locking clause)? command denied to user .* for .*?(queue_\w+)")

# "Table 'jobs._queue_messages_new' doesn't exist": beside the server's own, our statements name our tables alone.
_MISSING = re.compile(
    r"Table '(?!(?:information_schema|performance_schema|mysql|sys)\.)(?:[^']*\.)?([^'.]+)' doesn't exist"
)


def code_of(exc: BaseException) -> int | None:
    """Return the server's or the driver's error number. None: the exception has none."""
    for candidate in (exc.args[0] if exc.args else None, getattr(exc, "errno", None)):
        if isinstance(candidate, int) and not isinstance(candidate, bool):
            return candidate
    return None


def comes_from_driver(exc: BaseException) -> bool:
    """Whether a driver, the network or lanelog itself raised it. Any other error is a bug, and is shown as it is."""
    # struct.error: the answer is of another protocol, or ends in the middle of a number.
    if isinstance(exc, LanelogError | OSError | UnicodeError | struct.error):
        return True
    # DB-API 2.0 prescribes the name, but every driver has its own class.
    return any(base.__name__ == "Error" for base in type(exc).__mro__)


def unreachable(error: LanelogError, where: str, *, before: bool = False) -> LanelogError:
    """Return the error of a new connection, with `where` it was to go: drivers leave the port out.

    `before`: a connection was made with the same settings before. So the reason is at the server, and may pass there: a
    changed password, a locked account, a blocked host, an older server behind the same name. A database that is gone is
    not expected back, and who cannot prove to be the server is not asked again.
    """
    code = error.code if isinstance(error, DatabaseError) else None
    if before and not error.retriable and code not in codes.NO_USE_TO_CONNECT:
        error = DatabaseError(str(error), code=code, retriable=True)
    if not isinstance(error, DatabaseError) or error.code not in codes.NOBODY_ANSWERED or not error.retriable:
        return error
    return DatabaseError(
        f"no connection to {where}: check that the server runs there, and the URL ({error})",
        code=error.code,
        retriable=True,
    )


def translate(exc: BaseException, *, committing: bool = False) -> LanelogError:
    """Return the error of lanelog's tree for an error of a driver. An error of the tree is returned as it is.

    `committing`: it answers a COMMIT. Unless the server clearly refused, the outcome is unknown.
    """
    if isinstance(exc, LanelogError):
        return exc
    code = code_of(exc)
    text = _text_of(exc)
    special = _special(exc, code, text)
    if special is not None:
        return special
    if committing:
        unknown = code not in codes.NOT_COMMITTED and not _was_patched(code, text)
        return DatabaseError(
            f"the outcome of COMMIT is unknown: {text}" if unknown else text,
            code=code,
            retriable=unknown or code in codes.RETRIABLE or _was_patched(code, text),
            outcome_unknown=unknown,
        )
    remedy = _grant(text) if code in codes.DENIED else _REMEDIES.get(code or 0)
    return DatabaseError(
        f"{text}: {remedy}" if remedy else text,
        code=code,
        # An error without a number means that the driver is out of step with the server: as bad as a lost connection.
        retriable=code is None or code in codes.RETRIABLE or _was_patched(code, text),
    )


def _special(exc: BaseException, code: int | None, text: str) -> LanelogError | None:
    """Return an error that says more than its number, or None. A repetition helps against none of them."""
    if isinstance(exc, UnicodeEncodeError):
        return ConfigurationError(
            f"the connection's character set cannot carry this text: open it with utf8mb4 ({exc})"
        )
    if code == codes.NO_SUCH_TABLE and (missing := _MISSING.search(text)) and not missing[1].startswith("queue_"):
        return SchemaError(
            f"a trigger on lanelog's tables, as an online rebuild leaves one, names a table that is not there: "
            f"`lanelog doctor` lists the triggers; drop it ({text})"
        )
    if code in codes.NO_SUCH_COLUMN_OR_TABLE:
        return SchemaError(
            f"lanelog's tables are missing or differ: run `client.migrate()` or `lanelog migrate` ({text})"
        )
    if code == codes.OPTION_PREVENTS and _ENGINE_REFUSED in text:
        return ConfigurationError(
            "the server's enforce_storage_engine refuses InnoDB, which lanelog's tables need: set it to InnoDB or to "
            f"nothing, and connect again ({text})"
        )
    if code == codes.PACKET_TOO_LARGE:
        return PayloadTooLarge(f"the server's max_allowed_packet is too small for this: raise it there ({text})")
    cause = getattr(exc, "original_exception", None) or exc
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DatabaseError(f"the server's certificate was refused: check ssl_ca and the host ({text})", code=code)
    return None


def _grant(text: str) -> str:
    """Return the remedy for a refused privilege: the role that has it, and how it is granted."""
    found = _WHAT_WAS_DENIED.search(text)
    privileges = found[1].split(", ") if found else []
    if found and found[2]:
        privileges.append("UPDATE")  # MySQL demands it for FOR UPDATE
    roles = roles_with(privileges, found[3]) if found else []
    if not roles:
        return f"grant the user its role: `lanelog grants --role ROLE` prints how, ROLE is one of {', '.join(ROLES)}"
    others = f" (so have {', '.join(roles[1:])})" if roles[1:] else ""
    return f"the role {roles[0]} has this privilege{others}; `lanelog grants --role {roles[0]}` prints its grants"


def breaks_connection(error: LanelogError) -> bool:
    """Whether the connection with this error must not be used again."""
    return isinstance(error, DatabaseError) and (
        error.code is None
        or error.code in codes.LOST
        or error.code in codes.NO_PRIMARY
        or _was_patched(error.code, str(error))
    )


def breaks_transaction(error: LanelogError) -> bool:
    """Whether the transaction with this error must not be committed."""
    return breaks_connection(error) or (isinstance(error, DatabaseError) and error.code in codes.TRANSACTION_GONE)


def _was_patched(code: int | None, text: str) -> bool:
    """Whether Aurora was patched below the connection. The transaction is gone, and maybe the session's settings."""
    return code == codes.UNKNOWN and codes.ZERO_DOWNTIME_PATCH in text


def _text_of(exc: BaseException) -> str:
    """Return the server's sentence and number. A driver's text holds no secret, unlike the objects around it."""
    code = code_of(exc)
    if len(exc.args) > 1 and code is not None:
        return f"{exc.args[1] or 'the connection was closed'} (error {code})"
    if isinstance(exc, struct.error):
        return f"the answer is none of a MySQL or MariaDB server ({exc})"
    return str(exc) or type(exc).__name__
