"""Tells Spark of the format `lanelog`: it looks for a `DefaultSource` in every module named `pyspark_…`."""

from lanelog.spark.source.source import LanelogSource as DefaultSource

__all__ = ["DefaultSource"]
