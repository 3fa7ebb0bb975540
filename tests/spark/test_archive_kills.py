"""The archive's processes are killed while it archives, and its database; workers consume and collection runs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lanelog
from lanelog.devserver import DevServer
from support.archives import WITHIN
from support.spark_proof import Job, prove, total
from support.waiting import eventually

pytestmark = pytest.mark.thorough


def test_killed_it_holds_everything_once(spark: SparkSession, lanelog_url: str, tmp_path: Path) -> None:
    """The archive equals what was published, though its JVM was killed; its replay too, in order, and only once.

    `make proof` kills the driver's Python, too, on both families: each kill is one more start of Spark.
    """
    proof = prove(spark, lanelog_url, tmp_path, messages=5_000, lanes=50, batch=1_000, kills=["jvm"], seed=7)
    assert [kill.split()[0] for kill in proof.kills] == ["jvm"]
    assert (proof.archived, proof.twice, proof.missing, proof.altered) == (5_000, 0, 0, 0)
    assert proof.collected > 0
    assert (proof.replayed, proof.replayed_again, proof.out_of_order, proof.copies_altered) == (5_000, 0, 0, 0)


def test_it_goes_on_when_its_database_is_back(private_server: DevServer, tmp_path: Path) -> None:
    """With `continuous`, with everything that was committed: the reading gives up meanwhile, after half a minute."""
    path, url = str(tmp_path / "archive"), private_server.url
    with lanelog.connect(url) as client:
        client.migrate()
        client.publish("t", "k", b"1")
        job = Job.start(url, path, tmp_path / "job.log", "--interval=0.1")
        try:
            eventually(lambda: job.running() and total(path) == 1, within=WITHIN)
            private_server.kill()
            eventually(lambda: job.running() and "archive.query_failed" in job.log.read_text(), within=WITHIN)
            private_server.restart()
            client.publish("t", "k", b"2")
            eventually(lambda: job.running() and total(path) == 2, within=WITHIN)
        finally:
            assert job.stop() == 0, job.log.read_text()[-3000:]
        assert client.admin.groups("t")[0].lag == 0
