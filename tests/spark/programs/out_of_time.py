"""A suite whose first test runs out of time within a call into the JVM. `test_session` runs it."""

import pytest
from pyspark.sql import SparkSession


@pytest.mark.timeout(2, func_only=True)
def test_waits_for_java(spark: SparkSession) -> None:
    """The test never gets its answer."""
    assert spark.sparkContext._jvm is not None
    spark.sparkContext._jvm.java.lang.Thread.sleep(600_000)


def test_the_next_one(spark: SparkSession) -> None:
    """The next test reads answers to its own calls."""
    assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]
