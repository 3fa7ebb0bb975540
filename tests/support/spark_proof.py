"""The proof of archive and replay: publish from Spark, archive under fire, compare, replay, compare.

Used by a test with small numbers, and with large ones by `python tests/spark/prove.py`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
from attrs import define, frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

import lanelog
from lanelog.errors import LanelogError
from lanelog.spark import read_archive, replay
from lanelog.spark.archive import run
from lanelog.spark.archiving.manifest import ManifestStore
from lanelog.spark.archiving.options import ArchiveOptions
from support.waiting import accept, eventually

TOPIC, COPY = "proof", "proof-copy"


@frozen(kw_only=True)
class Proof:
    """What was found; seconds for what was timed."""

    archived: int
    twice: int
    missing: int
    altered: int
    collected: int
    """Messages that had left the log when the archive was complete."""
    versions: int
    kills: tuple[str, ...]
    replayed: int
    replayed_again: int
    out_of_order: int
    copies_altered: int
    publish_seconds: float
    archive_seconds: float
    replay_seconds: float


@define(eq=False)
class Job:
    """`python -m lanelog.spark.archive --continuous` as a process, with its JVM."""

    popen: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, url: str, path: str, log: Path, *options: str) -> "Job":
        command = [sys.executable, "-m", "lanelog.spark.archive", "--path", path, "--url", url, "--continuous"]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("ab") as output:
            popen = subprocess.Popen([*command, *options], stdout=output, stderr=output, env=environment)
        return cls(popen, log)

    def kill(self, which: str) -> None:
        """SIGKILL to the driver's Python or to its JVM; both are gone when this returns."""
        jvm = self.jvm()
        os.kill(self.popen.pid if which == "python" else jvm, signal.SIGKILL)
        self.popen.wait(300)
        eventually(lambda: not Path(f"/proc/{jvm}/exe").exists() or zombie(jvm), within=300, what="the JVM's end")

    def jvm(self) -> int:
        """The JVM that Spark has started for it, from whichever of its threads."""
        tasks = Path(f"/proc/{self.popen.pid}/task").glob("*/children")
        children = [pid for task in tasks for pid in task.read_text().split()]
        found = [int(pid) for pid in children if "java" in Path(f"/proc/{pid}/exe").readlink().name]
        assert len(found) == 1, found
        return found[0]

    def stop(self) -> int:
        """Let it end as an operator does; returns its status."""
        self.popen.terminate()
        return self.popen.wait(300)

    def running(self) -> bool:
        assert self.popen.poll() is None, self.log.read_text()[-3000:]
        return True


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def prove(
    spark: SparkSession,
    url: str,
    directory: Path,
    *,
    messages: int,
    lanes: int,
    batch: int,
    kills: Sequence[str],
    seed: int,
    say: Callable[[str], object] = lambda _: None,
) -> Proof:
    """Run it all; raises where something does not go on, and returns what the comparison found.

    `kills`: what of the archive's process is killed, one after the other: `python` or `jvm`.
    """
    path, chance = str(directory / "archive"), random.Random(seed)
    began = time.monotonic()
    expected(spark, messages, lanes).write.format("lanelog").option("url", url).mode("append").save()
    publish_seconds = time.monotonic() - began
    say(f"published {messages} in {publish_seconds:.1f} s")
    killed = []
    over = threading.Event()
    with lanelog.connect(url, lane_idle_purge=0) as client:
        began = time.monotonic()
        job = Job.start(url, path, directory / "job.log", "--interval=0.1", f"--max-messages={batch}")
        try:
            # The archive has to be registered before the first message may be collected.
            eventually(lambda: job.running() and ManifestStore(Path(path)).latest(), within=300)
            with client.subscribe(TOPIC, "workers", accept, workers=4, retention=0):
                collector = threading.Thread(target=collect, args=(client, url, over))
                collector.start()
                for which in kills:
                    held = total(path)
                    target = held + chance.randint(1, max(1, (messages - held) // 3))
                    eventually(lambda job=job, target=target: job.running() and total(path) >= target, within=600)
                    job.kill(which)
                    killed.append(f"{which} at {total(path)}")
                    say(f"killed {killed[-1]}")
                    job = Job.start(url, path, directory / "job.log", "--interval=0.1", f"--max-messages={batch}")
                eventually(lambda: job.running() and total(path) >= messages, within=600)
                archive_seconds = time.monotonic() - began
                say(f"archived in {archive_seconds:.1f} s")
                eventually(lambda: client.admin.topic(TOPIC).messages < messages, within=300, what="collection")
        finally:
            over.set()
            job.stop()
        collector.join()
        done = run(ArchiveOptions(path=path, url=url), spark)
        client.admin.maintain()
        left = client.admin.topic(TOPIC).messages
    archive = read_archive(spark, path, topics=[TOPIC])
    twice = archive.count() - archive.select("topic", "key", "offset").distinct().count()
    missing, altered = compared(expected(spark, messages, lanes), archive)
    began = time.monotonic()
    first = replay(path, topics=[TOPIC], to=COPY, url=url, spark=spark)
    replay_seconds = time.monotonic() - began
    say(f"replayed {first.published} in {replay_seconds:.1f} s")
    again = replay(path, topics=[TOPIC], to=COPY, url=url, spark=spark)
    copies = spark.read.format("lanelog").option("url", url).option("subscribe", COPY).load()
    copied = copies.withColumn("id", F.element_at("metadata", F.lit("lanelog.original_id")))
    lost, changed = compared(expected(spark, messages, lanes), copied)
    return Proof(
        archived=done.total,
        twice=twice,
        missing=missing,
        altered=altered,
        collected=messages - left,
        versions=done.version,
        kills=tuple(killed),
        replayed=copies.count(),
        replayed_again=again.published,
        out_of_order=disorder(copied),
        copies_altered=lost + changed,
        publish_seconds=publish_seconds,
        archive_seconds=archive_seconds,
        replay_seconds=replay_seconds,
    )


def expected(spark: SparkSession, messages: int, lanes: int) -> DataFrame:
    """What is published: numbers of about 260 bytes, in order within each lane."""
    numbered = spark.range(messages).select(
        F.lit(TOPIC).alias("topic"),
        F.format_string("key-%05d", F.col("id") % lanes).alias("key"),
        F.format_string("%012d", F.col("id")).alias("id"),
    )
    payload = F.rpad(F.concat(F.lit('{"n": '), "id", F.lit("}")), 260, " ").cast("binary")
    return numbered.withColumn("value", payload).repartition(4, "key").sortWithinPartitions("key", "id")


def compared(wanted: DataFrame, found: DataFrame) -> tuple[int, int]:
    """How many messages are missing, and how many are there with another key or value, or were never published."""
    columns = ["key", "id", "value"]
    missing = wanted.select("id").join(found.select("id"), on="id", how="left_anti").count()
    return missing, found.select(*columns).join(wanted.select(*columns), on=columns, how="left_anti").count()


def disorder(copies: DataFrame) -> int:
    """Pairs of neighbours in a lane that were published in another order."""
    return int(
        copies.selectExpr("lag(id) over (partition by key order by offset) > id as wrong").where("wrong").count()
    )


def total(path: str) -> int:
    """Messages in the archive."""
    found = ManifestStore(Path(path)).latest()
    return 0 if found is None else found.rows


def collect(client: lanelog.Client, url: str, over: threading.Event) -> None:
    """Collect without a pause, and without a retention, which an archive that starts again declares anew."""
    with lanelog.connect(url) as other:
        while not over.wait(0.1):
            try:
                with suppress(pymysql.err.OperationalError), other.transaction() as connection:  # locks here, too
                    connection.cursor().execute("UPDATE queue_groups SET retention_ms = 0")
                client.admin.maintain(topics=[TOPIC])
            except LanelogError as error:  # a lock that somebody holds: the next turn
                if not error.retriable:
                    raise


def as_json(proof: Proof, **more: Any) -> str:
    """For the record."""
    from attrs import asdict

    return json.dumps({**asdict(proof), **more}, indent=1)
