"""The driver's connection inside of what an application works with: an ORM's session, a pool's or a tracer's proxy.

Knows the classes of others by name, and imports none of them. Sends no statement of lanelog. SQLAlchemy sends what its
session has pending. Statements bypass a pool's proxy: its `close` gives a connection back, and some reconnect before a
statement, which would lose the transaction. They go through a tracer's proxy, which shows them.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NoReturn

from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

_LAYERS: Final = 10
"""The most wrappers around one connection. More is a circle."""


def driver_connection(connection: Any) -> Any:
    """Return the DB-API connection inside `connection`, after an ORM's session has flushed.

    Args:
        connection: A connection of PyMySQL, mysqlclient or another DB-API driver with `%s` parameters; a `Connection`
            or `Session` of SQLAlchemy; Django's `connection` inside `atomic()`; or one of these behind a pool or a
            tracer (DBUtils, SQLAlchemy's pool, wrapt).

    Raises:
        ConfigurationError: It is no connection, or it has none to give.
        DatabaseError: A failed transaction of SQLAlchemy must be rolled back first.
    """
    traced, outer = None, connection
    for _ in range(_LAYERS):
        unwrap = _unwrap_of(outer)
        if unwrap is not None:
            traced, outer = None, _unwrapped(outer, unwrap)
            continue
        inner = getattr(outer, "__wrapped__", None)
        if inner is None:
            _check(outer)
            return outer if traced is None else traced
        traced = outer if traced is None else traced  # a tracer's proxy shows our statements in the caller's trace
        outer = inner
    raise ConfigurationError(f"connection= has more than {_LAYERS} wrappers around it: pass the driver's connection")


def innermost(connection: Any) -> Any:
    """Return the driver's connection inside of tracers' proxies."""
    for _ in range(_LAYERS):
        connection = getattr(connection, "__wrapped__", connection)
    return connection


def _unwrap_of(outer: object) -> Callable[[Any], Any] | None:
    known = ((cls.__module__.partition(".")[0], cls.__name__) for cls in type(outer).__mro__)
    return next((_KNOWN[each] for each in known if each in _KNOWN), None)


def _unwrapped(outer: Any, unwrap: Callable[[Any], Any]) -> Any:
    try:
        return unwrap(outer)
    except Exception as exc:
        of_sqlalchemy = {f"{cls.__module__}.{cls.__name__}" for cls in type(exc).__mro__}
        if "sqlalchemy.exc.PendingRollbackError" in of_sqlalchemy:
            raise DatabaseError(f"{_named(outer)} must be rolled back first: {exc}", retriable=True) from exc
        if "sqlalchemy.exc.InvalidRequestError" in of_sqlalchemy:
            raise ConfigurationError(f"{_named(outer)} has no connection to give: {exc}") from exc
        raise  # the session's own flush has failed


def _check(connection: object) -> None:
    if not callable(getattr(connection, "cursor", None)):
        raise ConfigurationError(
            "connection must be an open DB-API connection to MySQL or MariaDB, with a method cursor(), a Connection or "
            f"Session of SQLAlchemy, or Django's connection, not {_named(connection)}"
        )
    if iscoroutinefunction(getattr(connection, "commit", None)):
        raise _asynchronous(connection)


def _of_session(session: Any) -> Any:
    if not getattr(session, "_flushing", False):  # a hook of the flush may publish
        session.flush()  # its own statements come before the lane is locked
    return session.connection()


def _of_connection(connection: Any) -> Any:
    """SQLAlchemy begins at the first statement. Without that, its commit would send nothing."""
    if not connection.in_transaction():
        connection.begin()
    return connection.connection


def _of_django(connection: Any) -> Any:
    if connection.vendor != "mysql":
        raise ConfigurationError(
            f"Django's connection {connection.alias!r} is one to {connection.vendor}, not to MySQL"
        )
    connection.ensure_connection()
    if connection.get_autocommit():
        raise ConfigurationError(
            f"Django's connection {connection.alias!r} has autocommit on and no transaction open, so that nothing "
            "would hold the message and your own writes together: publish inside `with transaction.atomic():`"
        )
    connection.validate_no_broken_transaction()
    return connection.connection


def _of_steady(connection: Any) -> Any:
    """DBUtils connects anew between two statements, unless it knows that a transaction is open."""
    if not getattr(connection, "_transaction", True):
        raise ConfigurationError(
            "DBUtils may connect anew after the publish, and lose the message: call connection.begin() before your "
            "own statements"
        )
    return connection.dbapi_connection


def _asynchronous(connection: object) -> ConfigurationError:
    return ConfigurationError(
        f"connection must be one of a synchronous driver, as PyMySQL or mysqlclient, not {_named(connection)}"
    )


def _refuse_asynchronous(connection: object) -> NoReturn:
    raise _asynchronous(connection)


def _refuse(remedy: str) -> Callable[[object], NoReturn]:
    def refuse(outer: object) -> NoReturn:
        raise ConfigurationError(f"connection= has no transaction in {_named(outer)}: {remedy}")

    return refuse


def _attribute(name: str) -> Callable[[Any], Any]:
    def read(outer: Any) -> Any:
        inner = getattr(outer, name)
        if inner is None:
            raise ConfigurationError(f"{_named(outer)} is closed: it has no connection any more")
        return inner

    return read


_KNOWN: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("sqlalchemy", "Session"): _of_session,
    ("sqlalchemy", "scoped_session"): _of_session,
    ("sqlalchemy", "Connection"): _of_connection,
    ("sqlalchemy", "PoolProxiedConnection"): _attribute("dbapi_connection"),
    ("sqlalchemy", "Engine"): _refuse("begin one, `with engine.begin() as connection`, and pass that"),
    ("sqlalchemy", "sessionmaker"): _refuse("open a session, `with Session.begin() as session`, and pass that"),
    ("sqlalchemy", "AsyncSession"): _refuse_asynchronous,
    ("sqlalchemy", "async_scoped_session"): _refuse_asynchronous,
    ("sqlalchemy", "AsyncConnection"): _refuse_asynchronous,
    ("sqlalchemy", "AsyncEngine"): _refuse_asynchronous,
    ("django", "ConnectionProxy"): _of_django,
    ("django", "BaseDatabaseWrapper"): _of_django,
    ("dbutils", "PooledDedicatedDBConnection"): _attribute("_con"),
    ("dbutils", "PooledSharedDBConnection"): _attribute("_con"),
    ("dbutils", "SteadyDBConnection"): _of_steady,
}
"""How to go one layer further inside, by the top-level package and the name of a class or of one of its bases."""


def _named(outer: object) -> str:
    package, name = type(outer).__module__.partition(".")[0], type(outer).__name__
    return name if package == "builtins" else f"{package}'s {name}"
