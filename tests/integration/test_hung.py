"""Workers that hang: what heartbeats say of them, and who tells it.

Time passes for handlers by `let_pass`, so that no test waits for a minute.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from attrs import evolve

from lanelog import Client, Message, Subscription
from lanelog._workload import parsed
from lanelog.admin import Problem, Rank, Workload
from lanelog.dashboard import dashboard
from lanelog.migrations import migrate
from support.cli import Command
from support.dashboards import Visitor
from support.elapsed import let_pass
from support.old_tables import set_back
from support.processes import Fleet
from support.sql import one, rows
from support.waiting import Record, accept, eventually

BEATS = {"lease_duration": 3.0, "lease_renewal": 0.1, "name": "vm-23734"}
"""A heartbeat with nearly each turn of the keeper."""
REWRITE = "UPDATE queue_subscriber_heartbeats SET workload = %s"
WORKLOAD = "SELECT workload FROM queue_subscriber_heartbeats WHERE consumer_group = 'g' AND topic = %s"


class Locked:
    """A handler that waits for a lock which the test holds."""

    def __init__(self) -> None:
        self.seen, self.lock = Record(), threading.Event()

    def __call__(self, message: Message) -> None:
        secret = message.payload  # a variable of the frame, which no stack may show
        self.seen(message.key)
        self.wait_for_the_lock()
        assert secret

    def wait_for_the_lock(self) -> None:
        """The innermost frame of the test."""
        assert self.lock.wait(60)


@pytest.fixture
def locked() -> Iterator[Locked]:
    """Its lock is given free at the end, so that the subscription can end."""
    locked = Locked()
    yield locked
    locked.lock.set()


@pytest.fixture
def stuck(lanelog_client: Client, locked: Locked) -> Subscription:
    """Four workers, and each waits in its handler."""
    lanelog_client.publish_many("t", [(f"key-{number}", b"s3cret") for number in range(4)])
    subscription = lanelog_client.subscribe("t", "g", locked, workers=4, **BEATS)
    locked.seen.wait(4)
    return subscription


def workload(client: Client, group: str = "g") -> Workload | None:
    return next((each.workload for each in client.admin.members("t", group)), None)


# -- what a heartbeat says ---------------------------------------------------------------------------------------------


def test_a_heartbeat_says_what_the_workers_do(lanelog_client: Client, stuck: Subscription, raw: Any) -> None:
    """How many are busy and since when, the process, and of each that has run for 10 s where it stands."""
    found = eventually(lambda: w if (w := workload(lanelog_client)) and w.busy == 4 else None)
    assert (found.workers, found.handlers, found.patience) == (4, (), 30.0)
    assert (found.host, found.pid) == (socket.gethostname(), os.getpid())
    assert found.quiet < 10
    let_pass(stuck, 12)
    found = eventually(lambda: w if (w := workload(lanelog_client)) and w.handlers else None)
    assert {(each.topic, each.key, each.offset) for each in found.handlers} == {
        ("t", f"key-{number}", 1) for number in range(4)
    }
    assert 12 <= found.quiet <= min(each.seconds for each in found.handlers)
    for each in found.handlers:
        outer, *_, middle, _waits, innermost = each.stack.splitlines()
        assert outer.endswith("in Locked.__call__")
        assert middle.endswith("in Locked.wait_for_the_lock")
        assert "threading.py" in innermost
    assert "s3cret" not in one(raw, WORKLOAD, "t")


@pytest.mark.thorough
@pytest.mark.usefixtures("stuck")
def test_no_stack_is_taken_while_no_handler_runs_for_long(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat stays cheap: the frames of the threads are not asked for."""
    taken = Record()
    monkeypatch.setattr("lanelog._engine.working.stacks.frames_of", lambda threads: taken(threads) or {})
    before = eventually(lambda: lanelog_client.admin.members("t", "g")[0].heartbeat_at)
    eventually(lambda: lanelog_client.admin.members("t", "g")[0].heartbeat_at > before)
    assert not taken.items


@pytest.mark.thorough
def test_what_ends_is_remembered(lanelog_client: Client, locked: Locked, stuck: Subscription) -> None:
    """The longest run that ended makes longer ones normal; idle workers are not busy."""
    let_pass(stuck, 100)
    locked.lock.set()
    found = eventually(lambda: w if (w := workload(lanelog_client)) and w.longest and not w.busy else None)
    assert 100 <= found.longest <= 160
    assert found.patience == pytest.approx(3 * found.longest, abs=0.2)
    assert (found.busy, found.quiet, found.hung) == (0, 0, False)


@pytest.mark.thorough
def test_each_topic_of_a_subscription_says_what_all_its_workers_do(
    lanelog_client: Client, locked: Locked, raw: Any
) -> None:
    """They share the workers, so a worker that hangs with one topic is missing for the other."""
    lanelog_client.publish("t", "k", b"1")
    with lanelog_client.subscribe(["t", "u"], "g", locked, workers=1, **BEATS) as subscription:
        locked.seen.wait(1)
        let_pass(subscription, 12)
        text = eventually(lambda: w if "threading.py" in (w := one(raw, WORKLOAD, "u")) else None)
        assert [(each["topic"], each["key"]) for each in json.loads(text)["handlers"]] == [("t", "k")]
        locked.lock.set()


@pytest.mark.thorough
def test_a_member_that_pulls_has_no_workers(lanelog_client: Client, raw: Any) -> None:
    """Its row says nothing of them."""
    with lanelog_client.deliveries("t", "g", **BEATS):
        eventually(lambda: lanelog_client.admin.members("t", "g"))
        assert workload(lanelog_client) is None
        assert one(raw, WORKLOAD, "t") is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"host": 1, "workers": "x"}', "[" * 10_000, '{"workers": 1e999}']
)
def test_a_row_that_another_program_wrote_says_nothing(lanelog_client: Client, raw: Any, text: str) -> None:
    """`members` lists the member all the same."""
    with lanelog_client.subscribe("t", "g", accept, lease_duration=3600.0, lease_renewal=1800.0):
        eventually(lambda: workload(lanelog_client))
        rows(raw, REWRITE, text)
        assert workload(lanelog_client) is None


@pytest.mark.thorough
def test_members_work_on_tables_without_the_column(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """On tables of version 5 their heartbeats go on, and say nothing of workers."""
    set_back(raw, 5)
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen, **BEATS):
        lanelog_client.publish("t", "k", b"1")
        seen.wait(1)
        assert workload(lanelog_client) is None
    assert migrate(lanelog_client._database)


# -- status, figures, metrics ------------------------------------------------------------------------------------------


def grow_older(raw: Any, seconds: float) -> None:
    """As if all messages had been published so much earlier."""
    rows(raw, f"UPDATE queue_messages SET created_at = created_at - {int(seconds * 1000)}")
    rows(raw, f"UPDATE queue_offsets SET marked_at = marked_at - {int(seconds * 1000)} WHERE marked_at > 0")


def problems(client: Client, *, without: str = "behind") -> list[Problem]:
    return [each for each in client.admin.status().problems if each.what != without]


def test_status_names_the_process_whose_workers_hang(lanelog_client: Client, stuck: Subscription, raw: Any) -> None:
    """It is the only problem: which workers, for how long, where they stand, and what ends the process."""
    let_pass(stuck, 31)
    grow_older(raw, 65)
    eventually(lambda: w if (w := workload(lanelog_client)) and w.hung else None)
    (hung,) = problems(lanelog_client)
    assert (hung.what, hung.rank, hung.owner, hung.key) == ("hung", Rank.STUCK, stuck.owner, None)
    assert re.match(r"4 of 4 workers of vm-23734 are busy, none has ended for 3\ds, ", hung.detail)
    assert hung.command == f'[ "$(uname -n)" = {shlex.quote(socket.gethostname())} ] && kill -KILL {os.getpid()}'
    first, *frames = hung.notes
    assert re.match(r"t key-\d offset 1 and 3 more, for 3\ds, at:$", first)
    assert any(frame.endswith("in Locked.wait_for_the_lock") for frame in frames)
    assert hung.lines() == [
        hung.lines()[0],
        f"    {hung.sentence}",
        *(f"    {note}" for note in hung.notes),
        f"    $ {hung.command}",
    ]
    (group,) = lanelog_client.admin.figures().groups
    assert (group.hung_members, group.stuck_lanes) == (1, 0)


@pytest.mark.thorough
def test_command_line_and_dashboard_show_where_the_handlers_stand(
    lanelog_client: Client, command: Command, stuck: Subscription, raw: Any
) -> None:
    """`members` counts the busy workers, and has every stack as JSON; status and the front page show the stacks."""
    let_pass(stuck, 31)
    grow_older(raw, 65)
    eventually(lambda: w if (w := workload(lanelog_client)) and w.hung else None)
    heads, ((*cells,),) = command.table("members", "t", "g")
    assert cells[heads.index("BUSY")] == "4/4"
    (member,) = command.json("members", "t", "g")
    assert len(member["workload"]["handlers"]) == 4
    said = command("status", "t").stdout
    assert "HUNG  t g, for 3" in said
    assert "in Locked.wait_for_the_lock" in said
    assert f"kill -KILL {os.getpid()}" in said
    page = Visitor(dashboard(lanelog_client)).get("/")
    assert page.status_code == HTTPStatus.OK
    assert "4 of 4 workers of vm-23734 are busy" in page.text
    assert "in Locked.wait_for_the_lock" in page.text


@pytest.mark.thorough
def test_long_builds_are_no_incident(lanelog_client: Client, locked: Locked, raw: Any) -> None:
    """Twelve of ten minutes on four workers: status says that all are busy, and names nothing that ends a process."""
    lanelog_client.publish_many("t", [(f"build-{number}", b"x") for number in range(12)])
    subscription = lanelog_client.subscribe("t", "g", locked, workers=4, visibility_timeout=1200.0, **BEATS)
    locked.seen.wait(4)
    let_pass(subscription, 590)
    grow_older(raw, 590)
    eventually(lambda: w if (w := workload(lanelog_client)) and len(w.handlers) == 4 else None)
    (behind,) = lanelog_client.admin.status().problems
    assert behind.what == "behind"
    assert behind.sentence == "12 messages in 12 lanes, 1 member, 4 of 4 workers busy; where it is:"
    assert behind.command == "lanelog lanes t g --by lag"
    (group,) = lanelog_client.admin.figures().groups
    assert (group.hung_members, group.stuck_lanes) == (0, 0)


@pytest.mark.thorough
def test_one_handler_that_hangs_beside_others_is_a_slow_lane(lanelog_client: Client, locked: Locked, raw: Any) -> None:
    """The process works on, so nothing ends it: the lane is named."""
    lanelog_client.publish("t", "k", b"x")
    subscription = lanelog_client.subscribe("t", "g", locked, workers=2, **BEATS)
    locked.seen.wait(1)
    let_pass(subscription, 65)
    grow_older(raw, 65)
    eventually(lambda: w if (w := workload(lanelog_client)) and w.handlers else None)
    (slow,) = problems(lanelog_client)
    assert (slow.what, slow.key, slow.command) == ("slow", "k", "lanelog release t g k")


@pytest.mark.thorough
def test_a_process_that_died_is_not_called_hung(lanelog_client: Client, stuck: Subscription, raw: Any) -> None:
    """Its last heartbeat said so, but its lock is free."""
    let_pass(stuck, 31)
    eventually(lambda: w if (w := workload(lanelog_client)) and w.hung else None)
    gone = "UPDATE queue_subscriber_heartbeats SET liveness_lock = 'nobody has it'"
    eventually(lambda: (rows(raw, gone), workload(lanelog_client))[1] is None)


@pytest.mark.thorough
def test_the_command_of_status_ends_the_process(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """SIGTERM would wait for its handlers. Its messages go to others."""
    fleet, seen = Fleet(lanelog_url), Record()
    try:
        program = fleet.worker("hanging", starts=True, sleep=600, options={"workers": 2, **BEATS, "lease_renewal": 2.0})
        lanelog_client.publish_many("t", [("a", b"{}"), ("b", b"{}")])
        program.said("started", count=2)
        grow_older(raw, 65)
        program.terminate()

        def hanging() -> Problem | None:
            for owner, text in rows(raw, "SELECT subscriber_name, workload FROM queue_subscriber_heartbeats"):
                found = parsed(text or "")
                if found is not None and found.busy == 2:
                    hung = evolve(found, quiet=31.0).dumped()
                    rows(raw, f"{REWRITE} WHERE subscriber_name = %s", hung, owner)
            return next((each for each in problems(lanelog_client) if each.what == "hung"), None)

        hung = eventually(hanging)
        subprocess.run(["sh", "-c", hung.command], check=True)
        assert program.ended() == -signal.SIGKILL
        with lanelog_client.subscribe("t", "g", lambda message: seen(message.key)):
            assert set(seen.wait(2)) == {"a", "b"}
    finally:
        fleet.close()


# -- health ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_process_whose_workers_hang_for_too_long_is_unhealthy(lanelog_client: Client, locked: Locked) -> None:
    """Only with `unhealthy_after`, and only when the state has lasted for so long; it is healthy when they go on."""
    lanelog_client.publish_many("t", [("a", b"x"), ("b", b"x")])
    patient = lanelog_client.subscribe("t", "patient", locked, workers=2, **BEATS)
    strict = lanelog_client.subscribe("t", "g", locked, workers=2, unhealthy_after=60, **BEATS)
    locked.seen.wait(4)
    for subscription in (patient, strict):
        let_pass(subscription, 85)
    assert lanelog_client.health().live
    for subscription in (patient, strict):
        let_pass(subscription, 10)
    found = lanelog_client.health()
    (why,) = found.dying
    assert re.match(r"group 'g': 2 of 2 workers are busy, none has ended for 9\d s$", why)
    assert not found.live
    locked.lock.set()
    eventually(lambda: lanelog_client.health().live)
