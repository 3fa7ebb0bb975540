"""A database that is not as it should be: missing tables, missing privileges, wrong passwords."""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

import lanelog
from lanelog import (
    Client,
    ConfigurationError,
    DatabaseError,
    SchemaError,
)
from lanelog.config import ConnectConfig
from support.sql import one, rows
from support.waiting import Record, accept, events, eventually

PASSWORD = "s3cret/p@ss:w%rd"
TABLES = (
    "queue_partitions",
    "queue_messages",
    "queue_offsets",
    "queue_delivery_state",
    "queue_partition_leases",
    "queue_subscriber_heartbeats",
    "queue_groups",
    "queue_history",
    "queue_scheduled",
    "queue_schedules",
)


def test_missing_tables_say_how_to_make_them(lanelog_server: Any) -> None:
    """publish, subscribe, deliveries and ping raise SchemaError with the command."""
    url = lanelog_server.create_database("lanelog_test_empty")
    try:
        with lanelog.connect(url) as client:
            calls: list[Callable[[], object]] = [
                client.ping,
                lambda: client.publish("t", "k", b"x"),
                lambda: client.publish_many("t", [("k", b"x")]),
                lambda: client.subscribe("t", "g", accept),
                lambda: next(client.deliveries("t", "g", timeout=1.0)),
            ]
            for call in calls:
                with pytest.raises(SchemaError, match="migrate"):
                    call()
    finally:
        lanelog_server.drop_database("lanelog_test_empty")


class Accounts:
    """Makes users with some privileges on the test's database."""

    def __init__(self, raw: Any, url: str) -> None:
        self._raw = raw
        self._config = ConnectConfig.from_url(url)
        self._names: list[str] = []

    def url(self, name: str, password: str = PASSWORD, user: str | None = None) -> str:
        config = self._config
        socket = f"?unix_socket={config.unix_socket}" if config.unix_socket else ""
        return (
            f"mysql://{user or name}:{quote(password, safe='')}@{config.host}:{config.port}/{config.database}{socket}"
        )

    def make(self, name: str, privileges: dict[str, str]) -> str:
        """A user with these privileges by table; its URL."""
        full = f"{name}_{threading.get_native_id()}"
        rows(self._raw, f"CREATE USER '{full}'@'%%' IDENTIFIED BY %s", PASSWORD)
        self._names.append(full)
        for table, what in privileges.items():
            rows(self._raw, f"GRANT {what} ON `{self._config.database}`.{table} TO '{full}'@'%'")
        return self.url(full)

    def drop(self) -> None:
        for name in self._names:
            rows(self._raw, f"DROP USER '{name}'@'%'")


@pytest.fixture
def accounts(raw: Any, lanelog_url: str) -> Iterator[Accounts]:
    accounts = Accounts(raw, lanelog_url)
    yield accounts
    accounts.drop()


ALL = "SELECT, INSERT, UPDATE, DELETE"


def everything_but(table: str, privileges: str) -> dict[str, str]:
    return {**dict.fromkeys((*TABLES, "queue_schema"), ALL), table: privileges}


@pytest.mark.parametrize(
    ("table", "left"),
    [("queue_messages", "SELECT"), ("queue_partitions", "SELECT, INSERT"), ("queue_messages", "INSERT, UPDATE")],
)
def test_publishing_without_the_privilege_says_so(
    accounts: Accounts, raw: Any, caplog: pytest.LogCaptureFixture, table: str, left: str
) -> None:
    """At once, not after publish_timeout; the message names the table; nothing is written, no password is shown."""
    url = accounts.make("nopublish", everything_but(table, left))
    with lanelog.connect(url) as client:
        with pytest.raises(DatabaseError, match=table) as raised:
            client.publish("t", "k", b"x", id="x")
            client.publish("t", "k", b"y", id="x")
        assert not raised.value.retriable
        assert shown_nowhere(raised.value, caplog, client)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") <= ("INSERT" in left)


@pytest.mark.parametrize(
    ("table", "left"), [("queue_groups", "SELECT"), ("queue_partitions", "SELECT"), ("queue_groups", "INSERT")]
)
def test_subscribing_without_the_privilege_says_so(
    accounts: Accounts, raw: Any, caplog: pytest.LogCaptureFixture, table: str, left: str
) -> None:
    """From subscribe itself, with the table's name."""
    url = accounts.make("nosubscribe", everything_but(table, left))
    with lanelog.connect(url) as client:
        with pytest.raises(DatabaseError, match=table) as raised:
            client.subscribe("t", "g", accept)
        assert not raised.value.retriable
        assert shown_nowhere(raised.value, caplog, client)
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0


def test_a_privilege_that_is_missing_later_fails_the_subscription(
    accounts: Accounts, caplog: pytest.LogCaptureFixture
) -> None:
    """What registration does not need and the engine does: state failed, with the error; the password is nowhere."""
    caplog.set_level(logging.DEBUG, logger="lanelog")
    url = accounts.make("noleases", everything_but("queue_partition_leases", "SELECT"))
    with lanelog.connect(url) as client:
        client.publish("t", "k", b"x")
        subscription = client.subscribe("t", "g", accept)
        eventually(lambda: subscription.state == "failed", within=20)
        assert isinstance(subscription.failure, DatabaseError)
        assert "queue_partition_leases" in str(subscription.failure)
        assert shown_nowhere(subscription.failure, caplog, client, subscription)


def test_unreadable_heartbeats_stop_nothing(
    accounts: Accounts, lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """SELECT revoked: who lives is unknown, so unowned lanes are taken without limit, and worked; an ERROR says so."""
    caplog.set_level(logging.INFO, logger="lanelog")
    # UPDATE and DELETE by a WHERE need SELECT of its columns: only what needs none is left to it.
    url = accounts.make("blind", everything_but("queue_subscriber_heartbeats", "INSERT, UPDATE, DELETE"))
    seen = Record()
    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(20)])
    with lanelog.connect(url) as blind:
        subscription = blind.subscribe(
            "t", "g", lambda m: seen((m.key, m.offset)), lease_duration=1.0, lease_renewal=0.3
        )
        assert sorted(seen.wait(20)) == sorted((f"k{n}", 1) for n in range(20))
        assert len(events(caplog, "heartbeat.read_failed", logging.ERROR)) == 1
        # Longer than a lease: its lanes stay its own, and new ones are found.
        pause = threading.Event()
        pause.wait(1.5)
        lanelog_client.publish_many("t", [("k0", b"x"), ("new", b"x")])
        assert sorted(seen.wait(22)[20:]) == [("k0", 2), ("new", 1)]
        assert subscription.state == "running"
        assert subscription.stop(10)
    assert one(raw, "SELECT COUNT(*) FROM queue_partition_leases WHERE leased_by <> ''") == 0


def test_heartbeats_that_cannot_be_written_stop_nothing(
    accounts: Accounts, lanelog_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """No privilege at all on that table: an error event, and the lanes are worked."""
    caplog.set_level(logging.INFO, logger="lanelog")
    privileges = everything_but("queue_subscriber_heartbeats", "")
    del privileges["queue_subscriber_heartbeats"]
    seen = Record()
    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(5)])
    with lanelog.connect(accounts.make("mute", privileges)) as mute:
        subscription = mute.subscribe("t", "g", lambda m: seen(m.key))
        seen.wait(5)
        assert events(caplog, "heartbeat.write_failed", logging.ERROR)
        assert subscription.stop(10)


# -- the password ------------------------------------------------------------------------------------------------------


def shown_nowhere(error: BaseException, caplog: pytest.LogCaptureFixture, *things: object) -> bool:
    """Whether no text that an application might print or log has the password in it, raw or quoted."""
    texts = [repr(thing) for thing in things] + [str(thing) for thing in things]
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        texts += [str(chain), repr(chain), repr(chain.args)]
        texts += traceback.format_exception(chain)
        texts += [repr(value) for value in vars(chain).values()]
        chain = chain.__cause__ or chain.__context__
    texts += [record.getMessage() for record in caplog.records] + [caplog.text]
    return not [text for text in texts for secret in (PASSWORD, quote(PASSWORD, safe="")) if secret in text]


@pytest.mark.parametrize("call", ["ping", "publish", "subscribe", "migrate"])
def test_a_wrong_password_is_refused_at_once_and_not_shown(
    accounts: Accounts, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """A client that never connected fails at once, with what to check."""
    caplog.set_level(logging.DEBUG)
    url = accounts.url("root", password=PASSWORD, user="nobody_of_this_name")
    with lanelog.connect(url) as client:
        calls: dict[str, Callable[[], object]] = {
            "ping": client.ping,
            "publish": lambda: client.publish("t", "k", b"x"),
            "subscribe": lambda: client.subscribe("t", "g", accept),
            "migrate": client.migrate,
        }
        with pytest.raises(DatabaseError, match="password") as raised:
            calls[call]()
        assert not raised.value.retriable
        assert raised.value.code in (1045, 1698)
        assert shown_nowhere(raised.value, caplog, client, client.config)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:{}@localhost/db",
        "mysql://me:{}@localhost",
        "mysql://me:{}@localhost:99999/db",
        "mysql://me:{}@localhost:port/db",
        "mysql://me:{}@/db?unix_sokket=/tmp/x",
        "mysql://me:{}@localhost/db?pool_size=none",
        "me:{}@localhost/db",
        "mysql://me:{}@[::1/db",
        "mysql://me:{}",
        "mysql://me:{}@localhost/a/b",
    ],
)
@pytest.mark.parametrize("password", [PASSWORD, quote(PASSWORD, safe="")], ids=["raw", "quoted"])
def test_bad_urls_are_refused_without_showing_the_password(
    caplog: pytest.LogCaptureFixture, url: str, password: str
) -> None:
    """ConfigurationError from connect; the password is in no text of it, however it is garbled."""
    with pytest.raises(ConfigurationError) as raised:
        lanelog.connect(url.format(password))
    error = raised.value
    texts = [str(error), repr(error), *traceback.format_exception(error)[1:]]
    # The test's own line with the URL is not the library's.
    texts = [t for t in texts if "url.format" not in t]
    for secret in (PASSWORD, quote(PASSWORD, safe=""), "s3cret"):
        assert not [text for text in texts if secret in text]


def test_a_database_that_does_not_exist(lanelog_server: Any) -> None:
    """The error says what to create."""
    with (
        lanelog.connect(lanelog_server.root_url("lanelog_test_nowhere")) as client,
        pytest.raises(DatabaseError, match="create the database"),
    ):
        client.publish("t", "k", b"x")


def test_nobody_listens_there() -> None:
    """A client that never connected does not wait for publish_timeout."""
    with (
        lanelog.connect("mysql://me:pw@127.0.0.1:1/db", connect_timeout=1.0) as client,
        pytest.raises(DatabaseError) as raised,
    ):
        client.publish("t", "k", b"x")
    assert raised.value.retriable
