"""Lanes whose owner left no trace but its leases."""

from typing import Any

from lanelog import Client
from support.sql import rows
from support.waiting import Record, eventually


def test_leases_of_owners_without_a_heartbeat_row_are_taken_over(lanelog_client: Client, raw: Any) -> None:
    """After an outage so long that even the heartbeats were purged, the next process works on all lanes."""
    record = Record()
    with lanelog_client.subscribe("t", "g", record):
        lanelog_client.publish_many("t", [("a", "1"), ("b", "1")])
        eventually(lambda: len(record) == 2)
    with raw.cursor() as cursor:  # as a SIGKILL of its owner, and ten minutes in which nobody ran, leave it
        cursor.execute("UPDATE queue_partition_leases SET leased_by = 'gone:1', lease_epoch = lease_epoch + 1")
        cursor.execute("DELETE FROM queue_subscriber_heartbeats")
    lanelog_client.publish_many("t", [("a", "2"), ("b", "2")])
    with lanelog_client.subscribe("t", "g", record, lease_duration=1.0, lease_renewal=0.3) as subscription:
        eventually(lambda: len(record) == 4, within=10)
        owners = {owner for (owner,) in rows(raw, "SELECT leased_by FROM queue_partition_leases")}
        assert owners == {subscription.owner}
