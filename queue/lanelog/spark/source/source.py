"""The data source `lanelog`: the classes behind `spark.read`, `readStream`, `write` and `writeStream`.

Never talks to a database itself: `planning` does on the driver, `reading` and `writer` in the tasks. Spark finds the
source through the package `pyspark_lanelog`, or through `register`.

Filters are not pushed down: Spark 4.3 keeps one plan for each source, so a filter of one query would change what
another query reads. Restrict a read by its options.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Literal

from pyspark.sql.datasource import DataSource, DataSourceReader

from lanelog.errors import ConfigurationError
from lanelog.spark.errors import clear
from lanelog.spark.source.options import FORMAT, parse_read, parse_write
from lanelog.spark.source.planning import Planner
from lanelog.spark.source.reading import MessageSplit, Reading, TableSplit, read_split
from lanelog.spark.source.schema import TABLES
from lanelog.spark.source.splits import TABLE_SPLITS, plan_splits, split_table
from lanelog.spark.source.stream import LanelogStreamReader
from lanelog.spark.source.writer import LanelogStreamWriter, LanelogWriter, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from lanelog.spark.source.options import DatabaseAddress, ReadOptions


class LanelogSource(DataSource):
    """Format `lanelog`. See the package's docstring for options and columns."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table that is read."""
        with clear():
            return TABLES[parse_read(self.options).table]

    def reader(self, schema: StructType) -> LanelogReader:
        """Return the reader for `spark.read`."""
        with clear():
            return LanelogReader(self._read(schema, streaming=False))

    def streamReader(self, schema: StructType) -> LanelogStreamReader:  # noqa: N802 - Spark's name
        """Return the reader for `spark.readStream`."""
        with clear():
            return LanelogStreamReader(self._read(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> LanelogWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer for `df.write`."""
        with clear():
            return LanelogWriter(self._address(schema, overwrite and "overwrite", "mode"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanelogStreamWriter:  # noqa: FBT001, N802 - Spark's
        """Return the writer for `df.writeStream`."""
        with clear():
            return LanelogStreamWriter(self._address(schema, overwrite and "complete", "outputMode"))

    def _read(self, schema: StructType, *, streaming: bool) -> ReadOptions:
        options = parse_read(self.options, streaming=streaming)
        if schema.fieldNames() != TABLES[options.table].fieldNames():
            raise ConfigurationError("the schema of lanelog is fixed: leave out schema(), and select what you need")
        return options

    def _address(self, schema: StructType, overwriting: str | Literal[False], option: str) -> DatabaseAddress:
        address = parse_write(self.options)
        check_columns(schema)
        if overwriting:
            raise ConfigurationError(
                f'{option}("{overwriting}") cannot be: the log is only ever appended to; write with {option}("append")'
            )
        return address


class LanelogReader(DataSourceReader):
    """A batch: planned once on the driver, read in the executors."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reading = Reading.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Read the bounds of the lanes, and cut the ranges to read into splits. Raises as the planner does."""
        options = self._options
        with clear(), closing(Planner(options)) as planner:
            if options.table == "messages":
                splits = plan_splits(planner.ranges(), min_partitions=options.min_partitions)
                return [MessageSplit(split) for split in splits]
            most = 1 if options.table == "groups" else TABLE_SPLITS  # one row each
            return [
                TableSplit(options.table, parts, options.starting_ms)
                for parts in split_table(planner.group_topics(), most)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in an executor."""
        return read_split(self._reading, partition)
