"""Another process, which floods a subscriber's socket with 100,000 datagrams a second, or what the machine gives.

`flooded` starts it, and says at the end what it reached. A datagram that the kernel refuses because the socket is full
counts as sent, and not as taken.
"""

from __future__ import annotations

import itertools
import select
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import define
from benchmarks.bench import TOPIC

from lanelog._hints.datagram import Hint, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 100_000
BURST = 500
"""Datagrams between two readings of the clock."""


@define
class Reached:
    """What a flood came to: datagrams a second."""

    sent: float = 0.0
    taken: float = 0.0


@contextmanager
def flooded(address: str, token: int) -> Iterator[Reached]:
    """Flood the socket with hints of the benchmarks' topic; what was reached stands there at the end."""
    reached = Reached()
    command = [sys.executable, "-m", "benchmarks.flood", address, str(token)]
    with subprocess.Popen(  # noqa: S603 - this module, with arguments of our own
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
        process.stdout.readline()  # it floods from here on
        yield reached
        told, _ = process.communicate()
    reached.sent, reached.taken = map(float, told.split())


@contextmanager
def unread() -> Iterator[str]:
    """The address of a socket that nobody reads: flooding it costs the machine the same, and disturbs no subscriber."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("\0lanelog-unread")
        yield "lanelog-unread"


def main(address: str, token: str) -> None:
    """Flood until standard input ends."""
    datagram = Hint(number_of(TOPIC), new_lanes=True).packed(int(token))
    print("flooding", flush=True)
    taken, began = 0, time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line:
        line.connect(f"\0{address}")
        for bursts in itertools.count(1):
            for _ in range(BURST):
                try:
                    line.send(datagram)
                except BlockingIOError:
                    continue
                taken += 1
            ahead = max(0.0, began + bursts * BURST / RATE - time.monotonic())
            if select.select([sys.stdin], [], [], ahead)[0]:
                break
    seconds = time.monotonic() - began
    print(bursts * BURST / seconds, taken / seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
