"""The common part of all development servers, and the name of their database.

Never decides which server runs, and holds no process of its own.
"""

import re
import socket
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

from attrs import define, field

from lanelog.errors import ConfigurationError

DATABASE = "lanelog"
HEADER_BYTES = 5  # packet length, packet number, protocol version
PROTOCOL = 10
LOCK_SECONDS = 10  # a test that left a transaction open fails its clean-up instead of holding it up for a day
ANY_DATABASE = "information_schema"  # every account may use it, and it always exists


class ServerUnavailable(ConfigurationError):
    """No database server could be started. The message says what was tried and what would help."""


@define(eq=False, kw_only=True)
class DevServer(ABC):
    """A running database server for development and tests.

    `url` is an existing database, with every privilege. `kill` and `restart` are for tests of crashes.
    """

    url: str = field(repr=False)
    version: str
    family: str
    own: ClassVar[bool] = True
    """Whether the server was started here: then its data is deleted when it is stopped."""

    @abstractmethod
    def kill(self) -> None:
        """End the server as a crash would."""

    @abstractmethod
    def restart(self) -> None:
        """Start the server again, with the same data and address. A running server is stopped first."""

    @abstractmethod
    def stop(self) -> None:
        """End the use of the server. Idempotent."""

    def root_url(self, database: str) -> str:
        """Return the URL of another database of this server, with the same account."""
        return urlunsplit(urlsplit(self.url)._replace(path="/" + check_database(database)))

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        url = self.root_url(name)
        self._execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        return url

    def drop_database(self, name: str) -> None:
        """Drop a database, if it exists."""
        self._execute(f"DROP DATABASE IF EXISTS `{check_database(name)}`")

    def _execute(self, sql: str) -> None:
        from lanelog._database import Database
        from lanelog.config import ConnectConfig

        database = Database(ConnectConfig.from_url(self.root_url(ANY_DATABASE)))
        try:
            with database.autocommit() as cx:
                cx.execute(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
                cx.execute(sql)
        finally:
            database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def check_database(name: str) -> str:
    """Return the name of a database, if it is plain: it is put into SQL text and URLs."""
    if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name):
        raise ConfigurationError(f"a database name has 1 to 64 letters, digits or underscores, not {name!r}")
    return name


def greeting(connection: socket.socket) -> tuple[str, str]:
    """Read the first packet of a server that is ready.

    Return its family and version. Raises OSError if it is not ready.
    """
    data = connection.recv(256)
    if len(data) <= HEADER_BYTES or data[HEADER_BYTES - 1] != PROTOCOL:
        raise ConnectionError("the server is not ready")
    return family_and_version(data[HEADER_BYTES:].split(b"\0")[0].decode("ascii", "replace"))


def family_and_version(text: str) -> tuple[str, str]:
    """Parse `5.5.5-10.11.19-MariaDB-…` as MariaDB 10.11.19 (the prefix is for old replicas), `9.7.4` as MySQL."""
    numbers = re.search(r"\d+\.\d+\.\d+", text.removeprefix("5.5.5-"))
    return "mariadb" if "MariaDB" in text else "mysql", numbers[0] if numbers else text
