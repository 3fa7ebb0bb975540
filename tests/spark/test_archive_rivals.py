"""Two jobs, or two archives: one alone goes on, and neither is told that it holds what it does not."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lanelog.admin.views import OwnerState
from lanelog.client import Client
from lanelog.errors import ConfigurationError, LeaseLost
from lanelog.spark._archive_job import ArchiveJob
from lanelog.spark._archive_options import GROUP, ArchiveOptions
from lanelog.spark._manifest import Manifest, ManifestStore
from lanelog.spark.archive import Archived, run
from support.archives import Archive, Held, publish
from support.sql import watermark
from support.waiting import eventually


def test_other_topics_of_the_same_archive(
    spark: SparkSession, client: Client, archive: Archive, archived: Held, lanelog_url: str, path: str
) -> None:
    """A job is refused while another one is at work in the archive, whatever topics it is for."""
    wanted = publish(client, "a", 2)
    publish(client, "b", 2)
    stopping = threading.Event()
    options = ArchiveOptions(path=path, url=lanelog_url, topics=("a",), once=False, interval=0.1)
    job = threading.Thread(target=run, args=(options, spark, stopping))
    job.start()
    try:
        eventually(lambda: (found := ManifestStore(Path(path)).latest()) and found.rows == 2, within=60)
        with pytest.raises(ConfigurationError, match="topic 'a' is being archived for group '_archive' by archive@"):
            archive(topics=("b",))
    finally:
        stopping.set()
        job.join()
    assert archived() == wanted
    assert archive(topics=("b",)).total == 4


def test_another_job_went_on_before_the_topics_were_held(
    client: Client, archive: Archive, archived: Held, raw: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is late to begin gives up, with nothing changed: it would go on from an old version."""
    wanted = publish(client, "t", 1)
    archive()
    wanted += publish(client, "t", 9)
    look, done = ArchiveJob.look, list[Archived]()

    def another_one_first(job: ArchiveJob) -> None:
        monkeypatch.setattr(ArchiveJob, "look", look)
        done.append(archive(max_messages=1))  # more versions than are kept
        look(job)

    monkeypatch.setattr(ArchiveJob, "look", another_one_first)
    with pytest.raises(LeaseLost, match="another job has just written the archive at"):
        archive()
    assert done[0].version > 10
    assert archived() == wanted
    wanted += publish(client, "t", 5)
    assert archive().messages == 5
    assert archived() == wanted
    assert watermark(raw, GROUP, "t", "k0") == 4


def test_a_job_that_wakes_when_others_have_gone_on(
    client: Client, archive: Archive, archived: Held, raw: object, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between its files and their version, which is made and swept meanwhile: no version, no watermark.

    Nothing that the others have written is removed.
    """
    wanted = publish(client, "t", 10, lanes=1)
    commit, done = ManifestStore.commit, list[Archived]()

    def asleep(store: ManifestStore, manifest: Manifest) -> None:
        if manifest.files and not done:
            monkeypatch.setattr(ManifestStore, "commit", commit)
            with monkeypatch.context() as patch:  # as if the server had freed its lock
                patch.setattr("lanelog.admin._owners.Owners.alive", lambda *_: False)
                patch.setattr("lanelog.admin._owners.Owners.state", lambda *_: OwnerState.DEAD)
                done.append(archive(max_messages=1))
            assert watermark(raw, GROUP, "t", "k0") == 10
        commit(store, manifest)

    monkeypatch.setattr(ManifestStore, "commit", asleep)
    with pytest.raises(LeaseLost, match="was made already, by another job"):
        archive()
    assert done[0].version > 10
    assert ManifestStore(Path(path)).highest() == done[0].version
    assert archived() == wanted
    assert archive().messages == 0
    assert archived() == wanted


def test_a_group_that_was_deleted_is_told(client: Client, archive: Archive, caplog: pytest.LogCaptureFixture) -> None:
    """Collection may have had what the archive lacks: it goes on, with an error that says so, once."""
    publish(client, "t", 5)
    archive()
    assert "archive.group_was_deleted" not in caplog.text
    client.admin.delete_group("t", GROUP, dry_run=False)
    publish(client, "t", 5)
    assert archive().messages == 5
    assert caplog.text.count("archive.group_was_deleted topic=t group=_archive") == 1
    archive()
    assert caplog.text.count("archive.group_was_deleted") == 1


def test_an_archive_whose_group_went_to_another_place(
    client: Client, archive: Archive, archived: Held, tmp_path: Path
) -> None:
    """Its job is refused: what it archived, and let be collected, would be missing in the new archive."""
    wanted = publish(client, "t", 5)
    archive()
    client.admin.delete_group("t", GROUP, dry_run=False)
    second = str(tmp_path / "second")
    assert archive(path=second).messages == 5
    publish(client, "t", 5)
    with pytest.raises(ConfigurationError, match="group '_archive' has archived topic 't' to another place"):
        archive()
    assert archived() == wanted
    assert archive(path=second).total == 10
