"""What fails again and again ends the archive job, and what it tried leaves nothing on the disk that nobody needs."""

import errno
import logging
import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lanelog.client import Client
from lanelog.errors import DatabaseError, LanelogError
from lanelog.spark import _manifest
from lanelog.spark import archive as archive_program
from lanelog.spark._archive_group import ArchiveGroup, PassedOver
from lanelog.spark._archive_job import ArchiveJob
from lanelog.spark._archive_options import ArchiveOptions
from lanelog.spark._manifest import Manifest
from lanelog.spark.archive import run
from support.archives import Archive, Held, publish
from support.waiting import events


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
    assert counted(caplog) == [1, 2]
    assert list(Path(path).glob("messages/*")) == []


def test_what_could_pass_and_does_not_ends_a_run(
    client: Client, archive: Archive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With `once` too: whatever starts it again hears why, instead of being refused as the second job."""
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

    def lost(job: ArchiveJob, options: ArchiveOptions, _: Path) -> bool:
        if len(counted(caplog)) == 5:
            return True
        job.failed_from = time.monotonic() + archive_program.WORKED + options.interval + 1
        job.failure = DatabaseError("the connection was lost", retriable=True)
        raise job.failure

    monkeypatch.setattr(archive_program, "_query", lost)
    run(ArchiveOptions(path=path, url=lanelog_url, once=False, interval=0.1), spark)
    assert counted(caplog) == [1] * 5


def counted(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The numbers of failures in a row that were told."""
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
    assert archived() == wanted
    assert archive().messages == 0
