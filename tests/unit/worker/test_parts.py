"""The parts of `lanelog worker` that need no process: what it is told, what it hears, and what it concludes."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import lanelog
from lanelog._process import own_end
from lanelog._process.target import check_target
from lanelog.cli.command.values import Size
from lanelog.client import AFTER_DRAIN
from lanelog.worker.changes import Changes
from lanelog.worker.child import _LAST_STEPS
from lanelog.worker.orders import END, Limits, Orders, Report
from lanelog.worker.process import Process, named
from lanelog.worker.silence import APART, BEAT, ENDS, GRACE, SILENCE, STARTS
from lanelog.worker.supervisor import OVERDUE, SETTLED, Slot, Supervisor

WELL = Report(handled=7, memory=300 * 2**20)
AWAY = Report(lacking=("database: away",))
HUNG = Report(dying=("group 'a:b': 2 of 2 workers are busy",), hung=("group 'a:b': 2 of 2 workers are busy",))
DAY = 86_400.0


@pytest.fixture
def heard() -> Iterator[tuple[Process, socket.socket]]:
    """A process that the test plays, and its end of the line."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    unused: Any = None
    yield Process(ours, unused), theirs
    ours.close()
    theirs.close()


class Played:
    """A process that the test plays. It reports at each turn, until the test changes that."""

    def __init__(self, report: Report | None) -> None:
        ours, self.theirs = socket.socketpair()
        ours.settimeout(0)
        popen: Any = SimpleNamespace(pid=4711, kill=lambda: None, poll=lambda: None, terminate=lambda: None)
        self.process = Process(ours, popen)
        self.report = report

    def speak(self) -> None:
        if self.report is not None:
            self.theirs.sendall(self.report.to_line())

    def close(self) -> None:
        self.process.close()
        self.theirs.close()


class Turning:
    """A supervisor of such processes, and its clock."""

    def __init__(self, *reports: Report | None) -> None:
        self.played = [Played(report) for report in reports]
        self.supervisor = Supervisor(Orders(target="a:b"), len(reports))
        self.now = 1000.0
        for slot, played in zip(self.supervisor._slots, self.played, strict=True):
            slot.process = played.process
        self.turn()

    def turn(self) -> None:
        for played in self.played:
            played.speak()
        assert self.supervisor.turn(self.now) <= BEAT

    def go_on(self, seconds: float) -> None:
        """Turn once a second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.turn()

    def asked(self) -> list[bytes]:
        """What each was asked."""
        asked = []
        for each in self.played:
            each.theirs.settimeout(0)
            with suppress(BlockingIOError):
                asked.append(each.theirs.recv(100))
                continue
            asked.append(b"")
        return asked

    def killed(self) -> list[str]:
        """Why each was killed."""
        return [each.process.killed for each in self.played]


@pytest.fixture
def turning() -> Iterator[Callable[..., Turning]]:
    """Make supervisors whose processes are played."""
    made: list[Turning] = []

    def make(*reports: Report | None) -> Turning:
        made.append(Turning(*reports))
        return made[-1]

    yield make
    for each in made:
        for played in each.played:
            played.close()
        each.supervisor._selector.close()


def test_orders_and_reports_survive_the_way() -> None:
    """From one interpreter to another."""
    orders = Orders(target="shop.jobs:client", workers=16, drain_timeout=2.5)
    assert Orders.from_json(orders.to_json()) == orders
    report = Report(
        dying=("loop keeper: é\n", "group 'g': x"), hung=("group 'g': x",), lacking=("a", "b"), handled=1, memory=2
    )
    assert Report.from_line(report.to_line()) == report


def test_the_last_whole_report_counts(heard: tuple[Process, socket.socket]) -> None:
    """The report counts however its lines are cut on their way, and the end of the process is noticed."""
    process, theirs = heard
    assert process.receive()
    assert not process.ready
    theirs.sendall(Report(lacking=("database: away",)).to_line() + WELL.to_line()[:10])
    assert process.receive()
    assert (process.ready, process.ready_at) == (False, 0.0)
    theirs.sendall(WELL.to_line()[10:])
    assert process.receive()
    assert process.report == WELL
    assert process.ready_at > 0
    theirs.close()
    assert not process.receive()


def test_a_silent_process_makes_the_probe_fail(
    heard: tuple[Process, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is still starting does not: its application may take long to import."""
    process, theirs = heard
    monkeypatch.setattr(Process, "pid", 4711)
    supervisor = Supervisor(Orders(target="a:b"), 2)
    slot = supervisor._slots[0]
    assert supervisor.lacking() == ["process 1: it was not started yet", "process 2: it was not started yet"]
    slot.process = process
    assert (list(slot.dying()), list(slot.lacking())) == ([], ["process 1, pid 4711: it is starting"])
    theirs.sendall(Report(dying=("loop settler: stuck",), lacking=("database: away",)).to_line())
    process.receive()
    assert supervisor.dying() == ["process 1, pid 4711: loop settler: stuck"]
    assert supervisor.lacking() == ["process 1, pid 4711: database: away", "process 2: it was not started yet"]
    process.report, process.reported_at = WELL, process.reported_at - SILENCE - 1
    assert supervisor.dying() == ["process 1, pid 4711: it has said nothing for 31 s"]


def test_a_process_that_is_being_recycled_is_excused_by_others(heard: tuple[Process, socket.socket]) -> None:
    """The whole stays ready; but not if it is the only one."""
    recycled = Slot(1, recycling=True, why="it is being replaced: enough")
    several, single = Supervisor(Orders(target="a:b"), 2), Supervisor(Orders(target="a:b"), 1)
    several._slots = [recycled, Slot(2, process=heard[0])]
    heard[0].reported_at = 1.0
    single._slots = [recycled]
    assert several.lacking() == []
    several._slots.append(Slot(3, recycling=True, why="it is being replaced: the source has changed"))
    assert several.lacking() == ["process 3: it is being replaced: the source has changed"]  # one at a time
    del several._slots[1]
    assert several.lacking() == [
        "process 1: it is being replaced: enough", "process 3: it is being replaced: the source has changed"
    ]  # fmt: skip
    assert single.lacking() == ["process 1: it is being replaced: enough"]


def test_a_silent_process_is_killed_once_and_long_after_the_probe_fails(turning: Callable[..., Turning]) -> None:
    """The probe says so, should it not end: it hangs in the kernel. One that speaks stays."""
    it = turning(WELL, WELL)
    it.played[0].report = None
    it.go_on(SILENCE + GRACE)
    assert it.killed() == ["", ""]
    it.go_on(1)
    assert it.killed() == ["it said nothing for 91 s", ""]
    it.go_on(APART + 1)
    assert it.killed() == ["it said nothing for 91 s", ""]
    assert it.supervisor.dying() == [
        "process 1, pid 4711: it said nothing for 91 s; it was killed, and has not ended"
    ]  # fmt: skip


def test_a_process_that_drains_is_killed_when_it_is_silent(turning: Callable[..., Turning]) -> None:
    """Handlers may take as long as they do: without a bound for the drain, a process that reports stays."""
    it = turning(WELL, WELL)
    it.supervisor.drain()
    it.go_on(DAY / 24)
    assert it.killed() == ["", ""]
    it.played[1].report = None
    it.go_on(SILENCE + GRACE + 1)
    assert it.killed() == ["", "it said nothing for 91 s"]


def test_a_process_whose_database_is_away_is_not_killed(turning: Callable[..., Turning]) -> None:
    """The process reports, and its loops turn."""
    it = turning(AWAY)
    it.go_on(DAY / 24)
    assert it.killed() == [""]


def test_a_process_with_a_loop_that_stands_still_is_killed(turning: Callable[..., Turning]) -> None:
    """Only if it is the same loop for the whole time: several that stood still in turns work."""
    it = turning(WELL)
    for number in range(10):
        it.played[0].report = Report(dying=(f"loop {'settler' if number % 2 else 'keeper'}: since {number} s",))
        it.go_on(GRACE - 1)
    assert it.killed() == [""]
    for number in range(int(GRACE)):
        it.played[0].report = Report(dying=(f"loop settler: since {number} s",))
        it.go_on(1)
    assert it.killed() == ["loop settler stood still for 61 s"]


def test_a_process_whose_workers_hang_is_asked_to_end(turning: Callable[..., Turning]) -> None:
    """One at a time, and at once, because `unhealthy_after` was its time. It is killed if it stays."""
    it = turning(HUNG, WELL, HUNG)
    assert (it.asked(), len(it.supervisor.dying())) == ([END, b"", b""], 2)
    it.go_on(APART - 1)
    assert it.asked() == [b"", b"", b""]
    it.go_on(1)
    assert it.asked() == [b"", b"", END]
    it.go_on(APART)
    assert it.killed() == ["it was asked to end because its workers hang, and did not for 20 s", "", ""]
    it.go_on(APART)
    assert it.killed()[2].startswith("it was asked to end because its workers hang, and did not for 2")
    assert it.asked() == [b"", b"", b""]


def test_a_process_whose_workers_go_on_is_spared(turning: Callable[..., Turning]) -> None:
    """The process was asked to end, and found nothing that hangs. When workers hang again, it is asked again."""
    it = turning(HUNG)
    assert it.asked() == [END]
    it.played[0].report = WELL
    it.go_on(ENDS + GRACE)
    assert (it.killed(), it.asked()) == ([""], [b""])
    it.played[0].report = HUNG
    it.go_on(1)
    assert (it.killed(), it.asked()) == ([""], [END])


def test_an_import_that_does_not_end_is_killed(turning: Callable[..., Turning]) -> None:
    """An import may take much longer than a silence, and the probe does not fail meanwhile."""
    it = turning(None)
    it.go_on(STARTS)
    assert (it.killed(), it.supervisor.dying()) == ([""], [])
    it.go_on(1)
    assert it.killed() == ["its import did not end for 601 s"]


def test_a_process_that_follows_has_its_own_time_to_import(
    turning: Callable[..., Turning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor's age and the silence of the process before do not count."""
    it = turning(WELL)
    it.go_on(2 * STARTS)
    (first,) = it.played
    first.report = None
    it.go_on(SILENCE + GRACE + 1)
    first.process._popen.poll = lambda: -9  # type: ignore[method-assign]
    it.played.append(Played(None))
    monkeypatch.setattr(Process, "start", lambda _orders: it.played[1].process)
    it.go_on(2)
    assert it.supervisor._slots[0].process is it.played[1].process
    it.go_on(STARTS - 2)
    assert it.killed() == ["it said nothing for 91 s", ""]
    it.go_on(3)
    assert it.killed()[1] == "its import did not end for 601 s"


def test_the_hung_are_killed_one_at_a_time(turning: Callable[..., Turning]) -> None:
    """The cause may be over meanwhile: a process that reports again is spared."""
    it = turning(WELL, WELL, WELL)
    for each in it.played:
        each.report = None
    it.go_on(SILENCE + GRACE + 1)
    assert it.killed() == ["it said nothing for 91 s", "", ""]
    it.played[1].report = WELL
    it.go_on(APART - 1)
    assert it.killed()[1:] == ["", ""]
    it.go_on(1)
    assert it.killed()[1:] == ["", "it said nothing for 101 s"]


def test_time_in_which_the_supervisor_did_not_run_is_no_silence(turning: Callable[..., Turning]) -> None:
    """The machine slept, or the container was frozen: its processes did not run either."""
    it = turning(WELL, WELL)
    for _ in range(100):
        it.now += DAY
        it.turn()
    for each in it.played:
        each.report = None
    it.now += DAY
    it.turn()
    it.go_on(SILENCE + GRACE - 2 * BEAT)
    assert it.killed() == ["", ""]
    it.go_on(1)
    assert it.killed() == ["it said nothing for 91 s", ""]


def test_a_process_that_ends_by_itself_is_not_killed_before() -> None:
    """After its drain it has its last writes, and its threads some time. When it hangs, it has its last steps."""
    assert AFTER_DRAIN + _LAST_STEPS < OVERDUE
    assert own_end.WRITES + own_end.LOGS < ENDS


def test_a_slot_waits_longer_after_each_death_that_comes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """The name is that of the signal, also where Python knows none."""
    assert [named(status) for status in (0, 1, -9, -40)] == ["status 0", "status 1", "SIGKILL", "signal 40"]
    assert named(3) == "status 3: its handlers hung"


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
    """A new source and a deleted one count; other files, and an environment's packages, do not."""
    for folder in ("app", ".hidden", "node_modules", "env/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").touch()
    changes = Changes(tmp_path)
    for name in ("app/notes.txt", ".hidden/a.py", "node_modules/a.py", "env/lib/a.py"):
        (tmp_path / name).touch()
    assert not changes.poll()
    source = tmp_path / "app/jobs.py"
    for change in (source.touch, lambda: source.write_text("x"), source.unlink):
        change()
        assert changes.poll()
        assert not changes.poll()
