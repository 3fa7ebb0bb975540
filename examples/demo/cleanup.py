"""Removes all that a run wrote into a database that was not started for it.

Never touches another topic. To be called when every subscription of the run has ended or was killed.
"""

from __future__ import annotations

from typing import Any, Final

from demo.tables import Tables

BATCH: Final = 2000
REPLAYED: Final = "_replayed"
"""Suffix of the topic that messages of the run's archive are replayed to."""

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

    An application would use `client.admin.delete_topic`. That keeps a row for each topic, so that offsets go on if the
    topic comes back. The topics of a run never do.
    """
    tables.drop(connection)
    with connection.cursor() as cursor:
        for name in TABLES:
            for each in (topic, f"{topic}_dlq", f"{topic}{REPLAYED}"):
                while cursor.execute(f"DELETE FROM {name} WHERE topic = %s LIMIT {BATCH}", (each,)) == BATCH:
                    pass
