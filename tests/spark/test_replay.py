"""Replay: what an archive holds, back in the log, in order, and once for each replay."""

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lanelog
from lanelog.client import Client
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.spark import Replayed, replay
from lanelog.spark.replaying import rows as _replay_rows
from lanelog.spark.source.writer import Publishing
from support.accounts import account
from support.archives import Archive, dying_after
from support.spark import PASSWORD, Read
from support.sql import one, rows
from support.waiting import accept, eventually

pytestmark = pytest.mark.thorough

Replay = Callable[..., Replayed]
LANES, MESSAGES = 6, 60


@pytest.fixture
def again(spark: SparkSession, client: Client, lanelog_url: str, archive: Archive, path: str) -> Replay:
    """Replays an archive of topic `t`, and of the dead letters of group `workers`, into the test's database."""
    items = [lanelog.Outgoing(f"k{n % LANES}", f"{n}", f"id-{n}", {"n": str(n)}) for n in range(MESSAGES)]
    client.publish_many("t", items)

    def handle(message: lanelog.Message) -> None:
        if message.offset == 3:
            raise lanelog.Reject("no")

    with client.subscribe("t", "workers", handle):
        eventually(lambda: client.admin.groups("t")[0].lag == 0, within=240)
    archive()
    return lambda **options: replay(path, **{"url": lanelog_url, "spark": spark, **options})


def by_key(read: Read, topic: str) -> dict[str, list[int]]:
    """The numbers that the messages of a topic had, in the order of their offsets."""
    found: dict[str, list[int]] = {}
    for row in sorted(read(subscribe=topic).collect(), key=lambda row: (row.key, row.offset)):
        found.setdefault(row.key, []).append(int(row.metadata["n"]))
    return found


WHOLE = {f"k{lane}": list(range(lane, MESSAGES, LANES)) for lane in range(LANES)}


def test_a_run_that_fails_half_way_is_made_up_for(
    client: Client, again: Replay, read: Read, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With collection running: nothing twice, nothing astray.

    What was published before the failure is acked and would be collected, but the replay's group keeps it; when it is
    done, that group is gone, and the same replay adds nothing, though the log has forgotten its messages.
    """
    with monkeypatch.context() as patch:
        patch.setattr(_replay_rows, "publish", dying_after(f"offset <= {MESSAGES // LANES // 2}"))
        with pytest.raises(RuntimeError, match="this run dies here"):
            again(topics=["t"], to="copy")
    (group,) = client.admin.groups("copy")
    assert (group.order, group.lag) == ("replay", MESSAGES // 2)

    def collect() -> None:
        with client.subscribe("copy", "readers", accept, retention=0) as subscription:
            eventually(lambda: subscription.stats().acked == MESSAGES // 2, within=240)
        rows(raw, "UPDATE queue_groups SET retention_ms = 0")
        client.admin.maintain()

    collect()
    done = again(topics=["t"], to="copy")
    assert group.group == f"_replay-{done.name}"
    assert (done.chosen, done.published, done.duplicates) == (MESSAGES, MESSAGES // 2, MESSAGES // 2)
    assert by_key(read, "copy") == WHOLE
    assert [group.group for group in client.admin.groups("copy")] == ["readers"]
    collect()
    same = again(topics=["t"], to="copy")
    assert (same.done_before, same.published) == (True, 0)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'copy'") == 0


def test_filters(client: Client, again: Replay, read: Read) -> None:
    """By key, first id and time; what was replayed is not replayed again, unless by another name."""
    assert again(topics=["t"], to="a", keys=["k1", "k2"], dry_run=True).chosen == 2 * len(WHOLE["k1"])
    assert again(topics=["t"], to="a", ids=["id-7", "id-8", "none"], dry_run=True).chosen == 2
    now = datetime.now(UTC)
    assert again(topics=["t"], to="a", until=now - timedelta(hours=1), dry_run=True).chosen == 0
    assert again(topics=["t"], to="a", since=now - timedelta(hours=1), dry_run=True).chosen == MESSAGES
    again(topics=["t"], to="b", keys=["k1"], name="first")
    again(topics=["t"], to="b", keys=["k1"], name="second")
    assert by_key(read, "b") == {"k1": WHOLE["k1"] * 2}
    with pytest.raises(ConfigurationError, match="a replay named 'first' was done with other options"):
        again(topics=["t"], to="b", keys=["k2"], name="first")


def test_dead_letters_go_back_to_their_group_alone(client: Client, again: Replay) -> None:
    """Into their original topic; the others of its groups pass them by. Later replays do not take them along."""
    seen: dict[str, list[str]] = {"workers": [], "others": []}

    def note(message: lanelog.Message) -> None:
        seen[message.group].append(message.metadata.get("lanelog.original_id", ""))

    client.subscribe("t", "others", accept, start="latest").stop()
    done = again(dead_letters_of="workers")
    assert done.published == LANES
    for group in seen:
        with client.subscribe("t", group, note):
            eventually(lambda group=group: next(g for g in client.admin.groups("t") if g.group == group).lag == 0)
    assert sorted(seen["workers"]) == sorted(f"id-{n}" for n in range(2 * LANES, 3 * LANES))
    assert not seen["others"]


def test_a_new_group_gets_history(client: Client, again: Replay) -> None:
    """Register it behind what is there, replay what was written before for it alone, and let it run."""
    client.subscribe("t", "new", accept, start="latest").stop()
    client.publish("t", "k0", b"live", metadata={"n": "live"})
    again(topics=["t"], target_group="new", until=datetime.now(UTC))
    seen: list[tuple[str, str]] = []
    with client.subscribe("t", "new", lambda message: seen.append((message.key, message.metadata["n"]))):
        eventually(lambda: len(seen) == MESSAGES + 1, within=240)
    assert [n for key, n in seen if key == "k1"] == [str(n) for n in WHOLE["k1"]]
    assert [n for key, n in seen if key == "k0"] == ["live", *(str(n) for n in WHOLE["k0"])]


def test_not_faster_than_the_rate() -> None:
    """A task waits until what it has published is due; what was there already costs nothing."""
    pauses: list[float] = []

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

    def publish(_topic: str, items: Sequence[Any]) -> list[lanelog.Receipt]:
        return [lanelog.Receipt(1, item.id, item.id.startswith("old")) for item in items]

    publishing = Publishing(publish, 10.0, pause=Pause())
    for prefix in ("old", "old", "new", "new", "new"):
        for n in range(10):
            publishing.take("t", lanelog.Outgoing("k", b"x", f"{prefix}-{n}"), 1)
    assert (publishing.published, publishing.duplicates, pauses[:3]) == (30, 20, [0.0, 0.0, 0.0])
    assert all(0.5 < pause <= 1.0 for pause in pauses[3:])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "give topics, or the group whose dead letters are meant"),
        ({"topics": "t"}, r"topics must be several: write \['t'\]"),
        ({"topics": ["t"], "target_group": "g", "all_groups": True}, "target_group is one group"),
        ({"topics": ["t"], "rate": 0.0}, "rate must be a finite number, more than 0"),
        ({"topics": ["t"], "since": datetime(2026, 1, 1)}, "since must be an aware datetime"),  # noqa: DTZ001
        ({"topics": ["t"], "to": " "}, "to must not begin or end with white space"),
        ({"topics": ["t"], "name": "x" * 201}, "name must have at most 200 characters"),
        (
            {"topics": ["t"], "since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
            "since must be before until",
        ),
    ],
)
def test_bad_options(options: dict[str, Any], line: str) -> None:
    """One clear line, before anything is read."""
    with pytest.raises(ConfigurationError, match=line) as caught:
        replay("/nonexistent", **options)
    assert "\n" not in str(caught.value)


def test_a_task_that_may_not_write_is_one_line(client: Client, again: Replay, lanelog_url: str, raw: Any) -> None:
    """What the database said, without the pages that Spark adds; no password. The replay goes on when it may."""
    with account(raw, lanelog_url, {"*": "SELECT, INSERT, UPDATE, DELETE"}, PASSWORD) as url:
        rows(
            raw,
            "CREATE TRIGGER refusing BEFORE INSERT ON queue_messages FOR EACH ROW "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'",
        )
        with pytest.raises(LanelogError, match=r"the replay failed: .*not this one") as caught:
            again(topics=["t"], to="copy", url=url)
        assert "\n" not in str(caught.value)
        assert PASSWORD not in str(caught.value)
        rows(raw, "DROP TRIGGER refusing")
        done = again(topics=["t"], to="copy", url=url)
        assert (done.published, done.duplicates) == (MESSAGES, 0)  # no task of the first run has lived on
        assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'copy'") == MESSAGES


def test_an_account_that_cannot_be_written_is_one_line(client: Client, again: Replay, path: str) -> None:
    """Before anything is published; an archive that is mounted for reading is an archive."""
    (Path(path) / "_replays").symlink_to("nowhere")
    with pytest.raises(LanelogError, match=r"_replays.* cannot be written") as caught:
        again(topics=["t"], to="copy")
    assert "\n" not in str(caught.value)
    assert "copy" not in [topic.topic for topic in client.admin.topics()]


def test_what_is_not_there_is_refused(client: Client, again: Replay, spark: SparkSession, tmp_path: Path) -> None:
    """A topic that the archive lacks, a group that is not registered, a directory without an archive."""
    with pytest.raises(ConfigurationError, match="holds nothing of topic 'unknown'"):
        again(topics=["unknown"])
    with pytest.raises(ConfigurationError, match="no group 'nobody' is registered for topic 't'"):
        again(topics=["t"], target_group="nobody")
    with pytest.raises(LanelogError, match="there is no archive at"):
        replay(tmp_path / "none", topics=["t"], spark=spark, url="mysql://root@127.0.0.1:1/x")
    assert {group.group for group in client.admin.groups("t")} == {"workers", "_archive"}
