"""Runs of a replay: one at a time, one that died or slept, one that found nothing; and which replays are the same."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lanelog
from lanelog._base.payloads.metadata import METADATA_MAX_BYTES, encode_metadata
from lanelog._database import Database
from lanelog.admin import OwnerState
from lanelog.client import Client
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.spark import Replayed, replay
from lanelog.spark.archiving.manifest import ManifestStore
from lanelog.spark.presence import Presence
from lanelog.spark.replay import _Account
from lanelog.spark.replaying import rows as _replay_rows
from lanelog.spark.replaying.holder import Holder, let_go
from lanelog.spark.replaying.options import ReplayOptions
from support.archives import Archive
from support.refusing import refused
from support.spark import Read
from support.sql import one, rows
from support.waiting import accept, events, eventually

pytestmark = pytest.mark.thorough

Replay = Callable[..., Replayed]
LANES, MESSAGES = 4, 20


def publish(client: Client) -> None:
    client.publish_many("t", [lanelog.Outgoing(f"k{n % LANES}", f"{n}", f"id-{n}") for n in range(MESSAGES)])


@pytest.fixture
def again(spark: SparkSession, client: Client, lanelog_url: str, archive: Archive, path: str) -> Replay:
    """Replays an archive of topic `t` into topic `copy` of the test's database."""
    publish(client)
    archive()
    given = {"path": path, "topics": ["t"], "to": "copy", "url": lanelog_url, "spark": spark}
    return lambda **options: replay(**{**given, **options})


def held(client: Client) -> list[str]:
    """The groups of topic `copy` that hold what was replayed."""
    return [group.group for group in client.admin.groups("copy") if group.order == "replay"]


def freed(client: Client) -> None:
    """Wait until the server has freed the lock of a run whose connection is closed: it does so in its own time."""
    (group,) = held(client)
    eventually(lambda: OwnerState.ALIVE not in {member.state for member in client.admin.members("copy", group)})


def before_publishing(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """The next run to publish does that before it publishes; the runs after it publish at once."""
    works = _replay_rows.publish

    def run_it(*args: Any) -> tuple[int, int]:
        monkeypatch.setattr(_replay_rows, "publish", works)
        then()
        return works(*args)

    monkeypatch.setattr(_replay_rows, "publish", run_it)


def test_one_run_at_a_time(client: Client, again: Replay, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is alive, the same replay is refused, and nobody lets go what the first has. Another one may run."""

    def others() -> None:
        assert re.search(r"being replayed to by replay@.*: one run of a replay at a time", refused(again))
        let_go(database, held(client)[0])
        assert (len(held(client)), again(keys=["k1"], name="other").published) == (1, MESSAGES // LANES)
        assert len(held(client)) == 1

    before_publishing(monkeypatch, others)
    done = again()
    assert (done.published, done.duplicates, held(client)) == (MESSAGES, 0, [])


def test_a_run_that_slept_delivers_nothing_twice(
    client: Client, again: Replay, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run takes over when its heartbeat has expired, and is done; what that published is read and collected.

    When the first one wakes, it publishes nothing, and its end leaves the account as it is.
    """
    presences: list[Presence] = []

    beats = Presence.start

    def noted(self: Presence, *args: Any) -> None:
        presences.append(self)
        beats(self, *args)

    def sleep() -> None:
        asleep = presences[0]
        assert asleep._loop is not None
        asleep._loop.stop()
        asleep._session.close()
        freed(client)
        assert again().published == MESSAGES
        with client.subscribe("copy", "readers", accept, retention=0) as subscription:
            eventually(lambda: subscription.stats().acked == MESSAGES, within=240)
        client.admin.maintain()
        assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'copy'") == 0

    monkeypatch.setattr(Presence, "start", noted)
    before_publishing(monkeypatch, sleep)
    with pytest.raises(LanelogError, match=r"the replay failed: .*does not hold topic 'copy' any more") as caught:
        again()
    assert "\n" not in str(caught.value)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'copy'") == 0
    assert again().done_before
    assert held(client) == []


def test_a_run_that_died_is_taken_over_at_once(
    client: Client, again: Replay, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of it that live on publish nothing any more; what it published is there, and the next run goes on."""
    left: list[Callable[[], Any]] = []
    works = _replay_rows.publish

    def run_it(chosen: Any, *args: Any) -> None:
        left.append(lambda: works(chosen, *args))
        works(chosen.where("offset = 1"), *args)
        raise RuntimeError("this run dies here")

    monkeypatch.setattr(_replay_rows, "publish", run_it)
    monkeypatch.setattr(Presence, "stop", lambda self, _topics: (self._loop.stop(), self._session.close()))
    monkeypatch.setattr(Holder, "leave", lambda _: None)
    with pytest.raises(RuntimeError, match="dies here"):
        again()
    monkeypatch.undo()
    freed(client)

    def late() -> None:
        with pytest.raises(Exception, match="does not hold topic 'copy' any more"):
            left[0]()
        assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'copy'") == LANES

    before_publishing(monkeypatch, late)
    done = again()
    assert (done.published, done.duplicates, held(client)) == (MESSAGES - LANES, LANES, [])


def test_a_run_that_failed_gives_its_topics_back_and_says_why(
    client: Client, again: Replay, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody stops the session: the same replay can go on at once."""

    def stopped(*_: Any) -> None:
        raise LanelogError("the job was cancelled because the context was shut down")

    with monkeypatch.context() as patch:
        patch.setattr(_replay_rows, "publish", stopped)
        with pytest.raises(LanelogError, match="the context was shut down"):
            again()
    assert one(raw, "SELECT COUNT(*) FROM queue_partition_leases WHERE topic = 'copy' AND leased_by <> ''") == 0
    assert (again().published, held(client)) == (MESSAGES, [])


def test_what_seems_alive_is_its_own(client: Client, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """As when the server has restarted before it learned that the run stopped; another run's group stays, and why."""
    client.publish("copy", "k", b"x")
    presence = Presence(database, "_replay-x", "it")
    Holder(database, "_replay-x", "it").take(["copy"], presence)
    let_go(database, "_replay-x", but="other")
    assert (held(client), len(events(caplog, "replay.still_held"))) == (["_replay-x"], 1)
    let_go(database, "_replay-x", but="it")
    assert held(client) == []
    presence.stop([])


def test_a_run_that_begins_when_another_one_ends(
    client: Client, again: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run has counted, and is about to take the topics: it finds that all is done, and lets them go."""
    works = _replay_rows.counted

    def counted(chosen: Any) -> Any:
        monkeypatch.setattr(_replay_rows, "counted", works)
        assert again().published == MESSAGES
        return works(chosen)

    monkeypatch.setattr(_replay_rows, "counted", counted)
    done = again()
    assert (done.done_before, done.published, done.chosen, held(client)) == (True, 0, MESSAGES, [])


def some_options() -> ReplayOptions:
    return ReplayOptions(path="/a", topics=("t",))


def test_what_is_done_stays_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that slept before it wrote down that it begins finds what was done meanwhile, and writes over nothing."""
    account = _Account(tmp_path / "account.json")
    options = some_options()
    done = _Account.done

    def asleep(_self: _Account, _options: ReplayOptions) -> None:
        monkeypatch.setattr(_Account, "done", done)
        account.begin(options)
        account.end(options, 7)

    monkeypatch.setattr(_Account, "done", asleep)
    account.begin(options)
    assert account.done(options) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["account.json"]


def test_the_account_outlives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account's name is flushed, and its directory's, which the first replay has made."""
    flushed: list[Path] = []
    monkeypatch.setattr(importlib.import_module("lanelog.spark.replay"), "flush_directory", flushed.append)
    options = some_options()
    _Account(tmp_path / "_replays" / "account.json").begin(options)
    assert flushed == [tmp_path / "_replays", tmp_path]


def test_what_found_nothing_is_not_done(client: Client, again: Replay, archive: Archive) -> None:
    """The same replay finds what was archived since."""
    assert (again(keys=["later"]).chosen, again(keys=["later"]).done_before) == (0, False)
    assert "copy" not in [topic.topic for topic in client.admin.topics()]
    client.publish("t", "later", b"x")
    archive()
    assert again(keys=["later"]).published == 1
    assert again(keys=["later"]).done_before


def test_replays_of_two_databases_are_two(
    again: Replay, archive: Archive, empty_url: str, path: str, read: Read
) -> None:
    """The same topics, keys, offsets and ids into one topic, under one name; and one archive into both databases."""
    with lanelog.connect(empty_url) as other:
        other.migrate()
        publish(other)
    other_path = path + "-other"
    archive(path=other_path, url=empty_url)
    assert len({ManifestStore(Path(each)).required().database for each in (path, other_path)}) == 2
    assert again(name="both").published == MESSAGES
    assert again(path=other_path, name="both").published == MESSAGES
    assert read(subscribe="copy").count() == 2 * MESSAGES

    first = again(keys=["k0"], to="k0")
    second = again(keys=["k0"], to="k0", url=empty_url)
    assert (first.published, second.published) == (MESSAGES // LANES, MESSAGES // LANES)
    assert first.name != second.name


def test_no_more_tasks_than_keys(again: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its share of the rate: what has none of the keys would waste it."""
    seen: list[int] = []
    works = _replay_rows.publish

    def publish(*args: Any) -> tuple[int, int]:
        seen.append(args[-1])
        return works(*args)

    monkeypatch.setattr(_replay_rows, "publish", publish)
    again(keys=["k0"], rate=1000.0)
    again(rate=1000.0)
    assert seen == [1, 2]


def test_a_large_message_is_replayed(again: Replay, archive: Archive, lanelog_url: str, raw: Any) -> None:
    """What was let into the log once is let in again."""
    with lanelog.connect(lanelog_url, max_payload_bytes=4 * 1024 * 1024) as large:
        large.publish("t", "large", b"x" * 2 * 1024 * 1024)
    archive()
    assert again(keys=["large"]).published == 1
    assert rows(raw, "SELECT payload_bytes FROM queue_messages WHERE topic = 'copy'") == [(2 * 1024 * 1024,)]


def test_metadata_without_room_for_the_marks_is_refused(client: Client, again: Replay, archive: Archive) -> None:
    """Before anything is published: no run of that replay could be done. To the byte, as publishing counts it."""
    odd = '"\\/\n\x01\x7fé🔑\u2028'
    marks = {"lanelog.original_id": "it", "lanelog.replay": "whole"}
    room = METADATA_MAX_BYTES - len(encode_metadata({odd: odd, **marks}).encode())
    client.publish("t", "full", b"x", id="it", metadata={odd: odd + "x" * room})
    client.publish("t", "over", b"x", id="it", metadata={odd: odd + "x" * (room + 1)})
    archive()
    line = r"offset 1 of topic 't', lane 'over', cannot be replayed: .* metadata has 65536 bytes as JSON, 65535 are"
    with pytest.raises(ConfigurationError, match=line) as caught:
        again(name="whole")
    assert "\n" not in str(caught.value)
    assert "copy" not in [topic.topic for topic in client.admin.topics()]
    assert again(keys=["full"], name="whole").published == 1
