"""What proves a death and what does not: locks, heartbeats, a server that stood still, a session that is kept."""

import json
import os
import signal
from collections import Counter
from contextlib import ExitStack, closing
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog.devserver import DevServer
from support.elapsed import trust_heartbeats_at_once
from support.processes import Fleet
from support.proxy import proxy_to
from support.situations import NOW
from support.sql import connect, one, owners, rows, take_lanes, watermark
from support.traffic import shares
from support.waiting import Record, accept, events, eventually, never

KEYS = [f"k{n}" for n in range(6)]
LEASES = "SELECT partition_key, leased_by, lease_epoch FROM queue_partition_leases ORDER BY 1"
HOUR = 3_600_000
STEP = "UPDATE queue_subscriber_heartbeats SET heartbeat_at = heartbeat_at - %s, expires_at = expires_at - %s"
STEPPED = f"SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE expires_at < {NOW}"
EXPIRED = f"SELECT expires_at + 500 < {NOW} FROM queue_subscriber_heartbeats WHERE subscriber_name = 'gone:1'"
SHORT = {"lease_duration": 2.0, "lease_renewal": 0.5}
STOOD_STILL = 27.0
HELD_FOR = 22


@pytest.mark.thorough
def test_a_clock_that_steps_by_an_hour_moves_no_lane(
    lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every heartbeat has run out at once, by the server's clock; but each of their owners holds its lock."""
    trust_heartbeats_at_once(monkeypatch.setattr)
    with ExitStack() as stack:
        clients = [stack.enter_context(lanelog.connect(lanelog_url)) for _ in range(2)]
        for number, client in enumerate(clients):
            client.subscribe("t", "g", accept, name=f"w{number}", lease_duration=15.0, lease_renewal=1.5)
        clients[0].publish_many("t", [(key, b"x") for key in KEYS])
        eventually(lambda: shares(raw) == {"w0": 3, "w1": 3})
        before = rows(raw, LEASES)
        for _ in range(3):
            rows(raw, STEP, HOUR, HOUR)
            eventually(lambda: one(raw, STEPPED) == 0)  # each has written its heartbeat since
        assert rows(raw, LEASES) == before
    assert events(caplog, "lanes.taken_over") == []


@pytest.mark.thorough
def test_a_session_that_somebody_keeps_for_a_dead_process_holds_its_lanes_for_two_leases(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """A proxy may not notice that a process has died. The heartbeat shows it, when it has not changed for so long."""
    seen = Record()
    with lanelog.connect(lanelog_url) as before:
        before.subscribe("t", "g", seen)
        before.publish("t", "a", b"1")
        seen.wait(1)
    subscription = lanelog_client.subscribe("t", "g", seen, **SHORT)
    eventually(lambda: shares(raw) and subscription.owner in owners(raw, "g", "t").values())
    with closing(connect(lanelog_url)) as kept:
        assert one(kept, "SELECT GET_LOCK('lanelog:kept', 0)") == 1
        rows(
            raw,
            "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at,"
            " deregistered_at, liveness_lock, server_started_at, incarnation)"
            " SELECT consumer_group, topic, 'gone:1', heartbeat_at, heartbeat_at + 2000, 0, 'lanelog:kept',"
            " server_started_at, incarnation FROM queue_subscriber_heartbeats WHERE subscriber_name = %s",
            subscription.owner,
        )
        take_lanes(raw, "gone:1")
        eventually(lambda: one(raw, EXPIRED))
        assert set(owners(raw, "g", "t").values()) == {"gone:1"}
        eventually(lambda: set(owners(raw, "g", "t").values()) == {subscription.owner})
    lanelog_client.publish("t", "a", b"2")
    seen.wait(2)


@pytest.mark.thorough
def test_a_process_that_dies_while_it_stands_aside_is_replaced(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """The dead member's row says that it left, and yet it held a lane, for a handler that still ran."""
    worker = fleet.worker("aside")
    lanelog_client.publish("t", "a", json.dumps({"wait": "aside"}))
    worker.said("waiting")
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt)))
    table = "queue_subscriber_heartbeats"
    rows(raw, f"UPDATE {table} SET deregistered_at = heartbeat_at WHERE subscriber_name LIKE 'aside:%'")
    worker.kill()
    assert seen.wait(1, within=20.0) == [(1, 2)]
    dead = "SELECT deregistered_at > heartbeat_at FROM queue_subscriber_heartbeats WHERE subscriber_name LIKE 'aside:%'"
    eventually(lambda: one(raw, dead) == 1)
    states = {each.name.partition(":")[0]: each for each in lanelog_client.admin.members("t", "g")}
    assert (states["aside"].state, states["aside"].stopped_at) == ("dead", None)
    assert states["aside"].found_dead_by in {each.name for each in states.values()} - {states["aside"].name}


def test_without_locks_a_dead_process_is_replaced_when_its_heartbeat_has_run_out(
    fleet: Fleet, lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """With `liveness="lease"` no session takes a lock of the server: its lease alone says that a process lives."""
    by_lease, brief = {"liveness": "lease"}, {"lease_duration": 3.0, "lease_renewal": 1.0}
    worker = fleet.worker("dying", connect=by_lease, options=brief)
    lanelog_client.publish("t", "a", json.dumps({"wait": "dying"}))
    worker.said("waiting")
    again = Record()
    with lanelog.connect(lanelog_url, **by_lease) as client:
        client.subscribe("t", "g", lambda m: again((m.offset, m.attempt)), **brief)
        eventually(lambda: len(client.admin.members("t", "g")) == 2)
        assert set(rows(raw, "SELECT liveness_lock FROM queue_subscriber_heartbeats")) == {("",)}
        ends = one(raw, "SELECT expires_at FROM queue_subscriber_heartbeats WHERE subscriber_name LIKE 'dying:%'")
        worker.kill()
        assert again.wait(1, within=20.0) == [(1, 2)]
        assert one(raw, "SELECT leased_at FROM queue_partition_leases") >= ends
        (found,) = (finding for finding in client.admin.doctor() if finding.check == "session locks")
        assert (found.status, found.detail) == ("ok", "none is taken: liveness is 'lease'")


@pytest.mark.thorough
def test_a_host_that_vanishes_without_a_farewell_is_replaced_when_the_server_drops_its_session(
    fleet: Fleet, lanelog_client: Client, lanelog_url: str
) -> None:
    """No packet comes from it any more, and none that ends a connection: the server waits as long as its lease."""
    with proxy_to(lanelog_url) as proxy:
        fleet.url, lost = proxy.url, {"lease_duration": 6.0, "lease_renewal": 2.0}
        worker = fleet.worker("vanishing", options=lost)
        lanelog_client.publish("t", "a", json.dumps({"wait": "vanishing"}))
        worker.said("waiting")
        proxy.silent = True
        worker.kill()
        again = Record()
        lanelog_client.subscribe("t", "g", lambda m: again((m.offset, m.attempt)), **lost)
        never(lambda: again.items, during=2.0)
        assert again.wait(1, within=20.0) == [(1, 2)]


@pytest.mark.thorough
def test_a_server_that_stands_still_for_27_seconds_moves_no_lane(private_server: DevServer) -> None:
    """With default options, every running message is started once and none is dead-lettered."""
    with ExitStack() as stack:
        client = stack.enter_context(lanelog.connect(private_server.url))
        client.migrate()
        raw = stack.enter_context(closing(connect(private_server.url)))
        fleet = Fleet(private_server.url)
        stack.callback(fleet.close)
        for number in range(2):
            fleet.worker(f"w{number}", attempts=1)
        # Shared out before they are busy: who has not seen the other yet takes all, and keeps what its handlers have.
        client.publish_many("t", [(key, "{}") for key in KEYS])
        eventually(lambda: shares(raw) == {"w0": 3, "w1": 3})
        client.publish_many("t", [(key, json.dumps({"sleep": STOOD_STILL + 10})) for key in KEYS])
        fleet.journal.until(lambda lines: sum(line.event == "started" for line in lines) >= len(KEYS))
        before = rows(raw, LEASES)
        os.kill(private_server.pid, signal.SIGSTOP)
        try:
            never(lambda: False, during=STOOD_STILL)
        finally:
            os.kill(private_server.pid, signal.SIGCONT)
        eventually(lambda: all(watermark(raw, "g", "t", key) == 2 for key in KEYS), within=60.0)
        assert rows(raw, LEASES) == before
        started = Counter(line["key"] for line in fleet.journal.items if line.event == "started")
        assert started == dict.fromkeys(KEYS, 1)
        assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic <> 't'") == 0
    assert not fleet.logged("lanes.taken_over")


@pytest.mark.thorough
def test_a_handler_that_keeps_the_interpreter_for_less_than_its_lease_is_alive(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """No thread of its process runs, no heartbeat is written, and nobody takes its lane: it has said for how long."""
    options = {"lease_duration": 40.0, "lease_renewal": 10.0}
    holder, other = (fleet.worker(name, options=options, starts=True) for name in ("holder", "other"))
    for worker in (holder, other):
        worker.said("ready")
    lanelog_client.publish("t", "a", json.dumps({"hold": HELD_FOR}))
    line = fleet.journal.until(
        lambda lines: [each for each in lines if each.event == "handled"], within=HELD_FOR + 20.0
    )
    assert [each["attempt"] for each in line if each.event == "started"] == [1]
    eventually(lambda: watermark(raw, "g", "t", "a") == 1)


@pytest.mark.thorough
def test_a_lock_on_the_topic_costs_nobody_a_lease(
    lanelog_client: Client, open_raw: Any, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever was stopped while it took new lanes holds the topic's row for longer than a lease lasts."""
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda message: seen(message.key), **SHORT)
    lanelog_client.publish_many("t", [("a", b"1"), ("b", b"1")])
    seen.wait(2)
    holder = open_raw()
    rows(holder, "SELECT * FROM queue_partitions WHERE topic = 't' AND partition_key = '' FOR UPDATE")
    rows(raw, "DELETE FROM queue_partition_leases WHERE topic = 't' AND partition_key = 'a'")
    never(lambda: one(raw, STEPPED), during=2 * SHORT["lease_duration"], what="a heartbeat that ran out")
    lanelog_client.publish_many("t", [("a", b"2"), ("b", b"2")])
    assert seen.wait(3)[2:] == ["b"]
    assert len(events(caplog, "lanes.held_up")) == 1
    holder.rollback()
    assert seen.wait(4)[3:] == ["a"]
    assert owners(raw, "g", "t").keys() == {"a", "b"}
