"""Every statement that the processes of the simulation send, history by history: the net under a change of structure.

Run as `PYTHONPATH=tests:queue .venv/bin/python -m support.statement_trace --seeds 1-30 --output DIR`. A seed is one
history, and DIR gets one file for each, with one line for each statement in the order in which they were sent:
`p1.1#3 UPDATE …` is the third connection of process p1.1. COMMIT, ROLLBACK and the end of a connection are lines, too.
Lines that begin with `#` say what the history does next. `sha256` lists the files' digests.

Two runs of the same commit give the same files. To compare a commit with another one:

    git worktree add --detach /tmp/before BEFORE
    (cd /tmp/before && PYTHONPATH=tests:queue .venv/bin/python -m support.statement_trace --output /tmp/trace/before)
    PYTHONPATH=tests:queue .venv/bin/python -m support.statement_trace --output /tmp/trace/after
    diff -r /tmp/trace/before /tmp/trace/after

A history is made by `random.Random(seed)` and the rules of the simulation, called by name, without Hypothesis. Its
first part is the simulation itself, with its promises, and connections that are lost on top; the second part pulls.
Time, random identifiers and jitter follow from the seed and the simulated clock. What else differs from run to run (the
database's name, who the server is) is replaced in the text. White space in a statement is folded.
"""

import argparse
import hashlib
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lanelog
from integration.engine.test_simulation import LOOPS, STEPS, TROUBLES, Simulation
from lanelog import devserver
from lanelog.errors import LanelogError
from support.simulation import GROUPS, LEASE, OUTCOMES, World
from support.simulation_pulling import Pulling
from support.sql import connect, rows
from support.statement_recorder import Chance, Recorder

NAMES = ["p1", "p2", "p3"]
KEYS = "abc"
ENDS = ["ack", "ack", *(outcome for outcome in OUTCOMES if outcome != "die")]


def _handling(chance: random.Random) -> dict[str, Any]:
    return {
        "name": chance.choice(NAMES),
        "outcomes": [chance.choice(ENDS) for _ in range(chance.randrange(5))],
        "then": chance.choice(["begins another", "begins another", *TROUBLES, ""]),
        "loops": chance.random() < 0.7,
    }


RULES: dict[str, tuple[int, Callable[[random.Random], dict[str, Any]]]] = {
    "publish": (3, lambda r: {"key": r.choice(KEYS), "count": r.randint(1, 3)}),
    "build": (6, _handling),
    "mail": (6, _handling),
    "settle": (4, lambda r: {"name": r.choice(NAMES), "pick": r.randrange(4), "outcome": r.choice(ENDS)}),
    "turn": (4, lambda r: {"name": r.choice(NAMES), "loop": r.choice(LOOPS)}),
    "work_on": (3, lambda r: {"name": r.choice(NAMES)}),
    "time_passes": (3, lambda r: {"seconds": r.choice([1.0, 4.0, LEASE - 1, LEASE + 1]), "stalled": r.random() < 0.5}),
    "trouble": (2, lambda r: {"name": r.choice(NAMES), "what": r.choice(TROUBLES)}),
    "lose": (3, lambda r: {"name": r.choice(NAMES), "loop": r.choice([*LOOPS, "keeper"])}),
    "lose_commit": (2, lambda r: {"name": r.choice(NAMES), "committed": r.random() < 0.5}),
    "seek": (
        2,
        lambda r: {
            "group": r.choice(GROUPS),
            "key": r.choice(KEYS),
            "every": r.random() < 0.5,
            "to": r.choice(["earliest", "latest", "offset", "instant"]),
            "pick": r.randrange(4),
        },
    ),
    "steer": (
        2,
        lambda r: {
            "what": r.choice(["skip", "release", "pause lane", "pause group", "resume"]),
            "group": r.choice(GROUPS),
            "key": r.choice(KEYS),
            "pick": r.randrange(4),
        },
    ),
    "administer": (
        2,
        lambda r: {
            "what": r.choice(["redrive", "redrive", "maintain", "delete"]),
            "group": r.choice(GROUPS),
            "name": r.choice(NAMES),
        },
    ),
}
"""The simulation's rules by name: how often they are chosen, and with which arguments."""


class Troubled(Simulation):
    """The simulation, whose connections are lost as well."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world)
        self.recorder = recorder

    def lose(self, name: str, loop: str) -> None:
        """A session is lost between two turns: with the keeper's, all lanes are reloaded."""
        self.process(name).lose(loop)
        self.look(None)

    def lose_commit(self, name: str, committed: bool) -> None:
        """A settler does not learn what became of its COMMIT: this one's, or another's that has something to write."""
        self.mail(name=name, outcomes=["ack"], then="", loops=True)
        for other in sorted(self.living, key=lambda each: each != name):
            process = self.process(other)
            with self.recorder.cutting(process, committed=committed) as cut:
                with suppress(LanelogError):
                    process.turn("settler")
                lost = cut()
            self.look(process)
            if process.gone:
                del self.living[other]
            if lost:
                return


def play(world: World, recorder: Recorder, seed: int) -> None:
    """One history, from empty tables to the last process gone."""
    chance = random.Random(seed)
    history = Troubled(world, recorder)
    history.begin(
        order=("strict", "serial", "concurrent")[seed % 3],
        retention=chance.choice([0.0, 15.0]),
        timeout=(None, 3.0)[seed % 2],
        count=chance.randint(1, 5),
    )
    for rule in chance.choices(list(RULES), [weight for weight, _ in RULES.values()], k=STEPS):
        arguments = RULES[rule][1](chance)
        recorder.note(f"{rule} {arguments}")
        getattr(history, rule)(**arguments)
    recorder.note("teardown")
    history.teardown()
    recorder.note("pulling")
    Pulling(world, recorder, chance).run()


def trace(server: devserver.DevServer, seeds: list[int], output: Path) -> int:
    """Write the histories' files; return how many histories broke off."""
    url = server.create_database("simulation")
    with lanelog.connect(url) as client:
        client.migrate()
    with connect(url) as raw, pytest.MonkeyPatch.context() as monkeypatch:
        rows(raw, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        rows(raw, "SET GLOBAL sync_binlog = 0")
        world = World(url, raw, monkeypatch, [])
        chance, recorder = Chance(world), Recorder(world)
        chance.install(monkeypatch)
        recorder.install(monkeypatch)
        digests, faults = [], 0
        for seed in seeds:
            chance.begin(seed)
            recorder.begin()
            began = time.perf_counter()
            fault = ""
            try:
                play(world, recorder, seed)
            except Exception as error:  # noqa: BLE001 - the other histories are of use
                traceback.print_exc()
                world.end()
                fault = f"{type(error).__name__}: {error}"
                recorder.note(fault)
                faults += 1
            text = "".join(f"{line}\n" for line in recorder.lines)
            (output / f"{seed:04}.txt").write_text(text, encoding="utf-8", errors="surrogateescape")
            digests.append(f"{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}  {seed:04}.txt\n")
            sys.stderr.write(f"{seed:4} {len(recorder.lines):6} lines {time.perf_counter() - began:5.1f} s {fault}\n")
    (output / "sha256").write_text("".join(digests))
    return faults


def main() -> None:
    """Trace the seeds that were asked for."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of names in a set is the order in a statement
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - itself
    parser = argparse.ArgumentParser(prog="python -m support.statement_trace", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1-30", metavar="FIRST-LAST")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--server", default="local", metavar="KIND")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    arguments.output.mkdir(parents=True, exist_ok=True)
    logging.getLogger("lanelog").addHandler(logging.NullHandler())
    with devserver.start(arguments.server) as server:
        faults = trace(server, list(range(int(first), int(last or first) + 1)), arguments.output)
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
