"""Makes the format `lanelog` known to a session; nothing else. Called by applications, and by our own programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog.spark.source.source import LanelogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `lanelog` with a session; harmless where Spark has found it by itself.

    It does where lanelog is installed. In what `--py-files` sends along it does not look for formats.
    """
    spark.dataSource.register(LanelogSource)
