"""Groups that live: they are not deleted, unless their members are evicted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError, DatabaseError
from lanelog._places import GroupTopic
from lanelog.admin.change import living
from support.cli import Command
from support.situations import NOW, Situations
from support.sql import one, rows
from support.waiting import Record, eventually

FAST: lanelog.SubscriptionOptions = {"lease_duration": 1.5, "lease_renewal": 0.4}
EXPIRED = f"SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at = 0 AND expires_at < {NOW}"
WAITING = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for %%lock' AND INFO LIKE %s"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_group_with_a_living_member_is_deleted_only_by_an_eviction(
    lanelog_client: Client, lanelog_url: str, dry_run: bool
) -> None:
    """The refusal, which a preview shows too, names the member and how to evict; then the subscription fails."""
    seen = Record()
    subscription = lanelog_client.subscribe("t", "g", seen)
    lanelog_client.publish("t", "k", b"x")
    seen.wait(1)
    with pytest.raises(
        ConfigurationError, match=r"stop the 1 member of group 'g' first .*--evict, evict=True"
    ) as error:
        lanelog_client.admin.delete_group("t", "g", dry_run=dry_run)
    assert subscription.owner in str(error.value)
    lanelog_client.publish("t", "k", b"x")
    seen.wait(2)
    assert "--evict" in Command(lanelog_url).refused("delete-group", "t", "g", "--execute")
    if dry_run:
        assert lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=True).members == 1
        assert subscription.state == "running"
    else:
        Command(lanelog_url)("delete-group", "t", "g", "--evict", "--execute")
        eventually(lambda: subscription.state == "failed")
        assert lanelog_client.admin.audit("t")[0].choice == "evict"


@pytest.mark.thorough
def test_a_deletion_that_waited_for_a_read_lock_finds_the_members_alive(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """Their heartbeats have ended when the lock is released, before they can write others. Their locks tell."""
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen, **FAST) as subscription:
        lanelog_client.publish("t", "k", b"x")
        seen.wait(1)
        with lanelog.connect(lanelog_url) as other, ThreadPoolExecutor() as threads:
            rows(raw, "FLUSH TABLES WITH READ LOCK")
            try:
                eventually(lambda: one(raw, EXPIRED), what="the end of the heartbeat")
                deleting = threads.submit(other.admin.delete_group, "t", "g", dry_run=False)
                eventually(lambda: one(raw, WAITING, "DELETE%"), what="a deletion that waits")
            finally:
                rows(raw, "UNLOCK TABLES")
            with pytest.raises(ConfigurationError, match="stop the 1 member of group 'g'"):
                deleting.result(30)
        lanelog_client.publish("t", "k", b"x")
        seen.wait(2)
        assert subscription.state == "running"


def test_a_member_that_died_without_a_lock_is_waited_for(lanelog_client: Client, made: Situations, raw: Any) -> None:
    """Its silence counts after a time of its lease."""
    lanelog_client.publish("t", "k", b"x")
    made.owner("dead", expires=-0.5)
    assert lanelog_client.admin.delete_group("t", "g", dry_run=False).lag == 2
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0


def test_a_member_without_a_lock_that_speaks_meanwhile_keeps_its_group(
    lanelog_client: Client, made: Situations, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could write no heartbeat before, and does as soon as writes go through."""
    lanelog_client.publish("t", "k", b"x")
    made.owner("mute", expires=-0.5)
    write = living._write

    def beat(database: Any) -> float:
        rows(raw, f"UPDATE queue_subscriber_heartbeats SET heartbeat_at = {NOW}, expires_at = {NOW} + 500")
        return write(database)

    monkeypatch.setattr(living, "_write", beat)
    with pytest.raises(ConfigurationError, match="stop the 1 member of group 'g'"):
        lanelog_client.admin.delete_group("t", "g", dry_run=False)
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 1


def test_silence_counts_only_while_writes_go_through(
    lanelog_client: Client, made: Situations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that takes longer begins the time anew: the members may have been held up with it."""
    lanelog_client.publish("t", "k", b"x")
    made.owner("dead", expires=-0.5)
    times = [0.0, 10.0, 10.5]
    monkeypatch.setattr(living, "_write", lambda _database: times.pop(0))
    silence = living.listen(lanelog_client._database, [GroupTopic(topic="t", group="g")])
    assert (silence._until, times) == (10.5, [])


def test_a_member_whose_lease_is_long_is_judged_by_an_operator(lanelog_client: Client, made: Situations) -> None:
    """Nobody waits for an hour: the refusal says what to look at."""
    lanelog_client.publish("t", "k", b"x")
    made.owner("mute")
    rows(made.raw, f"UPDATE queue_subscriber_heartbeats SET heartbeat_at = {NOW} - 4000000, expires_at = {NOW} - 1000")
    with pytest.raises(ConfigurationError, match=r"whether member 'mute' .* lives cannot be told"):
        lanelog_client.admin.delete_group("t", "g", dry_run=False)
    lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=False)


@pytest.mark.thorough
def test_a_verb_does_not_wait_for_a_table_for_ever(
    lanelog_client: Client, lanelog_url: str, made: Situations, raw: Any, open_raw: Callable[..., Any]
) -> None:
    """It gives up within seconds and is not done later. The connection is then as patient as before."""
    lanelog_client.publish("t", "k", b"x")
    with lanelog.connect(lanelog_url, publish_timeout=1, pool_size=2) as client:
        client.admin.delete_group("t", "g", dry_run=True)
        locker = open_raw(autocommit=True)
        rows(locker, "LOCK TABLES queue_groups READ")
        try:
            with pytest.raises(DatabaseError, match="error 1205"):
                client.admin.delete_group("t", "g", dry_run=False)
        finally:
            rows(locker, "UNLOCK TABLES")
        assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 1
        with client._database.transaction() as cx:
            assert cx.one("SELECT @@lock_wait_timeout = @@GLOBAL.lock_wait_timeout") == (1,)
