"""A cluster of processes: driver, workers and executors share nothing but what Spark sends between them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanelog.client import Client
from lanelog.spark._options import parse_read
from lanelog.spark._source import LanelogReader

PROGRAM = Path(__file__).parent / "programs/copy_topic.py"
WITHIN = 150.0
"""Five JVMs start one after the other."""


@pytest.mark.timeout(WITHIN + 30)
def test_executors_in_processes_of_their_own_read_and_write(client: Client, lanelog_url: str) -> None:
    """A standalone cluster of two workers on the loopback copies a topic: all of it, once, each key in its order."""
    client.publish_many("from", [(f"k{n % 20}", b"%d" % n) for n in range(4000)])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "local-cluster[2,1,1024]", lanelog_url, "from", "to"],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"executors": 2}
    lanes: dict[str, list[int]] = {}
    reader = LanelogReader(parse_read({"url": lanelog_url, "subscribe": "to"}, streaming=False))
    for split in reader.partitions():
        for batch in reader.read(split):
            for row in batch.to_pylist():
                lanes.setdefault(row["key"], []).append(int(row["value"]))
    assert lanes == {f"k{n}": list(range(n, 4000, 20)) for n in range(20)}
