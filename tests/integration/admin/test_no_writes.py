"""A server that takes no writes, or is not the one that members write to: that is said, and nothing about members."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import lanelog
from lanelog import Client
from lanelog.admin import Rank, Status
from lanelog.admin.operate import writes
from lanelog.devserver import _local
from lanelog.metrics import LogCollector
from support.accounts import account
from support.cli import Command
from support.situations import NOW, Situations
from support.sql import connect, one, rows, tables_locked
from support.waiting import Gate, Record, eventually

FAST: lanelog.SubscriptionOptions = {"lease_duration": 1.5, "lease_renewal": 0.4}
EXPIRED = f"SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at = 0 AND expires_at < {NOW}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without a member is reported at once, also on a server that has just started."""
    monkeypatch.setattr("lanelog.admin.operate.problems.GRACE", -1.0)


def only_server(status: Status, what: str) -> str:
    """The problem of the server is the only one; its detail."""
    assert [(each.rank, each.what) for each in status.problems] == [(Rank.SERVER, what)]
    assert not status.members_known
    return status.problems[0].detail


def scraped(client: Client) -> str:
    registry = CollectorRegistry()
    registry.register(LogCollector(client.admin))
    return generate_latest(registry).decode()


@pytest.mark.thorough
def test_under_a_read_lock_nobody_is_said_to_consume_nothing(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """A backup stops all heartbeats, and the members live. Once the lock is gone, they are counted as before."""
    gate = Gate()
    with lanelog_client.subscribe("t", "g", gate, **FAST), lanelog.connect(lanelog_url) as other, gate:
        lanelog_client.publish("t", "k", b"x")
        gate.reached()
        assert (other.admin.status().problems, other.admin.status().members_known) == ((), True)
        assert 'lanelog_group_members{group="g",topic="t"} 1.0' in scraped(other)
        with tables_locked(raw):
            eventually(lambda: one(raw, EXPIRED), what="the end of the heartbeat")
            detail = only_server(other.admin.status(), "no writes")
            assert "FLUSH TABLES WITH READ LOCK" in detail
            assert "members unknown" in Command(lanelog_url)("status").stdout
            text = scraped(other)
            assert "lanelog_members_known 0.0" in text
            assert "lanelog_group_members" not in text
            assert 'lanelog_group_lag_messages{group="g",topic="t"}' in text
        eventually(lambda: other.admin.status().members_known, what="the next heartbeat")
        assert other.admin.status().problems == ()


@pytest.mark.thorough
@pytest.mark.local_server
def test_the_holder_of_a_read_lock_is_named_where_the_server_shows_it(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL does, in the performance schema, which the other tests switch off; MariaDB by a plugin alone."""
    shows = [each for each in _local.OPTIONS["mysql"] if "performance" not in each]
    monkeypatch.setitem(_local.OPTIONS, "mysql", (*shows, "--performance-schema=ON"))
    server = request.getfixturevalue("private_server")
    with lanelog.connect(server.url) as client, connect(server.url) as locker:
        rows(locker, "FLUSH TABLES WITH READ LOCK")
        number = locker.thread_id()
        with client._database.autocommit() as cx:
            said = writes._holder(cx, client._database)
    assert said.partition(" of ")[0] == (f"; connection {number}" if server.family == "mysql" else "")


def test_a_read_only_server_is_said_first(lanelog_client: Client, made: Situations, setting: Any) -> None:
    """A replica's members are on its primary: no group there is said to have none."""
    assert [each.what for each in lanelog_client.admin.status().problems] == ["nobody consumes"]
    setting("read_only", 1)
    only_server(lanelog_client.admin.status(), "read only")


@pytest.mark.parametrize("lock", [False, True], ids=["read-only", "read lock"])
def test_doctor_answers_where_nothing_can_be_written(
    lanelog_client: Client, made: Situations, lanelog_url: str, raw: Any, setting: Any, lock: bool
) -> None:
    """An account without writes gets every check, too; that of privileges says why it cannot be made."""
    checks = [each.check for each in lanelog_client.admin.doctor()]
    with account(raw, lanelog_url, {"*": "SELECT, INSERT, UPDATE, DELETE"}) as limited:
        if lock:
            rows(raw, "FLUSH TABLES WITH READ LOCK")
        else:
            setting("read_only", 1)
        try:
            with lanelog.connect(limited) as client:
                found = client.admin.doctor()
        finally:
            rows(raw, "UNLOCK TABLES")
            if not lock:
                setting("read_only", 0)
    assert [each.check for each in found] == checks
    (privileges,) = [each for each in found if each.check == "privileges"]
    assert (privileges.status, "cannot be tried" in privileges.detail) == ("warning", True)


def test_heartbeats_of_another_server_say_nothing(lanelog_client: Client, made: Situations) -> None:
    """A replica that takes writes, as late as it is: its rows name the primary. A member that comes back ends that."""
    made.owner("there", expires=-50, incarnation="0" * 64, liveness_lock="x")
    assert "replica" in only_server(lanelog_client.admin.status(), "another server")
    assert lanelog_client.admin.figures().members_known is False
    with lanelog_client.subscribe("t", "g", Record()):
        eventually(lambda: lanelog_client.admin.status().members_known, what="a heartbeat on this server")


@pytest.mark.parametrize("stopped", [False, True], ids=["died", "stopped"])
def test_a_new_primary_without_workers_has_no_members(lanelog_client: Client, made: Situations, stopped: bool) -> None:
    """The old primary's heartbeats count for a minute; then the figures of the new one let the alerts fire."""
    made.owner("there", expires=3600 if stopped else -70, stopped=stopped, incarnation="0" * 64, liveness_lock="x")
    assert [each.what for each in lanelog_client.admin.status().problems] == ["nobody consumes"]
    assert 'lanelog_group_members{group="g",topic="t"} 0.0' in scraped(lanelog_client)


def test_a_member_that_stands_aside_shows_a_read_lock_too(lanelog_client: Client, made: Situations, raw: Any) -> None:
    """The member lives, and can write no heartbeat."""
    rows(raw, "SELECT GET_LOCK('aside', 0)")
    made.owner("aside", expires=-60, liveness_lock="aside")
    rows(raw, "UPDATE queue_subscriber_heartbeats SET heartbeat_at = expires_at - 15000")
    rows(raw, "UPDATE queue_subscriber_heartbeats SET deregistered_at = heartbeat_at")
    only_server(lanelog_client.admin.status(), "no writes")


def test_a_session_that_a_proxy_keeps_is_no_read_lock(lanelog_client: Client, made: Situations, raw: Any) -> None:
    """While nobody writes, both may be. Others' heartbeats show that the server takes writes."""
    rows(raw, "SELECT GET_LOCK('kept', 0)")
    made.owner("kept", expires=-60, liveness_lock="kept")
    rows(raw, "UPDATE queue_subscriber_heartbeats SET heartbeat_at = expires_at - 15000")
    assert "or a proxy keeps a dead process's session" in only_server(lanelog_client.admin.status(), "no writes")
    with lanelog_client.subscribe("other", "h", Record()):
        eventually(lambda: lanelog_client.admin.status().members_known, what="a heartbeat of another member")
        assert [each.what for each in lanelog_client.admin.status().problems] == ["nobody consumes"]
