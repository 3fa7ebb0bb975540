"""Ctrl-C while `replay`, `archive` and `analyze` work in a session of their caller's, as in a notebook.

Prints a line of JSON for each: how it ended, and whether the session goes on in step. `test_session` runs it.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

import lanelog
from lanelog.spark import analyze, archive, replay
from lanelog.spark.archiving.options import ArchiveOptions
from support.spark_sessions import SETTINGS, in_step
from support.sql import connect, one
from support.waiting import eventually


def main(url: str, path: str) -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with lanelog.connect(url) as client:
        client.publish_many("t", [(f"k{n % 4}", b"x") for n in range(40)])
    archive.run(ArchiveOptions(path=path, url=url), spark)
    raw = connect(url)
    jobs = spark.sparkContext.statusTracker().getActiveJobsIds

    def copied() -> int:
        return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'copy'"))

    interrupt("replay", spark, copied, lambda: replay(path, topics=["t"], to="copy", rate=1.0, url=url, spark=spark))
    there = copied()
    endless = ArchiveOptions(path=path, url=url, once=False, interval=0.1)
    interrupt("archive", spark, jobs, lambda: archive.run(endless, spark))
    wanted = analyze.AnalyzeOptions(output=f"{path}-report", url=url)
    interrupt("analyze", spark, jobs, lambda: analyze.run(wanted, spark))
    done = replay(path, topics=["t"], to="copy", url=url, spark=spark)
    say(what="replay again", messages=done.published + done.duplicates, more_since=done.duplicates - there)
    spark.stop()


def interrupt(what: str, spark: SparkSession, when: Callable[[], object], work: Callable[[], object]) -> None:
    """Press Ctrl-C as soon as `when` is true."""
    threading.Thread(
        target=lambda: (eventually(when, within=200), os.kill(os.getpid(), signal.SIGINT)), daemon=True
    ).start()
    try:
        work()
    except KeyboardInterrupt as interruption:
        kept = interruption  # as a notebook keeps the last traceback, and with it what the interrupted call used
        active = spark.sparkContext.statusTracker().getActiveJobsIds
        with suppress(AssertionError):  # the bus that reports a job's end lags behind the call that waited for it
            eventually(lambda: not active(), within=5.0)
        jobs = list(active())
        say(what=what, interrupted=kept is not None, in_step=in_step(spark), rows=spark.range(7).count(), jobs=jobs)


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
