"""Replay and what repeats a message: redriven ones, dead letters of replayed ones, and letters of one message."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lanelog
from lanelog.client import Client
from lanelog.spark import Replayed, read_archive, replay
from lanelog.spark.replaying import rows as _replay_rows
from support.archives import Archive, dying_after
from support.spark import Read
from support.sql import rows
from support.waiting import accept, eventually

Replay = Callable[..., Replayed]


pytestmark = pytest.mark.thorough


@pytest.fixture
def again(spark: SparkSession, lanelog_url: str, path: str) -> Replay:
    """Replays that archive into the test's database; a dry run before it counts the same."""

    def run_it(**options: Any) -> Replayed:
        counted = replay(path, url=lanelog_url, spark=spark, dry_run=True, **options)
        done = replay(path, url=lanelog_url, spark=spark, **options)
        assert (counted.chosen, counted.topics) == (done.chosen, done.topics)
        return done

    return run_it


@pytest.fixture
def fails(client: Client) -> Callable[..., None]:
    """Lets group `workers` refuse the messages of a topic with these payloads; then it has no lag there."""

    def consume(*payloads: bytes, topic: str = "t") -> None:
        def handle(message: lanelog.Message) -> None:
            if message.payload in payloads:
                raise lanelog.Reject("no")

        with client.subscribe(topic, "workers", handle):
            eventually(lambda: lag(client, topic) == 0, within=240)

    return consume


def lag(client: Client, topic: str) -> int:
    return next(group.lag for group in client.admin.groups(topic) if group.group == "workers")


def publish(client: Client) -> None:
    client.publish_many("t", [lanelog.Outgoing(f"k{n % 2}", f"{n}", f"id-{n}") for n in range(6)])


def first_ids(read: Read, topic: str) -> list[str]:
    return sorted(row.metadata["lanelog.original_id"] for row in read(subscribe=topic).collect())


def test_what_was_redriven_is_replayed_once(
    client: Client, archive: Archive, again: Replay, fails: Callable[..., None], read: Read
) -> None:
    """The copy of it, which is for one group alone, is left out; so is the copy that a replay made for one group."""
    publish(client)
    fails(b"3")
    client.admin.redrive("t", "workers", all=True, dry_run=False)
    archive()
    again(topics=["t"], target_group="workers")
    archive()
    assert again(topics=["t"], to="copy").published == 6
    assert first_ids(read, "copy") == [f"id-{n}" for n in range(6)]


def test_dead_letters_of_what_was_replayed_are_replayed(
    client: Client, archive: Archive, again: Replay, fails: Callable[..., None], read: Read
) -> None:
    """A dead letter has the metadata of what died; it is no repetition, whether asked for by its group or its topic."""
    publish(client)
    client.subscribe("t", "workers", accept, start="latest").stop()
    archive()
    again(topics=["t"], target_group="workers", name="history")
    fails(b"1", b"4")
    archive()
    assert again(topics=["t_dlq"], to="copy").published == 2
    assert again(dead_letters_of="workers").published == 2
    assert first_ids(read, "copy") == ["id-1", "id-4"]


def test_of_several_letters_of_a_message_the_last_is_replayed(
    spark: SparkSession,
    client: Client,
    archive: Archive,
    again: Replay,
    fails: Callable[..., None],
    path: str,
    read: Read,
    raw: Any,
) -> None:
    """A message was replayed and died again. Another one that has its id, because it was collected, is another one."""
    publish(client)
    fails(b"1", b"2")
    archive()
    assert again(dead_letters_of="workers", name="first").published == 2
    fails(b"2")
    archive()
    rows(raw, "UPDATE queue_groups SET retention_ms = 0")
    client.admin.maintain()
    client.publish("t", "k0", b"another", id="id-2")
    fails(b"another")
    archive()
    letters = read_archive(spark, path).where("failed_group = 'workers'")
    assert letters.count() == 4

    assert again(dead_letters_of="workers", name="second", to="copy", all_groups=True).published == 3
    found = [(row.metadata["lanelog.original_id"], bytes(row.value)) for row in read(subscribe="copy").collect()]
    assert sorted(found) == [("id-1", b"1"), ("id-2", b"2"), ("id-2", b"another")]


def test_what_was_redriven_since_is_left_out(
    client: Client, archive: Archive, again: Replay, fails: Callable[..., None], read: Read
) -> None:
    """Once the copy is archived; if that died again, its own letter counts. A cap of the redrive is not taken over."""
    publish(client)
    fails(b"1", b"2", b"3")
    archive()
    letters = {letter.original_id: letter.id for letter in client.admin.dead_letters("t", "workers")}
    client.admin.redrive("t", "workers", ids=[letters["id-1"], letters["id-2"]], max_deliveries=1, dry_run=False)
    assert again(dead_letters_of="workers", name="early", to="early", all_groups=True).published == 3
    fails(b"2")
    archive()
    assert again(dead_letters_of="workers", to="copy", all_groups=True).published == 2
    assert first_ids(read, "copy") == ["id-2", "id-3"]
    assert all("lanelog.max_deliveries" not in row.metadata for row in read(subscribe="copy").collect())


def test_a_replay_that_died_half_way_does_not_take_what_died_since(
    client: Client,
    archive: Archive,
    again: Replay,
    fails: Callable[..., None],
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it had put back died again and was archived: the next run goes on with the others and repeats nothing."""
    publish(client)
    fails(b"1", b"2")
    archive()
    monkeypatch.setattr(_replay_rows, "publish", dying_after("value = X'31'"))
    with pytest.raises(RuntimeError, match="this run dies here"):
        again(dead_letters_of="workers")
    monkeypatch.undo()
    fails(b"1")
    archive()
    done = again(dead_letters_of="workers")
    assert (done.published, done.duplicates) == (1, 1)
    found = [row.metadata or {} for row in read(subscribe="t").collect()]
    assert sorted(each["lanelog.original_id"] for each in found if "lanelog.original_id" in each) == ["id-1", "id-2"]
