"""Fixtures that give each test a fresh database with lanelog's tables, on a server started once for a session.

The fixtures are `lanelog_client`, `lanelog_url` and `lanelog_server`. Every pytest run of an environment loads the
plugin, so it imports nothing but pytest when it is loaded. It never reads LANELOG_URL, the database of an application.
"""

import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lanelog.client import Client
    from lanelog.devserver import DevServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the server."""
    parser.getgroup("lanelog").addoption(
        "--lanelog-server",
        default="auto",
        metavar="KIND",
        help="database for lanelog's fixtures: auto (default; LANELOG_TEST_URL, or a server of its own), local,"
        " mysql-local, docker:mysql:8.4, docker:mariadb:11.4 or a mysql:// URL",
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Say on which server the fixtures create and drop databases: host and database of a URL, never the password."""
    kind: str = config.getoption("--lanelog-server")
    url, given_by = kind, "--lanelog-server"
    if kind == "auto":
        url, given_by = os.environ.get("LANELOG_TEST_URL", ""), "LANELOG_TEST_URL"
    if "://" not in url:
        return f"lanelog: a server of its own ({kind}), for tests that need one"
    host, database = _address(url)
    return (
        f"lanelog: host {host}, database {database} ({given_by}); tests create and drop databases lanelog_test_* there"
    )


def _address(url: str) -> tuple[str, str]:
    """Return host with port, and database. A URL that cannot be parsed is refused later, by the fixtures."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        return "?", "?"
    return f"{parts.hostname or '127.0.0.1'}:{port}", parts.path.strip("/") or "?"


@pytest.fixture(scope="session")
def lanelog_server_kind(request: pytest.FixtureRequest) -> str:
    """The kind of server that `lanelog_server` starts. Override it in a conftest to fix the choice for a project."""
    kind: str = request.config.getoption("--lanelog-server")
    return kind


@pytest.fixture(scope="session")
def lanelog_server(lanelog_server_kind: str) -> Iterator["DevServer"]:
    """The database server of the session, see `lanelog.devserver`."""
    from lanelog import devserver

    with devserver.start(lanelog_server_kind) as server:
        yield server


@pytest.fixture
def lanelog_url(lanelog_server: "DevServer") -> Iterator[str]:
    """The URL of a new database with lanelog's tables. It is dropped after the test."""
    import lanelog

    name = f"lanelog_test_{secrets.token_hex(6)}"
    url = lanelog_server.create_database(name)
    try:
        with lanelog.connect(url) as client:
            client.migrate()
        yield url
    finally:
        lanelog_server.drop_database(name)


@pytest.fixture
def lanelog_client(lanelog_url: str) -> Iterator["Client"]:
    """A client of `lanelog_url`, closed after the test."""
    import lanelog

    with lanelog.connect(lanelog_url) as client:
        yield client
