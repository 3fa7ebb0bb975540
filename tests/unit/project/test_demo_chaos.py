"""Whom the demo kills, how it sees that lanes moved, what its workers obey, and when it calls a run a failure."""

import io
import os
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from attrs import evolve
from rich.console import Console

from demo import worker
from demo.chaos import Takeover, choose_victim, moved, unfinished
from demo.report import Report
from demo.verify import Comparison, Count
from demo.view import LiveView, PlainView, view_for
from demo.watch import LaneRow, Progress


def lane(owner: str = "worker-1", *, head: int = 9, acked: int = 3, in_flight: int = 1, epoch: int = 1) -> LaneRow:
    return LaneRow(head=head, acked=acked, in_flight=in_flight, owner=owner, epoch=epoch)


def test_the_worker_with_most_lanes_in_progress_is_killed() -> None:
    """Owned lanes count only if a message is out under the present lease."""
    lanes = {
        "a": lane("worker-1"),
        "b": lane("worker-2"),
        "c": lane("worker-2"),
        "d": lane("worker-1", in_flight=0),
        "e": lane("worker-1", in_flight=0),
        "f": lane("worker-1", head=3, in_flight=0),
        "g": lane(""),
    }
    assert choose_victim(lanes) == "worker-2"
    assert choose_victim({"d": lanes["d"], "f": lanes["f"], "g": lanes["g"]}) is None


def test_a_lane_has_moved_when_another_owner_acked_more() -> None:
    """A new owner alone is no progress, nor is an ack that the dead one had on its way."""
    before = unfinished({"a": lane(), "b": lane(), "c": lane(), "d": lane(), "done": lane(acked=9)}, "worker-1")
    assert set(before) == {"a", "b", "c", "d"}
    now = {
        "a": lane("worker-2", epoch=2, acked=4),
        "b": lane("worker-2", epoch=2),
        "c": lane("worker-1", in_flight=0),
    }
    assert moved(before, now) == {"a"}


@pytest.mark.parametrize(("lines", "released"), [(["go\n"], True), (["nonsense\n"], False), ([], False)])
def test_a_worker_obeys_its_input(lines: list[str], released: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`go` ends the pause; the end of the input ends the pause and the process, whatever it is doing."""
    watchdog = Mock()
    monkeypatch.setattr(threading, "Timer", watchdog)
    go, stop, seen = threading.Event(), threading.Event(), []

    def read() -> Iterator[str]:
        yield from lines
        seen.append((go.is_set(), stop.is_set()))

    worker.listen(read(), go, stop)
    assert (*seen, go.is_set(), stop.is_set()) == ((released, False), True, True)
    watchdog.assert_called_once_with(worker.PATIENCE, os._exit, args=(1,))
    watchdog.return_value.start.assert_called_once_with()


GOOD = Report(
    jobs=10,
    commits=3,
    lanes=4,
    seconds=2.0,
    pause=0.0,
    takeover=Takeover(worker="worker-1", lanes=2, first=1.25, every=1.5),
    dead_letters=("lane %malformed: [bold]no job",),
    count=Count(missing=0, twice=0, out_of_order=0, redeliveries=2),
    counted_by_stats=10,
    authors=(),
    comparisons=(Comparison(files=3, bytes=30, differences=()),),
)


def printed(report: Report) -> str:
    output = io.StringIO()
    report.print(Console(file=output, width=100))
    return output.getvalue()


def test_a_good_run_says_so() -> None:
    """Status 0, the numbers, and the sentence that scripts look for."""
    text = printed(GOOD)
    assert GOOD.status == 0
    assert text.endswith("identical to HEAD: yes\n")
    assert all(said in text for said in ("[bold]no job", "1.25", "1.50", "5 "))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"comparisons": (Comparison(files=3, bytes=30, differences=("'a': missing",)),)}, "1 paths differ from HEAD"),
        ({"count": evolve(GOOD.count, missing=1)}, "1 jobs were never applied"),
        ({"count": evolve(GOOD.count, twice=2)}, "2 jobs were applied more than once"),
        ({"count": evolve(GOOD.count, out_of_order=1)}, "1 jobs were applied out of order"),
        ({"counted_by_stats": 9}, "group stats counted 9 of 10 jobs"),
        ({"dead_letters": ()}, "0 dead letters"),
        ({"dead_letters": ("a", "b")}, "2 dead letters"),
        ({"takeover": None}, "no worker could be killed"),
        ({"takeover": Takeover(worker="w", lanes=2, first=1.0)}, "the killed worker's lanes did not all move again"),
    ],
)
def test_anything_else_is_a_failure(changed: dict[str, object], reason: str) -> None:
    """Status 1 and the reason, each by itself; only a difference makes it not identical."""
    report = evolve(GOOD, **changed)
    text = printed(report)
    assert report.status == 1
    assert f"failed: {reason}" in text
    assert text.endswith(f"identical to HEAD: {'no' if report.differences else 'yes'}\n")


def test_without_a_terminal_there_are_only_lines() -> None:
    """A pipe or a log gets plain text now and then; a terminal a live table."""
    output = io.StringIO()
    view = view_for(Console(file=output))
    progress = Progress(lanes=2, published=7, lags={"rebuild": 4, "stats": 2}, owners={"worker-1": 2})
    assert isinstance(view, PlainView)
    with view:
        view.show(progress, "publishing")
        view.show(progress, "too early for another line")
        view.say("[red]killed[/red]")
    first, second = output.getvalue().splitlines()
    assert "published 7 in 2 lanes; rebuild 3 (lag 4), stats 5 (lag 2); lanes owned by worker-1: 2; publishing" in first
    assert "[red]killed[/red]" in second
    assert "\x1b" not in output.getvalue()
    terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    live = view_for(terminal)
    assert isinstance(live, LiveView)
    with live:
        live.show(progress, "publishing")
        live.say("killed")
