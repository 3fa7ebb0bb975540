"""`make bench-guard`: fails when a message costs half as much again as it did when the guard was recorded.

It compares the processor time of this process for one message with that of plain SQL through the same driver, in the
same run. Processor time counts what the library does, and not what else the machine is busy with. Of each side the
least of its rounds counts. `--record` writes the costs of this commit down.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen
from benchmarks import raw
from benchmarks.bench import PAYLOAD, TOPIC, Bench
from benchmarks.scenarios import Countdown, wait_for_acks
from rich.console import Console
from rich.table import Table

from lanelog import devserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lanelog.devserver import DevServer

RECORDED: Final = Path(__file__).parent / "results" / "guard.json"
ALLOWED: Final = 1.5
"""Times the recorded cost: a third less for the same processor."""

MORE: Final = 4
"""How often a cost above its bound is measured again."""

PUBLISHED: Final = 2000
CONSUMED: Final = 30_000


@frozen
class Cost:
    """Processor time (seconds) of the library, and of plain SQL, for the same messages."""

    library: float
    plain: float

    @property
    def ratio(self) -> float:
        """The library's cost as a multiple of plain SQL's."""
        return self.library / self.plain

    def least(self, other: Cost) -> Cost:
        """The least of two rounds, each by itself: what is more is the machine's."""
        return Cost(min(self.library, other.library), min(self.plain, other.plain))


def main() -> int:
    """Measure, compare, and say what became dearer."""
    arguments = _arguments()
    recorded: dict[str, float] = {} if arguments.record else json.loads(arguments.recorded.read_text())
    least: dict[str, Cost] = {}
    with devserver.start(arguments.server) as server:
        _rounds(server, arguments.rounds, MEASURES, least)
        # A machine that was disturbed in each of these rounds gets as many again, for some minutes: the same commit has
        # cost 2.1 and 3.1 within ten minutes. What is dearer stays dearer.
        for _ in range(MORE):
            _rounds(server, arguments.rounds, _dearer(least, recorded), least)
    costs = {name: cost.ratio for name, cost in least.items()}
    if arguments.record:
        arguments.recorded.write_text(
            json.dumps({name: round(cost, 2) for name, cost in costs.items()}, indent=2) + "\n"
        )
        return 0
    dearer = _dearer(least, recorded)
    table = Table("a message, as a multiple of plain SQL", "recorded", "now", "at most", title=f"{server.family}")
    for name, now in costs.items():
        at_most = f"{ALLOWED * recorded[name]:.2f}"
        table.add_row(name, f"{recorded[name]:.2f}", f"{now:.2f}", at_most, style="red" if name in dearer else None)
    Console().print(table)
    if dearer:
        print(f"dearer than recorded: {', '.join(dearer)}. Fix it, or record why with --record.", file=sys.stderr)
    return 1 if dearer else 0


def _rounds(server: DevServer, rounds: int, names: Iterable[str], least: dict[str, Cost]) -> None:
    """Measure these alternately, and keep the least in `least`."""
    for _ in range(rounds):
        for name in names:
            with Bench.on(server, 1.0) as bench:
                cost = MEASURES[name](bench)
                least[name] = cost.least(least[name]) if name in least else cost


def _dearer(least: Mapping[str, Cost], recorded: Mapping[str, float]) -> list[str]:
    """Return what costs more than is allowed; nothing where nothing is recorded."""
    return [name for name, cost in least.items() if cost.ratio > ALLOWED * recorded.get(name, math.inf)]


def publish(bench: Bench) -> Cost:
    """What one publish costs, against one insert with its commit."""
    raw.create(bench)
    client = bench.client
    client.publish_many(TOPIC, [(f"key-{number}", PAYLOAD) for number in range(64)])

    def work() -> None:
        for number in range(PUBLISHED):
            client.publish(TOPIC, f"key-{number % 64}", PAYLOAD)

    plain = _processor_time(lambda: raw.insert_single(bench, PUBLISHED, threads=1))
    return Cost(_processor_time(work), plain)


def publish_hundred(bench: Bench) -> Cost:
    """What a message in a batch of a hundred costs, against inserts of a hundred rows."""
    raw.create(bench)
    many = 10 * PUBLISHED

    def work() -> None:
        for start in range(0, many, 100):
            bench.client.publish_many(TOPIC, [(f"key-{n % 64}", PAYLOAD) for n in range(start, start + 100)])

    plain = _processor_time(lambda: raw.insert_many(bench, many, size=100))
    return Cost(_processor_time(work), plain)


def consume_100(bench: Bench) -> Cost:
    """What handling a message of a backlog costs, against reading it; 100 lanes."""
    return _consume(bench, 100)


def consume_3000(bench: Bench) -> Cost:
    """The same with 3,000 lanes, acquired and loaded meanwhile."""
    return _consume(bench, 3000)


MEASURES: Final[dict[str, Callable[[Bench], Cost]]] = {
    measure.__name__: measure for measure in (publish, publish_hundred, consume_100, consume_3000)
}


def _consume(bench: Bench, lanes: int) -> Cost:
    bench.backlog(CONSUMED, lanes)
    plain = _processor_time(lambda: raw.read_by_lane(bench, lanes))
    done = Countdown(CONSUMED)

    def work() -> None:
        with bench.client.subscribe(TOPIC, "group", done):
            done.wait()
            wait_for_acks(bench, CONSUMED)

    return Cost(_processor_time(work), plain)


def _processor_time(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", default="auto", metavar="KIND", help="as for `python -m benchmarks`")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the least cost counts (default: 3)")
    parser.add_argument("--record", action="store_true", help="write the costs down instead of comparing them")
    parser.add_argument("--recorded", type=Path, default=RECORDED, metavar="FILE", help="where the costs stand")
    return parser.parse_args()


if __name__ == "__main__":
    logging.getLogger("lanelog").setLevel(logging.ERROR)  # of this process, and of no test that calls `main`
    sys.exit(main())
