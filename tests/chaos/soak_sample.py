"""What a soak looks at every few seconds: the tables, the server, and the processes.

Owns the SQL and the reading of /proc; it goes past the library on a connection of its own, and never judges. The runner
takes one sample after the other from it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import pymysql
from attrs import define, field

from chaos import database
from chaos.soak_figures import MIB, percentile
from chaos.soak_publisher import TOPIC
from chaos.soak_worker import PLAIN, RETRIED

TABLES: Final = ("messages", "delivery_state", "partitions", "offsets", "partition_leases")
# A few ten thousand rows when all is well: counting them by primary key takes milliseconds.
ROWS: Final = f"""
SELECT {", ".join(f"(SELECT COUNT(*) FROM queue_{table})" for table in TABLES)},
       (SELECT COUNT(*) FROM queue_subscriber_heartbeats) + (SELECT COUNT(*) FROM queue_groups)"""
# A lane without a row of the group begins at its floor, the row of the group ''.
LAG: Final = """
SELECT COALESCE(SUM(p.head_offset - COALESCE(o.offset_acked, f.offset_acked, 0)), 0)
FROM queue_groups g
JOIN queue_partitions p ON p.topic = g.topic AND p.partition_key <> ''
LEFT JOIN queue_offsets o
       ON o.consumer_group = g.consumer_group AND o.topic = p.topic AND o.partition_key = p.partition_key
LEFT JOIN queue_offsets f ON f.consumer_group = '' AND f.topic = p.topic AND f.partition_key = p.partition_key
WHERE g.topic = %s"""
# The files themselves: the statistics of information_schema.TABLES are estimates, and kept for a day.
DISK: Final = "SELECT SUM(FILE_SIZE) FROM information_schema.{table} WHERE NAME LIKE %s"
TABLESPACES: Final = {"mariadb": "INNODB_SYS_TABLESPACES", "mysql": "INNODB_TABLESPACES"}
HISTORY: Final = "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
CONNECTIONS: Final = "SHOW GLOBAL STATUS LIKE 'Threads_connected'"

ENDS_WITHIN: Final = 60.0


def process_status(pid: int) -> tuple[float, int, int]:
    """A process's resident memory in MiB, its threads and its open files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(fields["VmRSS"].split()[0]) * 1024 / MIB
    return memory, int(fields["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


@define(eq=False)
class Process:
    """One program of the soak, and what it has said."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    _said: TextIO
    _rest: str = ""

    @classmethod
    def start(cls, module: str, name: str, directory: Path, *arguments: str) -> Process:
        """Start a program of this directory; what it says and its errors go to files."""
        said, log = directory / f"{name}.jsonl", directory / f"{name}.log"
        path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        with said.open("wb") as output, log.open("wb") as errors:
            popen = subprocess.Popen(
                [sys.executable, "-m", f"chaos.{module}", arguments[0], name, *arguments[1:]],
                stdout=output,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            )
        return cls(name, popen, log, said.open())

    def take(self) -> list[dict[str, Any]]:
        """What it has said since the last time, in whole lines."""
        *lines, self._rest = (self._rest + self._said.read()).split("\n")
        return [json.loads(line) for line in lines]

    def end(self) -> str | None:
        """Let it drain and end; what went wrong, or None."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            status = self.popen.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            return f"{self.name} had not ended after {ENDS_WITHIN:g} s"
        return self.failure() if status else None

    def failure(self) -> str | None:
        """What it ended with, if it ended badly or early."""
        if self.popen.poll() is None:
            return None
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])
        return f"{self.name} ended with status {self.popen.returncode}: {tail}"

    def kill(self) -> None:
        """Make sure that it is gone."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self._said.close()


@define(eq=False)
class Sampler:
    """Takes samples; rates are since the last one."""

    url: str
    family: str
    server_pid: int
    publishers: Sequence[Process]
    workers: Sequence[Process]
    published: int = 0
    handled: Counter[str] = field(factory=Counter)
    _connection: pymysql.Connection[Any] | None = None
    _last: float = field(factory=time.monotonic)

    @property
    def processes(self) -> list[Process]:
        """All programs of the run."""
        return [*self.publishers, *self.workers]

    def sample(self) -> dict[str, float]:
        """All figures at this moment, in the units of `soak_figures.FIGURES`."""
        return {**self._traffic(), **self._database(), **self._processes()}

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()

    def lag(self) -> float:
        """What the groups have not acked yet."""
        return float(self._row(LAG, TOPIC)[0])

    def count(self) -> tuple[int, Counter[str], Counter[int]]:
        """What was published and handled since the last time, and the latencies by bucket."""
        published = sum(line["published"] for process in self.publishers for line in process.take())
        handled: Counter[str] = Counter()
        latencies: Counter[int] = Counter()
        for process in self.workers:
            for line in process.take():
                handled.update(line["handled"])
                latencies.update({int(bucket): count for bucket, count in line["latencies"].items()})
        self.published += published
        self.handled.update(handled)
        return published, handled, latencies

    def _traffic(self) -> dict[str, float]:
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        published, handled, latencies = self.count()
        return {
            "published": published / seconds,
            "handled_plain": handled[PLAIN] / seconds,
            "handled_retried": handled[RETRIED] / seconds,
            "latency_p50": _milliseconds(latencies, 0.5),
            "latency_p99": _milliseconds(latencies, 0.99),
        }

    def _database(self) -> dict[str, float]:
        messages, delivery, heads, offsets, leases, members = self._row(ROWS)
        disk = DISK.format(table=TABLESPACES[self.family])
        return {
            "lag": self.lag(),
            "rows_messages": messages,
            "rows_delivery_state": delivery,
            "rows_lanes": heads + offsets + leases,
            "rows_heartbeats": members,
            "disk": float(self._row(disk, "%/queue\\_%")[0]) / MIB,
            "history_list": float(self._row(HISTORY)[0]),
            "connections": float(self._row(CONNECTIONS)[1]),
        }

    def _processes(self) -> dict[str, float]:
        workers = [process_status(process.popen.pid) for process in self.workers]
        publishers = [process_status(process.popen.pid) for process in self.publishers]
        return {
            "memory_server": process_status(self.server_pid)[0],
            "memory_workers": sum(memory for memory, _, _ in workers),
            "memory_publishers": sum(memory for memory, _, _ in publishers),
            "threads": sum(threads for _, threads, _ in [*workers, *publishers]),
            "files": sum(files for _, _, files in [*workers, *publishers]),
            "load": os.getloadavg()[0],
        }

    def _row(self, sql: str, *arguments: object) -> tuple[Any, ...]:
        if self._connection is None:
            self._connection = database.connect(self.url)
        with self._connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            row = cursor.fetchone()
        assert row is not None, sql
        return tuple(row)


def _milliseconds(latencies: Mapping[int, int], share: float) -> float:
    seconds = percentile(latencies, share)
    return 0.0 if math.isnan(seconds) else 1000 * seconds
