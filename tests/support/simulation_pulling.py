"""The second part of a traced history: two processes whose users pull, and what they may do with a message.

It asks nothing of what is true afterwards; `test_pull` and others do. `statement_trace` plays it.
"""

import random
from collections.abc import Callable
from contextlib import suppress

from lanelog.errors import LanelogError
from lanelog.message import Message
from support.simulation import GROUPS, LEASE, OUTCOMES, TOPIC, Process, World, options
from support.statement_recorder import Recorder

NAMES = ["p1", "p2"]
KEYS = "abc"
LOOPS = ["keeper", "settler", "fetcher", "janitor", "keeper"]
STEPS = 40


class Pulling:
    """Two processes pull from both groups; what must be true is not asked here."""

    def __init__(self, world: World, recorder: Recorder, chance: random.Random) -> None:
        world.begin()
        self.world = world
        self.recorder = recorder
        self.chance = chance
        self.options = {
            group: options(order, retention=0.0, timeout=6.0) | {"history": True}
            for group, order in zip(GROUPS, ("strict", "concurrent"), strict=True)
        }
        self.living: dict[str, Process] = {}
        self.taken: list[tuple[Process, Message]] = []
        self.born = 0
        self.publisher = Process(world, "publisher", {})

    def process(self, name: str) -> Process:
        if name not in self.living:
            self.born += 1
            self.living[name] = Process(self.world, f"{name}.pulls{self.born}", self.options, pulls=True)
        return self.living[name]

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            delay = self.chance.choice([None, None, 3.0])
            self.publisher.client.publish(TOPIC, self.chance.choice(KEYS), b"", delay=delay)

    def work(self) -> None:
        process = self.process(self.chance.choice(NAMES))
        for loop in ("keeper", "scheduler", "settler", "fetcher", "settler", "janitor"):
            if not process.gone:
                self.turn(process, loop)
        if not process.gone:
            self.pull(process)

    def turn(self, process: Process, loop: str) -> None:
        with suppress(LanelogError):
            process.turn(loop)
        if process.gone:
            del self.living[process.role]

    def pull(self, process: Process) -> None:
        for group in GROUPS:
            while (message := process.pull(group)) is not None:
                self.recorder.note(f"{process!r} has {group} {message.key} {message.offset} {message.attempt}")
                self.taken.append((process, message))

    def settle(self) -> None:
        if not self.taken:
            return
        process, message = self.taken.pop(self.chance.randrange(len(self.taken)))
        how = self.chance.choice(["ack", "ack", "nack", "reject", "postpone", "extend", "effect"])
        if process.gone:
            return
        self.recorder.note(f"{process!r} {how} {message.group} {message.key} {message.offset}")
        calls: dict[str, Callable[[], object]] = {
            "nack": lambda: message.nack(reason="nacked"),
            "reject": lambda: message.reject("bad"),
            "postpone": lambda: message.postpone(5),
            "effect": lambda: OUTCOMES["effect"](message),
            "extend": lambda: message.extend(8),
        }
        with self.world.acting(process), suppress(LanelogError):
            calls.get(how, message.ack)()
        if how == "extend":
            self.taken.append((process, message))

    def trouble(self) -> None:
        process = self.process(self.chance.choice(NAMES))
        what = self.chance.choice(["lose", "lose", "lose commit", "crash", "stop"])
        self.recorder.note(f"{what} {process!r}")
        if what == "lose":
            process.lose(self.chance.choice(LOOPS))
        elif what == "lose commit":
            self.publish()
            self.turn(process, "fetcher")
            with self.recorder.cutting(process, committed=self.chance.random() < 0.5):
                if not process.gone:
                    self.turn(process, "settler")
        elif what == "crash":
            del self.living[process.role]
            process.crash()
        else:
            process.ask_to_stop()

    def run(self) -> None:
        steps = [self.publish, self.work, self.work, self.work, self.settle, self.settle, self.settle, self.pass_by]
        for _ in range(STEPS):
            self.chance.choice([*steps, *steps, self.trouble])()
        self.world.end()

    def pass_by(self) -> None:
        self.world.clock.now += self.chance.choice([1.0, 2.0, 4.0, LEASE + 1])
