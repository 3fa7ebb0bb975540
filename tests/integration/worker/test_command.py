"""`lanelog worker`: real processes under a supervisor, which are killed, stopped, drained and recycled."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lanelog import Client
from support.cli import Command
from support.processes import PROGRAMS, Line, Program
from support.scripts import ran
from support.sql import watermark
from support.waiting import Record, eventually, never

pytestmark = pytest.mark.one_family("mariadb")

Start = Callable[..., "Commanded"]


class Commanded:
    """One `lanelog worker`, and what its processes say."""

    def __init__(self, url: str, *options: str, target: str = "jobs:client", cwd: Path = PROGRAMS) -> None:
        command = [sys.executable, "-m", "lanelog", "worker", target, *options]
        environment = {**os.environ, "LANELOG_URL": url, "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"}
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=cwd)
        self.program = Program("worker", Record(), popen)
        self.program._reader = threading.Thread(target=self.program._read, daemon=True)
        self.program._reader.start()

    def started(self, count: int = 1) -> list[int]:
        """Wait until so many processes have imported the module; their numbers."""
        return [line["pid"] for line in self.program.said("imported", count=count)]

    def handled(self, count: int = 1) -> list[Line]:
        """Wait until they have handled so many messages."""
        return self.program.said("handled", count=count)

    def signal(self, number: signal.Signals) -> None:
        self.program.popen.send_signal(number)

    def stop(self, *, within: float = 30.0) -> None:
        """SIGTERM, which ends it in order."""
        self.signal(signal.SIGTERM)
        assert self.program.ended(within=within) == 0

    def close(self) -> None:
        """End what is left of it."""
        self.program.popen.kill()
        for pid in {line["pid"] for line in self.program.lines}:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.program.close()


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and waits for its parent does not."""
    return state(pid) not in ("", "Z")


def state(pid: int) -> str:
    """Its letter in /proc; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.fixture
def start(lanelog_url: str) -> Iterator[Start]:
    """Start commands that end with the test."""
    running: list[Commanded] = []

    def begin(*options: str, **where: Any) -> Commanded:
        running.append(Commanded(lanelog_url, *options, **where))
        return running[-1]

    yield begin
    for each in running:
        each.close()


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Give the supervisors of the commands that follow other bounds: `OVERDUE`, or those of `silence`."""

    def give(module: str, **values: float) -> None:
        folder = tmp_path / "bounds"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            "import sys\nif 'lanelog.worker.child' not in sys.orig_argv:\n"
            f"    from lanelog.worker import {module} as bounds\n    bounds.__dict__.update({values!r})\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    return give


def stop(pid: int) -> None:
    """As a debugger does, and as a process that hangs in the kernel looks."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state(pid) == "T")


@pytest.fixture
def address() -> Iterator[str]:
    """An address that nobody else gets: it stays bound, and with SO_REUSEADDR the worker may listen there."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"


def ready(command: Command, address: str) -> None:
    """Wait until every process is."""
    eventually(lambda: "ok" in command.any("health", address).stdout, within=30)


def test_processes_share_the_lanes_and_drain_at_sigterm(
    start: Start, lanelog_client: Client, command: Command, address: str, tmp_path: Path
) -> None:
    """With the threads that were asked for; ready when all are; a running handler ends before its process: status 0."""
    worker = start("--processes", "2", "--workers", "3", "--health", address)
    pids = worker.started(2)
    ready(command, address)
    done = tmp_path / "done"
    lanelog_client.publish_many("t", [(f"k{number}", {"wait": str(done)}) for number in range(40)])
    eventually(lambda: {line["pid"] for line in worker.program.said("started")} == set(pids))
    assert {line["threads"] for line in worker.program.said("started")} == {3}
    worker.signal(signal.SIGTERM)
    eventually(lambda: command.any("health", f"{address}/readyz").stderr == "/readyz: it is stopping\n")
    assert command("health", f"{address}/livez").stdout == "ok\n"
    done.touch()
    assert worker.program.ended() == 0
    assert len(worker.program.said("handled")) == len(worker.program.said("started"))
    assert not any(alive(pid) for pid in pids)


@pytest.mark.thorough
def test_a_process_that_is_killed_is_started_again(start: Start, lanelog_client: Client, raw: Any) -> None:
    """What it had in work is delivered again, as a second attempt."""
    worker = start()
    (first,) = worker.started()
    lanelog_client.publish("t", "k", {"exit": True})
    (line,) = worker.handled()
    assert (line["attempt"], line["pid"]) == (2, worker.started(2)[1])
    assert line["pid"] != first
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    worker.signal(signal.SIGINT)
    assert worker.program.ended() == 0


@pytest.mark.thorough
def test_nothing_is_left_running_after_the_supervisor_was_killed(
    start: Start, lanelog_client: Client, tmp_path: Path, raw: Any
) -> None:
    """Processes notice at once: what runs is finished, and then they end; nothing is lost or done twice."""
    worker = start("--processes", "2")
    pids = worker.started(2)
    done = tmp_path / "done"
    lanelog_client.publish("t", "k", {"wait": str(done)})
    (line,) = worker.program.said("started")
    worker.program.kill()
    (idle,) = set(pids) - {line["pid"]}
    eventually(lambda: not alive(idle), within=20)
    done.touch()
    eventually(lambda: not alive(line["pid"]), within=20)
    assert [line["attempt"] for line in worker.handled()] == [1]
    assert watermark(raw, "g", "t", "k") == 1


@pytest.mark.thorough
def test_a_second_signal_does_not_wait(start: Start, lanelog_client: Client, tmp_path: Path) -> None:
    """A second later than the first; one that comes at once is the same press of Ctrl-C."""
    worker = start()
    (pid,) = worker.started()
    lanelog_client.publish("t", "k", {"wait": str(tmp_path / "never")})
    worker.program.said("started")
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGINT)
    never(lambda: worker.program.popen.poll() is not None, during=1.2, what="the end")
    worker.signal(signal.SIGINT)
    assert worker.program.ended() == 128 + signal.SIGINT
    assert not alive(pid)


@pytest.mark.thorough
@pytest.mark.parametrize("supervised", [True, False])
def test_a_handler_that_outlasts_the_drain_is_cut_off(
    start: Start, lanelog_client: Client, tmp_path: Path, *, supervised: bool
) -> None:
    """The process ends in time, also if its supervisor was killed. The attempt of its message does not count."""
    worker = start("--drain-timeout", "0.2")
    (pid,) = worker.started()
    lanelog_client.publish("t", "k", {"wait": str(tmp_path / "never")})
    worker.program.said("started")
    if supervised:
        worker.stop(within=20)
    else:
        worker.program.kill()
        eventually(lambda: not alive(pid), within=30)
    (tmp_path / "never").touch()
    again = start()
    assert [line["attempt"] for line in again.handled()] == [1]
    again.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("ends", ["by a signal", "by a limit"])
def test_a_process_that_cannot_exit_is_ended(start: Start, lanelog_client: Client, tmp_path: Path, ends: str) -> None:
    """A thread of the application goes on for ever, and Python waits for it: the process ends all the same."""
    source = (PROGRAMS / "jobs.py").read_text()
    (tmp_path / "jobs.py").write_text(
        f"{source}\nimport threading\nthreading.Thread(target=threading.Event().wait).start()\n"
        "from lanelog.worker import child\nimport sys\nsys.modules['__main__']._LAST_STEPS = 0.5\n"
    )
    limit = ("--max-messages", "1") if ends == "by a limit" else ()
    worker = start(*limit, cwd=tmp_path)
    (first,) = worker.started()
    if ends == "by a limit":
        lanelog_client.publish("t", "k", {})
        worker.started(2)
        assert not alive(first)
    worker.stop(within=20)


@pytest.mark.thorough
@pytest.mark.parametrize("drain", ["with a bound", "without one"])
def test_a_process_that_takes_no_signal_is_killed_after_its_drain(
    start: Start, lanelog_client: Client, bounds: Callable[..., None], drain: str
) -> None:
    """A process is stopped, like one that hangs in the kernel: the command ends all the same, with status 1."""
    if drain == "with a bound":
        bounds("supervisor", OVERDUE=0.5)
        worker = start("--drain-timeout", "0.2")
    else:
        bounds("silence", SILENCE=2.0, GRACE=3.0)
        worker = start()
    (pid,) = worker.started()
    lanelog_client.publish("t", "k", {})
    worker.handled()
    stop(pid)
    worker.signal(signal.SIGTERM)
    assert worker.program.ended(within=20) == 1
    assert not alive(pid)


@pytest.mark.thorough
def test_a_process_that_hangs_is_replaced(
    start: Start, lanelog_client: Client, bounds: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stopped process's message goes to another process. The process that does not hang stays."""
    bounds("silence", SILENCE=2.0, GRACE=3.0)
    worker = start("--processes", "2")
    pids = worker.started(2)
    done = tmp_path / "done"
    lanelog_client.publish("t", "k", {"wait": str(done)})
    (line,) = worker.program.said("started")
    hung = line["pid"]
    stop(hung)
    eventually(lambda: not alive(hung), within=20)
    done.touch()
    (handled,) = worker.handled()
    assert (handled["attempt"], handled["pid"] != hung) == (2, True)
    worker.started(3)
    worker.stop()
    told = capfd.readouterr().err
    assert re.findall(r"process\.killed number=\d killed=(\d+)", told) == [str(hung)]
    assert re.findall(r"process\.died number=\d died=(\d+) how='SIGKILL: it said nothing for", told) == [str(hung)]
    assert all(str(pid) in told for pid in pids)


LIMITED = {
    "hard_time_limit": ("", "hard_time_limit=1.5"),
    "unhealthy_after": (
        "import lanelog._process.workload\nlanelog._process.workload.QUIET_SECONDS = 1.0\n",
        "unhealthy_after=0.5, visibility_timeout=2.0",
    ),
}
"""What begins the module, and options of its handler."""


@pytest.mark.thorough
@pytest.mark.parametrize("limit", LIMITED)
def test_a_process_whose_handler_hangs_ends_itself_and_is_replaced(
    start: Start, lanelog_client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str], limit: str
) -> None:
    """No kill is needed, because it answers: what waits in it goes back uncounted, and what hangs counts."""
    begins, options = LIMITED[limit]
    source = (PROGRAMS / "jobs.py").read_text().replace("workers=1,", f"workers=1, {options},")
    (tmp_path / "limited.py").write_text(source.replace("import lanelog\n", f"import lanelog\n{begins}", 1))
    worker = start(target="limited:client", cwd=tmp_path)
    (first,) = worker.started()
    done = tmp_path / "done"
    lanelog_client.publish("t", "hangs", {"wait": str(done)})
    worker.program.said("started")
    lanelog_client.publish("t", "waits", {})
    second = worker.started(2)[1]
    assert not alive(first)
    done.touch()
    handled = {(line["key"], line["attempt"], line["pid"]) for line in worker.handled(2)}
    assert handled == {("hangs", 2, second), ("waits", 1, second)}
    worker.stop()
    told = capfd.readouterr().err
    assert re.findall(r"process\.died number=1 died=(\d+) how='status 3: its handlers hung'", told) == [str(first)]
    assert re.findall(r"process\.hung number=1 hung=(\d+)", told) == [str(first)] * (limit == "unhealthy_after")
    assert "process.killed" not in told
    assert re.search(r"handler\.hung .*key=hangs .*limited\.py", told)


@pytest.mark.thorough
def test_a_process_that_hangs_while_it_is_recycled_is_replaced(
    start: Start, lanelog_client: Client, bounds: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A drain has no bound, because handlers may take as long as they do: others would wait for ever."""
    bounds("silence", SILENCE=2.0, GRACE=3.0)
    worker = start("--max-messages", "1", "--workers", "2")
    (first,) = worker.started()
    lanelog_client.publish("t", "waits", {"wait": str(tmp_path / "done")})
    worker.program.said("started")
    lanelog_client.publish("t", "ends", {})  # the first to end, so the other one is what the drain waits for
    told: list[str] = []
    eventually(lambda: told.append(capfd.readouterr().err) or "process.recycled" in "".join(told))
    stop(first)
    second = worker.started(2)[1]
    assert not alive(first)
    (tmp_path / "done").touch()
    assert [(line["attempt"], line["pid"]) for line in worker.handled(2)][1] == (2, second)
    worker.started(3)  # the next one is recycled, too
    worker.stop()


@pytest.mark.thorough
def test_an_import_that_hangs_is_tried_again(start: Start, bounds: Callable[..., None], tmp_path: Path) -> None:
    """The import waits for something that never comes."""
    bounds("silence", STARTS=6.0)
    source = (PROGRAMS / "jobs.py").read_text()
    (tmp_path / "jobs.py").write_text(
        f"{source}\nif not Path('hung').exists():\n"
        "    Path('hung').touch()\n    say('hangs')\n    threading.Event().wait()\n"
    )
    worker = start(cwd=tmp_path)
    hung, works = worker.started(2)
    assert [line["pid"] for line in worker.program.said("hangs")] == [hung]
    assert alive(works)
    assert not alive(hung)
    worker.stop()


@pytest.mark.thorough
def test_a_process_whose_database_does_not_answer_is_not_killed(bounds: Callable[..., None]) -> None:
    """The database accepts, and then says nothing: loops wait for it, and the process says so."""
    bounds("silence", SILENCE=1.0, GRACE=2.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        closing(Commanded(f"mysql://nobody@127.0.0.1:{silent.getsockname()[1]}/nowhere")) as worker,
    ):
        worker.started()
        never(lambda: len(worker.program.lines) > 1, during=8.0, what="another process")


@pytest.mark.thorough
def test_processes_that_were_stopped_with_their_supervisor_are_not_killed(
    start: Start, lanelog_client: Client, bounds: Callable[..., None]
) -> None:
    """As a frozen container is: the supervisor awakes first, and all reports that it has are old."""
    bounds("silence", SILENCE=1.0, GRACE=3.0)
    worker = start("--processes", "2")
    pids = worker.started(2)
    lanelog_client.publish("t", "k", {})
    worker.handled()
    for pid in (worker.program.popen.pid, *pids):
        stop(pid)
    never(lambda: len(worker.program.said("imported")) > 2, during=6.0, what="another process")
    worker.signal(signal.SIGCONT)
    never(lambda: not all(map(alive, pids)), during=1.0, what="the end of a process")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    lanelog_client.publish("t", "k", {})
    worker.handled(2)
    assert worker.started(2) == pids
    worker.stop()


@pytest.mark.thorough
def test_processes_that_have_handled_enough_are_replaced_one_at_a_time(
    start: Start, lanelog_client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By fresh ones, each of which works before the next one is asked; no message takes a second attempt."""
    worker = start("--processes", "2", "--max-messages", "1")
    first = worker.started(2)
    done = tmp_path / "done"
    lanelog_client.publish_many("t", [(f"k{number}", {"wait": str(done)}) for number in range(20)])
    eventually(lambda: {line["pid"] for line in worker.program.said("started")} == {*first})
    done.touch()
    worker.started(4)
    eventually(lambda: not any(map(alive, first)), within=20)
    assert {line["attempt"] for line in worker.handled(20)} == {1}
    worker.stop()
    told = re.findall(r"process.recycled|(?<=subscription).started", capfd.readouterr().err)
    assert [*"".join(each[0] for each in told)][:5] == [".", ".", "p", ".", "p"]


@pytest.mark.thorough
def test_metrics_are_those_of_all_processes_also_of_ended_ones(
    start: Start, lanelog_client: Client, address: str, tmp_path: Path
) -> None:
    """A counter is the sum, the client's ones too, and does not fall when a process is replaced."""

    def counted() -> dict[str, float]:
        try:
            with urlopen(f"http://{address}/metrics", timeout=20) as answer:
                text = answer.read().decode()
        except URLError:
            return {}
        return {
            s.name + s.labels.get("outcome", ""): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }

    worker = start("--processes", "2", "--max-messages", "1", "--metrics", address, target="counted:client")
    first = worker.started(2)
    done = tmp_path / "done"
    lanelog_client.publish_many("t", [(f"k{number}", {"wait": str(done)}) for number in range(20)])
    eventually(lambda: {line["pid"] for line in worker.program.said("started")} == {*first})
    assert counted()["jobs_handled_total"] == 0
    done.touch()
    worker.handled(20)
    worker.started(4)
    eventually(lambda: not any(map(alive, first)), within=20)
    eventually(lambda: counted()["jobs_handled_total"] == 20)
    eventually(lambda: counted()["lanelog_client_messages_totalacked"] == 20)
    assert counted()["jobs_at_work"] == 0
    worker.stop()


@pytest.mark.thorough
def test_a_process_that_uses_too_much_memory_is_replaced(start: Start) -> None:
    """Any has more than a megabyte, so that this one never stays."""
    worker = start("--max-memory", "1M")
    worker.started(2)
    worker.stop()


@pytest.mark.thorough
def test_a_change_of_the_source_replaces_the_processes(start: Start, tmp_path: Path) -> None:
    """One that cannot be imported does not end the command: the next change is another attempt."""
    source = tmp_path / "jobs.py"
    good = (PROGRAMS / "jobs.py").read_text()
    source.write_text("import nothing_of_this_name\n")
    worker = start("--reload", cwd=tmp_path)
    never(lambda: worker.program.popen.poll() is not None, during=1.0, what="the end")
    source.write_text(good)
    worker.started(1)
    source.write_text(good + "\nsay('changed')\n")
    worker.program.said("changed")
    worker.stop()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("jobs", "'jobs' names no client: write package.module:client"),
        ("nothing.here:client", "there is no module 'nothing'"),
        ("jobs:clients", "module 'jobs' has no 'clients'"),
        ("jobs:handle", "jobs:handle is a function, not a client"),
    ],
)
def test_a_client_that_is_not_found_ends_the_command(
    lanelog_url: str, target: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exit has the reason: nobody would repair it while the command tries again."""
    with closing(Commanded(lanelog_url, target=target)) as worker:
        assert worker.program.ended() == 2
    assert says in capfd.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fails", "says"), [("raise RuntimeError('not today')", "RuntimeError: not today"), ("raise SystemExit(77)", "")]
)
def test_it_gives_up_when_no_process_can_start(tmp_path: Path, fails: str, says: str) -> None:
    """The command ends after five processes of each slot whose module raises: its caller must learn of it.

    The status is the command's own, whatever the module's was.
    """
    (tmp_path / "broken.py").write_text(f"print('tried', flush=True)\n{fails}\n")
    code = (
        "import sys; from lanelog._base.backoff import Backoff; from lanelog.worker.orders import Orders;"
        "from lanelog.worker.supervisor import Supervisor;"
        "at_once = Backoff(least=0, first=0.01, most=0.01);"
        "sys.exit(Supervisor(Orders(target='broken:client'), 2, backoff=at_once).run())"
    )
    done = ran(sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert 10 <= done.stdout.count("tried") <= 11
    assert says in done.stderr


TWO_GROUPS = """
import json, os
import lanelog

client = lanelog.connect()


def say(event):
    os.write(1, (json.dumps({"event": event, "pid": os.getpid()}) + "\\n").encode())


@client.subscriber("t", "g", poll_interval=0.05)
def first(message):
    say("first")


@client.subscriber("t", "h", poll_interval=0.05)
def second(message):
    say("second")
"""


@pytest.mark.thorough
def test_the_subscription_of_an_evicted_group_ends_and_the_others_go_on(
    start: Start, lanelog_client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The subscription says so. With --recreate, groups begin anew that were evicted before the start, none after."""
    (tmp_path / "two.py").write_text(TWO_GROUPS)
    said: list[str] = []

    def told() -> int:
        said.append(capfd.readouterr().err)
        return "".join(said).count("subscription.evicted group=g")

    def evict() -> None:
        before = told()
        lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=False)
        eventually(lambda: told() > before, within=30, what="the word of the process that came after it")

    lanelog_client.publish_many("t", [("k", b"x")] * 2)
    worker = start(target="two:client", cwd=tmp_path)
    worker.program.said("first", count=2)
    worker.program.said("second", count=2)
    evict()
    lanelog_client.publish("t", "k", b"x")
    worker.program.said("second", count=3)
    assert len(worker.program.said("first")) == 2
    worker.stop()

    worker = start("--recreate", target="two:client", cwd=tmp_path)
    worker.program.said("first", count=3)
    evict()
    assert len(worker.program.said("first")) == 3


@pytest.mark.thorough
def test_a_command_whose_only_group_was_evicted_ends(
    start: Start, lanelog_client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody would start it again by itself; the messages are not handled twice."""
    lanelog_client.publish("t", "k", b"{}")
    worker = start()
    worker.handled()
    lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=False)
    assert worker.program.ended() == 2
    assert "every group of this client was evicted" in capfd.readouterr().err
    assert len(worker.handled()) == 1
