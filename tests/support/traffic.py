"""Publishing while something happens, and what the workers made of it."""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from lanelog import Client, Outgoing
from support.processes import Fleet, Line
from support.sql import owners


@define(eq=False)
class Traffic:
    """How many messages of each key were published, and the errors on the way."""

    keys: Sequence[str]
    rounds: int = 0
    burst: int = 1
    over: threading.Event = field(factory=threading.Event)
    errors: list[BaseException] = field(factory=list)

    @property
    def each(self) -> int:
        """How many messages each key got."""
        return self.rounds * self.burst

    def offsets(self) -> dict[str, list[int]]:
        """Which offsets each key must have, if each message is there once."""
        return {key: list(range(1, self.each + 1)) for key in self.keys}


@contextmanager
def steady_load(
    client: Client, topic: str, keys: Sequence[str], *, pause: float = 0.05, burst: int = 1, **payload: object
) -> Iterator[Traffic]:
    """Publish a burst to every key, again and again, until the block ends. Ids make each round repeatable."""
    traffic = Traffic(keys, burst=burst)

    def publish() -> None:
        while not traffic.over.is_set():
            number = traffic.rounds + 1
            try:
                names = [f"n{number}-{one}" for one in range(burst)]
                client.publish_many(topic, [Outgoing(key, json.dumps(payload), id=n) for n in names for key in keys])
            except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
                traffic.errors.append(error)
                return
            traffic.rounds = number
            traffic.over.wait(pause)

    thread = threading.Thread(target=publish, name="steady load")
    thread.start()
    try:
        yield traffic
    finally:
        traffic.over.set()
        thread.join()
    assert not traffic.errors, traffic.errors


def shares(raw: Any, group: str = "g", topic: str = "t") -> dict[str, int]:
    """How many lanes each name has."""
    return dict(Counter(owner.split(":")[0] for owner in owners(raw, group, topic).values()))


def handled(lines: Sequence[Line]) -> dict[str, list[int]]:
    """The offsets that were handled of each key, in the order in which each was handled first."""
    first: dict[str, dict[int, None]] = {}
    for line in sorted(lines, key=lambda line: line.said):
        if line.event == "handled":
            first.setdefault(line["key"], {}).setdefault(line["offset"])
    return {key: list(offsets) for key, offsets in first.items()}


def wait_until_all_handled(fleet: Fleet, traffic: Traffic, *, within: float = 20.0) -> dict[str, list[int]]:
    """Wait until each published message was handled; the offsets of each key in the order of their first handling."""
    wanted = len(traffic.keys) * traffic.each

    def enough(lines: Sequence[Line]) -> bool:
        return len({(line["key"], line["offset"]) for line in lines if line.event == "handled"}) >= wanted

    return handled(fleet.journal.until(enough, within=within, what=f"{wanted} handled messages"))


def repeated(lines: Sequence[Line]) -> list[tuple[str, int]]:
    """Messages that were handled to the end more than once."""
    counted = Counter((line["key"], line["offset"]) for line in lines if line.event == "handled")
    return [message for message, times in counted.items() if times > 1]
