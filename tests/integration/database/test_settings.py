"""What a server's global settings, or a proxy that ignores ours, would make of a statement.

Sessions of lanelog mean the same on every server, or are refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pymysql
import pytest

import lanelog
from lanelog import Client
from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from lanelog.errors import ConfigurationError
from support.proxy import Proxy, proxy_to
from support.sql import connect, one, rows
from support.waiting import accept, eventually

UNLIMITED = 2**64 - 1
SETTINGS: dict[str, tuple[object, object]] = {
    "completion_type": ("'CHAIN'", "NO_CHAIN"),
    "foreign_key_checks": (0, 1),
    "group_concat_max_len": (4, 1 << 20),
    "innodb_lock_wait_timeout": (1, 5),
    "max_join_size": (1, UNLIMITED),
    "max_sort_length": (64, 4096),
    "sql_auto_is_null": (1, 0),
    "sql_big_selects": (0, 1),
    "sql_mode": ("''", "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"),
    "sql_safe_updates": (1, 0),
    "sql_select_limit": (2, UNLIMITED),
    "unique_checks": (0, 1),
    "wait_timeout": (2, 15),
}
"""What a hostile server has, and what a session of the library has all the same."""
MEANT = {name: meant for name, (_, meant) in SETTINGS.items()}


@pytest.fixture
def hostile_url(private_server: DevServer) -> str:
    """A database whose server has been given every setting that changes what a statement means."""
    with lanelog.connect(private_server.url) as client:
        client.migrate()
    with connect(private_server.url) as raw:
        for name, (value, _) in SETTINGS.items():
            try:
                rows(raw, f"SET GLOBAL {name} = {value}")
            except pymysql.OperationalError:  # MariaDB has no global one of these: nobody can change it for a session
                assert name in {"foreign_key_checks", "unique_checks", "sql_auto_is_null"}, name
        rows(raw, "SET GLOBAL TRANSACTION READ ONLY")
    return private_server.url


@pytest.mark.parametrize("lent", ["pool", "session"])
def test_every_session_has_its_own_settings(hostile_url: str, lent: str) -> None:
    """Global settings do not apply: a limit of rows, safe updates, a size of joins, read-only, no checks."""
    database = Database(ConnectConfig.from_url(hostile_url))
    asked = f"SELECT {', '.join('@@' + name for name in MEANT)}"
    if lent == "pool":
        with database.transaction() as cx:
            found = cx.one(asked)
    else:
        session = database.session("test")
        found = session.one(asked)
        session.close()
    database.close()
    assert found is not None
    assert dict(zip(MEANT, found, strict=True)) == MEANT


@pytest.mark.thorough
def test_what_a_third_group_has_not_read_is_kept(hostile_url: str) -> None:
    """Collection sees every group, though SELECT returns two rows by default; publishing and consuming go on."""
    with lanelog.connect(hostile_url) as client, connect(hostile_url) as raw:
        rows(raw, "SET SESSION sql_big_selects = 1")
        for group in ("a", "b", "c"):
            client.subscribe("t", group, accept, retention=0).stop()
        client.publish_many("t", [(f"k{n}", b"x") for n in range(10) for _ in range(5)])
        for group in ("a", "b"):
            consume(client, group, lambda acked: acked >= 50)
        client.admin.maintain()
        assert stored(raw) == 50
        consume(client, "c", lambda acked: acked >= 50)
        client.admin.maintain()
        assert stored(raw) == 0


def consume(client: Client, group: str, enough: Callable[[int], bool]) -> None:
    with client.subscribe("t", group, accept, retention=0) as subscription:
        eventually(lambda: enough(subscription.stats().acked), within=30)


def stored(raw: Any) -> int:
    return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't' LIMIT 1"))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "key"), [("t", 251), ("🦭" * 250, 20)], ids=["keys", "names"])
def test_many_long_names_fit_into_small_packets(private_server: DevServer, name: str, key: int) -> None:
    """Three thousand lanes with the longest keys, or topic and group, and the smallest packets that are in use."""
    with connect(private_server.url) as raw:
        rows(raw, f"SET GLOBAL max_allowed_packet = {1 << 20}")
    keys = [f"{number:04}{'🦭' * key}" for number in range(3000)]
    with lanelog.connect(private_server.url) as client:
        client.migrate()
        client.publish_many(name, [(key, b"x") for key in keys])
        subscription = client.subscribe(name, name, accept)
        eventually(lambda: subscription.stats().acked == len(keys) or subscription.state == "failed", within=60)
        assert subscription.state == "running"
        client.admin.seek(name, name, to="earliest", dry_run=True)


ISOLATION = {b"READ COMMITTED, READ WRITE": b"REPEATABLE READ,READ WRITE"}
SQL_MODE = {b"SET SESSION sql_mode": b"SET @session_sqlmode"}
IMITATION = b"Dolt"


@pytest.fixture
def through(lanelog_url: str) -> Iterator[Proxy]:
    """A proxy to a server that has lanelog's tables."""
    with proxy_to(lanelog_url) as proxy:
        yield proxy


def ignoring(name: str) -> dict[bytes, bytes]:
    """Make a setting a variable of the user's, which the server takes and nothing reads."""
    return {f", {name} = ".encode(): f",@{name} = ".encode()}


@pytest.mark.parametrize(
    ("instead", "named"),
    [
        (ISOLATION, "isolation is REPEATABLE-READ, though lanelog has set it to READ-COMMITTED"),
        (SQL_MODE, "sql_mode is "),
        (ignoring("innodb_lock_wait_timeout"), "innodb_lock_wait_timeout is 50, though lanelog has set it to 5"),
        (ignoring("max_sort_length"), "max_sort_length is 1024, though lanelog has set it to 4096"),
        (ignoring("autocommit"), "autocommit is "),
    ],
)
def test_a_setting_that_was_ignored_refuses_the_session(
    through: Proxy, instead: Mapping[bytes, bytes], named: str
) -> None:
    """A proxy that takes SET and does nothing: publishing and `doctor` say in a sentence which setting it was."""
    through.instead = instead
    with lanelog.connect(through.url) as client:
        with pytest.raises(ConfigurationError, match=re.escape(named)):
            client.publish("t", "k", b"x")
        reachable, *others = client.admin.doctor()
        assert (reachable.check, reachable.status, others) == ("reachable", "error", [])
        assert named in reachable.detail


@pytest.mark.parametrize("name", ["wait_timeout", "net_read_timeout"])
def test_a_session_that_the_server_keeps_for_hours_holds_no_lock(
    through: Proxy, lanelog_client: Client, name: str
) -> None:
    """Without its time-outs, publishing in any way, transactions, handling and verbs that write are refused."""
    named = f"{name} is .*, though lanelog has set it to 15.* publishing and handling are refused"
    lanelog_client.publish("t", "k", b"x")
    through.instead = ignoring(name)
    with lanelog.connect(through.url) as client:
        for refused in (
            lambda: client.publish("t", "k", b"x"),
            lambda: client.publish_many("t", [("k", b"x"), ("l", b"y")]),
            lambda: client.publish("t", "k", b"x", delay=60),
            lambda: client.transaction().__enter__(),
            lambda: client.subscribe("t", "g", accept).start(),
            lambda: client.admin.delete_topic("t", dry_run=False),
        ):
            with pytest.raises(ConfigurationError, match=named):
                refused()
        assert [topic.topic for topic in client.admin.topics()] == ["t"]
        found = {finding.check: finding for finding in client.admin.doctor()}
        assert found["session settings"].status == "error"
        assert re.search(named, found["session settings"].detail)
    assert [message.payload for message in lanelog_client.admin.messages("t", "k")] == [b"x"]


def test_running_loops_stop_where_their_time_outs_are_ignored(through: Proxy, lanelog_client: Client) -> None:
    """A subscription whose connections come back through a proxy that ignores SET fails with the sentence."""
    with lanelog.connect(through.url) as client:
        subscription = client.subscribe("t", "g", accept)
        lanelog_client.publish("t", "k", b"x")
        eventually(lambda: subscription.stats().acked == 1)
        through.instead = ignoring("wait_timeout")
        through.cut_all()
        eventually(lambda: subscription.failure is not None, within=30)
        assert isinstance(subscription.failure, ConfigurationError)
        assert "wait_timeout" in str(subscription.failure)


def test_an_imitation_is_refused_by_the_name_that_it_gives_itself(through: Proxy) -> None:
    """A server whose version or comment names another make is refused at once, also if it refuses our settings."""
    comment = comment_of(through)
    through.told_instead = {comment: IMITATION.ljust(len(comment))}
    for instead in ({}, {b"sql_select_limit": b"sql_select_limid"}):
        through.instead = instead
        with (
            lanelog.connect(through.url) as client,
            pytest.raises(ConfigurationError, match=r"this server is Dolt.*Use MySQL or MariaDB"),
        ):
            client.ping()


def comment_of(proxy: Proxy) -> bytes:
    with connect(proxy.url) as raw:
        return str(one(raw, "SELECT @@version_comment")).encode()
