"""The choice of the server: the one that a kind names, or the first that can be started.

Owns that order, and the advice if there is none. Never starts a program itself.
"""

import os

from lanelog.devserver._container import ContainerServer
from lanelog.devserver._given import GivenServer
from lanelog.devserver._local import LocalServer
from lanelog.devserver._programs import find_local, find_mysql
from lanelog.devserver._server import DevServer, ServerUnavailable
from lanelog.errors import ConfigurationError

TEST_URL_VARIABLE = "LANELOG_TEST_URL"
DEFAULT_IMAGE = "mysql:8.4"
THREE_WAYS = """no database server could be started. There are three ways to give one:
  1. set LANELOG_TEST_URL=mysql://user:password@host:3306/database
  2. install a server program; on Debian and Ubuntu: apt-get install mariadb-server-core mariadb-client-core
  3. start Docker, with the package testcontainers
What was tried:"""


def start(kind: str = "auto") -> DevServer:
    """Start a server of a kind, or use the one that is given. It is ready when this returns.

    Args:
        kind: `auto`, `local`, `mysql-local`, `docker:IMAGE` or a `mysql://` URL.

    Raises:
        ServerUnavailable: No server could be started. For `auto` the message names the three ways to give one.
        ConfigurationError: The kind is unknown.
        DatabaseError: The server behind a given URL does not answer.
    """
    if kind == "auto":
        url = os.environ.get(TEST_URL_VARIABLE)
        return GivenServer.at(url) if url else _first_of_both()
    if kind == "local":
        return _local()
    if kind == "mysql-local":
        return LocalServer.start(find_mysql(os.environ))
    if kind.startswith("docker:"):
        return ContainerServer.start(kind.removeprefix("docker:"))
    if kind.startswith(("mysql://", "mysql+", "mariadb://", "mariadb+")):
        return GivenServer.at(kind)
    shown = kind.partition(":")[0]  # not all of it: a malformed URL may contain a password
    raise ConfigurationError(f"server kind {shown!r}: use auto, local, mysql-local, docker:IMAGE or a mysql:// URL")


def _local() -> DevServer:
    return LocalServer.start(find_local(os.environ))


def _docker() -> DevServer:
    return ContainerServer.start(DEFAULT_IMAGE)


def _first_of_both() -> DevServer:
    tried = []
    for name, way in (("local", _local), ("docker", _docker)):
        try:
            return way()
        except ServerUnavailable as exc:
            tried.append(f"  {name}: {exc}")
    raise ServerUnavailable("\n".join([THREE_WAYS, *tried]))
