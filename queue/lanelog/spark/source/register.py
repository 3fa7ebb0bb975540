"""Registers the format `lanelog` with a session; nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog.spark.source.source import LanelogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `lanelog` with a session. It does no harm if Spark has found the format already.

    Spark finds it by itself if lanelog is installed. It does not find it in files of `--py-files`.

    Args:
        spark: The session.
    """
    spark.dataSource.register(LanelogSource)
