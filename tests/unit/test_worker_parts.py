"""The parts of `lanelog worker` that need no process: what it is told, what it hears, and what it concludes."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import lanelog
from lanelog.cli._worker import Size
from lanelog.worker.changes import Changes
from lanelog.worker.orders import Limits, Orders, Report
from lanelog.worker.process import Process, named
from lanelog.worker.supervisor import SETTLED, SILENCE, Slot, Supervisor
from lanelog.worker.target import check_target

WELL = Report(handled=7, memory=300 * 2**20)


@pytest.fixture
def heard() -> Iterator[tuple[Process, socket.socket]]:
    """A process that the test plays, and its end of the line."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    unused: Any = None
    yield Process(ours, unused), theirs
    ours.close()
    theirs.close()


def test_orders_and_reports_survive_the_way() -> None:
    """From one interpreter to another."""
    orders = Orders(target="shop.jobs:client", workers=16, drain_timeout=2.5)
    assert Orders.from_json(orders.to_json()) == orders
    report = Report(dying=("loop keeper: é\n",), lacking=("a", "b"), handled=1, memory=2)
    assert Report.from_line(report.to_line()) == report


def test_the_last_whole_report_counts(heard: tuple[Process, socket.socket]) -> None:
    """However the lines are cut on their way; and it is heard that the process is gone."""
    process, theirs = heard
    assert process.hear()
    assert not process.ready
    theirs.sendall(Report(lacking=("database: away",)).to_line() + WELL.to_line()[:10])
    assert process.hear()
    assert (process.ready, process.ready_at) == (False, 0.0)
    theirs.sendall(WELL.to_line()[10:])
    assert process.hear()
    assert process.report == WELL
    assert process.ready_at > 0
    theirs.close()
    assert not process.hear()


def test_a_silent_process_counts_as_dead(heard: tuple[Process, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is still starting does not: its application may take long to import."""
    process, theirs = heard
    monkeypatch.setattr(Process, "pid", 4711)
    supervisor = Supervisor(Orders(target="a:b"), 2)
    slot = supervisor._slots[0]
    assert supervisor.lacking() == ["process 1: it was not started yet", "process 2: it was not started yet"]
    slot.process = process
    assert list(slot.dying()) == []
    assert list(slot.lacking()) == ["process 1, pid 4711: it is starting"]
    theirs.sendall(Report(dying=("loop settler: stuck",), lacking=("database: away",)).to_line())
    process.hear()
    assert supervisor.dying() == ["process 1, pid 4711: loop settler: stuck"]
    assert supervisor.lacking() == ["process 1, pid 4711: database: away", "process 2: it was not started yet"]
    process.report, process.heard_at = WELL, process.heard_at - SILENCE - 1
    assert supervisor.dying() == ["process 1, pid 4711: it has said nothing for 31 s"]


def test_a_process_that_is_being_recycled_is_excused_by_others(heard: tuple[Process, socket.socket]) -> None:
    """The whole stays ready; but not if it is the only one."""
    recycled = Slot(1, recycling=True, why="it is being replaced: enough")
    several, single = Supervisor(Orders(target="a:b"), 2), Supervisor(Orders(target="a:b"), 1)
    several._slots = [recycled, Slot(2, process=heard[0])]
    heard[0].heard_at = 1.0
    single._slots = [recycled]
    assert several.lacking() == []
    several._slots.append(Slot(3, recycling=True, why="it is being replaced: the source has changed"))
    assert several.lacking() == ["process 3: it is being replaced: the source has changed"]  # one at a time
    del several._slots[1]
    assert several.lacking() == [
        "process 1: it is being replaced: enough", "process 3: it is being replaced: the source has changed"
    ]  # fmt: skip
    assert single.lacking() == ["process 1: it is being replaced: enough"]


def test_a_place_waits_longer_after_each_death_that_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had worked for a while counts from the beginning again."""
    counted: list[int] = []

    def after(deaths: int) -> float:
        counted.append(deaths)
        return 10.0 * deaths

    monkeypatch.setattr(Process, "pid", 4711)
    monkeypatch.setattr(Process, "ended", lambda _: -9)
    unused: Any = None
    backoff: Any = SimpleNamespace(after=after)
    supervisor = Supervisor(Orders(target="a:b"), 1, backoff=backoff)
    (slot,) = supervisor._slots
    for now, worked in ((100.0, 1.0), (200.0, SETTLED - 1), (300.0, 0.1), (400.0, SETTLED), (500.0, 1.0)):
        ours, theirs = socket.socketpair()
        slot.process = Process(ours, unused)
        slot.process.ready_at = now - worked
        theirs.close()
        supervisor._bury(slot, now)
        assert (slot.process, slot.start_at) == (None, now + 10.0 * slot.deaths)
        assert slot.why == "the last one ended with SIGKILL"
    assert counted == [1, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(), ""),
        (Limits(messages=8, memory=301 * 2**20), ""),
        (Limits(messages=7), "it has handled 7 messages"),
        (Limits(memory=300 * 2**20), "it has 300 MiB of memory"),
    ],
)
def test_a_limit_that_is_reached_says_so(limits: Limits, why: str) -> None:
    """No limit is reached by default."""
    assert limits.exceeded(WELL) == why


def test_an_end_has_a_name() -> None:
    """That of the signal, also where Python knows none."""
    assert [named(status) for status in (0, 3, -9, -40)] == ["status 0", "status 3", "SIGKILL", "signal 40"]


@pytest.mark.parametrize("target", ["", "jobs", "jobs:", ":client", "jobs:a b", "shop/jobs.py:client", "jobs:client()"])
def test_what_names_no_client_is_refused_without_an_import(target: str) -> None:
    """The form is module, colon, name."""
    assert check_target("shop.jobs:app.client") == ("shop.jobs", "app.client")
    with pytest.raises(lanelog.ConfigurationError, match=r"names no client: write package\.module:client"):
        check_target(target)


def test_sizes_are_read_as_orchestrators_write_them() -> None:
    """In powers of 1,024."""
    sizes = [Size().convert(text, None, None) for text in ("7", "512M", "512Mi", "2G", "1K")]
    assert sizes == [7, 512 * 2**20, 512 * 2**20, 2 * 2**30, 1024]
    for text in ("0", "1.5G", "512MB", "M", "-1"):
        with pytest.raises(click.BadParameter, match="is no size: write 512M"):
            Size().convert(text, None, None)


def test_a_change_of_a_source_is_seen_once(tmp_path: Path) -> None:
    """Also of a new one, and of one that is gone; not of other files, nor of an environment's packages."""
    for folder in ("app", ".hidden", "node_modules", "env/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").touch()
    changes = Changes(tmp_path)
    for name in ("app/notes.txt", ".hidden/a.py", "node_modules/a.py", "env/lib/a.py"):
        (tmp_path / name).touch()
    assert not changes.look()
    source = tmp_path / "app/jobs.py"
    for change in (source.touch, lambda: source.write_text("x"), source.unlink):
        change()
        assert changes.look()
        assert not changes.look()
