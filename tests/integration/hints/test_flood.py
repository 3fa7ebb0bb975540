"""A flood of datagrams at a subscriber's socket: the polls that it causes are counted, and messages are handled."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define

import lanelog
from lanelog import Client
from lanelog._database.connection.wire import Wire
from lanelog._engine.fetching import fetcher
from lanelog._engine.fetching.fetcher import Fetcher
from lanelog._engine.fetching.pace import FetcherPace
from lanelog._engine.leasing import keeper as keeper_module
from lanelog._engine.leasing.keeper import Keeper
from lanelog._engine.leasing.pace import KeeperPace
from lanelog._engine.member.member import Member
from lanelog._hints.allowance import Allowance
from lanelog._hints.datagram import Hint, number_of
from lanelog._hints.host import own_host
from lanelog._hints.receiver import Receiver
from support.waiting import Record, eventually

pytestmark = pytest.mark.skipif(not own_host(), reason="hints need Linux")

NEVER = 600.0
HINT = Hint(number_of("t"), new_lanes=False)
STATEMENT = 0.004
"""Seconds of the clock that a statement of the fetcher takes."""
TURN = 0.02
"""Seconds of the clock between two turns of the fetcher: far less than polls may have."""


@pytest.fixture
def lanelog_client(lanelog_url: str) -> Iterator[Client]:
    """A client that receives hints."""
    with lanelog.connect(lanelog_url) as client:
        yield client


@define
class Clock:
    """Replaces `time`: each reading takes `step` seconds."""

    now: float
    step: float = STATEMENT

    def monotonic(self) -> float:
        """Return the time, a little later."""
        self.now += self.step
        return self.now


class Hinted(Keeper):
    """A hint of new lanes comes within each of its turns."""

    woken = False

    def _serve_all(self, *, hurried: bool) -> None:
        self.woken = self.may_hurry()


def receiver(client: Client) -> Receiver:
    """The socket of the client's engine."""
    return client._engine.context.receiver


def send(line: socket.socket, heard: Receiver, *, token: int) -> None:
    """Send one datagram to it."""
    line.sendto(HINT.packed(token), f"\0{heard.endpoint.address}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("right", "interval", "lanes"),
    [(True, NEVER, 1), (False, NEVER, 1), (True, FetcherPace().soon_seconds, 1), (True, NEVER, 100)],
    ids=["right", "wrong", "and by the clock", "many lanes"],
)
def test_the_polls_of_a_flood_take_their_share_of_the_time(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch, *, right: bool, interval: float, lanes: int
) -> None:
    """A hint before each turn: a wrong token causes no poll, a right one as many as are paid.

    Polls by the clock go on beside them, and take no more than a share of their own. With many lanes a poll is two: for
    the rows of the lanes that were busy last, and for all heads. Both are paid for.
    """
    handled = Record()
    lanelog_client.publish_many("t", [(f"k{number}", b"x") for number in range(lanes)])
    subscription = lanelog_client.subscribe(
        "t", "g", handled, start="earliest", poll_interval=interval, lease_duration=NEVER
    )
    handled.wait(lanes)
    eventually(lambda: subscription.stats().lanes == lanes)
    engine = lanelog_client._engine
    (loop,) = (loop for loop in engine._loops if loop.name == "fetcher")
    loop.stop()  # the turns are made here, by a clock of ours
    own, clock, asked = Fetcher(engine.context), Clock(time.monotonic(), 0.0), list[str]()
    run = Wire._run

    def noted(self: Wire, sql: str, args: Sequence[object]) -> Any:
        if self is own.session._wire:
            clock.now += STATEMENT
            asked.append(sql)
        return run(self, sql, args)

    monkeypatch.setattr(fetcher, "time", clock)
    monkeypatch.setattr(Wire, "_run", noted)
    heard = receiver(lanelog_client)
    eventually(lambda: own.turn(clock.now) and own._polls)  # a fetcher's first poll needs no hint
    (polls,) = own._polls.values()
    polls.interval, polls.next_poll = interval, clock.now + interval
    asked.clear()
    began = clock.now
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        for _ in range(2000):
            send(line, heard, token=heard.endpoint.token + (not right))
            for hint in heard.receive():
                engine._received(hint)
            clock.now += TURN
            polls.busy_first = True  # as after a message in a lane that was busy
            own.turn(clock.now)
    seconds = clock.now - began
    own.close()
    if not right:
        assert (asked, subscription.stats().hints, heard.ignored) == ([], 0, 2000)
        return
    assert subscription.stats().hints == 2000
    paid = Allowance()
    most = (seconds + paid.span_seconds) * paid.cycle.share / STATEMENT + 2
    assert most / 2 < len(asked) <= (most if interval == NEVER else 2 * most) < 2000
    if lanes > own.pace.fetch_lanes:
        assert 0 < sum("payload" in sql for sql in asked) <= len(asked) / 2


def test_the_poll_due_after_a_short_one_is_not_slept_over(
    lanelog_client: Client, lanelog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that took longer than the time until that poll is followed by it at once, not when others poll."""
    handled, lanes = Record(), 100
    lanelog_client.publish_many("t", [(f"k{number}", b"x") for number in range(lanes)])
    subscription = lanelog_client.subscribe("t", "g", handled, start="earliest", poll_interval=NEVER)
    handled.wait(lanes)
    eventually(lambda: subscription.stats().lanes == lanes)
    engine = lanelog_client._engine
    (loop,) = (loop for loop in engine._loops if loop.name == "fetcher")
    loop.stop()
    own, clock = Fetcher(engine.context), Clock(time.monotonic())
    monkeypatch.setattr(fetcher, "time", clock)
    eventually(lambda: own.turn(clock.now) and own._polls)
    ((member, polls),) = own._polls.items()
    polls.interval, polls.next_poll = NEVER, clock.now + NEVER
    busy = next(reversed(member.fetching.busy_last))
    with lanelog.connect(lanelog_url, wake=False) as other:
        other.publish("t", busy, b"y")
    fetch = Fetcher._fetch

    def slow(self: Fetcher, member: Member) -> bool:
        clock.now += 1.0
        return fetch(self, member)

    monkeypatch.setattr(Fetcher, "_fetch", slow)
    member.fetching.hinted()
    assert own.turn(clock.now) == 0.0
    assert polls.early == {busy: 1}
    own.turn(clock.now)
    assert (polls.early, polls.notified) == ({}, False)
    own.close()


@contextmanager
def flooded(heard: Receiver, *, token: int) -> Iterator[None]:
    """Send datagrams to the socket without end, from a thread."""
    stop = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line:
            while not stop.is_set():
                try:
                    send(line, heard, token=token)
                except BlockingIOError:  # the socket is full
                    stop.wait(0.0001)

    flooding = threading.Thread(target=flood, name="flood")
    flooding.start()
    try:
        yield
    finally:
        stop.set()
        flooding.join()


@pytest.mark.parametrize("right", [True, False])
def test_messages_are_handled_during_a_flood(lanelog_client: Client, lanelog_url: str, *, right: bool) -> None:
    """Each comes once and in order, old lanes and new ones, whatever the tokens are."""
    handled = Record()
    subscription = lanelog_client.subscribe("t", "g", handled)
    heard = receiver(lanelog_client)
    with lanelog.connect(lanelog_url, wake=False) as other, flooded(heard, token=heard.endpoint.token + (not right)):
        eventually(lambda: heard.received if right else heard.ignored)
        for number in range(100):
            other.publish("t", f"k{number % 20}", number.to_bytes(1))
        handled.wait(100)
        eventually(lambda: heard.received + heard.ignored > 1000)
    lanes = itertools.groupby(sorted(handled.items, key=lambda each: each.key), key=lambda each: each.key)
    payloads = {key: [each.payload[0] for each in lane] for key, lane in lanes}
    assert payloads == {f"k{key}": list(range(key, 100, 20)) for key in range(20)}
    if not right:
        assert subscription.stats().hints == 0


def test_the_keepers_turns_of_a_flood_take_their_share_of_the_time(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint of new lanes comes between any two turns and within each: each turn that it causes is paid for."""
    lanelog_client.subscribe("t", "g", Record()).stop()
    engine = lanelog_client._engine
    keeper = Hinted(engine.context, lambda _now: None, KeeperPace())  # its turns are made here, by a clock of ours
    clock, hurried = Clock(time.monotonic()), 0.0
    began = clock.now
    monkeypatch.setattr(keeper_module, "time", clock)
    for _ in range(5000):
        if keeper.woken or keeper.may_hurry():
            keeper.woken, before = False, clock.now
            keeper.turn(clock.now)
            hurried += clock.now - before
        else:
            clock.now += TURN
    share = keeper.pace.hurried_cycle.share
    assert 0.5 * share < hurried / (clock.now - began) <= 1.1 * share
