"""Four incidents. An alert, `lanelog status` and the front page name each; their command or button mends it.

The commands are taken from what is shown, and run in a shell. Buttons are followed as a browser does. After that all
three are quiet.
"""

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import lanelog
from lanelog import Client, Retry
from support.oncall import Alert, OnCall
from support.processes import Fleet
from support.proxy import proxy_to
from support.sql import rows, stored
from support.waiting import Record, accept, eventually

pytestmark = [pytest.mark.one_family("mariadb"), pytest.mark.thorough]

TOPIC, GROUP = "orders; it's due", "mail & $HOME"
AT = f"{GROUP} on {TOPIC}"
PLACE = {"topic": TOPIC, "group": GROUP}
STATUS = "lanelog status -- 'orders; it'\\''s due'"
PROXIED = {"lease_duration": 600.0, "lease_renewal": 200.0}


@pytest.fixture(params=["command", "button"])
def on_call(lanelog_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> OnCall:
    """Who is paged."""
    return OnCall(lanelog_url, tmp_path, clicks=request.param == "button")


def grow_older(raw: Any, table: str, *columns: str, seconds: int) -> None:
    """As if what these columns say had been so much earlier."""
    earlier = ", ".join(f"{column} = IF({column} = 0, 0, {column} - {seconds * 1000})" for column in columns)
    rows(raw, f"UPDATE {table} SET {earlier}")


def test_a_handler_that_fails_for_one_key(on_call: OnCall, lanelog_client: Client, raw: Any) -> None:
    """Only the key's lane waits. The cause is repaired, the message is tried at once, and later ones are handled."""
    seen, mended = Record(), Event()

    def handle(message: lanelog.Message) -> None:
        if message.payload == b"broken" and not mended.is_set():
            raise Retry(delay=3600)
        seen((message.key, message.payload))

    lanelog_client.publish_many(TOPIC, [("it's", b"broken"), ("it's", b"behind"), ("other", b"x")])
    with lanelog_client.subscribe(TOPIC, GROUP, handle) as subscription:
        eventually(lambda: (stats := subscription.stats()).retried == stats.acked == 1)
        grow_older(raw, "queue_messages", "created_at", seconds=45)
        failing = Alert(
            "LanelogLanesFailing", "warning", PLACE, f"1 lanes of {AT} wait behind a message that fails", STATUS
        )
        offered = on_call.named(failing, "failing")
        mended.set()
        on_call.mend(offered)
        assert seen.wait(3) == [("other", b"x"), ("it's", b"broken"), ("it's", b"behind")]
        on_call.quiet()


def test_a_dead_worker_behind_a_proxy_that_hides_it(
    on_call: OnCall, fleet: Fleet, lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """The server keeps its session, and with it its lock: others would wait for two leases. One command frees all."""
    again = Record()
    with proxy_to(lanelog_url) as proxy:
        fleet.url = proxy.url
        worker = fleet.worker("hidden", topic=TOPIC, group=GROUP, options=PROXIED)
        lanelog_client.publish_many(TOPIC, [(key, json.dumps({"wait": "hidden"})) for key in ("a", "b", "c")])
        worker.said("waiting", count=3)
        proxy.silent = True
        worker.kill()
        grow_older(raw, "queue_subscriber_heartbeats", "heartbeat_at", "expires_at", seconds=700)
        grow_older(raw, "queue_messages", "created_at", seconds=45)
        with lanelog_client.subscribe(TOPIC, GROUP, lambda m: again((m.key, m.attempt))):
            eventually(lambda: lanelog_client.admin.groups(TOPIC)[0].members == 1)
            stuck = Alert(
                "LanelogLanesStuck", "critical", PLACE, f"3 lanes of {AT} are slow, or nobody alive has them", STATUS
            )
            offered = on_call.named(stuck, "owner gone")
            assert not again.items
            on_call.mend(offered)
            assert sorted(again.wait(3)) == [("a", 2), ("b", 2), ("c", 2)]
            on_call.quiet()


def test_a_poison_message(on_call: OnCall, fleet: Fleet, lanelog_client: Client) -> None:
    """Each process that handles it dies, until it is a dead letter. A repaired worker gets it again."""
    workers = [fleet.worker(f"w{number}", topic=TOPIC, group=GROUP, attempts=2) for number in range(3)]
    lanelog_client.publish(TOPIC, "a", json.dumps({"exit": True}))
    eventually(lambda: lanelog_client.admin.topic(TOPIC).dead_letters == 1, within=30)
    assert sorted(worker.ended() for worker in workers if worker.popen.poll() is not None) == [9, 9]
    fleet.close()
    seen = Record()
    with lanelog_client.subscribe(TOPIC, GROUP, lambda message: seen(message.key)):
        letters = Alert("LanelogDeadLetters", "warning", {"topic": TOPIC}, f"{TOPIC} has 1 dead letters", STATUS)
        on_call.mend(on_call.named(letters, "dead letters"))
        assert seen.wait(1) == ["a"]
        on_call.quiet()


def test_a_group_that_nobody_runs_any_more_holds_up_collection(
    on_call: OnCall, lanelog_client: Client, raw: Any
) -> None:
    """Messages that another group handled long ago stay in the log, until the group is deleted."""
    lanelog_client.subscribe(TOPIC, GROUP, accept, retention=0).stop()
    grow_older(raw, "queue_groups", "created_at", seconds=3600)
    grow_older(raw, "queue_subscriber_heartbeats", "heartbeat_at", "expires_at", "deregistered_at", seconds=3600)
    with lanelog_client.subscribe(TOPIC, "runs", accept, retention=0) as subscription:
        lanelog_client.publish_many(TOPIC, [("a", b"1"), ("b", b"2")])
        eventually(lambda: subscription.stats().acked == 2)
        grow_older(raw, "queue_messages", "created_at", seconds=3600)
        lanelog_client.admin.maintain()
        assert stored(raw, TOPIC) == 2
        nobody = Alert(
            "LanelogNobodyConsumes", "critical", PLACE, f"{AT} has no living member, and 2 messages wait", STATUS
        )
        eventually(lambda: lanelog_client.admin.groups(TOPIC)[0].members_unchanged > 30, within=40)  # the server's age
        offered = on_call.named(nobody, "nobody consumes")
        assert "no member" in on_call.shell(offered)  # so long ago that its rows are deleted
        lanelog_client.admin.delete_group(TOPIC, GROUP, dry_run=False)
        lanelog_client.admin.maintain()
        assert stored(raw, TOPIC) == 0
        on_call.quiet()
