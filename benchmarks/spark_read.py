"""Rows a second of a batch read with Spark: `python -m benchmarks.spark_read [lanes]`.

On a private database, two cores (`local[2]`), payloads of 200 bytes, about 260 a row. It reads every column and lets
Spark drop the rows (the `noop` sink). The driver is mysqlclient where it is installed, else PyMySQL; JDBC is measured
beside it where MariaDB's jar is at hand. A source that reads nothing says what Spark itself needs for rows from Python.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import lanelog
from lanelog._base.connection_options import ConnectConfig
from lanelog.devserver import start
from lanelog.spark.source import schema
from lanelog.spark.source.columns import Columns
from lanelog.spark.source.splits import LaneRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

MESSAGES, LANES, ROUNDS = 200_000, 500, 5
TASKS, BATCH = 4, 5_000
PAYLOAD = b"x" * 200
JAR = Path("/usr/share/java/mariadb-java-client.jar")
TOPIC = "spark"
JDBC_QUERY = (
    "SELECT topic, partition_key, `offset`, id, payload, metadata, published_at, created_at,"
    " CRC32(partition_key) % 4 AS part FROM queue_messages"
)


def main(lanes: int = LANES) -> None:
    """Publish, read in each way alternately, print the median of each way."""
    with start() as server:
        url = server.create_database("benchmark")
        fill(url, MESSAGES, lanes)
        spark = session()
        try:
            report(spark, url)
        finally:
            spark.stop()


def session() -> SparkSession:
    """A small one."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraClassPath": str(JAR),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def fill(url: str, messages: int, lanes: int) -> None:
    """Publish into all lanes, one after the other."""
    with lanelog.connect(url) as client:
        client.migrate()
        for begin in range(0, messages, 1000):
            numbers = range(begin, min(begin + 1000, messages))
            client.publish_many(TOPIC, [(f"key-{n % lanes:05d}", PAYLOAD) for n in numbers])


def report(spark: SparkSession, url: str) -> None:
    """Rows a second of each way to read, alternately; the first round warms up and is not counted."""
    driver = "mysqlclient" if importlib.util.find_spec("MySQLdb") else "PyMySQL"
    spark.dataSource.register(Nothing)
    ways = {f"lanelog, {driver}": ours, "Python, which reads nothing": nothing}
    if JAR.exists():
        ways["JDBC, the bare table"] = jdbc
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS + 1):
        for way, frame in ways.items():
            began = time.perf_counter()
            frame(spark, url).write.format("noop").mode("overwrite").save()
            if turn:
                found[way].append(MESSAGES / (time.perf_counter() - began))
            elif (rows := frame(spark, url).count()) != MESSAGES:
                raise SystemExit(f"{way} read {rows} of {MESSAGES} rows")
    for way, speeds in found.items():
        print(f"{way:27} {statistics.median(speeds):>10,.0f} rows/s   ({min(speeds):,.0f} to {max(speeds):,.0f})")


def ours(spark: SparkSession, url: str) -> DataFrame:
    """By the data source."""
    return spark.read.format("lanelog").options(url=url, subscribe=TOPIC).load()


def nothing(spark: SparkSession, _: str) -> DataFrame:
    """By a Python data source that has its rows."""
    return spark.read.format("nothing").load()


class Nothing(DataSource):
    """MESSAGES messages, the same ones over and over."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def schema(self) -> StructType:
        """Return the columns of messages."""
        return schema.MESSAGES

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """Return what hands them over."""
        return _NothingReader()


class _NothingReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:  # noqa: ARG002 - as above
        row = (0, 1, "0" * 32, PAYLOAD, len(PAYLOAD), None, 1, None, None)
        page = [LaneRange(TOPIC, "key-00000", 0, BATCH)]
        batch = Columns.of_rows([row] * BATCH).batch(page)
        yield from [batch] * (MESSAGES // TASKS // BATCH)


def jdbc(spark: SparkSession, url: str) -> DataFrame:
    """By Spark's own JDBC source, on the table itself; MariaDB's driver, under the name that Spark quotes well."""
    config = ConnectConfig.from_url(url)
    reader = spark.read.format("jdbc").option("driver", "org.mariadb.jdbc.Driver")
    jdbc_url = f"jdbc:mysql://{config.host}:{config.port}/{config.database}?permitMysqlScheme"
    options = {
        "url": jdbc_url,
        "user": config.user,
        "password": config.login_password(),
        "dbtable": f"({JDBC_QUERY}) AS log",
    }
    parts: dict[str, str | int] = {"partitionColumn": "part", "lowerBound": 0, "upperBound": 4, "numPartitions": 4}
    return reader.options(**options, **parts, fetchsize=5000).load()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
