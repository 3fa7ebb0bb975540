"""The database goes away under a running archive job, for longer than anything in it tries again."""

import logging
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lanelog
from lanelog.devserver import DevServer
from lanelog.spark._archive_options import ArchiveOptions
from lanelog.spark._manifest import ManifestStore
from lanelog.spark.archive import Archived, run
from support.waiting import events, eventually, never


@pytest.mark.timeout(240)  # what reads the log gives up after publish_timeout, which is half a minute
def test_it_waits_for_its_database(
    spark: SparkSession, private_server: DevServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With `continuous` it goes on when the database is back, with everything that was committed."""
    stopping, ended = threading.Event(), list[Archived]()
    with lanelog.connect(private_server.url) as client:
        client.migrate()
        client.publish("t", "k", b"1")
        options = ArchiveOptions(path=path, url=private_server.url, once=False, interval=0.1)
        job = threading.Thread(target=lambda: ended.append(run(options, spark, stopping)))
        job.start()
        try:
            eventually(lambda: (found := ManifestStore(Path(path)).latest()) and found.rows == 1, within=60)
            private_server.kill()
            eventually(lambda: events(caplog, "archive.query_failed", logging.WARNING), within=120)
            never(lambda: not job.is_alive(), during=6.0, what="the end of a job whose database is away")
            private_server.restart()
            client.publish("t", "k", b"2")
            eventually(lambda: ManifestStore(Path(path)).required().rows == 2, within=60)
        finally:
            stopping.set()
            job.join()
        assert [done.total for done in ended] == [2]
        assert client.admin.groups("t")[0].lag == 0
