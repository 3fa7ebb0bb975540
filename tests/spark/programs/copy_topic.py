"""Copies one topic into another on the cluster it is submitted to, and says in JSON who did it."""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

import lanelog.spark


def main(url: str, source: str, target: str, within: str) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors take part, however long they need
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{float(within):.0f}s",
    }
    builder = SparkSession.builder.appName("copy")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    lanelog.spark.register(spark)
    reader = spark.read.format("lanelog").option("url", url).option("subscribe", source).option("minPartitions", "4")
    ordered = reader.load().repartition(2, "key").sortWithinPartitions("key", "offset")
    rows = ordered.select(F.lit(target).alias("topic"), "key", "value", "id")
    rows.write.format("lanelog").option("url", url).mode("append").save()
    assert spark.sparkContext._jsc is not None
    processes = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    spark.stop()
    found = {"executors": len(processes) - 1, "python": sys.executable}  # the driver is one of them
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
