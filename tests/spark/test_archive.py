"""The archive: everything once, whatever happens in between, and nothing collected that it does not hold."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lanelog.admin.operate.problems import of_group
from lanelog.client import Client
from lanelog.errors import ConfigurationError, LanelogError, LeaseLost
from lanelog.spark import read_archive
from lanelog.spark.archive import Archived, run
from lanelog.spark.archiving import files
from lanelog.spark.archiving import manifest as _manifest
from lanelog.spark.archiving.group import ArchiveGroup
from lanelog.spark.archiving.job import ArchiveJob
from lanelog.spark.archiving.manifest import MESSAGES, OUTCOMES, Manifest, ManifestStore
from lanelog.spark.archiving.options import GROUP, ArchiveOptions
from support.archives import WITHIN, Archive, Held, Place, publish
from support.sql import one, rows, watermark
from support.waiting import accept, eventually

pytestmark = pytest.mark.thorough


def test_what_the_manifest_holds_comes_only_once(client: Client, archive: Archive, archived: Held, path: str) -> None:
    """Neither a lost nor another checkpoint matters, nor a seek."""
    wanted = publish(client, "t", 7)
    assert archive().messages == 7
    client.admin.seek("t", GROUP, to="earliest", dry_run=False)
    shutil.rmtree(Path(path) / "_checkpoints")
    assert archive().messages == 0
    wanted += publish(client, "t", 3)
    assert (archive(checkpoint=path + "-checkpoint", max_messages=1).messages, archived()) == (3, wanted)
    assert client.admin.groups("t")[0].lag == 0


def test_a_run_that_dies_at_any_step_is_made_up_for(
    client: Client, archive: Archive, archived: Held, path: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the files, between files and manifest, between manifest and watermark.

    The next run has each message once, and no watermark was ever ahead of the archive.
    """
    wanted = publish(client, "t", 30)
    broken: list[str] = []

    def fail() -> None:
        broken.append("yes")
        raise RuntimeError("this run dies here")

    for owner, name in ((files, "_described"), (ManifestStore, "commit"), (ArchiveGroup, "advance")):
        with monkeypatch.context() as patch:
            works = getattr(owner, name)
            # The first version of the manifest, which holds nothing, and the start, which raises nothing, may pass.
            nothing = {"commit": lambda _, manifest: not manifest.files, "advance": lambda *given: not given[-1]}
            passes = nothing.get(name, lambda *_: False)
            patch.setattr(owner, name, lambda *given, p=passes, w=works: w(*given) if p(*given) else fail())
            with pytest.raises(LanelogError, match="the archive's query failed: this run dies here"):
                archive()
        assert broken.pop()
        held = archived()
        assert bool(list(Path(path).glob("messages/*"))) is bool(held), "a failed attempt leaves nothing on the disk"
        assert held == (wanted if owner is ArchiveGroup else Counter()), name
        assert watermark(raw, GROUP, "t", "k0") == 0
    assert (archive().messages, archived(), watermark(raw, GROUP, "t", "k0")) == (0, wanted, 6)
    assert not client.admin.groups("t")[0].stale_lanes


def test_a_version_that_stands_though_the_disk_failed(
    spark: SparkSession,
    client: Client,
    archive: Archive,
    archived: Held,
    lanelog_url: str,
    path: str,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that goes on after that deletes nothing that the version names; it ends, and the next one goes on."""
    wanted = publish(client, "t", 30)
    flush, broken = _manifest.flush_directory, []

    def fail_once(directory: Path) -> None:
        found = ManifestStore(Path(path)).latest()
        if not broken and found is not None and found.files:
            broken.append(directory)
            raise OSError("the disk fails here")
        flush(directory)

    monkeypatch.setattr(_manifest, "flush_directory", fail_once)
    with pytest.raises(LeaseLost, match="was made already"):
        run(ArchiveOptions(path=path, url=lanelog_url, once=False, interval=0.1), spark)
    assert broken
    assert (archived(), watermark(raw, GROUP, "t", "k0"), archive().messages) == (wanted, 0, 0)
    assert (archived(), watermark(raw, GROUP, "t", "k0")) == (wanted, 6)


def test_an_operators_act_on_a_topic_without_a_message(
    client: Client, archive: Archive, archived: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive goes on, because it names its topics from the beginning; another archive is refused all the same."""
    wanted = publish(client, "t", 10, lanes=2)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", lambda *_: 1 / 0)
        with pytest.raises(LanelogError, match="division by zero"):
            archive()
    with pytest.raises(ConfigurationError, match="has archived topic 't' to another location"):
        archive(path=str(tmp_path / "second"))
    client.admin.pause("t", GROUP, key="k0", by="me", reason="x", dry_run=False)
    client.admin.skip("t", GROUP, "k1", 1, reason="broken", dry_run=False)
    assert (archive().messages, archived()) == (10, wanted)


def test_a_run_that_is_stopped_is_not_done(
    spark: SparkSession, client: Client, archive: Archive, lanelog_url: str, path: str
) -> None:
    """With `once`, being stopped before everything is archived is an error; the next run goes on."""
    publish(client, "t", 5)
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(LanelogError, match="stopped before everything was archived"):
        run(ArchiveOptions(path=path, url=lanelog_url), spark, stopping)
    assert archive(max_messages=1).messages == 5
    assert len(list(Path(path).glob("_checkpoints/*/offsets/[0-9]*"))) <= 3  # each holds an offset of every lane


def test_a_server_that_may_have_restarted_is_read_again(
    client: Client, archive: Archive, archived: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was read may be gone with it, and its offset another message's: nothing of it is named by the manifest."""
    wanted = publish(client, "t", 10)
    proofs: list[Counter[Place]] = []
    prove = ArchiveJob._prove

    def lose_the_connection_once(job: ArchiveJob, connection: int) -> None:
        if not proofs:
            job.presence._session.drop()
        proofs.append(archived())
        prove(job, connection)

    monkeypatch.setattr(ArchiveJob, "_prove", lose_the_connection_once)
    assert archive().messages == 10
    assert not any(proofs[:2])
    assert "archive.query_failed" in caplog.text
    assert archived() == wanted


def test_collection_never_outruns_the_archive(
    client: Client,
    archive: Archive,
    archived: Held,
    consume: Callable[[str, int], None],
    raw: Any,
    path: str,
) -> None:
    """What all others have acked stays until it is archived, then it goes.

    Lanes that were purged are forgotten; when they come back they continue above, and are archived from there.
    """
    wanted = publish(client, "t", 10)
    assert archive().messages == 10
    rows(raw, "UPDATE queue_groups SET retention_ms = 0")
    wanted += publish(client, "t", 10)
    consume("t", 20)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 10
    assert archive().messages == 10
    for _ in range(3):
        rows(raw, "UPDATE queue_groups SET retention_ms = 0")
        client.admin.maintain()
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 0
    assert one(raw, "SELECT COUNT(*) FROM queue_partitions WHERE partition_key <> ''") == 0
    assert archive(forget_from=1).messages == 0
    assert ManifestStore(Path(path)).required().lanes == {"t": {}}
    wanted += publish(client, "t", 5)
    assert (archive().messages, archived()) == (5, wanted)


def test_an_archive_that_was_restored(
    client: Client, archive: Archive, archived: Held, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the older copy lacks is archived again, though the group was ahead of it, and nothing was published since.

    What was collected meanwhile may be missing: that is logged.
    """
    wanted = publish(client, "t", 5)
    archive()
    copy = ManifestStore(Path(path)).required()
    wanted += publish(client, "t", 7, lanes=7)  # two of them are not in the copy
    archive()
    for later in (Path(path) / "_manifest").iterdir():
        if int(later.name[:10]) > copy.version:
            later.unlink()
    assert archived() != wanted
    assert (archive().messages, archived()) == (7, wanted)
    assert caplog.text.count("archive.watermark_ahead topic=t group=_archive lanes=7") == 1
    assert (archive().messages, caplog.text.count("archive.watermark_ahead")) == (0, 1)


def test_what_operators_let_go_is_no_loss(
    client: Client, archive: Archive, archived: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that were purged are not waited for; the archive goes on after them, without an error."""
    wanted = publish(client, "t", 10, lanes=1)
    archive()
    publish(client, "t", 5, lanes=1)
    client.admin.purge("t", before=14, dry_run=False)
    wanted += publish(client, "t", 1, lanes=1)
    wanted.update({("t", "k0", 14): 1, ("t", "k0", 15): 1})
    archive()
    assert archived() == wanted
    assert "archive.hole" not in caplog.text


def test_a_running_archive_takes_what_appears(
    spark: SparkSession, client: Client, archive: Archive, archived: Held, lanelog_url: str, path: str
) -> None:
    """The job is a living member that takes new topics, before their first message too, and ends when stopped.

    Meanwhile a second one is refused, whatever topics it is for; while an operator has paused the group, no run begins.
    """
    wanted = publish(client, "t", 5)
    publish(client, "other", 2)
    stopping, ended = threading.Event(), list[Archived]()
    options = ArchiveOptions(path=path, url=lanelog_url, pattern="[tu]", once=False, interval=0.1)
    job = threading.Thread(target=lambda: ended.append(run(options, spark, stopping)))
    job.start()
    try:
        eventually(lambda: ManifestStore(Path(path)).latest() and archived() == wanted, within=WITHIN)
        for topic in ("t", "other"):
            with pytest.raises(ConfigurationError, match="topic 't' is being archived for group '_archive' by"):
                archive(topics=(topic,))
        client.subscribe("u", "readers", accept).stop()
        eventually(lambda: ManifestStore(Path(path)).required().lanes.keys() == {"t", "u"}, within=WITHIN)
        wanted += publish(client, "u", 5)
        eventually(lambda: archived() == wanted, within=WITHIN)
        group = next(group for group in client.admin.groups("u") if group.group == GROUP)
        assert (group.order, group.members, of_group(group, None)) == ("archive", 1, [])
        client.admin.pause("u", GROUP, by="me", reason="maintenance")
    finally:
        stopping.set()
        job.join()
    assert [done.total for done in ended] == [10]
    assert all(group.members == 0 for group in client.admin.groups("u"))
    with pytest.raises(ConfigurationError, match="is paused for topic 'u': `lanelog resume u _archive`"):
        archive(pattern="[tu]")
    assert archive(topics=("other",)).total == 12


def test_readers_see_a_constant_count_while_files_are_merged(
    spark: SparkSession, client: Client, archive: Archive, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small files become few; whoever reads meanwhile finds every message once, and no file missing."""
    publish(client, "t", 100, lanes=10)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "small_files", lambda _: [])
        archive(max_messages=20)
    before = ManifestStore(Path(path)).required()
    assert len(before.files) >= 8
    frame = read_archive(spark, path)
    counts, over = [], threading.Event()

    def read_on() -> None:
        while not over.is_set():
            counts.append(read_archive(spark, path).count())

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        archive()
    finally:
        over.set()
        reader.join()
    after = ManifestStore(Path(path)).required()
    assert len(after.files) == 1
    assert after.rows == before.rows == 100
    assert set(counts) == {100}
    assert frame.count() == 100  # planned before, read after: the grace
    publish(client, "t", 1)
    archive(grace=0.0)
    assert ManifestStore(Path(path)).required().retired == ()
    assert len(list(Path(path).glob("messages/**/*.parquet"))) == 2
    assert read_archive(spark, path).select("topic", "key", "offset").distinct().count() == 101


def test_outcomes_are_archived_once(spark: SparkSession, client: Client, archive: Archive, path: str) -> None:
    """Each (group, topic, key, offset, finished_at) of a group that keeps history.

    A message that is handled again after a seek has another outcome. Outcomes outlive their group.
    """
    publish(client, "t", 6)
    with client.subscribe("t", "workers", accept, history=True) as subscription:
        eventually(lambda: subscription.stats().acked == 6, within=240)
    assert [archive().outcomes for _ in range(2)] == [6, 0]
    client.admin.seek("t", "workers", key="k0", to="earliest", dry_run=False)
    with client.subscribe("t", "workers", accept, history=True) as subscription:
        eventually(lambda: subscription.stats().acked == 2, within=240)
    assert archive().outcomes == 2
    with client.subscribe("t", "former", accept, history=True) as subscription:
        eventually(lambda: subscription.stats().acked == 6, within=240)
    client.admin.delete_group("t", "former", dry_run=False)
    assert archive().outcomes == 6
    found = read_archive(spark, path, OUTCOMES).where("consumer_group = 'workers'")
    assert found.count() == 8
    assert found.select("consumer_group", "topic", "key", "message_offset").distinct().count() == 6
    assert {row.outcome for row in found.select("outcome").collect()} == {"success"}
    assert read_archive(spark, path, MESSAGES, topics=["t"]).count() == 6
