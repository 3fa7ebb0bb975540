"""Janitors whose turns are taken by the test: what is not deleted by then stays, however long one waited."""

import time
from contextlib import closing

import pytest

from lanelog import Client, Subscription
from lanelog._engine.cleanup.janitor import Janitor
from lanelog._engine.cleanup.message_retention import MessageRetention


class Janitors:
    """The clients' own turn no more; a test calls them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._really = Janitor.turn
        monkeypatch.setattr(Janitor, "turn", lambda _janitor, _now: 3600.0)

    def own(self, client: Client) -> Janitor:
        """The one that a client has, with what it remembers."""
        turns = [loop._turn.__self__ for loop in client._engine._loops]  # type: ignore[attr-defined]
        [janitor] = [each for each in turns if isinstance(each, Janitor)]
        return janitor

    def lanes(self, janitor: Janitor, topic: str) -> MessageRetention:
        """What a janitor remembers of a topic's lanes."""
        (found,) = (each for each in janitor._topics[topic] if isinstance(each, MessageRetention))
        return found

    def work(self, janitor: Janitor, *, later: float = 0.0) -> None:
        """Turns of it until nothing more is ready at once."""
        while self._really(janitor, time.monotonic() + later) == 0.0:
            pass

    def take(self, janitor: Janitor, now: float) -> float:
        """One turn of it, at this time (monotonic). Return the seconds until the next."""
        return self._really(janitor, now)

    def turn(self, client: Client) -> None:
        """All that may be deleted now is, by one that remembers nothing and puts nothing off."""
        with closing(Janitor(client._engine.context)) as janitor:
            self.work(janitor)


def passed(subscription: Subscription) -> int:
    """How many messages a subscription is past, in lanes that it has, as far as its client's janitor knows."""
    return sum(acked for each in subscription._core.members for _, acked in each.writing.flushed_watermarks())
