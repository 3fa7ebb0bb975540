"""Another process, which publishes: one message for each key that it reads, and it says when it began.

It does so with the library, or as the sketch does, and then sends a datagram to `bare`. `Neighbour` starts it and talks
to it. Times are of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from attrs import frozen
from benchmarks import sketch
from benchmarks.bench import PAYLOAD, TOPIC, Bench
from pymysql.constants import CLIENT

import lanelog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@frozen
class Neighbour:
    """The process, as the measurement sees it."""

    _process: subprocess.Popen[str]

    @classmethod
    @contextmanager
    def on(cls, url: str, *, wake: bool = True, bare: str = "") -> Iterator[Neighbour]:
        """Start it, and end it afterwards."""
        command = [sys.executable, "-m", "benchmarks.neighbour", url, str(int(wake)), bare.lstrip("\0")]
        with subprocess.Popen(  # noqa: S603 - this module, with arguments of our own
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield cls(process)
            process.communicate()

    def publish(self, key: str) -> float:
        """Have it publish; when it began."""
        self.ask(key)
        return self.began()

    def ask(self, key: str) -> None:
        """Have it publish, without waiting."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        self._process.stdin.write(key + "\n")
        self._process.stdin.flush()

    def began(self) -> float:
        """When it began with the next message that it was asked for."""
        assert self._process.stdout is not None  # noqa: S101 - the same
        return float(self._process.stdout.readline())


def main(url: str, wake: str, bare: str) -> None:
    """Publish for each line."""
    with (
        lanelog.connect(url, wake=wake == "1") as client,
        _bare(url, client, bare) if bare else nullcontext() as alone,
    ):
        for line in sys.stdin:
            key, began = line.strip(), time.monotonic()
            if alone is None:
                client.publish(TOPIC, key, PAYLOAD)
            else:
                alone(key)
            print(began, flush=True)


@contextmanager
def _bare(url: str, client: lanelog.Client, place: str) -> Iterator[Callable[[str], None]]:
    """Return what publishes in a lane of the sketch's topic, and sends a hint to its receiver."""
    bench = Bench(url=url, client=client, scale=1.0, pid=None, stack=ExitStack())
    with (
        bench.raw(client_flag=CLIENT.MULTI_STATEMENTS) as connection,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line,
    ):
        connection.autocommit(False)  # noqa: FBT003 - PyMySQL's signature

        def publish(key: str) -> None:
            if not sketch.publish_one(connection, sketch.BARE, key):
                raise RuntimeError(f"lane {key!r} is missing or locked")
            line.sendto(b"x", f"\0{place}")

        yield publish


if __name__ == "__main__":
    main(*sys.argv[1:])
