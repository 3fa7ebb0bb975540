"""`client.health()` of clients that work: a loop that is stopped, and a database that goes away."""

import socket
import threading
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

import lanelog
from lanelog import Client
from lanelog._engine.loop_health import Bounds
from lanelog._process.probes import serving
from lanelog.config import ConnectConfig
from support.cli import Command
from support.pace import paced
from support.processes import Fleet
from support.proxy import Proxy
from support.stage import Stage
from support.waiting import accept, eventually


@pytest.mark.thorough
def test_a_loop_that_is_stopped_is_named_until_it_goes_on(stage: Stage) -> None:
    """The keeper stands still between two statements for longer than its bound: this process is to be replaced."""
    point = "after groups.GET"
    actor = stage.member("m", config={"stuck": 1.0}).pause(point).paused(point)
    assert eventually(lambda: actor.do("dying"))[0].startswith("loop keeper: it has not turned for")
    actor.go(point)
    eventually(lambda: actor.do("dying") == [])


class Holding:
    """An observer that holds up the thread that reports a flush."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def flushed(self, _topic: str, _group: str, _lanes: int) -> None:
        self.entered.set()
        self.go.wait(20)

    def handled(self, *_: object) -> None:
        """Nothing."""

    published = handled


def test_a_loop_that_stands_still_is_a_failure_of_livez(lanelog_client: Client) -> None:
    """The answer names the loop, and is ok again when the loop goes on."""
    paced(lanelog_client, health=Bounds(stuck=0.3, unanswered=35.0))
    holding, health = Holding(), lanelog_client.health
    lanelog_client.observe(holding)
    with (
        lanelog_client.subscribe("t", "g", accept),
        serving("127.0.0.1:0", lambda: health().dying, lambda: health().lacking) as url,
    ):
        eventually(lambda: asked(f"{url}/livez") == (200, ["ok"]))
        lanelog_client.publish("t", "k", b"x")
        assert holding.entered.wait(15)
        reasons = eventually(lambda: [line for line in asked(f"{url}/livez")[1] if line != "ok"])
        assert reasons[0].startswith("loop settler: it has not turned for"), reasons
        holding.go.set()
        eventually(lambda: asked(f"{url}/livez") == (200, ["ok"]))


def test_a_loop_may_wait_for_an_answer_as_long_as_the_time_outs_say(lanelog_url: str) -> None:
    """Within a call to the database it is late only after connecting and reading may have taken."""
    with lanelog.connect(lanelog_url, connect_timeout=7, read_timeout=9) as client, client.subscribe("t", "g", accept):
        assert client._engine._bounds == Bounds(unanswered=16)


@pytest.mark.thorough
def test_a_database_that_does_not_answer_makes_a_worker_unready_and_does_not_kill_it(lanelog_url: str) -> None:
    """The loops wait for answers, then fail and try again; the probe has the reason; the worker recovers by itself."""
    proxy = Proxy(ConnectConfig.from_url(lanelog_url))
    with lanelog.connect(proxy.url, connect_timeout=1.0, read_timeout=2.0) as client:
        paced(client, health=Bounds(stuck=30.0, unanswered=3.0, silence=0.5))
        assert client.health().lacking
        with client.subscribe("t", "g", accept) as subscription:
            eventually(lambda: client.health().ready)
            found = client.health()
            assert found.lacking == found.dying == ()
            assert {loop.name for loop in found.loops} == {"fetcher", "janitor", "scheduler", "settler", "keeper"}
            (heartbeat,) = found.heartbeats
            assert (heartbeat.topic, heartbeat.group, heartbeat.fresh) == ("t", "g", True)
            proxy.silent = True
            lacking = eventually(lambda: client.health().lacking)
            assert lacking[0].startswith("database: no answer for")
            told: list[Any] = []
            eventually(lambda: (told.append(client.health()), "DatabaseError" in told[-1].database.why)[1])
            assert [each.dying for each in told if not each.live] == []
            proxy.silent = False
            proxy.cut_all()
            eventually(lambda: client.health().ready)
        assert subscription.state == "stopped"
    assert client.health().loops == ()
    proxy.close()


@pytest.mark.thorough
def test_a_client_that_only_publishes_is_ready_while_the_database_answers(
    lanelog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe asks the database, at most once in five seconds, and does not wait long for a silent one."""
    proxy = Proxy(ConnectConfig.from_url(lanelog_url))
    with lanelog.connect(proxy.url, connect_timeout=1.0, read_timeout=2.0, publish_timeout=3.0) as client:
        found = client.health()
        assert (found.ready, found.live, found.lacking, found.publishes_only) == (True, True, (), True)
        proxy.silent = True
        assert client.health().ready  # from the answer before
        monkeypatch.setattr("lanelog._client.reachable.EVERY", 0.0)
        began = time.monotonic()
        found = client.health()
        assert time.monotonic() - began < 3
        assert (found.ready, found.live) == (False, True)
        assert found.lacking[0].startswith("database: no answer for 1")
        eventually(lambda: "DatabaseError" in client.health().lacking[0], within=20)
        proxy.silent = False
        proxy.cut_all()
        eventually(lambda: client.health().ready, within=20)
        with client.subscribe("t", "g", accept):
            assert not client.health().publishes_only
        assert "no subscription" in client.health().lacking
    proxy.close()


def asked(url: str) -> tuple[int, list[str]]:
    try:
        with urlopen(url, timeout=20) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode().splitlines()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode().splitlines()
    except URLError:
        return 0, []


def test_a_worker_serves_its_probes_while_it_runs(fleet: Fleet, lanelog_client: Client, command: Command) -> None:
    """Ready once it is registered; not ready while it drains, which it survives; and then nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    worker = fleet.worker("w", run={"health": address})
    eventually(lambda: asked(f"http://{address}/readyz")[0] == 200)
    assert asked(f"http://{address}/livez") == asked(f"http://{address}/readyz?verbose") == (200, ["ok"])
    assert asked(f"http://{address}/else") == (404, ["ask /livez or /readyz"])
    lanelog_client.publish("t", "k", {"wait": "w"})
    worker.said("waiting")
    worker.terminate()
    assert eventually(lambda: asked(f"http://{address}/readyz")[1] == ["group 'g': it is stopping"])
    assert asked(f"http://{address}/livez") == (200, ["ok"])
    assert command("health", f"{address}/livez").stdout == "ok\n"
    refused = command("health", f"http://{address}", status=1)
    assert (refused.stdout, refused.stderr) == ("", "/readyz: group 'g': it is stopping\n")
    worker.tell("go")
    assert worker.ended() == 0
    assert "/livez: no answer: " in command("health", f"{address}/livez", status=1).stderr


@pytest.mark.parametrize("address", ["8081", "127.0.0.1:http", "127.0.0.1:65536", ":8081"])
def test_an_address_of_probes_is_checked_before_anything_starts(lanelog_client: Client, address: str) -> None:
    """An address that is taken is refused then, too."""
    lanelog_client.subscriber("t", "g")(accept)
    with pytest.raises(lanelog.ConfigurationError, match=r"is no HOST:PORT: write 127\.0\.0\.1:8081"):
        lanelog_client.run(health=address)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(lanelog.ConfigurationError, match=r"cannot listen at .*: Address already in use"):
            lanelog_client.run(health=here)
    assert lanelog_client.admin.groups() == []
