"""A schedule that fires every second, and processes whose clocks are hours apart: once a second, whatever they think.

It never fires anything itself; `programs/ticking.py` are the processes. A cut of it is in the integration tests, a
minute of it in the long run.
"""

import time
from datetime import datetime, timedelta

import pytest

from lanelog import Client
from support.clocks import clock, libfaketime
from support.processes import Fleet
from support.waiting import eventually

CLOCKS = [None, "+1h", "-1h", "+1h", "-1h"]
PAGE = 1000


def fire_times(client: Client) -> list[datetime]:
    """What the messages in the lane say, in its order."""
    if not any(topic.topic == "t" and topic.lanes for topic in client.admin.topics()):
        return []
    found = client.admin.messages("t", "k", limit=PAGE)
    return [datetime.fromisoformat(message.metadata["lanelog.fire_time"]) for message in found]


def consecutive(times: list[datetime]) -> bool:
    """Whether there is one for each second, in order."""
    return times == [times[0] + timedelta(seconds=number) for number in range(len(times))]


def every_second(fleet: Fleet, client: Client, seconds: int) -> None:
    """Five processes declare the same schedule: as many messages as seconds, no duplicate, none missing."""
    library = libfaketime()
    programs = [
        fleet.start(
            f"p{number}",
            "ticking.py",
            environment=clock(library, wrong) if wrong else {},
            expression="* * * * * *",
        )
        for number, wrong in enumerate(CLOCKS)
    ]
    read = [program.said("ready")[0]["clock"] - time.time() for program in programs]
    assert max(read) - min(read) == pytest.approx(7200, abs=60)
    begin = len(fire_times(client))
    eventually(
        lambda: len(fire_times(client)) >= begin + seconds, within=seconds + 15, what="a message for each second"
    )
    for program in programs:
        program.tell("stop")
    for program in programs:
        assert program.ended() == 0
    found = client.admin.messages("t", "k", limit=PAGE)
    times = fire_times(client)
    assert len(times) == len({message.id for message in found})
    assert len(times) >= begin + seconds
    assert consecutive(times)
    late = [message.published_at - at for message, at in zip(found, times, strict=True)]
    assert min(late) >= timedelta(0)  # by the server's clock, not by any of theirs
    assert max(late) < timedelta(seconds=5)  # what would count as missed
    assert not fleet.logged("schedule.missed")
