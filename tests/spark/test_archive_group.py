"""The archive as a consumer group: one job at a time, and watermarks that only its manifest raises. Needs no Spark."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from attrs import evolve

import lanelog
from lanelog._database import Database
from lanelog.admin import OwnerState
from lanelog.client import Client
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from lanelog.errors import ConfigurationError, LeaseLost
from lanelog.spark.archiving.group import ArchiveGroup, Hole, PassedOver, holes_of
from lanelog.spark.archiving.options import GROUP
from lanelog.spark.presence import Presence
from support.sql import one, rows, watermark
from support.waiting import accept, events, eventually

pytestmark = pytest.mark.thorough

Job = tuple[ArchiveGroup, Presence]
Jobs = Callable[[str], Job]


@pytest.fixture
def job(database: Database) -> Iterator[Jobs]:
    """Jobs of the archive, by name; they give their connections back after the test."""
    with ExitStack() as stack:

        def make(name: str) -> Job:
            presence = Presence(database, GROUP, name)
            stack.callback(presence.stop, [])
            return ArchiveGroup(database, GROUP, name, "a" * 32), presence

        yield make


def test_one_job_at_a_time(client: Client, job: Jobs, raw: Any) -> None:
    """A topic of a living job is refused; one whose process died is taken at once, under a higher token.

    The first one, should it go on after all, raises no watermark any more.
    """
    client.publish("t", "k", b"x")
    (first, alive), (second, other) = job("first"), job("second")
    first.take("t", alive)
    with pytest.raises(ConfigurationError, match="by first: one job at a time") as caught:
        second.take("t", other)
    assert "\n" not in str(caught.value)
    alive._session.close()  # what a kill does: the server frees the lock, in its own time
    states = lambda: {member.name: member.state for member in client.admin.members("t", GROUP)}  # noqa: E731
    eventually(lambda: states()["first"] is OwnerState.DEAD)
    second.take("t", other)
    assert second.epochs["t"] > first.epochs["t"]
    with pytest.raises(LeaseLost, match="not this job's any more"):
        first.advance("t", {"k": 1})
    assert watermark(raw, GROUP, "t", "k") == 0
    second.advance("t", {"k": 1})
    assert watermark(raw, GROUP, "t", "k") == 1
    second.leave({"t"})
    other.stop(["t"])
    assert set(states().values()) <= {OwnerState.STOPPED, OwnerState.DEAD}


def test_it_leaves_though_its_database_is_away(private_server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    """The archive waits once, and not once for each topic: the next job finds out that this one is gone."""
    with lanelog.connect(private_server.url) as client:
        client.migrate()
        for topic in "abc":
            client.publish(topic, "k", b"x")
    database = Database(evolve(ConnectConfig.from_url(private_server.url), publish_timeout=1.0))
    group, presence = ArchiveGroup(database, GROUP, "it", "a" * 32), Presence(database, GROUP, "it")
    for topic in "abc":
        group.take(topic, presence)
    private_server.kill()
    group.leave({"a", "b", "c"})
    assert len(events(caplog, "archive.leave_failed")) == 1
    assert not group.epochs
    presence.stop([])
    database.close()


def test_nobody_subscribes_to_its_group(client: Client, job: Jobs) -> None:
    """A subscriber's acks would let collection have what is not archived; and a subscriber's group is no archive's."""
    group, presence = job("it")
    client.publish("t", "k", b"x")
    group.take("t", presence)
    with pytest.raises(ConfigurationError, match="is registered with order='archive'"):
        client.subscribe("t", GROUP, accept)
    client.subscribe("u", GROUP, accept).stop()
    with pytest.raises(ConfigurationError, match="is registered with order='strict'"):
        group.take("u", presence)


def test_watermarks_only_grow_and_only_of_lanes_that_are_there(client: Client, job: Jobs, raw: Any) -> None:
    """A late or repeated rise changes nothing; a lane that was purged gets no row again; settled rows go."""
    group, presence = job("it")
    client.publish_many("t", [("k", b"x")] * 6)
    group.take("t", presence)
    client.admin.skip("t", GROUP, "k", 4, reason="broken", dry_run=False)
    group.advance("t", {"k": 2, "purged": 9})
    assert rows(raw, "SELECT partition_key, offset_acked FROM queue_offsets WHERE consumer_group = %s", GROUP) == [
        ("k", 2)
    ]
    group.advance("t", {"k": 3})
    assert watermark(raw, GROUP, "t", "k") == 4  # what was skipped ahead is passed
    assert one(raw, "SELECT COUNT(*) FROM queue_delivery_state WHERE consumer_group = %s", GROUP) == 0
    group.advance("t", {"k": 1})
    assert watermark(raw, GROUP, "t", "k") == 4


def test_a_start_raises_what_the_last_run_left(client: Client, job: Jobs, raw: Any) -> None:
    """Whatever died between manifest and watermark, or was sought back; and an older database is refused."""
    group, presence = job("it")
    client.publish_many("t", [("a", b"x"), ("a", b"x"), ("b", b"x")])
    group.take("t", presence)
    group.advance("t", {"a": 2})
    client.admin.seek("t", GROUP, to="earliest", dry_run=False)
    group.recover("t", {"a": 2, "b": 1, "purged": 7})
    assert (watermark(raw, GROUP, "t", "a"), watermark(raw, GROUP, "t", "b")) == (2, 1)
    with pytest.raises(ConfigurationError, match="the database is older than the archive"):
        group.recover("t", {"b": 2})


def test_an_archive_that_holds_more_than_the_log_gave_out_stops(
    client: Client, job: Jobs, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and when the tables are set back under a running job: no watermark goes above a head again."""
    group, presence = job("it")
    client.publish_many("t", [("k", b"x")] * 4)
    group.take("t", presence)
    group.advance("t", {"k": 2})
    rows(raw, "UPDATE queue_partitions SET head_offset = 3 WHERE partition_key = 'k'")
    rows(raw, "DELETE FROM queue_messages WHERE `offset` = 4")
    for late in (group.advance, group.recover):
        caplog.clear()
        with pytest.raises(ConfigurationError, match="the database is older than the archive"):
            late("t", {"k": 4})
        assert events(caplog, "archive.above_head") == [
            "archive.above_head topic=t key=k group=_archive offset=4 head=3"
        ]
    assert watermark(raw, GROUP, "t", "k") == 2


def test_a_deleted_group_ends_the_job(client: Client, job: Jobs) -> None:
    """The job never registers again by itself: collection may have had what it does not hold."""
    group, presence = job("it")
    client.publish("t", "k", b"x")
    group.take("t", presence)
    assert group.paused() is None
    client.admin.pause("t", GROUP, by="me", reason="x", dry_run=False)
    assert group.paused() == "t"
    client.admin.delete_group("t", GROUP, evict=True, dry_run=False)
    with pytest.raises(LeaseLost, match="or the group was deleted"):
        group.paused()
    with pytest.raises(LeaseLost, match="or the group was deleted"):
        group.advance("t", {"k": 1})


def test_a_hole_in_what_was_read(client: Client, job: Jobs, raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What is in the log was passed over, and is refused; what is gone is an error, unless an operator let it go.

    Messages below the floor left the log before the archive began, though collection has not deleted them yet.
    """
    group, presence = job("it")
    client.publish_many("t", [("k", b"x")] * 9)
    group.take("t", presence)
    rows(raw, "UPDATE queue_offsets SET offset_acked = 2 WHERE consumer_group = ''")
    group.check("t", [Hole(key="k", first=1, last=2)])
    assert not caplog.text
    with pytest.raises(PassedOver, match=r"offset 3 of topic 't', lane 'k', was passed over"):
        group.check("t", [Hole(key="k", first=1, last=4)])
    rows(raw, "DELETE FROM queue_messages WHERE `offset` IN (3, 4)")
    group.check("t", [Hole(key="k", first=3, last=4)])
    assert "archive.hole topic=t key=k group=_archive offset=3 through=4" in caplog.text
    caplog.clear()
    group.advance("t", {"k": 4})
    group.check("t", [Hole(key="k", first=3, last=4)])
    client.admin.purge("t", before=6, dry_run=False)
    group.check("t", [Hole(key="k", first=1, last=5)])
    assert "archive.hole" not in caplog.text


def test_a_member_as_others_are(client: Client, job: Jobs) -> None:
    """`lanelog members` shows it alive while its connection lasts, and dead as soon as that is gone."""
    group, presence = job("it")
    client.publish("t", "k", b"x")
    group.take("t", presence)
    (member,) = client.admin.members("t", GROUP)
    assert (member.name, member.state) == ("it", OwnerState.ALIVE)
    found: list[str] = []
    presence.start(lambda: ["t"], lambda: found.append("polled"), lambda _error: None)
    eventually(lambda: found)
    presence._session.drop()
    eventually(lambda: client.admin.members("t", GROUP)[0].state is OwnerState.DEAD)


def test_a_lost_connection_is_noticed(client: Client, job: Jobs, raw: Any) -> None:
    """The number changes with the connection: what was read before may be gone with the server."""
    group, presence = job("it")
    client.publish("t", "k", b"x")
    group.take("t", presence)
    lock = "SELECT liveness_lock FROM queue_subscriber_heartbeats"
    before, name = presence.beat(["t"]), one(raw, lock)
    assert (presence.beat(["t"]), one(raw, lock)) == (before, name)
    presence._session.drop()
    assert presence.beat(["t"]) != before
    assert one(raw, lock) not in ("", name)  # the old session may still have the old one


def test_holes() -> None:
    """What is missing between the highest offset archived and those that were read."""
    cases = ((0, [1, 2, 3], []), (3, [4], []), (3, [5], [(4, 4)]), (0, [4, 5, 9], [(1, 3), (6, 8)]), (3, [], []))
    for archived, offsets, holes in cases:
        assert list(holes_of(archived, offsets)) == holes
