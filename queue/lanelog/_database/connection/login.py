"""Logs in at one address, by PyMySQL or mysqlclient.

Sets nothing of a session but its isolation, which the driver sends itself. Never shows the password: not in an error, a
repr or the locals of a traceback.
"""

from __future__ import annotations

import ssl
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

from attrs import define, field
from pymysql.constants import CLIENT

from lanelog._database.connection.rows import Connection
from lanelog._database.time_left import at_most
from lanelog._process.extras import install
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHARSET: Final = "utf8mb4"
COLLATION: Final = "utf8mb4_bin"

# Without READ COMMITTED, gap locks would make neighbouring lanes wait for each other.
_TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"


class SecretText(str):
    """A password for mysqlclient, hidden where local variables are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"

    # A tool that shortens what it shows cuts first and then takes the repr.
    def __getitem__(self, key: SupportsIndex | slice, /) -> SecretText:
        return SecretText(super().__getitem__(key))


class Secret(bytes):
    """The same for PyMySQL, which would encode text as latin1."""

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __getitem__(self, key: Any, /) -> Any:
        found = super().__getitem__(key)
        return Secret(found) if isinstance(found, bytes) else found

    # The driver appends a zero and prepends the header of a packet. The result must stay a secret.
    def __add__(self, other: Buffer, /) -> Secret:
        return Secret(bytes(self).__add__(other))

    def __radd__(self, other: bytes, /) -> Secret:
        return Secret(other.__add__(bytes(self)))


@define(eq=False)
class Login:
    """Opens connections of one configuration, which has one address. Thread-safe."""

    config: ConnectConfig
    greeted: bool = field(default=False, init=False)
    """Whether a server has ever answered. If not, wrong settings are likelier than a server that is down."""
    _tls: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    def open(self) -> Any:
        """Return a new connection of the driver. Raises the driver's errors, and ConfigurationError."""
        raw = self._open_mysqlclient() if self.config.driver == "mysqlclient" else self._open_pymysql()
        self.greeted = True
        return raw

    def _open_pymysql(self) -> Any:
        config = self.config
        # By default newer drivers encrypt and verify nothing, which costs much and protects little.
        tls: dict[str, Any] = {"ssl": self._context()} if config.tls else {"ssl_disabled": True}
        raw = Connection(
            host=config.host,
            port=config.port,
            user=config.user or None,
            password=Secret(config.login_password().encode()),
            database=config.database,
            unix_socket=config.unix_socket,
            connect_timeout=at_most(config.connect_timeout),
            read_timeout=at_most(config.read_timeout),
            write_timeout=config.read_timeout,
            charset=CHARSET,
            collation=COLLATION,
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
            password=SecretText(config.login_password()),
            database=config.database,
            connect_timeout=max(1, round(at_most(config.connect_timeout))),
            read_timeout=max(1, round(config.read_timeout)),
            write_timeout=max(1, round(config.read_timeout)),
            charset=CHARSET,
            collation=COLLATION,
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


def fastest() -> Literal["pymysql", "mysqlclient"]:
    """Return the name of the fastest installed driver."""
    return "mysqlclient" if find_spec("MySQLdb") else "pymysql"
