"""What fails again and again ends the archive job; of two jobs, or two archives, one alone goes on."""

import errno
import logging
import math
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from lanelog.admin import OwnerState
from lanelog.client import Client
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, LeaseLost
from lanelog.spark import archive as archive_program
from lanelog.spark.archive import Archived, run
from lanelog.spark.archiving import manifest as _manifest
from lanelog.spark.archiving.group import ArchiveGroup, PassedOver
from lanelog.spark.archiving.job import ArchiveJob
from lanelog.spark.archiving.manifest import Manifest, ManifestStore
from lanelog.spark.archiving.options import GROUP, ArchiveOptions
from support.archives import Archive, Held, publish
from support.sql import watermark
from support.waiting import events

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def three_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third failure in a row is the last."""
    monkeypatch.setattr(archive_program, "FAILURES", 3)


def test_a_disk_that_stays_full_ends_a_job_that_goes_on(
    spark: SparkSession,
    client: Client,
    lanelog_url: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though the first batch of each query, which is empty, goes well; no attempt leaves its files behind."""
    publish(client, "t", 10)
    encoded = _manifest.encoded

    def full(manifest: Manifest) -> bytes:
        if manifest.files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return encoded(manifest)

    monkeypatch.setattr(_manifest, "encoded", full)
    with pytest.raises(LanelogError, match=r"the archive's query failed: .*No space left on device") as caught:
        run(ArchiveOptions(path=path, url=lanelog_url, once=False, interval=0.1), spark)
    assert "\n" not in str(caught.value)
    assert (counted(caplog), list(Path(path).glob("messages/*"))) == ([1, 2], [])


def test_what_could_pass_and_does_not_ends_a_run(
    client: Client, archive: Archive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With `once` too: the error names the cause; the next run is not refused as a second job."""
    publish(client, "t", 10)

    def passed_over(*_: object) -> None:
        raise PassedOver("offset 1 of topic 't', lane 'k0', was passed over")

    monkeypatch.setattr(ArchiveGroup, "check", passed_over)
    with pytest.raises(LanelogError, match="the archive's query failed: offset 1 of topic 't', lane 'k0', was passed"):
        archive()
    assert counted(caplog) == [1, 2]


def test_losses_of_the_connection_days_apart_are_not_in_a_row(
    spark: SparkSession,
    client: Client,
    lanelog_url: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a quiet time nothing is archived between them; each batch failed long after its query had begun."""
    publish(client, "t", 10)

    def lost(job: ArchiveJob, _: Path) -> bool:
        if len(counted(caplog)) == 5:
            return True
        job.failed_from = time.monotonic() + archive_program.WORKED + job.options.interval + 1
        job.failure = DatabaseError("the connection was lost", retriable=True)
        raise job.failure

    monkeypatch.setattr(archive_program, "_query", lost)
    run(ArchiveOptions(path=path, url=lanelog_url, once=False, interval=0.1), spark)
    assert counted(caplog) == [1] * 5


def test_a_database_that_is_away_is_waited_for_as_long_as_it_takes() -> None:
    """Until it takes a heartbeat; a run of `once` has so much patience and no more."""
    job, away = Mock(), DatabaseError("it is away", retriable=True)
    job.group.epochs, job.stopping.is_set.return_value = {}, False
    job.presence.beat.side_effect = [*[away] * 50, 1]
    archive_program._wait_for_database(job, math.inf)
    assert job.presence.beat.call_count == 51
    job.presence.beat.side_effect = away
    with pytest.raises(DatabaseError, match="away"):
        archive_program._wait_for_database(job, -1.0)


def counted(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The numbers of failures in a row that were logged."""
    lines = events(caplog, "archive.query_failed", logging.WARNING)
    return [int(line.split("failures=")[1].split(" ")[0]) for line in lines]


def test_a_version_that_appears_late(
    client: Client, archive: Archive, archived: Held, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link failed, and was made all the same, as on a network's file system: the files that it names are there."""
    wanted = publish(client, "t", 10)
    link, late = os.link, list[tuple[bytes, Path]]()

    def fail_with_files(made: Path, name: Path) -> None:
        if list(Path(path).glob("messages/*")):
            late.append((made.read_bytes(), name))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        link(made, name)

    with monkeypatch.context() as patch:
        patch.setattr(_manifest.os, "link", fail_with_files)
        with pytest.raises(LanelogError, match=r"the archive's query failed: .*Input/output error"):
            archive()
    ((content, name),) = late
    name.write_bytes(content)
    assert (archived(), archive().messages) == (wanted, 0)


# -- two jobs, or two archives -----------------------------------------------------------------------------------------


def test_another_job_went_on_before_the_topics_were_held(
    client: Client, archive: Archive, archived: Held, raw: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is late to begin gives up, with nothing changed: it would go on from an old version."""
    wanted = publish(client, "t", 1)
    archive()
    wanted += publish(client, "t", 9)
    poll, done = ArchiveJob.poll_topics, list[Archived]()

    def another_one_first(job: ArchiveJob) -> None:
        monkeypatch.setattr(ArchiveJob, "poll_topics", poll)
        done.append(archive(max_messages=1))  # more versions than are kept
        poll(job)

    monkeypatch.setattr(ArchiveJob, "poll_topics", another_one_first)
    with pytest.raises(LeaseLost, match="another job has just written the archive at"):
        archive()
    assert done[0].version > 10
    assert archived() == wanted
    wanted += publish(client, "t", 5)
    assert (archive().messages, archived(), watermark(raw, GROUP, "t", "k0")) == (5, wanted, 4)


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
                patch.setattr("lanelog._log.lookup.owners.Owners.alive", lambda *_: False)
                patch.setattr("lanelog._log.lookup.owners.Owners.state", lambda *_: OwnerState.DEAD)
                done.append(archive(max_messages=1))
            assert watermark(raw, GROUP, "t", "k0") == 10
        commit(store, manifest)

    monkeypatch.setattr(ManifestStore, "commit", asleep)
    with pytest.raises(LeaseLost, match="was made already, by another job"):
        archive()
    assert done[0].version > 10
    assert (ManifestStore(Path(path)).highest(), archived(), archive().messages) == (done[0].version, wanted, 0)
    assert archived() == wanted


def test_a_group_that_was_deleted_is_logged(client: Client, archive: Archive, caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_archive_whose_group_went_to_another_location(
    client: Client, archive: Archive, archived: Held, tmp_path: Path
) -> None:
    """The job is refused: what it archived, and let be collected, would be missing in the new archive."""
    wanted = publish(client, "t", 5)
    archive()
    client.admin.delete_group("t", GROUP, dry_run=False)
    second = str(tmp_path / "second")
    assert archive(path=second).messages == 5
    publish(client, "t", 5)
    with pytest.raises(ConfigurationError, match="group '_archive' has archived topic 't' to another location"):
        archive()
    assert (archived(), archive(path=second).total) == (wanted, 10)
