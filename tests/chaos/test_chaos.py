"""The chaos run itself: its schedule, its proxy, its arithmetic, and a cut of it on a real server."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.account import History
from chaos.fleet import faketime, wrong_clock
from chaos.hints import DROPPED, Hints, of_seed, switch
from chaos.history import Begin, End, Event, Fault, FaultKind, Publish
from chaos.profiles import measure, moved, plan, regained
from chaos.proxy import Proxy, ports
from chaos.report import recoveries, recovery
from chaos.schedule import COSTS, FEWEST, MOST, SERVERS, STARTING, VERBS, WEIGHTS, operations, schedule
from lanelog._hints import receiver, sender
from lanelog._hints.datagram import Hint
from lanelog._hints.host import own_host
from lanelog._hints.route import target_of
from support.waiting import eventually

TESTS = Path(__file__).parents[1]


def begin(at: float, process: str, key: str, offset: int, group: str = "g") -> Begin:
    run = f"{process}/{group}/{at}"
    place = {"topic": "t", "key": key, "offset": offset, "id": str(offset), "attempt": 1, "epoch": 1}
    return Begin(at=at, run=run, process=process, group=group, **place)  # type: ignore[arg-type]


def handled(at: float, process: str, key: str, offset: int) -> list[Event]:
    start = begin(at, process, key, offset)
    return [start, End(at=at + 0.01, run=start.run, outcome="returned")]


def published(at: float, key: str, offset: int) -> Event:
    return Publish(at=at, outcome="acknowledged", topic="t", key=key, id=str(offset), offset=offset)


# -- the schedule ------------------------------------------------------------------------------------------------------


def test_the_schedule_of_a_seed_stays_what_it_was() -> None:
    """Results that were published with a seed can be had again: a change of the draw is seen here."""
    drawn = schedule(1, 60, 6.0)
    assert drawn == schedule(1, 60, 6.0) != schedule(2, 60, 6.0)
    assert drawn.workers == 3
    assert " ".join(planned.kind for planned in drawn.faults) == (
        "server revoke term exhaustion connections restarts restore shortage"
    )
    assert round(sum(planned.pause for planned in drawn.faults), 6) == 19.066158
    spent = sum(COSTS.get(planned.kind, 0.0) + planned.pause + planned.hold for planned in drawn.faults)
    assert spent <= 60


def test_four_seeds_in_a_row_have_all_that_becomes_of_hints() -> None:
    """On, dropped, off and lost, wherever the row begins."""
    for first in range(8):
        assert {of_seed(seed) for seed in range(first, first + 4)} == set(DROPPED)


@pytest.mark.skipif(not own_host(), reason="hints need Linux")
@pytest.mark.parametrize("hints", DROPPED)
def test_datagrams_are_dropped_at_both_ends(hints: Hints, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets are real ones, and dropping is counted as the library counts what is lost or not believed."""
    monkeypatch.setattr(sender, "deliver", sender.deliver)  # `switch` replaces them, and they come back afterwards
    monkeypatch.setattr(receiver, "unpack", receiver.unpack)
    assert switch(hints, "w1") == (hints != "off")
    hearing, hint, sent = receiver.Receiver(), Hint(1, new_lanes=False), 0
    hearing.open()
    target = target_of(hearing.endpoint, ())
    assert target is not None
    for _ in range(200):
        sent += sender.deliver([target], hint)
        hearing.receive()
    hearing.close()
    assert hearing.received + hearing.ignored == sent
    share = DROPPED[hints]
    assert sent == pytest.approx(200 * (1 - share), abs=40 if 0 < share < 1 else 0)
    assert hearing.received == pytest.approx(200 * (1 - share) ** 2, abs=40 if 0 < share < 1 else 0)


@pytest.mark.parametrize("seed", range(20))
def test_every_seed_has_all_faults_and_three_to_six_workers(seed: int) -> None:
    """Every kind comes within 220 seconds, wrong clocks in a few minutes; every fault has a victim that is there."""
    assert {planned.kind for planned in schedule(seed, 220, 6.0).faults} == set(WEIGHTS)
    drawn = schedule(seed, 3600, 6.0)
    assert {planned.clock for planned in drawn.faults[:120]} == {-1, 0, 1}
    workers = drawn.workers
    for planned in drawn.faults:
        assert FEWEST <= workers <= MOST
        assert planned.victim < workers
        assert not planned.clock or planned.kind in STARTING
        workers += {"grow": 1, "shrink": -1}.get(planned.kind, 0)


def test_the_same_seed_gives_the_same_operations() -> None:
    """An operator's verbs and their times depend on the seed alone; all of them come within a minute."""
    assert operations(7, 60, 200) == operations(7, 60, 200)
    assert operations(7, 60, 200) != operations(8, 60, 200)
    for seed in range(20):
        plan = operations(seed, 60, 200)
        assert {operation.verb for operation in plan} == set(VERBS)
        assert all((operation.lane is None) <= (operation.verb in ("redrive", "pause")) for operation in plan)


def test_what_a_machine_cannot_do_is_left_out_and_the_rest_stays() -> None:
    """Without a small disk and without libfaketime the other faults come as they do everywhere."""
    drawn = schedule(3, 300, 6.0)
    left = drawn.without({"disk", "clock"})
    assert [p.kind for p in left.faults] == [p.kind for p in drawn.faults if p.kind != "disk"]
    assert {planned.clock for planned in left.faults} == {0}
    assert [p.seed for p in left.faults] == [p.seed for p in drawn.faults if p.kind != "disk"]


# -- the proxy ---------------------------------------------------------------------------------------------------------


@contextmanager
def echoing() -> Iterator[tuple[Proxy, socket.socket]]:
    """A server that gives back what it is sent, behind a proxy, and a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

        def echo(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        with (
            Proxy(listener.getsockname()[1]) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
        ):
            client.sendall(b"hello")
            assert client.recv(5) == b"hello"
            yield proxy, client
        listener.shutdown(socket.SHUT_RDWR)


def test_the_proxy_cuts_and_takes_new_connections() -> None:
    """After a cut the client reads the end, and can connect again."""
    with echoing() as (proxy, client):
        proxy.cut()
        assert _ended(client)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again:
            again.sendall(b"again")
            assert again.recv(5) == b"again"


def test_a_stall_lets_nothing_pass_and_loses_nothing() -> None:
    """What is sent during a stall arrives after it, on old connections and new ones."""
    with echoing() as (proxy, client):
        proxy.stall()
        client.sendall(b"later")
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as fresh:
            fresh.sendall(b"fresh")
            for each in (client, fresh):
                each.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    each.recv(5)
                each.settimeout(10)
            proxy.resume()
            assert client.recv(5) == b"later"
            assert fresh.recv(5) == b"fresh"


def test_half_closing_shuts_one_direction_only() -> None:
    """Either the client reads the end and the server goes on reading, or the other way round."""

    class Down(random.Random):
        def choice(self, seq):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            return seq[1]

    with echoing() as (proxy, client):
        proxy.half_close(Down())
        assert _ended(client)
        client.sendall(b"the server still takes this")
    with echoing() as (proxy, client):
        proxy.half_close(random.Random(3))
        assert _ended(client)  # whichever direction was shut: an echo ends with its input


def test_the_proxy_leads_to_another_server() -> None:
    """Whoever was connected is cut off; a new connection goes where the proxy leads now, or nowhere."""
    with echoing() as (proxy, client), socket.create_server(("127.0.0.1", 0)) as other:
        proxy.aim(None)
        assert _ended(client)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as refused:
            assert _ended(refused)
        proxy.aim(other.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10):
            other.settimeout(10)
            other.accept()[0].close()


def test_the_proxy_leads_to_two_servers_by_turns() -> None:
    """Whoever was connected stays where he is, unless the dice cut him off; then it leads to one server again."""

    class EverySecond(random.Random):
        def random(self) -> float:
            self.last = 1.0 - getattr(self, "last", 1.0)
            return self.last

    with echoing() as (proxy, client), socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        first, before = proxy.leads_to[0], proxy.accepted
        proxy.lead(first, port)
        made = [socket.create_connection(("127.0.0.1", proxy.port), timeout=10) for _ in range(8)]
        eventually(lambda: proxy.accepted == before + 8)
        assert (proxy.leading_to(first), proxy.leading_to(port)) == (5, 4)
        client.sendall(b"here")
        assert client.recv(4) == b"here"
        proxy.cut(EverySecond())
        left = proxy.leading_to(port)
        assert proxy.leading_to(first) + left == 4
        proxy.lead(first)
        made += [socket.create_connection(("127.0.0.1", proxy.port), timeout=10) for _ in range(2)]
        eventually(lambda: proxy.accepted == before + 10)
        assert (proxy.leading_to(first), proxy.leading_to(port)) == (6 - left, left)
        for each in made:
            each.close()


def test_who_vanishes_is_not_missed_by_the_server() -> None:
    """The server's end of a vanished client's connection stays open; other clients go on."""
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as proxy:
        clients = [socket.create_connection(("127.0.0.1", proxy.port), timeout=10) for _ in range(2)]
        ends = []
        for client in clients:
            ends.append(server.accept()[0])
            client.sendall(b"here")
            assert ends[-1].recv(4) == b"here"
        assert {client.getsockname()[1] for client in clients} <= ports(os.getpid())
        proxy.vanish([clients[0].getsockname()[1]])
        clients[1].sendall(b"here")
        assert ends[1].recv(4) == b"here"
        ends[0].settimeout(0.2)
        with pytest.raises(TimeoutError):
            ends[0].recv(1)
        for end in (*clients, *ends):
            end.close()


def _ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_a_wrong_clock_is_wrong_on_the_wall_only() -> None:
    """Ahead and behind; the monotonic clock, by which the history is written, stays what it is for everybody."""
    library = faketime()
    if library is None:
        if os.environ.get("CI"):
            pytest.fail("libfaketime is missing: .ci/setup-clocks", pytrace=False)
        pytest.skip("libfaketime is missing: .ci/setup-clocks as root")
    tell = "import time; print(time.time(), time.monotonic())"
    told = {}
    for hours in (-1, 0, 1):
        environment = {**os.environ, **wrong_clock(library, hours)}
        done = subprocess.run([sys.executable, "-c", tell], env=environment, capture_output=True, text=True, check=True)
        told[hours] = [float(word) for word in done.stdout.split()]
    assert told[1][0] - told[0][0] == pytest.approx(3600, abs=60)
    assert told[-1][0] - told[0][0] == pytest.approx(-3600, abs=60)
    assert told[1][1] - told[0][1] == pytest.approx(0, abs=60)


# -- the arithmetic ----------------------------------------------------------------------------------------------------


def test_recovery_is_the_time_until_the_lanes_that_were_met_move_again() -> None:
    """Recovery counts the lanes whose handler was cut off, and not those that were idle or belonged to others."""
    kill = Fault(kind="kill", start=2, end=2.1, processes=("p1",))
    events: list[Event] = [
        kill,
        begin(1, "p1", "a", 1),
        begin(4.5, "p2", "a", 1),
        *handled(1, "p2", "b", 1),
        begin(60, "p2", "b", 2),
    ]
    assert recovery(History(events), kill) == 2.5
    assert recovery(History([kill]), kill) is None


def test_recovery_from_what_stops_everybody_counts_from_its_end() -> None:
    """While the server is down or the network stands still nothing can move."""
    for kind in ("server", "stall"):
        fault = Fault(kind=kind, start=2, end=10)  # type: ignore[arg-type]
        assert recovery(History([fault, begin(1, "p1", "a", 1), begin(11.5, "p2", "a", 1)]), fault) == 1.5


def test_a_recovery_that_the_next_fault_disturbed_is_marked() -> None:
    """The seconds of such a recovery say nothing; a snapshot that is merely held disturbs nothing."""
    kill = Fault(kind="kill", start=2, end=2.1, processes=("p1",))
    met: list[Event] = [kill, begin(1, "p1", "a", 1), begin(4.5, "p2", "a", 1)]
    cut, held = Fault(kind="cut", start=3, end=3), Fault(kind="snapshot", start=3, end=30)
    assert [each.disturbed for each in recoveries(History([*met, cut])) if each.fault is kill] == [True]
    assert [each.disturbed for each in recoveries(History([*met, held])) if each.fault is kill] == [False]


def test_a_lane_of_a_killed_worker_has_moved_when_its_next_message_begins() -> None:
    """All lanes it owned count, busy or not, from the kill or from when they had something to do."""
    kill = Fault(kind="kill", start=10, end=10.1, processes=("p1",))
    events: list[Event] = [
        kill,
        *handled(9, "p1", "idle", 1),
        published(14, "idle", 2),
        *handled(15.5, "p2", "idle", 2),  # 1.5 s after there was something to do
        begin(9.9, "p1", "busy", 1),
        *handled(12.5, "p2", "busy", 1),  # 2.5 s after the kill
        *handled(9, "p3", "other", 1),
        *handled(19, "p3", "other", 2),  # never was the killed one's
    ]
    assert moved(History(events), kill) == 2.5
    assert moved(History([kill]), kill) is None


def steady(rate: int, since: float, until: float) -> list[Event]:
    count = int((until - since) * rate)
    return [event for n in range(count) for event in handled(since + n / rate, "p", f"k{n % 7}", int(since) * 1000 + n)]


def test_throughput_is_back_when_it_stays_at_90_percent() -> None:
    """A single good second does not count, nor does less than nine tenths."""
    server = Fault(kind="server", start=20, end=22)
    slow = [*steady(20, 0, 20), *steady(20, 23, 24), *steady(10, 24, 28), *steady(20, 28, 60), server]
    usual, back = regained(History(slow), server)
    assert (usual, back) == (20, 6.0)
    never = [*steady(20, 0, 20), *steady(16, 22, 60), server]
    assert regained(History(never), server)[1] is None


def test_a_profile_names_what_missed_its_bound() -> None:
    """A kill after which a lane stood still for too long, one that met no lane, and a throughput that stays low."""
    lane = [published(0, "a", 1), *handled(1, "p1", "a", 1), *handled(9, "p2", "a", 2)]
    late = [*lane, Fault(kind="kill", start=2, end=2, processes=("p1",))]
    assert measure(History(late), "kills")[2] == ["median of 7 s", "worst of 7 s"]
    nobody = [*lane, Fault(kind="kill", start=2, end=2, processes=("p7",))]
    assert measure(History(nobody), "kills")[2] == ["1 kills met no lane"]
    low = [published(0, "a", 1), *steady(20, 0, 20), *steady(16, 22, 60), Fault(kind="server", start=20, end=22)]
    assert measure(History(low), "restarts")[2] == ["1 restarts took longer"]
    assert len([planned for planned in plan("kills", 20).faults if planned.kind == "kill"]) == 20


# -- on a real server --------------------------------------------------------------------------------------------------

CLIENTS = ("shortage", "interrupt", "fork", "queries", "forgetful")
PROCESSES = tuple(kind for kind in WEIGHTS if kind not in {*SERVERS, *CLIENTS})
CUTS = [
    pytest.param(5, 100, 6.0, PROCESSES, id="processes-and-network"),
    pytest.param(1, 40, 6.0, ("promote", "restore"), id="failover-of-twins"),
    pytest.param(5, 40, 6.0, ("promote", "restore"), id="failover"),
    pytest.param(3, 42, 6.0, ("freeze", "step", "revoke"), id="seems-dead"),
    pytest.param(6, 24, 6.0, ("restarts", "vanish"), id="crashes"),
    pytest.param(1, 36, 15.0, ("freeze",), id="27-seconds"),
    pytest.param(6876, 35, 6.0, CLIENTS, id="connections-and-interrupts"),
    pytest.param(14, 47, 6.0, ("alternate",), id="two-servers"),
]
"""Seed, seconds of faults, the workers' lease, and the faults, each of which comes at least once."""


def chaos(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    """One of the programs, to its end."""
    return subprocess.run(
        [sys.executable, "-m", f"chaos.{module}", *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.chaos
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "seconds", "lease", "kinds"), CUTS)
def test_a_short_run_has_no_unexplained_anomaly(
    tmp_path: Path, request: pytest.FixtureRequest, seed: int, seconds: int, lease: float, kinds: tuple[FaultKind, ...]
) -> None:
    """Each of these faults comes, operators do what they do meanwhile, and every promise holds; judged twice, alike."""
    kind = request.config.getoption("--server", default=None) or "auto"
    options = [f"--server={'local' if kind == 'auto' else kind}", f"--seed={seed}", f"--seconds={seconds}"]
    options += [f"--faults={','.join(kinds)}", f"--lease={lease}"]
    assert {planned.kind for planned in schedule(seed, seconds, lease, kinds).faults} == set(kinds)
    if seconds == max(cut.values[1] for cut in CUTS):
        assert {operation.verb for operation in operations(seed, seconds, 200)} == set(VERBS)
    done = chaos("run", *options, f"--directory={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = tmp_path.glob("chaos-*.json")
    assert json.loads(found.read_text())["counts"]["acknowledged"] > 0
    assert found.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    before = found.read_text()
    assert chaos("judge", str(tmp_path)).returncode == 0
    assert found.read_text() == before
