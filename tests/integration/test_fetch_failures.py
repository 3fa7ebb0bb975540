"""Reads that fail: no lane may be forgotten because its rows could not be read once."""

from contextlib import suppress
from typing import Any

import pymysql

from lanelog import Client
from support.waiting import Record, eventually


def test_killed_reads_lose_no_lane(lanelog_client: Client, raw: Any) -> None:
    """However often the fetching connection is killed, every lane is read again, without any other event."""
    record = Record()
    keys = [f"k{number}" for number in range(20)]
    with lanelog_client.subscribe("t", "g", record):
        for turn in range(12):
            lanelog_client.publish_many("t", [(key, str(turn)) for key in keys])
            with raw.cursor() as cursor:
                cursor.execute(
                    "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND command = 'Sleep'"
                )
                for (number,) in cursor.fetchall()[:6]:
                    with suppress(pymysql.err.OperationalError):  # it may have ended by itself
                        cursor.execute("KILL %s", (number,))
        eventually(lambda: len(record) >= 12 * len(keys), within=20)
