"""The log on Spark: the format `lanelog`, for batches and streams, reading and writing. Needs `lanelog[spark]`, Java.

Owns what is about Spark. It never consumes as a subscriber does. Applications import these names, and
`lanelog.spark.analytics`, `analyze` and `archive`.

    import lanelog.spark

    lanelog.spark.register(spark)  # only needed if lanelog comes with --py-files
    df = spark.read.format("lanelog").option("url", "mysql://…").option("subscribe", "orders").load()

Columns: `lanelog.spark.source.schema`. Options of a read: url (or LANELOG_URL), passwordEnv, subscribe,
subscribePattern, groupId, table, startingOffsets, startingTimestamp, endingOffsets, maxOffsetsPerTrigger,
minPartitions, failOnDataLoss, includePayload. Options of a write: url, passwordEnv.

How `source` is built: `options` checks, `planning` reads heads and floors on the driver, `splits` cuts lanes into
tasks, `reading` reads pages in the executors, `columns` makes batches of them, `offsets` and `stream` hold the
positions of a stream, `writer` publishes.
"""

from __future__ import annotations

from lanelog.spark.archiving.read import read_archive
from lanelog.spark.replay import Replayed, replay
from lanelog.spark.source.reading import DataLost
from lanelog.spark.source.register import register

__all__ = ["DataLost", "Replayed", "read_archive", "register", "replay"]
