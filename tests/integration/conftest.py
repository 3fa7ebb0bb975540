"""What the tests of the integration tier share: connections past the library, to look, to lock and to disturb."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pymysql
import pytest

from lanelog import Client, connect
from lanelog._database import Database, Executor
from lanelog._log.due import DelayedMessages
from lanelog.admin import Admin
from lanelog.devserver import DevServer
from lanelog.publisher import Publisher
from support.cli import Command
from support.janitors import Janitors
from support.processes import Fleet
from support.promotion import Pair, pair_of
from support.proxy import Proxy, proxy_to
from support.publishing import Announced, appender_of
from support.secrecy import secret_account
from support.shop import open_shop
from support.situations import Situations
from support.sql import connect as raw_connection
from support.sql import one, rows
from support.stage import EPOCH, HEAD, Stage

OpenRaw = Callable[..., "pymysql.Connection[Any]"]


@pytest.fixture
def open_raw(lanelog_url: str) -> Iterator[OpenRaw]:
    """Opens connections of the application's own to the test's database, closed after the test."""
    with ExitStack() as stack:

        def connect(**options: Any) -> "pymysql.Connection[Any]":
            connection = raw_connection(lanelog_url, **{"charset": "utf8mb4", "autocommit": False, **options})
            stack.callback(lambda: connection.close() if connection.open else None)
            return connection

        yield connect


@pytest.fixture
def raw(open_raw: OpenRaw) -> "pymysql.Connection[Any]":
    """A connection of the application's own, with autocommit on."""
    return open_raw(autocommit=True)


@pytest.fixture
def other_database(lanelog_server: DevServer, raw: "pymysql.Connection[Any]") -> Iterator[str]:
    """The name of another database on the same server, with empty tables of lanelog's names."""
    name = str(one(raw, "SELECT CONCAT(DATABASE(), '_other')"))
    with connect(lanelog_server.create_database(name)) as client:
        client.migrate()
    yield name
    lanelog_server.drop_database(name)


@pytest.fixture(scope="module")
def shop(lanelog_server: DevServer) -> Iterator[str]:
    """The URL of a shop's database that nobody changes."""
    with open_shop(lanelog_server) as url:
        yield url


@pytest.fixture(scope="module")
def root(shop: str) -> Iterator[Any]:
    """A connection to the shop past the library."""
    with raw_connection(shop) as connection:
        yield connection


@pytest.fixture
def proxy(lanelog_url: str) -> Iterator[Proxy]:
    """Stands between the clients of the test and the server."""
    with proxy_to(lanelog_url) as proxy:
        yield proxy


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two servers of the family the run is on."""
    from conftest import start_or_fail

    with pair_of(lambda: start_or_fail(request.config)) as made:
        yield made


@pytest.fixture
def setting(raw: "pymysql.Connection[Any]") -> Iterator[Callable[[str, object], None]]:
    """Changes a setting of the server until the end of the test."""
    before: dict[str, Any] = {}

    def change(name: str, value: object) -> None:
        before.setdefault(name, one(raw, f"SELECT @@GLOBAL.{name}"))
        rows(raw, f"SET GLOBAL {name} = %s", value)

    yield change
    for name, value in before.items():
        rows(raw, f"SET GLOBAL {name} = %s", value)


@pytest.fixture
def cx(database: Database) -> Iterator[Executor]:
    """What a store is a function of; each statement commits."""
    with database.autocommit() as cx:
        yield cx


@pytest.fixture
def published() -> list[str]:
    """The topics that the publisher announced."""
    return []


@pytest.fixture
def publisher(database: Database, published: list[str]) -> Iterator[Publisher]:
    """A publisher on the test's database."""
    with closing(Publisher(database, Announced(published.append))) as publisher:
        yield publisher


@pytest.fixture
def fleet(lanelog_url: str) -> Iterator[Fleet]:
    """Processes on the test's database, which end with the test."""
    fleet = Fleet(lanelog_url)
    yield fleet
    fleet.close()


@pytest.fixture
def stage(fleet: Fleet, lanelog_client: Client, raw: "pymysql.Connection[Any]") -> Iterator[Stage]:
    """Processes that stop at named points of their transactions."""
    stage = Stage(fleet, lanelog_client, raw)
    yield stage
    stage.close()


@pytest.fixture
def drained(stage: Stage) -> None:
    """Lane k of topic t: three messages, all of them acked by group g and collected, its lease in nobody's name."""
    stage.drain(HEAD, EPOCH)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> None:
    """What lanelog logs, from INFO on, is in `caplog`."""
    caplog.set_level(logging.INFO, logger="lanelog")


@pytest.fixture
def admin(lanelog_client: Client) -> Admin:
    """Administration of the test's database."""
    return lanelog_client.admin


@pytest.fixture
def command(lanelog_url: str) -> Command:
    """The command line on the test's database."""
    return Command(lanelog_url)


@pytest.fixture
def janitors(monkeypatch: pytest.MonkeyPatch) -> Janitors:
    """Janitors whose turns are the test's."""
    return Janitors(monkeypatch)


@pytest.fixture
def appending(database: Database, publisher: Publisher, published: list[str]) -> Iterator[DelayedMessages]:
    """What moves due messages, one page a call; nobody else does."""
    session = database.session("appending")
    yield DelayedMessages(session, appender_of(publisher, published.append))
    session.close()


@pytest.fixture
def account(raw: "pymysql.Connection[Any]", lanelog_url: str) -> Iterator[str]:
    """The URL of a user with the secret password."""
    with secret_account(raw, lanelog_url) as url:
        yield url


@pytest.fixture
def made(raw: "pymysql.Connection[Any]", lanelog_client: Client) -> Situations:
    """Topic t with group g, and a message in no lane that a test looks at."""
    made = Situations(raw, client=lanelog_client)
    lanelog_client.publish("t", "first", b"x")
    made.register()
    return made
