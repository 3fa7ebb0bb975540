"""Opens connections: PyMySQL's, or mysqlclient's if asked for, prepared so that they behave alike on every server.

It never pools, retries or interprets a statement, and shows the password to nobody: not in an error, a repr or the
locals of a traceback. `wire` calls it; nothing else of lanelog imports a driver.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import pymysql
from attrs import define, field, frozen
from pymysql.constants import CLIENT

from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SQL_MODE: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
LOCK_WAIT_SECONDS: Final = 5
"""Seconds a statement waits for a row lock; below any read time-out, or the server would go on working for nobody."""
SILENCE_SECONDS: Final = 15
"""Seconds after which the server drops a silent session: a stopped process must not hold its locks for hours."""
LATEST: Final = 2.0 * SILENCE_SECONDS
"""Seconds after which the server runs no statement any more that was sent before and lost: it drops a session that is
silent, by its own steady clock, before the first byte and between the others. A server that stands still runs what it
has received when it goes on, as it runs what everybody else sends then."""

_CHARSET: Final = "utf8mb4"
_COLLATION: Final = "utf8mb4_bin"
# READ COMMITTED takes no gap locks, which would make neighbouring lanes wait for each other.
_TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
_UNLIMITED: Final = 2**64 - 1
# A global setting must not change what a statement means. Each of these has been seen to, or is documented to: a limit
# of two rows hid a consumer group from collection, which then deleted what the group had not read.
_MEANING: Final = {
    "sql_select_limit": _UNLIMITED,
    "max_join_size": _UNLIMITED,
    "sql_big_selects": 1,  # behind max_join_size, which sets it
    "sql_safe_updates": 0,
    "sql_auto_is_null": 0,
    "unique_checks": 1,
    "foreign_key_checks": 1,
    "completion_type": 0,  # COMMIT begins no new transaction and ends no connection
    "max_sort_length": 4096,  # more bytes than a name has: names are sorted whole
}
_SETTINGS = (
    f"sql_mode = '{SQL_MODE}', innodb_lock_wait_timeout = {{lock_wait}}, wait_timeout = {SILENCE_SECONDS}, "
    f"net_read_timeout = {SILENCE_SECONDS}, "
    f"{', '.join(f'{name} = {value}' for name, value in _MEANING.items())}"
)
_SESSION = f"SET SESSION {_SETTINGS}, autocommit = {{autocommit}}"
# For our last statements on a connection that user code had, whatever it has set in the transaction. (A timestamp of
# its own stays until then: hardened servers refuse every SET of it.)
_OURS_AGAIN = f"SET SESSION {_SETTINGS}, NAMES {_CHARSET} COLLATE {_COLLATION}"
# Everything that a new connection is told, in one statement, which is refused in any other database than the
# connection's: there is no autocommit 2.
_AS_NEW = (
    f"SET SESSION {_SETTINGS}, {{access}}_isolation = 'READ-COMMITTED', {{access}}_read_only = 0, "
    f"NAMES {_CHARSET} COLLATE {_COLLATION}, autocommit = IF(HEX(DATABASE()) = '{{database}}', {{autocommit}}, 2)"
)
# What a connection needs to know about its server.
_FACTS = "SELECT VERSION(), @@max_allowed_packet, CONNECTION_ID(), DATABASE()"
# Whether the connection is encrypted.
_CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"

# PyMySQL has no name for it: the server forgets what a session has set, locked and made, but not its database.
_COM_RESET_CONNECTION: Final = 0x1F
# What user code may change in a driver's connection, as far as it changes how our statements are sent and answered.
_ATTRIBUTES: Final = (
    "charset",
    "collation",
    "converter",
    "cursorclass",
    "decoders",
    "encoders",
    "encoding",
    "_read_timeout",
    "_write_timeout",
)

_OLDEST_MARIADB = (10, 6)
_OLDEST_MYSQL = (8, 0)
_RENAMED_IN_MARIADB = (11, 1, 1)
"""Since when tx_isolation is called transaction_isolation there, too."""


@frozen(kw_only=True)
class ServerFacts:
    """The server at the other end of a connection."""

    version: tuple[int, ...]
    mariadb: bool
    max_allowed_packet: int
    """Bytes of the longest statement it accepts."""
    connection_id: int
    """Names the connection to KILL and in the process list."""
    database: str
    """The database, as the server writes it."""

    @property
    def family(self) -> str:
        """`mariadb` or `mysql`."""
        return "mariadb" if self.mariadb else "mysql"

    @classmethod
    def from_row(cls, row: tuple[str, int, int, str]) -> ServerFacts:
        """Read the answer to the question every connection asks first."""
        text, packet, connection_id, database = row
        return cls(
            version=tuple(int(part) for part in re.findall(r"\d+", text)[:3]),
            mariadb="mariadb" in text.lower(),
            max_allowed_packet=int(packet),
            connection_id=int(connection_id),
            database=database,
        )

    def check(self) -> None:
        """Raise ConfigurationError for a server that lacks what lanelog needs, SKIP LOCKED above all."""
        oldest = _OLDEST_MARIADB if self.mariadb else _OLDEST_MYSQL
        if self.version < oldest:
            name = "MariaDB" if self.mariadb else "MySQL"
            raise ConfigurationError(
                f"{name} {'.'.join(map(str, self.version))} is too old: lanelog needs {name} "
                f"{'.'.join(map(str, oldest))} or newer"
            )


@frozen
class OwnState:
    """What a connection is on this side of the network: its session's number, and the attributes that user code sees.

    `number` is what the server called the session when it began: another one means that user code has reconnected.
    """

    number: int
    attributes: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, raw: Any) -> OwnState:
        """Take it from a connection."""
        present = (name for name in _ATTRIBUTES if hasattr(raw, name))
        return cls(raw.thread_id(), {name: copy(getattr(raw, name)) for name in present})

    @property
    def cursorclass(self) -> Any:
        """What our own statements are run with."""
        return self.attributes["cursorclass"]


class _SecretText(str):
    """A password on its way to mysqlclient, which does not show itself where local variables are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"

    # Whoever shortens what it shows cuts first and asks for the text then.
    def __getitem__(self, key: SupportsIndex | slice, /) -> _SecretText:
        return _SecretText(super().__getitem__(key))


class _Secret(bytes):
    """The same for PyMySQL, which would encode text as latin1."""

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __getitem__(self, key: Any, /) -> Any:
        found = super().__getitem__(key)
        return _Secret(found) if isinstance(found, bytes) else found

    # The driver appends the terminating zero, and puts the header of a packet before it: still a secret.
    def __add__(self, other: Buffer, /) -> _Secret:
        return _Secret(bytes(self).__add__(other))

    def __radd__(self, other: bytes, /) -> _Secret:
        return _Secret(other.__add__(bytes(self)))


@define(eq=False)
class Driver:
    """Opens the connections of one configuration; usable by any thread."""

    config: ConnectConfig
    lock_wait: int = LOCK_WAIT_SECONDS
    greeted: bool = field(default=False, init=False)
    """Whether a server has ever answered; if not, the settings are likelier to be wrong than the server down."""
    tried: bool = field(default=False, init=False)
    """Whether a connection was ever wanted."""
    _tls: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    def open(self, *, autocommit: bool) -> tuple[Any, ServerFacts]:
        """Return a new connection, ready to use, and what its server is.

        Raises the driver's errors, and ConfigurationError for what no other attempt can mend.
        """
        self.tried = True
        raw = self._open_mysqlclient() if self.config.driver == "mysqlclient" else self._open_pymysql()
        self.greeted = True
        try:
            cursor = raw.cursor()
            cursor.execute(_SESSION.format(lock_wait=self.lock_wait, autocommit=int(autocommit)))
            cursor.execute(_FACTS)
            facts = ServerFacts.from_row(cursor.fetchone())
            facts.check()
            if self.config.tls:
                _check_encryption(cursor)
        except BaseException:
            raw.close()
            raise
        return raw, facts

    def reclaim(self, raw: Any, state: OwnState) -> None:
        """Make a connection mean what it meant when it was new, in the transaction that user code has begun there.

        One round trip, and one more if the driver's character set was changed.
        """
        if raw.encoding != state.attributes["encoding"]:
            raw.set_character_set(_CHARSET, _COLLATION)
        for name, value in state.attributes.items():
            setattr(raw, name, copy(value))
        raw.cursor().execute(_OURS_AGAIN.format(lock_wait=self.lock_wait))

    def restore(self, raw: Any, facts: ServerFacts, state: OwnState, *, autocommit: bool) -> None:
        """Make a connection as new after user code had it: two commands, outside of a transaction.

        The first ends what only the server can end: temporary tables, user locks, table locks, prepared statements,
        variables. (mysqlclient has no reset. It logs in anew on the connection, as the server then asks, in two.) The
        last says what every new connection is told. Raises what the driver raises, and
        ConfigurationError if the connection cannot become what it was.
        """
        if OwnState.of(raw) != state:
            raise ConfigurationError("the settings of the driver's connection were changed")
        if self.config.driver == "pymysql":
            raw._execute_command(_COM_RESET_CONNECTION, b"")  # noqa: SLF001 - there is no public way
            raw._read_ok_packet()  # noqa: SLF001 - as above
        else:
            raw.change_user(self.config.user, _SecretText(self.config.password), self.config.database)
        raw.cursor().execute(
            _AS_NEW.format(
                lock_wait=self.lock_wait,
                access="tx" if facts.mariadb and facts.version < _RENAMED_IN_MARIADB else "transaction",
                database=facts.database.encode().hex().upper(),
                autocommit=int(autocommit),
            )
        )

    def _open_pymysql(self) -> Any:
        config = self.config
        # Newer drivers encrypt without being asked, and then verify nothing: that costs much and protects little.
        tls: dict[str, Any] = {"ssl": self._context()} if config.tls else {"ssl_disabled": True}
        raw = pymysql.connect(
            host=config.host,
            port=config.port,
            user=config.user or None,
            password=_Secret(config.password.encode()),
            database=config.database,
            unix_socket=config.unix_socket,
            connect_timeout=config.connect_timeout,
            read_timeout=config.read_timeout,
            write_timeout=config.read_timeout,
            charset=_CHARSET,
            collation=_COLLATION,
            client_flag=CLIENT.FOUND_ROWS,
            init_command=_TRANSACTIONS,
            autocommit=None,
            program_name="lanelog",
            defer_connect=True,
            **tls,
        )
        try:
            raw.connect()
        except RuntimeError as exc:
            # The package that MySQL's default way of logging in needs is missing.
            raise ConfigurationError(f"cannot log in: {exc}") from exc
        except BaseException:
            # A connection that is killed while it logs in has met a server all the same.
            self.greeted = self.greeted or getattr(raw, "server_version", None) is not None
            raise
        return raw

    def _open_mysqlclient(self) -> Any:
        try:
            module: Any = import_module("MySQLdb")
        except ImportError as exc:
            raise ConfigurationError(
                f"driver='mysqlclient' needs the package mysqlclient (pip install 'lanelog[mysqlclient]'): {exc}"
            ) from exc
        config = self.config
        options: dict[str, Any] = {}
        if config.unix_socket:
            options["unix_socket"] = config.unix_socket
        if config.tls:
            files = {"ca": config.ssl_ca, "cert": config.ssl_cert, "key": config.ssl_key}
            options["ssl"] = {name: path for name, path in files.items() if path}
            options["ssl_mode"] = "VERIFY_IDENTITY" if config.ssl_verify else "REQUIRED"
        if config.user:
            options["user"] = config.user
        return module.connect(
            host="localhost" if config.unix_socket else config.host,
            port=config.port,
            password=_SecretText(config.password),
            database=config.database,
            connect_timeout=max(1, round(config.connect_timeout)),
            read_timeout=max(1, round(config.read_timeout)),
            write_timeout=max(1, round(config.read_timeout)),
            charset=_CHARSET,
            collation=_COLLATION,
            client_flag=CLIENT.FOUND_ROWS,
            multi_statements=False,
            init_command=_TRANSACTIONS,
            autocommit=None,
            **options,
        )

    def _context(self) -> ssl.SSLContext:
        """One context for all connections: reading the system's authorities takes 20 ms."""
        if self._tls is None:
            config = self.config
            try:
                context = ssl.create_default_context(cafile=config.ssl_ca)
                # The certificates that MySQL makes for itself lack what Python >= 3.13 wants to see.
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
                if not config.ssl_verify:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                elif config.unix_socket:
                    context.check_hostname = False  # a socket has no name to check
                if config.ssl_cert:
                    context.load_cert_chain(config.ssl_cert, config.ssl_key)
            except (OSError, ValueError) as exc:
                raise ConfigurationError(f"ssl_ca, ssl_cert or ssl_key cannot be used: {exc}") from exc
            self._tls = context
        return self._tls


def _check_encryption(cursor: Any) -> None:
    """Refuse to go on in the clear, as mysqlclient does where it is built with MariaDB's library."""
    cursor.execute(_CIPHER)
    if not cursor.fetchone()[1]:
        raise ConfigurationError("the URL asks for TLS, and the server does not offer it")


def silence(raw: Any) -> object:
    """Cut an inherited connection off from its server, in a forked child: whatever it still sends goes nowhere.

    Closing the file descriptor in the child alone says nothing to the server; the driver's own close would. Returns an
    object that must not be collected before the process ends, because another thread may have been reading from it.
    """
    if not isinstance(raw, pymysql.connections.Connection):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, raw.fileno())
        os.close(nowhere)
        return raw
    state = vars(raw)
    socket, stream = state.pop("_sock", None), state.pop("_rfile", None)
    if socket is not None:
        with suppress(OSError):
            os.close(socket.detach())
    return stream


def fastest() -> Literal["pymysql", "mysqlclient"]:
    """Return the name of the fastest driver that is installed here."""
    return "mysqlclient" if find_spec("MySQLdb") else "pymysql"
