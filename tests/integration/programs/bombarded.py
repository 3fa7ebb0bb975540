"""A process whose main thread is interrupted at random moments, by a signal handler that raises, while others publish.

Says what went wrong by then, and whether all that the pool and the publishers have is there afterwards.
"""

import random
import signal
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from saying import CONFIG, say

import lanelog
from lanelog._database import open_in_this_thread

POOL = 3
LONGEST = 0.003
"""Seconds until an interrupt at most: longer than most of what it is to meet."""


class InterruptError(Exception):
    """An Exception, as Celery's soft time limit is."""


class Bombs:
    """Whether the handler raises, and how often it did."""

    armed = False
    caught = 0


wrong: list[str] = []
published: list[list[int]] = [[] for _ in range(3)]
over = threading.Event()


def interrupt(_number: int, _frame: FrameType | None) -> None:
    if Bombs.armed:
        raise InterruptError


def ask(connection: Any, number: int) -> None:
    """Any answer but its own is that of another statement."""
    cursor = connection.cursor()
    cursor.execute(f"SELECT {number}")
    found = cursor.fetchall()
    if list(found) != [(number,)]:
        wrong.append(f"asked for {number}, and got {found}")


def write(connection: Any, number: int) -> None:
    connection.cursor().execute("INSERT INTO own (id) VALUES (%s)", (number,))


def act(number: int) -> None:
    kind = number % 4
    if kind == 3:
        client.publish("t", "mine", b"x")
    elif kind == 0:
        client.publish_many("t", [("mine", b"x"), ("shared", b"x")])
    else:
        with client.transaction() as connection:
            ask(connection, number)
            # Every other one goes on after an interrupt, as user code may that catches any Exception.
            with suppress(InterruptError) if kind == 1 else ExitStack():
                write(connection, number)
                client.publish("t", "mine", b"x", connection=connection)
            with suppress(Exception):
                ask(connection, number + 1_000_000_000)


def publish(offsets: list[int]) -> None:
    while not over.is_set():
        try:
            offsets.append(client.publish("t", "shared", b"x").offset)
        except lanelog.LanelogError as error:
            wrong.append(f"a publish of another thread failed: {error}")


def bombard(seconds: float) -> None:
    number, until = 1000, time.monotonic() + seconds
    while time.monotonic() < until:
        number += 1
        try:
            Bombs.armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, LONGEST))
            act(number)
            Bombs.armed = False
        except InterruptError:
            Bombs.armed = False
            Bombs.caught += 1
        except lanelog.DatabaseError:
            Bombs.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


client = lanelog.connect(CONFIG["url"], driver=CONFIG["driver"], pool_size=POOL, publish_timeout=20)
client.publish_many("t", [("mine", b"x"), ("shared", b"x")])
warnings.simplefilter("ignore", ResourceWarning)  # an interrupt while it connects leaves the socket to the collector
signal.signal(signal.SIGALRM, interrupt)
threads = [threading.Thread(target=publish, args=(offsets,), daemon=True) for offsets in published]
for thread in threads:
    thread.start()
bombard(CONFIG["seconds"])
before = [len(offsets) for offsets in published]
reached = time.monotonic() + 20
while time.monotonic() < reached and any(len(now) <= then for now, then in zip(published, before, strict=True)):
    time.sleep(0.01)  # the publishing threads share nothing with this one but lists: an event might be interrupted
going_on = [len(now) > then for now, then in zip(published, before, strict=True)]
over.set()
for thread in threads:
    thread.join(20)
with ExitStack() as stack:
    places = 0
    with suppress(lanelog.DatabaseError):
        for _ in range(POOL):
            stack.enter_context(client._database.transaction(wait=2))
            places += 1
marked = open_in_this_thread(client._database)
last = client.publish("t", "mine", b"last").offset
say(
    "bombarded",
    caught=Bombs.caught,
    wrong=wrong[:10],
    going_on=going_on,
    places=places,
    marked=marked,
    alive=[thread.is_alive() for thread in threads],
    last=last,
    offsets=sorted(offset for offsets in published for offset in offsets),
)
client.close()
