"""Reading an archive: a DataFrame over exactly the files that its manifest names.

Never changes an archive.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documentation gives it

from lanelog.errors import ConfigurationError
from lanelog.spark.archiving import files
from lanelog.spark.archiving.manifest import MESSAGES, ManifestStore
from lanelog.spark.archiving.path import local_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession


def read_archive(
    spark: SparkSession,
    path: str | os.PathLike[str],
    table: str = MESSAGES,
    *,
    topics: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Return the rows of an archive as it is now, with the columns of `spark.read.format("lanelog")`.

    The DataFrame reads exactly the files that the manifest names now. Files that are merged later stay for the grace of
    the archive job.

    Args:
        spark: The session.
        path: Directory of the archive.
        table: `messages`, or `outcomes` with the columns of table=history.
        topics: Only rows of these topics. None: all.
        since: Only rows written (`created_at`) or finished (`finished_at`) then or later (aware datetime).
        until: Only rows written or finished before then (aware datetime).

    Raises:
        ConfigurationError: There is no archive, it has another schema version, or an argument is wrong.
    """
    if table not in files.COLUMNS:
        raise ConfigurationError(f"an archive has the tables {', '.join(files.COLUMNS)}, not {table!r}")
    since_ms, until_ms = _instant_ms("since", since), _instant_ms("until", until)
    root = local_path(path)
    manifest = ManifestStore(root).required()
    rows = files.read(spark, root, table, manifest.chosen(table, topics, since_ms, until_ms))
    if topics is not None:
        rows = rows.where(F.col("topic").isin(list(topics)))
    when = F.unix_millis("created_at" if table == MESSAGES else "finished_at")
    if since_ms is not None:
        rows = rows.where(when >= since_ms)
    if until_ms is not None:
        rows = rows.where(when < until_ms)
    return rows


def _instant_ms(what: str, when: datetime | None) -> int | None:
    if when is None:
        return None
    if when.utcoffset() is None:
        raise ConfigurationError(f"{what} must be an aware datetime: add tzinfo=datetime.UTC")
    return int(when.timestamp() * 1000)
