"""`client.health()` of clients that work: a loop that is stopped, and a database that goes away."""

from typing import Any

import lanelog
from lanelog import Client
from lanelog._engine.vitals import Bounds
from lanelog.config import ConnectConfig
from support.pace import paced
from support.proxy import Proxy
from support.stage import Stage
from support.waiting import accept, eventually


def test_a_loop_that_is_stopped_is_named_until_it_goes_on(stage: Stage) -> None:
    """The keeper stands still between two statements for longer than its bound: this process is to be replaced."""
    point = "after groups.GET"
    actor = stage.member("m", config={"stuck": 1.0}).pause(point).paused(point)
    assert eventually(lambda: actor.do("dying"))[0].startswith("loop keeper: it has not turned for")
    actor.go(point)
    eventually(lambda: actor.do("dying") == [])


def test_a_database_that_does_not_answer_makes_a_worker_unready_and_does_not_kill_it(
    lanelog_client: Client, lanelog_url: str
) -> None:
    """Its loops wait for answers, and then fail and try again; the reason is told; it is ready again by itself."""
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
