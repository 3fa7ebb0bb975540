"""What a run leaves in a database that is somebody's: nothing.

It never touches another topic, and runs when every subscription of the run has ended or was killed. The run calls it
at its end, however it ends.
"""

from __future__ import annotations

from typing import Any, Final

from demo.tables import Tables

BATCH: Final = 2000
REPLAYED: Final = "_replayed"
"""Behind the run's topic: where messages of its archive are replayed to."""

TABLES: Final = (
    "queue_subscriber_heartbeats",
    "queue_groups",
    "queue_partition_leases",
    "queue_delivery_state",
    "queue_history",
    "queue_offsets",
    "queue_messages",
    "queue_partitions",
)


def remove(connection: Any, topic: str, tables: Tables) -> None:
    """Drop the run's tables and delete its topics.

    `client.admin.delete_topic` is what an application would use. It keeps a row for each topic, from which offsets go
    on if the topic comes back; this one never does.
    """
    tables.drop(connection)
    with connection.cursor() as cursor:
        for name in TABLES:
            for each in (topic, f"{topic}_dlq", f"{topic}{REPLAYED}"):
                while cursor.execute(f"DELETE FROM {name} WHERE topic = %s LIMIT {BATCH}", (each,)) == BATCH:
                    pass
