"""Groups that live: they are not deleted unless their members are evicted, and do not come back by themselves then."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError, DatabaseError
from lanelog._base.places import GroupTopic
from lanelog._log import living
from lanelog._stores.members import leases
from support.cli import Command
from support.situations import NOW, Situations
from support.sql import Running, one, rows, running, tables_locked
from support.waiting import Record, accept, events, eventually

FAST: lanelog.SubscriptionOptions = {"lease_duration": 1.5, "lease_renewal": 0.4}
EXPIRED = f"SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE deregistered_at = 0 AND expires_at < {NOW}"


def waits(session: Running, verb: str) -> bool:
    """Whether a session waits for a lock of tables."""
    return session.sql.startswith(verb) and session.state.startswith("Waiting for") and session.state.endswith("lock")


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
    """The heartbeats have ended when the lock is released, before members can write others. Held locks prove life."""
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen, **FAST) as subscription:
        lanelog_client.publish("t", "k", b"x")
        seen.wait(1)
        with lanelog.connect(lanelog_url) as other, ThreadPoolExecutor() as threads:
            with tables_locked(raw):
                eventually(lambda: one(raw, EXPIRED), what="the end of the heartbeat")
                deleting = threads.submit(other.admin.delete_group, "t", "g", dry_run=False)
                eventually(lambda: any(waits(each, "DELETE") for each in running(raw)), what="a deletion that waits")
            with pytest.raises(ConfigurationError, match="stop the 1 member of group 'g'"):
                deleting.result(30)
        lanelog_client.publish("t", "k", b"x")
        seen.wait(2)
        assert subscription.state == "running"


def test_a_member_that_died_without_a_lock_is_waited_for(lanelog_client: Client, made: Situations, raw: Any) -> None:
    """The member's silence counts after the time of its lease."""
    lanelog_client.publish("t", "k", b"x")
    made.owner("dead", expires=-0.5)
    assert lanelog_client.admin.delete_group("t", "g", dry_run=False).lag == 2
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0


def test_a_member_without_a_lock_that_speaks_meanwhile_keeps_its_group(
    lanelog_client: Client, made: Situations, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member could write no heartbeat before, and does as soon as writes go through."""
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
    assert (silence._writable_until, times) == (10.5, [])


@pytest.mark.parametrize(("page", "deleted"), [(1.2, True), (2.5, False)], ids=["many lanes", "a stall"])
def test_silence_counts_for_as_long_as_leases_are_locked(
    lanelog_url: str, made: Situations, raw: Any, monkeypatch: pytest.MonkeyPatch, page: float, deleted: bool
) -> None:
    """Many lanes take longer than a stall, page after page. A page that takes so long is a stall."""
    keys = ", ".join(f"('g', 't', 'k{number:04}', '', 1, 1)" for number in range(2500))
    columns = "consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at"
    rows(raw, f"INSERT INTO queue_partition_leases ({columns}) VALUES {keys}")
    made.owner("dead", expires=-0.5)
    clock, lock = [0.0], leases.lock_owners

    def now() -> float:
        clock[0] += 0.3
        return clock[0]

    def slow(cx: Any, at: GroupTopic, keys: list[str]) -> dict[str, leases.Held]:
        clock[0] += page * len(keys) / 1000
        return lock(cx, at, keys)

    monkeypatch.setattr(living, "time", SimpleNamespace(monotonic=now))
    monkeypatch.setattr(leases, "lock_owners", slow)
    with lanelog.connect(lanelog_url, publish_timeout=1) as client:
        if deleted:
            client.admin.delete_group("t", "g", dry_run=False)
        else:
            with pytest.raises(DatabaseError, match="made the deletion wait"):
                client.admin.delete_group("t", "g", dry_run=False)
    assert one(raw, "SELECT COUNT(*) FROM queue_partition_leases") == (0 if deleted else 2500)


def test_a_member_whose_lease_is_long_is_judged_by_an_operator(lanelog_client: Client, made: Situations) -> None:
    """Nobody waits for an hour: the refusal says what to check."""
    lanelog_client.publish("t", "k", b"x")
    made.owner("mute")
    rows(made.raw, f"UPDATE queue_subscriber_heartbeats SET heartbeat_at = {NOW} - 4000000, expires_at = {NOW} - 1000")
    with pytest.raises(ConfigurationError, match=r"member 'mute' .* may be alive: .* its lease lasts 3999 s"):
        lanelog_client.admin.delete_group("t", "g", dry_run=False)
    # Deleting a topic evicts nobody: its refusal names the way that there is.
    with pytest.raises(ConfigurationError, match=r"or delete the group first and evict them \(delete-group --evict"):
        lanelog_client.admin.delete_topic("t", dry_run=False)
    lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=False)


@pytest.mark.thorough
@pytest.mark.parametrize("lock", ["LOCK TABLES queue_groups READ", "FLUSH TABLES WITH READ LOCK"])
def test_a_verb_does_not_wait_for_a_table_for_ever(
    lanelog_client: Client, lanelog_url: str, made: Situations, raw: Any, open_raw: Callable[..., Any], lock: str
) -> None:
    """A method gives up after `publish_timeout`, names the likely cause, and is not done later.

    The connection is then as patient as before.
    """
    lanelog_client.publish("t", "k", b"x")
    with lanelog.connect(lanelog_url, publish_timeout=1, pool_size=2) as client:
        client.admin.delete_group("t", "g", dry_run=True)
        with tables_locked(open_raw(autocommit=True), lock):
            with pytest.raises(DatabaseError, match="error 1205") as caught:
                client.admin.delete_group("t", "g", dry_run=False)
            assert str(caught.value).count("FLUSH TABLES WITH READ LOCK") == 1
            assert "LOCK TABLES, ALTER TABLE" in str(caught.value)
        assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 1
        with client._database.transaction() as cx:
            assert cx.one("SELECT @@lock_wait_timeout = @@GLOBAL.lock_wait_timeout") == (1,)


# -- what comes after it -----------------------------------------------------------------------------------------------


def evicted(client: Client, *groups: str) -> None:
    """Groups of topic t that were evicted, behind two messages that they had acked."""
    client.publish_many("t", [("k", b"x")] * 2)
    for group in groups:
        seen = Record()
        subscription = client.subscribe("t", group, seen)
        seen.wait(2)
        client.admin.delete_group("t", group, evict=True, dry_run=False)
        eventually(lambda subscription=subscription: subscription.state == "failed")  # type: ignore[misc]
        subscription.stop(10)


def test_an_evicted_group_is_registered_again_only_on_demand(lanelog_client: Client, raw: Any) -> None:
    """Neither a restart nor a day registers it again. On demand it begins anew, and then it is a group as any other."""
    evicted(lanelog_client, "g")
    rows(raw, "UPDATE queue_subscriber_heartbeats SET deregistered_at = deregistered_at - 86400000")
    with pytest.raises(ConfigurationError, match=r"'g' of topic 't' was deleted while it had members: .*recreate=True"):
        lanelog_client.subscribe("t", "g", accept)
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0
    with lanelog_client.subscribe("t", "other", accept) as other:
        eventually(lambda: [each.name for each in lanelog_client.admin.members("t", "other")] == [other.owner])
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen, recreate=True) as again:
        seen.wait(2)
        eventually(lambda: [each.name for each in lanelog_client.admin.members("t", "g")] == [again.owner])
    lanelog_client.admin.delete_group("t", "g", dry_run=False)
    lanelog_client.subscribe("t", "g", accept).stop()


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "cannot be told"])
def test_an_eviction_of_nobody_leaves_no_mark(lanelog_client: Client, made: Situations, stopped: bool) -> None:
    """A group is registered again as any new one if its members have stopped, or nothing proves that one lives."""
    made.owner("gone", expires=-0.5, stopped=stopped)
    lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=False)
    assert lanelog_client.subscribe("t", "g", accept).stop()


@pytest.mark.parametrize("left", ["g", "other"])
def test_a_mark_ends_with_its_topic(lanelog_client: Client, left: str) -> None:
    """A later subscription to a topic of the same name was never evicted from it. Other topics keep their marks."""
    evicted(lanelog_client, "g")
    with lanelog_client.subscribe("kept", "g", Record()) as kept:
        eventually(lambda: lanelog_client.admin.members("kept", "g"))
        lanelog_client.admin.delete_group("kept", "g", evict=True, dry_run=False)
        eventually(lambda: kept.state == "failed")
    if left == "other":
        lanelog_client.subscribe("t", "other", accept).stop()
    lanelog_client.admin.delete_topic("t", dry_run=False)
    seen = Record()
    lanelog_client.publish("t", "k", b"new")
    with lanelog_client.subscribe("t", "g", seen):
        seen.wait(1)
    with pytest.raises(ConfigurationError, match="recreate=True"):
        lanelog_client.subscribe("kept", "g", accept)


def test_a_registration_says_what_it_delivers_and_what_it_passes(
    lanelog_client: Client, caplog: pytest.LogCaptureFixture, raw: Any
) -> None:
    """At WARNING, once for a new group, and not where a topic is empty, or began just now."""
    lanelog_client.subscribe("empty", "g", accept).stop()
    lanelog_client.publish("young", "k", b"x")
    rows(raw, "UPDATE queue_partitions SET created_at = created_at + 600000 WHERE topic = 'young'")
    lanelog_client.subscribe("young", "g", accept).stop()
    lanelog_client.publish_many("t", [(key, b"x") for key in "aab"])
    rows(raw, "UPDATE queue_partitions SET created_at = created_at - 61000 WHERE topic = 't'")
    for group, start in (("all", "earliest"), ("none", "latest")):
        for _ in range(2):
            lanelog_client.subscribe("t", group, accept, start=start).stop()
    assert events(caplog, "group.registered", logging.WARNING) == [
        "group.registered topic=t group=all start=earliest again=3 passed=0",
        "group.registered topic=t group=none start=latest again=0 passed=3",
    ]
