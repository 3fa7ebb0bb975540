"""Closing twice: whoever asks second waits for the first one's outcome, within its own time-out."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import lanelog
from lanelog import Client, Message
from support.waiting import Record, eventually, never

WITHIN = 20.0


@contextmanager
def in_a_thread(call: Callable[[], object]) -> Iterator[Record]:
    """What `call` gives, once it has."""
    outcome = Record()
    thread = threading.Thread(target=lambda: outcome(call()))
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(WITHIN)


class Held:
    """A handler that is held until it is let go."""

    def __init__(self) -> None:
        self.inside, self.release = threading.Event(), threading.Event()

    def __call__(self, _message: Message) -> None:
        self.inside.set()
        assert self.release.wait(WITHIN)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.release.set()


def test_a_second_close_waits_for_the_first(lanelog_url: str, held: Held) -> None:
    """While one thread closes the client, another one's close() returns when that is done, and says True."""
    client = lanelog.connect(lanelog_url)
    client.publish("t", "a", b"x")
    subscription = client.subscribe("t", "g", held)
    assert held.inside.wait(WITHIN)
    with in_a_thread(client.close) as first:
        eventually(lambda: subscription.state == "stopping")
        with in_a_thread(client.close) as second:
            never(lambda: len(second), during=0.3, what="the second close")
            held.release.set()
            assert first.wait(1, within=WITHIN) == [True]
            assert second.wait(1, within=WITHIN) == [True]
    assert client.close()


def test_a_second_close_ends_at_its_own_time_out(lanelog_url: str, held: Held) -> None:
    """False while a handler still runs; True once the closing that goes on in the background is done."""
    client = lanelog.connect(lanelog_url)
    client.publish("t", "a", b"x")
    client.subscribe("t", "g", held)
    assert held.inside.wait(WITHIN)
    assert client.close(timeout=0.1) is False
    assert client.close(timeout=0.1) is False
    held.release.set()
    assert client.close(timeout=WITHIN) is True


def test_a_second_stop_waits_for_the_first(lanelog_client: Client, held: Held) -> None:
    """The same for one subscription."""
    lanelog_client.publish("t", "a", b"x")
    subscription = lanelog_client.subscribe("t", "g", held)
    assert held.inside.wait(WITHIN)
    with in_a_thread(subscription.stop) as first:
        assert subscription.stop(timeout=0.1) is False
        with in_a_thread(subscription.stop) as second:
            never(lambda: len(second), during=0.3, what="the second stop")
            held.release.set()
            assert first.wait(1, within=WITHIN) == [True]
            assert second.wait(1, within=WITHIN) == [True]


def test_a_signal_handler_that_closes_while_the_main_thread_does(lanelog_client: Client, held: Held) -> None:
    """It returns at once, because the call that it interrupted cannot go on before; that one closes the client."""
    lanelog_client.publish("t", "k", b"1")
    subscription = lanelog_client.subscribe("t", "g", held)
    assert held.inside.wait(WITHIN)
    nested: list[tuple[bool, float]] = []

    def on_signal(_number: int, _frame: object) -> None:
        began = time.monotonic()
        nested.append((lanelog_client.close(WITHIN), time.monotonic() - began))
        held.release.set()

    def interrupt() -> bool:
        eventually(lambda: subscription.state == "stopping")  # the main thread is inside close()
        os.kill(os.getpid(), signal.SIGUSR1)
        return True

    previous = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with in_a_thread(interrupt) as interrupted:
            assert lanelog_client.close(2 * WITHIN)
        assert interrupted.items == [True]
    finally:
        signal.signal(signal.SIGUSR1, previous)
    ((ended, seconds),) = nested
    assert not ended
    assert seconds < WITHIN / 2
