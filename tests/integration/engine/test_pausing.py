"""`pause()` is final when it returns, whatever the keeper is just doing."""

import threading

import pytest

from lanelog import Client
from lanelog._engine.lane.lane import Lane
from lanelog._engine.member.leasing import LeasingSide
from support.waiting import Record, eventually, never

WITHIN = 20.0


@pytest.mark.thorough
def test_a_read_back_that_began_before_the_pause_does_not_undo_it(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper has decided that a lane may go on, and is held before it says so: it stays paused."""
    seen = Record()
    subscription = lanelog_client.subscribe("t", "g", seen)
    lanelog_client.publish("t", "a", b"1")
    seen.wait(1)
    deciding, go_on, decided = threading.Event(), threading.Event(), threading.Event()
    set_paused = LeasingSide.set_paused

    def held(self: LeasingSide, lane: Lane, *, paused: bool) -> None:
        if not paused and not deciding.is_set():
            deciding.set()
            assert go_on.wait(WITHIN)
            set_paused(self, lane, paused=paused)
            decided.set()
            assert resume.wait(WITHIN)  # or the next turn would mend it
            return
        set_paused(self, lane, paused=paused)

    resume = threading.Event()
    monkeypatch.setattr(LeasingSide, "set_paused", held)
    try:
        assert deciding.wait(WITHIN)
        subscription.pause()
        go_on.set()
        assert decided.wait(WITHIN)
        lanelog_client.publish_many("t", [("a", b"2")])
        never(lambda: len(seen) > 1, during=0.5, what="a handler of a paused subscription")
    finally:
        go_on.set()
        resume.set()
    subscription.resume()
    seen.wait(2)


def test_a_lane_that_is_opened_later_is_paused(lanelog_client: Client) -> None:
    """A key that comes up during the pause waits like the others."""
    seen = Record()
    subscription = lanelog_client.subscribe("t", "g", seen)
    lanelog_client.publish("t", "a", b"1")
    seen.wait(1)
    subscription.pause()
    lanelog_client.publish_many("t", [("b", b"1"), ("c", b"1")])
    eventually(lambda: subscription.stats().lanes == 3)
    assert len(seen) == 1
    subscription.resume()
    seen.wait(3)
