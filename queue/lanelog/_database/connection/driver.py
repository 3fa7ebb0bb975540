"""Opens connections with PyMySQL or mysqlclient, and prepares them to behave alike on every server.

Never pools, retries or interprets a statement. Never shows the password: not in an error, a repr or the locals of a
traceback. No other room imports a driver, except for the error numbers in `pymysql.constants`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

from attrs import define, evolve, field, frozen
from pymysql.constants import CLIENT

from lanelog._database.connection import session_settings
from lanelog._database.connection.awaited import AwaitedPackets
from lanelog._database.connection.incarnation import Incarnation
from lanelog._database.connection.rows import Connection
from lanelog._database.connection.server_facts import ServerFacts, refuse_imitation
from lanelog._database.time_left import at_most
from lanelog._process.extras import install
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SQL_MODE: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
LOCK_WAIT_SECONDS: Final = 5
"""Seconds that a statement waits for a row lock. Shorter than a read time-out: after that the server would go on."""
SILENCE_SECONDS: Final = 15
"""Seconds after which the server drops a silent session. Otherwise a stopped process would hold its locks for hours."""
LATEST: Final = 2.0 * SILENCE_SECONDS
"""Seconds after which the server begins no statement that was sent on a connection since lost. It drops a session that
is silent, by its own steady clock, before the first byte and between the others. A server that was stopped runs the
statements that it had received, when it goes on."""

_CHARSET: Final = "utf8mb4"
_COLLATION: Final = "utf8mb4_bin"
# Without READ COMMITTED, gap locks would make neighbouring lanes wait for each other.
_TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
_UNLIMITED: Final = 2**64 - 1
# Global settings must not change what a statement means, and each of these can. Under a limit of two rows, for example,
# collection does not see the third group, and deletes messages that it has not read.
_MEANING: Final = {
    "sql_select_limit": _UNLIMITED,
    "max_join_size": _UNLIMITED,
    "sql_big_selects": 1,  # after max_join_size, which sets it
    "sql_safe_updates": 0,
    "sql_auto_is_null": 0,
    "unique_checks": 1,
    "foreign_key_checks": 1,
    "completion_type": 0,  # COMMIT begins no new transaction and ends no connection
    "max_sort_length": 4096,  # more bytes than any name has, so names are sorted whole
    "group_concat_max_len": 1 << 20,  # more bytes than any name has; MySQL's default is 1,024
}
_SETTINGS = (
    f"sql_mode = '{SQL_MODE}', innodb_lock_wait_timeout = {{lock_wait}}, wait_timeout = {SILENCE_SECONDS}, "
    f"net_read_timeout = {SILENCE_SECONDS}, "
    f"{', '.join(f'{name} = {value}' for name, value in _MEANING.items())}"
)
_SESSION = f"SET SESSION {_SETTINGS}, autocommit = {{autocommit}}"
# Before our last statements in a transaction that user code had, to undo its settings. (Not `timestamp`: hardened
# servers refuse every SET of it.)
# Autocommit is off already, unless user code has ended the transaction. Then ours are in another one, which is never
# committed.
_OURS_AGAIN = f"SET SESSION {_SETTINGS}, autocommit = 0, NAMES {_CHARSET} COLLATE {_COLLATION}"
# All settings of a new connection in one statement. In another database than the connection's the server refuses it:
# there is no autocommit 2.
_AS_NEW = (
    f"SET SESSION {_SETTINGS}, {{access}}_isolation = 'READ-COMMITTED', {{access}}_read_only = 0, "
    f"NAMES {_CHARSET} COLLATE {_COLLATION}, autocommit = IF(HEX(DATABASE()) = '{{database}}', {{autocommit}}, 2)"
)
# The facts about the server, and what it shows of the settings.
_FACTS = (
    "SELECT VERSION(), @@version_comment, @@max_allowed_packet, CONNECTION_ID(), DATABASE(), "
    f"{Incarnation.identity_in_sql(mariadb=None)}, {{settings}}"
)
# What a server that refused one of these says of itself.
_NAMED = "SELECT @@version_comment"
# Whether the connection is encrypted.
_CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"

_RENAMED_IN_MARIADB = (11, 1, 1)
"""Since this version of MariaDB, too, tx_isolation is called transaction_isolation."""

# PyMySQL has no name for this command: the server resets all that a session has set, locked and made, but its database.
_COM_RESET_CONNECTION: Final = 0x1F
# Attributes of a driver's connection that user code may change, and that change how statements are sent and answered.
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


@frozen
class OwnState:
    """The state of a connection in the driver: its session's number, and the attributes that user code may change.

    `number` is the session's number at the server. Another one means that user code has reconnected.
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
        """The class of the cursors for our own statements."""
        return self.attributes["cursorclass"]


class _SecretText(str):
    """A password for mysqlclient, hidden where local variables are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"

    # A tool that shortens what it shows cuts first and then takes the repr.
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

    # The driver appends a zero and prepends the header of a packet. The result must stay a secret.
    def __add__(self, other: Buffer, /) -> _Secret:
        return _Secret(bytes(self).__add__(other))

    def __radd__(self, other: bytes, /) -> _Secret:
        return _Secret(other.__add__(bytes(self)))


@define(eq=False)
class Driver:
    """Opens the connections of one configuration. Thread-safe."""

    config: ConnectConfig
    lock_wait: int = LOCK_WAIT_SECONDS
    greeted: bool = field(default=False, init=False)
    """Whether a server has ever answered. If not, wrong settings are likelier than a server that is down."""
    opened: bool = field(default=False, init=False)
    """Whether a connection was ever ready to use: these settings are right, or were."""
    tried: bool = field(default=False, init=False)
    """Whether a connection was ever tried."""
    awaited: AwaitedPackets = field(factory=AwaitedPackets, init=False, repr=False)
    """The packets whose answers its connections await."""
    _tls: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    def open(self, *, autocommit: bool) -> tuple[Any, ServerFacts]:
        """Return a new connection, ready to use, and the facts about its server.

        Raises the driver's errors, and ConfigurationError if no other attempt can succeed.
        """
        self.tried = True
        raw = self._open_mysqlclient() if self.config.driver == "mysqlclient" else self._open_pymysql()
        self.greeted = True
        try:
            cursor = raw.cursor()
            facts = self._greet(raw, cursor, autocommit=autocommit)
            if self.config.tls:
                _check_encryption(cursor)
            self.limit(raw, self.config.read_timeout)
        except BaseException:
            raw.close()
            raise
        self.opened = True
        return raw, facts

    def _greet(self, raw: Any, cursor: Any, *, autocommit: bool) -> ServerFacts:
        """Set the session, and read back in one round trip what the server is and what it has taken."""
        wanted: dict[str, object] = {
            session_settings.ISOLATION: "READ-COMMITTED",
            "sql_mode": SQL_MODE,
            "innodb_lock_wait_timeout": self.lock_wait,
            "autocommit": int(autocommit),
            **_MEANING,
            "wait_timeout": SILENCE_SECONDS,
            "net_read_timeout": SILENCE_SECONDS,
        }
        try:
            cursor.execute(_SESSION.format(lock_wait=self.lock_wait, autocommit=int(autocommit)))
            cursor.execute(_FACTS.format(settings=session_settings.column(wanted)))
        except Exception:
            # A server of another make may not know all of them.
            comment = None
            with suppress(Exception):
                cursor.execute(_NAMED)
                comment = cursor.fetchone()
            refuse_imitation(raw.get_server_info(), comment)
            raise
        version, comment, *row, settings = cursor.fetchone()
        refuse_imitation(version, comment)
        facts = ServerFacts.from_row((version, *row))
        facts.check()
        ignored = session_settings.not_taken(wanted, settings)
        if ignored.keys() - session_settings.SILENCE:
            raise ConfigurationError(
                session_settings.refusal(wanted, ignored, consequence="its statements would mean something else")
            )
        if not ignored:
            return facts
        consequence = "a process that stops would hold its locks for hours: publishing and handling are refused"
        return evolve(facts, locks_refused=session_settings.refusal(wanted, ignored, consequence=consequence))

    @staticmethod
    def limit(raw: Any, seconds: float) -> None:
        """Let the next answers take so long, if the driver can change that. mysqlclient cannot."""
        if hasattr(raw, "_read_timeout"):
            raw._read_timeout = seconds  # noqa: SLF001 - there is no public way

    @staticmethod
    def ping(raw: Any) -> None:
        """Ask the server for a sign of life. Raises the driver's errors."""
        # Older PyMySQL reconnects in ping unless an argument forbids it. mysqlclient's ping takes no argument.
        raw.ping(False) if hasattr(raw, "_sock") else raw.ping()  # noqa: FBT003

    def reclaim(self, raw: Any, state: OwnState) -> None:
        """Undo what user code has set on a connection, inside its transaction.

        One round trip, and one more if the driver's character set was changed.
        """
        if raw.encoding != state.attributes["encoding"]:
            raw.set_character_set(_CHARSET, _COLLATION)
        for name, value in state.attributes.items():
            setattr(raw, name, copy(value))
        raw.cursor().execute(_OURS_AGAIN.format(lock_wait=self.lock_wait))

    @staticmethod
    def commands(raw: Any) -> int | None:
        """How many commands were sent on a connection. None: mysqlclient does not count them."""
        return getattr(raw, "commands", None)

    def restore(self, raw: Any, facts: ServerFacts, state: OwnState, *, autocommit: bool, unused: bool) -> None:
        """Make a connection as new after user code had it, outside of a transaction. `unused`: it sent nothing.

        A reset ends temporary tables, user locks, table locks, prepared statements and variables. mysqlclient has no
        reset, so it logs in anew on the same connection. The last statement has all settings of a new connection.
        Raises the driver's errors, and ConfigurationError if user code has changed the connection itself.
        """
        if OwnState.of(raw) != state:
            raise ConfigurationError("the settings of the driver's connection were changed")
        if unused:
            return
        if self.config.driver == "pymysql":
            raw.command(_COM_RESET_CONNECTION, b"")
        else:
            raw.change_user(self.config.user, _SecretText(self.config.login_password()), self.config.database)
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
        # By default newer drivers encrypt and verify nothing, which costs much and protects little.
        tls: dict[str, Any] = {"ssl": self._context()} if config.tls else {"ssl_disabled": True}
        raw = Connection(
            host=config.host,
            port=config.port,
            user=config.user or None,
            password=_Secret(config.login_password().encode()),
            database=config.database,
            unix_socket=config.unix_socket,
            connect_timeout=at_most(config.connect_timeout),
            read_timeout=at_most(config.read_timeout),
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
            # The package for MySQL's default authentication is missing.
            raise ConfigurationError(f"cannot log in: {exc}") from exc
        except BaseException:
            # A connection that was killed during the login has met a server, too.
            self.greeted = self.greeted or getattr(raw, "server_version", None) is not None
            raise
        return raw

    def _open_mysqlclient(self) -> Any:
        try:
            import_module("MySQLdb")
            module: Any = import_module("MySQLdb.connections")
        except ImportError as exc:
            raise ConfigurationError(
                f"driver='mysqlclient' needs the package mysqlclient ({install('mysqlclient')}): {exc}"
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
        # Not MySQLdb.connect, which instrumentors replace: see `instrumentation`.
        return module.Connection(
            host="localhost" if config.unix_socket else _over_tcp(config.host),
            port=config.port,
            password=_SecretText(config.login_password()),
            database=config.database,
            connect_timeout=max(1, round(at_most(config.connect_timeout))),
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
                # The certificates that MySQL makes for itself fail the strict check, the default since Python 3.13.
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


def _over_tcp(host: str) -> str:
    """Return a name of the host that MySQL's client libraries take for one.

    For `localhost`, and for no other spelling, they use the unix socket of their own settings and ignore the port.
    Another server may listen there. In capitals it is the same name, for certificates, too.
    """
    return "LOCALHOST" if host == "localhost" else host


def _check_encryption(cursor: Any) -> None:
    """Refuse a connection without encryption: mysqlclient accepts one if it was built with MariaDB's library."""
    cursor.execute(_CIPHER)
    if not cursor.fetchone()[1]:
        raise ConfigurationError("the URL asks for TLS, and the server does not offer it")


def fastest() -> Literal["pymysql", "mysqlclient"]:
    """Return the name of the fastest installed driver."""
    return "mysqlclient" if find_spec("MySQLdb") else "pymysql"
