"""Actors: processes that do as a test tells them, and stop at points of their transactions that the test has armed.

It never looks into a transaction itself (`pauses` does, in the actor's process) but asks the server who waits for a
lock. The tests of interleavings direct it; `programs/actor.py` has the steps that an actor can be told.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from operator import itemgetter
from typing import Any

import pytest
from attrs import define, field

from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog._log import purge_lane
from lanelog._log.register import register
from lanelog.config import SubscriptionConfig
from support.pauses import Point
from support.processes import Fleet, Line, Program
from support.situations import Situations
from support.sql import owners, rows, sessions, watermark
from support.waiting import eventually

REFRESHED = 0.15  # seconds: InnoDB renews its list of transactions only if nobody has read it for a tenth of a second

HEAD, EPOCH = 3, 7
"""Of a drained lane."""


def thorough(*cases: Any) -> list[Any]:
    """Cases of a parametrised test for the thorough run alone; the others are its most dangerous ones."""
    return [pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.thorough) for each in cases]


DIES = pytest.mark.parametrize("dies", [False, *thorough(True)], ids=["commits", "dies"])


@define
class Call:
    """Something that an actor was asked to do; `point` is where it was stopped."""

    actor: "Actor"
    number: int
    point: str = ""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._ended(self.actor.program.lines))

    def result(self, *, within: float = 30.0) -> Any:
        """Wait for its end; AssertionError with what it raised."""
        journal = self.actor.program.journal
        what = f"the end of call {self.number} of {self.actor}"
        (line,) = self._ended(journal.until(self._ended, within=within, what=what))
        assert line.event == "done", line["error"]
        return line["result"]

    def go(self) -> None:
        """Let it go on; it has not ended before."""
        assert not self.done
        self.actor.go(self.point)

    def end(self, *, dies: bool = False) -> Any:
        """Let it go on to its end, whose result this is; or kill it there (None)."""
        if dies:
            self.actor.program.kill()
            return None
        self.go()
        return self.result()

    def _ended(self, lines: Sequence[Line]) -> list[Line]:
        ends = [line for line in lines if line.process == self.actor.program.name and line.event in ("done", "failed")]
        return [line for line in ends if line["call"] == self.number]


@define
class Actor:
    """A process that follows orders, and stops where it is ordered to."""

    program: Program
    _calls: int = 0
    _armed: Counter[str] = field(factory=Counter)

    def __repr__(self) -> str:
        return f"<Actor {self.program.name}>"

    def pause(self, point: str, *containing: str) -> "Actor":
        """Arm a point; returns when it is armed."""
        Point.parse(point)
        self._tell("arm", point=point, containing=containing)
        self._armed[point] += 1
        self.program.said("armed", count=self._armed.total())
        return self

    def call(self, step: str, **arguments: object) -> Call:
        """Ask for a step; does not wait for it."""
        self._calls += 1
        self._tell("do", step=step, call=self._calls, arguments=arguments)
        return Call(self, self._calls)

    def do(self, step: str, **arguments: object) -> Any:
        """Ask for a step, and wait for its result."""
        return self.call(step, **arguments).result()

    def paused(self, point: str, *, within: float = 20.0) -> "Actor":
        """Wait until it is stopped there, as often as the point was armed."""

        def stops(lines: Sequence[Line]) -> int:
            mine = [line for line in lines if line.process == self.program.name and line.event == "paused"]
            return sum(line["point"] == point for line in mine)

        often = max(1, self._armed[point])
        self.program.journal.until(lambda lines: stops(lines) >= often, within=within, what=f"{self} paused {point}")
        return self

    def go(self, point: str) -> None:
        """Let it go on."""
        self._tell("go", point=point)

    def pass_by(self, point: str) -> None:
        """Wait until it has come there twice from now on: what it does from one time to the next is done."""
        for _ in range(2):
            self.pause(point).paused(point).go(point)

    def turn(self) -> None:
        """Wait for a whole turn of its keeper, while it is not stopping."""
        self.pass_by("after groups.GET")

    def handled(self, count: int, *fields: str) -> list[Any]:
        """Wait until it has handled so many; these fields of each."""
        return list(map(itemgetter(*fields), self.program.said("handled", count=count)))

    def started(self, key: str = "k") -> list[tuple[int, int]]:
        """(offset, attempt) of whatever it has begun to handle so far."""
        self.do("answer")  # what it said before that was heard, too, however busy the machine is
        lines = [line for line in self.program.lines if line.event == "started" and line["key"] == key]
        return [(line["offset"], line["attempt"]) for line in lines]

    def is_refused(self, how: str) -> None:
        """Wait until it has learnt that its settlement (`how` its handler ended) came too late."""
        if how == "transaction":
            self.program.said("lost")
            return

        def refused(lines: Sequence[Line]) -> bool:
            logged = [line["text"] for line in lines if (line.process, line.event) == (self.program.name, "log")]
            return any(text.startswith(("lane.lost", "settlement.refused")) for text in logged)

        self.program.journal.until(refused, what=f"{self} being refused")

    def _tell(self, command: str, **fields: object) -> None:
        self.program.tell(json.dumps({"command": command, **fields}))


class Stage:
    """The actors of one test on topic t, the test's own client, and what it does beside them."""

    def __init__(self, fleet: Fleet, client: Client, raw: Any) -> None:
        self.fleet, self.client, self.raw = fleet, client, raw
        self._threads = ThreadPoolExecutor(8, "aside")

    def close(self) -> None:
        """End the actors, then what waits for them."""
        self.fleet.close()
        self._threads.shutdown()

    # -- actors --------------------------------------------------------------------------------------------------------

    def actor(self, name: str, **config: Any) -> Actor:
        """Start an actor; it is ready as soon as it answers."""
        return Actor(self.fleet.start(name, "actor.py", **config))

    def stopped(self, point: str, step: str, *containing: str, name: str = "stopped", **arguments: object) -> Call:
        """A step of a new actor, stopped at a point."""
        actor = self.actor(name).pause(point, *containing)
        call = actor.call(step, **arguments)
        call.point = point
        actor.paused(point)
        return call

    def paused_in(self, point: str, step: str, *containing: str, **arguments: Any) -> tuple[Actor, Call]:
        """An actor that is stopped at a point of a step, and that step."""
        call = self.stopped(point, step, *containing, **arguments)
        return call.actor, call

    def member(
        self, name: str, *stops: str, group: str = "g", config: dict[str, Any] | None = None, **options: object
    ) -> Actor:
        """A new actor that has subscribed; with `stops` it is stopped at this point (containing these) after that."""
        actor = self.actor(name, **(config or {}))
        if stops:
            actor.pause(*stops)
        actor.do("subscribe", topic="t", group=group, **options)
        return actor.paused(stops[0]) if stops else actor

    # -- beside them ---------------------------------------------------------------------------------------------------

    def aside(self, work: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        """Do something in a thread of its own."""
        return self._threads.submit(work, *args, **options)

    def waiting(self, work: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        """Do something aside that has to wait for a lock, and does."""
        future = self.aside(work, *args, **options)
        wait_until_blocked(self.raw)
        assert not future.done()
        return future

    def register(self, group: str, *, topic: str = "t", **options: Any) -> int:
        """A group without retention, by its first subscription."""
        self.client.ping()  # as whoever subscribes does: it looks which version the tables have
        config = SubscriptionConfig.from_options(**{"retention": 0, **options})
        return register(self.client._database, GroupTopic(topic=topic, group=group), config)

    def purge(self, key: str = "k") -> bool:
        """Purge a lane, if it is drained; whether it was."""
        with closing(self.client._database.session("purge")) as session:
            return purge_lane.drained(session, "t", key)

    # -- what there is -------------------------------------------------------------------------------------------------

    def stored(self, key: str = "k") -> list[int]:
        """The offsets that are in the lane's log."""
        sql = "SELECT `offset` FROM queue_messages WHERE topic = 't' AND partition_key = %s ORDER BY 1"
        return [offset for (offset,) in rows(self.raw, sql, key)]

    def acked(self, key: str = "k", group: str = "g") -> int:
        """How far a group has acked a lane."""
        return watermark(self.raw, group, "t", key)

    def until_acked(self, offset: int, *keys: str, group: str = "g") -> None:
        """Wait until a group has acked lane k, or these, so far."""
        what = f"{group} having acked {offset}"
        eventually(lambda: {self.acked(key, group) for key in keys or ("k",)} == {offset}, within=30, what=what)

    def drain(self, head: int, epoch: int) -> None:
        """Lane k: so many messages, all of them acked by group g and collected, its lease in nobody's name."""
        self.register("g")
        self.client.publish_many("t", [("k", b"{}")] * head)
        rows(self.raw, "DELETE FROM queue_messages WHERE topic = 't'")
        sql = "UPDATE queue_offsets SET offset_acked = %s, marked_through = %s WHERE consumer_group = ''"
        rows(self.raw, sql, head, head)
        Situations(self.raw).place("k", head)
        Situations(self.raw).lease("k", "", epoch)

    def owners(self) -> dict[str, str]:
        """The names of the owners, by lane ('': nobody)."""
        return {key: owner.split(":")[0] for key, owner in owners(self.raw, "g", "t").items()}

    def letters(self) -> list[int]:
        """The original offsets of the dead letters, settled or not."""
        sql = "SELECT original_offset FROM queue_messages WHERE topic = 't_dlq' ORDER BY `offset`"
        return [offset for (offset,) in rows(self.raw, sql)]


def blocked(raw: Any) -> int:
    """How many transactions on this database wait for a lock at this moment."""
    threading.Event().wait(REFRESHED)
    waiting = rows(raw, "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
    return len({number for (number,) in waiting}.intersection(sessions(raw)))


def wait_until_blocked(raw: Any, count: int = 1) -> None:
    """Wait until so many transactions wait for a lock."""
    eventually(lambda: blocked(raw) >= count, what=f"{count} waiting for a lock")
