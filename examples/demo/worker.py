"""A worker process: both groups on one client, until its standard input ends.

Never outlives the process that started it: the pipe closes with that process, however it ends. It is started as
`python -m demo.worker`. The URL is in LANELOG_URL, where other users of the machine cannot read it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import lanelog
from demo.rebuild import REBUILD, STATS, Rebuild, Stats
from demo.tables import Tables

HANDLERS: Final = 4
POOL: Final = 2 * HANDLERS + 2
DRAIN: Final = 5.0
PATIENCE: Final = 8.0
RELEASE: Final = "go"


def main(arguments: Sequence[str]) -> int:
    """Work until standard input ends. The line `go` ends the pause after each job. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.worker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")

    tables = Tables(options.run)
    rebuild = Rebuild(tables, options.pause)
    stop = threading.Event()
    threading.Thread(target=listen, args=(sys.stdin, rebuild.released, stop), name="listen", daemon=True).start()
    client = lanelog.connect(pool_size=POOL)
    try:
        common = {"name": options.name, "workers": HANDLERS, "history": True}
        subscriptions = [
            client.subscribe(options.topic, REBUILD, rebuild, **common),
            client.subscribe(options.topic, STATS, Stats(tables), **common),
        ]
        for subscription in subscriptions:
            subscription.on_failure(stop.set)
        stop.wait()
    finally:
        client.close(DRAIN)
    for subscription in subscriptions:
        if subscription.failure is not None:
            raise subscription.failure
    return 0


def listen(lines: Iterable[str], released: threading.Event, stop: threading.Event) -> None:
    """Follow the process that started this one.

    When its pipe closes, end soon, even if the database is gone as well.
    """
    for line in lines:
        if line.strip() == RELEASE:
            released.set()
    released.set()
    stop.set()
    watchdog = threading.Timer(PATIENCE, os._exit, args=(1,))
    watchdog.daemon = True
    watchdog.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
