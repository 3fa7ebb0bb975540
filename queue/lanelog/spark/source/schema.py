"""The columns of messages and of the other tables, for Spark and for Arrow.

Never reads anything.

Messages (`MESSAGES`): topic, key STRING; offset BIGINT; id STRING; value BINARY (NULL with includePayload=false);
metadata MAP<STRING,STRING> (NULL: none); timestamp (when it was first published), created_at TIMESTAMP (when this row
was written; it never falls within a lane); payload_bytes INT. For dead letters, otherwise NULL: original_topic STRING,
original_offset BIGINT, failed_group STRING, failed_at TIMESTAMP, failure_count INT, last_error STRING. target_group
STRING (the only group it is for; NULL: every group).

The other tables have the columns of `schema/`, with `key` for `partition_key`, flags as BOOLEAN, and times as
TIMESTAMP, NULL where the log has 0. Unsigned numbers are BIGINT, whose range the log never uses up. lane_pauses of the
groups is left out, because it has no meaning outside of the library.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "long": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map": MapType(StringType(), StringType()),
}


def _struct(columns: str) -> StructType:
    """Build a schema from lines of `type: column, column …`, in their order. `?` after a column: it may be NULL."""
    fields = []
    for line in columns.strip().splitlines():
        kind, _, names = line.partition(":")
        for name in names.split(","):
            bare = name.strip().removesuffix("?")
            fields.append(StructField(bare, _TYPES[kind.strip()], nullable=name.strip().endswith("?")))
    return StructType(fields)


MESSAGES: Final = _struct("""
    string: topic, key
    long: offset
    string: id
    binary: value?
    map: metadata?
    timestamp: timestamp, created_at
    int: payload_bytes
    string: original_topic?
    long: original_offset?
    string: failed_group?
    timestamp: failed_at?
    int: failure_count?
    string: last_error?, target_group?
""")

DELIVERY_STATE: Final = _struct("""
    string: consumer_group, topic, key
    long: message_offset, through_offset
    boolean: acked
    timestamp: invisible_until?
    long: retry_count, postponed
    boolean: crashed, alone, released
    long: lease_epoch
    timestamp: first_attempt_at?, last_attempt_at?
    string: last_error?
""")

OFFSETS: Final = _struct("""
    string: consumer_group, topic, key
    long: offset_acked, marked_through, marked_epoch
    timestamp: marked_at?, paused_at?
    string: paused_by, pause_reason
    timestamp: updated_at?
""")

LEASES: Final = _struct("""
    string: consumer_group, topic, key, leased_by
    long: lease_epoch
    timestamp: leased_at?
""")

GROUPS: Final = _struct("""
    string: consumer_group, topic, delivery_order, start_at
    timestamp: paused_at?
    string: paused_by, pause_reason
    long: retention_ms, history_ms, dead_letter_ms
    timestamp: created_at?
""")

HISTORY: Final = _struct("""
    string: consumer_group, topic, key
    long: message_offset
    string: id, outcome
    long: attempts
    timestamp: published_at?, first_delivered_at?, finished_at?
    string: owner, last_error?
""")

TABLES: Final[dict[str, StructType]] = {
    "messages": MESSAGES,
    "delivery_state": DELIVERY_STATE,
    "offsets": OFFSETS,
    "leases": LEASES,
    "groups": GROUPS,
    "history": HISTORY,
}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with, field by field."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(TABLES[table], timezone="UTC")
