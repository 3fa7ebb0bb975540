"""One small Spark session for all tests of this tier, and what they put into the log."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import lanelog
from lanelog.client import Client
from lanelog.spark import read_archive
from lanelog.spark.archive import Archived, run
from lanelog.spark.archiving.options import ArchiveOptions
from support.archives import Archive, Held, Place
from support.spark import PASSWORD, PASSWORD_VARIABLE, Read
from support.spark_forks import forking
from support.spark_sessions import Sessions
from support.sql import connect
from support.waiting import accept, eventually

# What the JVM inherits is set before it starts. Each program that a test starts has a JVM of its own, which lives for
# some seconds: it shall not compile as if it ran for days.
os.environ.update(
    {
        "PYSPARK_PYTHON": sys.executable,
        PASSWORD_VARIABLE: PASSWORD,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
)


_sessions = Sessions()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Whatever interrupted a test (its time ran out, Ctrl-C) may have interrupted a call into the JVM."""
    if call.excinfo is not None and not issubclass(call.excinfo.type, Exception | pytest.skip.Exception):
        _sessions.kill()
    return (yield)


@pytest.fixture(scope="session")
def _one_jvm() -> Iterator[None]:
    with forking() as _sessions.python:
        yield
        _sessions.stop()


@pytest.fixture
def spark(_one_jvm: None) -> SparkSession:
    """The session that all tests share, checked before each of them, and made anew where it is out of step."""
    return _sessions.get()


@pytest.fixture
def client(lanelog_url: str) -> Iterator[Client]:
    """A client of the test's database, which purges idle lanes at once when it is asked to maintain."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0) as client:
        yield client


@pytest.fixture
def read(spark: SparkSession, lanelog_url: str) -> Read:
    """Reads the test's database: `read(subscribe="t", …)`."""

    def load(**options: Any) -> DataFrame:
        return spark.read.format("lanelog").options(url=lanelog_url, **options).load()

    return load


@pytest.fixture
def consume(lanelog_url: str) -> Callable[[str, int], None]:
    """Handles so many messages of a topic in group `readers`, and has them collected; no lane is purged."""

    def run(topic: str, count: int) -> None:
        with lanelog.connect(lanelog_url) as client:
            with client.subscribe(topic, "readers", accept, retention=0) as subscription:
                eventually(lambda: subscription.stats().acked >= count, within=30)
            client.admin.maintain()

    return run


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the test's archive is."""
    return str(tmp_path / "archive")


@pytest.fixture
def archive(spark: SparkSession, lanelog_url: str, path: str) -> Archive:
    """Runs the archive job once on the test's database and archive."""

    def once(**options: Any) -> Archived:
        return run(ArchiveOptions(**{"path": path, "url": lanelog_url, **options}), spark)

    return once


@pytest.fixture
def archived(spark: SparkSession, path: str) -> Held:
    """How often the archive holds each (topic, key, offset)."""

    def counted() -> Counter[Place]:
        found = read_archive(spark, path).select("topic", "key", "offset").collect()
        return Counter((row.topic, row.key, row.offset) for row in found)

    return counted


@pytest.fixture
def raw(lanelog_url: str) -> Iterator[Any]:
    """A connection without the library, with autocommit on."""
    with connect(lanelog_url) as connection:
        yield connection
