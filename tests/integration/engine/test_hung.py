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
from html import unescape
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from attrs import evolve

import lanelog
from lanelog import Client, Message, Subscription
from lanelog._engine.member.isolation import process_isolation
from lanelog._process.workload import RunningHandler, parsed
from lanelog.admin import Problem, Rank, Workload
from lanelog.cli.read import lists as cli_read
from lanelog.dashboard import dashboard
from lanelog.errors import ConfigurationError
from lanelog.migrations import migrate
from support.cli import Command
from support.dashboards import Visitor
from support.elapsed import let_pass
from support.old_tables import set_back
from support.processes import Fleet
from support.situations import Situations
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


def workload(client: Client, group: str = "g", topic: str = "t") -> Workload | None:
    return next((each.workload for each in client.admin.members(topic, group)), None)


# -- what a heartbeat says ---------------------------------------------------------------------------------------------


def test_a_heartbeat_says_what_the_workers_do(lanelog_client: Client, stuck: Subscription, raw: Any) -> None:
    """How many are busy and since when, the process, and of each that has run for 10 s where it stands."""
    found = eventually(lambda: w if (w := workload(lanelog_client)) and w.busy == 4 else None)
    assert (found.workers, found.handlers, found.patience) == (4, (), 30.0)
    assert (found.host, found.pid) == (socket.gethostname(), os.getpid())
    assert found.quiet < 10
    let_pass(stuck, 12)
    found = eventually(lambda: w if (w := workload(lanelog_client)) and w.handlers else None)
    running = {(each.topic, each.key, each.offset) for each in found.handlers}
    assert running == {("t", f"key-{number}", 1) for number in range(4)}
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
    """The topics share the workers, so a worker that hangs with one topic is missing for the other."""
    lanelog_client.publish("t", "k", b"1")
    with lanelog_client.subscribe(["t", "u"], "g", locked, workers=1, **BEATS) as subscription:
        locked.seen.wait(1)
        let_pass(subscription, 12)
        text = eventually(lambda: w if "threading.py" in (w := one(raw, WORKLOAD, "u")) else None)
        assert [(each["topic"], each["key"]) for each in json.loads(text)["handlers"]] == [("t", "k")]
        locked.lock.set()


@pytest.mark.thorough
def test_a_member_that_pulls_has_no_workers(lanelog_client: Client, raw: Any) -> None:
    """The member's row says nothing of workers."""
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
def test_members_work_on_tables_without_the_column(lanelog_client: Client, raw: Any) -> None:
    """On tables of version 5 their heartbeats go on, and say nothing of workers."""
    set_back(raw, 5)
    seen = Record()
    with lanelog_client.subscribe("t", "g", seen, **BEATS):
        lanelog_client.publish("t", "k", b"1")
        seen.wait(1)
        assert workload(lanelog_client) is None
        assert [each.workload for each in lanelog_client.admin.members()] == [None]
        (group,) = lanelog_client.admin.groups("t")
        assert (group.members, group.members_telling) == (1, 0)
    assert migrate(lanelog_client._database)


# -- status, figures, metrics ------------------------------------------------------------------------------------------


def grow_older(raw: Any, seconds: float) -> None:
    """As if all messages had been published so much earlier."""
    rows(raw, f"UPDATE queue_messages SET created_at = created_at - {int(seconds * 1000)}")
    rows(raw, f"UPDATE queue_offsets SET marked_at = marked_at - {int(seconds * 1000)} WHERE marked_at > 0")


def problems(client: Client, *, without: str = "behind") -> list[Problem]:
    return [each for each in client.admin.status().problems if each.what != without]


def test_status_names_the_process_whose_workers_hang(lanelog_client: Client, stuck: Subscription, raw: Any) -> None:
    """The only problem says which workers hang, for how long and where, and what ends the process."""
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
    assert cells[heads.index("STATE")] == "hung"
    assert re.match(r"3\ds$", cells[heads.index("NONE-ENDED")])
    heads, ((*cells,),) = command.table("members")
    assert (heads[:2], cells[:2]) == (["TOPIC", "GROUP"], ["t", "g"])
    stacks = command("members", "t", "g", "--stacks").stdout
    assert stacks.count("in Locked.wait_for_the_lock") == 4
    assert re.search(r"\n  t key-0 offset 1, for 3\ds, at:\n", stacks)
    heads, ((*cells,),) = command.table("groups")
    assert cells[heads.index("BUSY")] == "4/4"
    said = command("status", "t").stdout
    assert "HUNG  t g, for 3" in said
    assert "in Locked.wait_for_the_lock" in said
    assert f"kill -KILL {os.getpid()}" in said
    page = Visitor(dashboard(lanelog_client)).get("/")
    assert page.status_code == HTTPStatus.OK
    assert "4 of 4 workers of vm-23734 are busy" in page.text
    assert "in Locked.wait_for_the_lock" in page.text


@pytest.mark.thorough
def test_members_show_who_waited_for_a_connection(lanelog_url: str, command: Command) -> None:
    """The next heartbeat shows it, and only if some thread waited: the column is a finding."""
    with lanelog.connect(lanelog_url, pool_size=2) as client:
        client.subscribe("t", "g", lambda _message: None, **BEATS)
        eventually(lambda: workload(client))
        assert "POOL-WAITS" not in command("members", "t", "g").stdout
        with client.transaction(), client.transaction():
            waits = threading.Thread(target=client.publish, args=("t", "a", b"x"))
            waits.start()
            eventually(lambda: client.measures().pool_waits)
        waits.join(15)
        eventually(lambda: (found := workload(client)) and found.pool_waits == client.measures().pool_waits)
        heads, ((*cells,),) = command.table("members", "t", "g")
        assert cells[heads.index("POOL-WAITS")] == str(client.measures().pool_waits)


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
    """The last heartbeat reported a hang, more than a second ago, but the lock is free."""
    let_pass(stuck, 31)
    eventually(lambda: w if (w := workload(lanelog_client)) and w.hung else None)
    gone = "UPDATE queue_subscriber_heartbeats SET liveness_lock = 'nobody has it', heartbeat_at = heartbeat_at - 2000"
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


# -- the page of members -----------------------------------------------------------------------------------------------


def text_of(page: httpx.Response) -> str:
    """What a page says, without its tags."""
    assert page.status_code == HTTPStatus.OK, page.text
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


def test_a_page_shows_what_every_worker_runs(lanelog_client: Client, stuck: Subscription, raw: Any) -> None:
    """Of each member: its process, how many are busy and for how long; which handlers, where, and what ends them."""
    let_pass(stuck, 31)
    grow_older(raw, 65)
    lanelog_client.subscribe("other", "idle", accept, workers=2, **{**BEATS, "name": "vm-2"})
    with lanelog_client.deliveries("t", "pulling", **{**BEATS, "name": "vm-3"}):
        eventually(lambda: w if (w := workload(lanelog_client)) and w.hung else None)
        eventually(lambda: workload(lanelog_client, "idle", "other"))
        eventually(lambda: lanelog_client.admin.members("t", "pulling"))
        visitor = Visitor(dashboard(lanelog_client))
        page = visitor.get("/members")
    said, here = text_of(page), f"{os.getpid()} on {socket.gethostname()}"
    assert re.search(rf" hung t g {stuck.owner} {here} 4 of 4 3\ds 4 ", said)
    assert re.search(rf" alive other idle vm-2:\w+ {here} 0 of 2 - 0 ", said)
    assert re.search(r" alive t pulling vm-3:\w+ - unknown - \d ", said)
    assert "Unknown: the member pulls messages" in said
    assert re.search(r"t \S key-0 \S offset 1 \S runs for 3\ds Where it stands File ", said)
    assert "4 of 4 workers of vm-23734 are busy, none has ended for 3" in said
    assert f"] && kill -KILL {os.getpid()}" in said
    assert page.text.count("<details><summary>") == page.text.count("in Locked.wait_for_the_lock") == 4
    assert "lane?topic=t&amp;group=g&amp;key=key-0" in page.text
    assert "message?topic=t&amp;key=key-0&amp;offset=1" in page.text
    assert "s3cret" not in page.text

    front = visitor.get("/").text
    (address,) = re.findall(r'href="/([^"]*)">Members that hang</a>', front)
    assert f" hung {stuck.owner} {here}" in text_of(visitor.send("GET", f"/{unescape(address)}"))
    assert '<a href="/members">Members</a>' in front
    assert re.search(r" t g hung 1 4 of 4 4 ", text_of(visitor.get("/groups")))
    assert re.search(r" other idle [a-z ]+ 1 0 of 2 0 ", text_of(visitor.get("/groups")))
    assert "wait_for_the_lock" not in visitor.get("/members", topic="other", group="idle").text


def test_the_page_believes_no_row_that_lanelog_would_not_write(lanelog_client: Client, raw: Any) -> None:
    """Absurd numbers, another program's text, and an older version's nothing: unknown, and never idle."""
    lanelog_client.subscribe("t", "g", accept, lease_duration=3600.0, lease_renewal=1800.0)
    found = eventually(lambda: workload(lanelog_client))
    visitor = Visitor(dashboard(lanelog_client))
    for text in (
        None,
        "",
        "{}",
        evolve(found, workers=10**30, busy=10**30).dumped(),
        evolve(found, pid=-1).dumped(),
        found.dumped().replace('"quiet":', '"quiet":NaN,"was":'),
    ):
        rows(raw, REWRITE, text)
        said = text_of(visitor.get("/members", topic="t", group="g"))
        assert re.search(r" alive \S+ - unknown - 0 ", said), text
        assert "kill" not in said
        (group,) = lanelog_client.admin.groups("t")
        assert (group.members, group.members_telling, group.workers) == (1, 0, 0)
        assert " unknown " in text_of(Visitor(dashboard(lanelog_client)).get("/groups"))


def test_the_page_of_a_server_that_takes_no_writes_ends_no_process(lanelog_client: Client, raw: Any) -> None:
    """A replica's rows are late, and its locks are not the members': who lives is unknown there, and it says why."""
    lanelog_client.subscribe("t", "g", accept, lease_duration=3600.0, lease_renewal=1800.0)
    found = eventually(lambda: workload(lanelog_client))
    rows(raw, REWRITE, evolve(found, workers=1, busy=1, quiet=40.0).dumped())
    before = text_of(Visitor(dashboard(lanelog_client)).get("/members"))
    assert " hung " in before.partition("Lease left")[2]
    assert f"kill -KILL {os.getpid()}" in before
    rows(raw, "SET GLOBAL read_only = 1")
    try:
        said = text_of(Visitor(dashboard(lanelog_client)).get("/members"))
    finally:
        rows(raw, "SET GLOBAL read_only = 0")
    assert "It is not known who lives: this server is read-only" in said
    assert re.search(r"Lease left unknown t g \S+ .* 1 of 1 40s ", said)
    assert "kill" not in said


def test_hostile_names_and_stacks_stay_text(lanelog_client: Client, raw: Any) -> None:
    """In each field of a row, on the page as on a terminal."""
    hostile = "</pre><script>alert(1)</script>\"'><img src=x>\x1b[2J\udc80"
    lanelog_client.subscribe("t", "g", accept, lease_duration=3600.0, lease_renewal=1800.0)
    found = eventually(lambda: workload(lanelog_client))
    run = RunningHandler(topic=hostile, key=hostile, offset=1, seconds=40.0, stack=f"{hostile}\n{hostile}")
    hung = evolve(found, host=hostile, workers=1, busy=1, quiet=40.0, handlers=(run,))
    rows(raw, REWRITE, hung.dumped())
    page = Visitor(dashboard(lanelog_client)).get("/members").text
    assert "&lt;script&gt;alert(1)" in page
    assert "kill -KILL" not in page  # no command is made of such a host
    assert not re.search("<script|<img", page)
    lines = cli_read._stacks(lanelog_client.admin.members("t", "g"))
    assert len(lines) == 5
    assert not any("\x1b" in line for line in lines)


@pytest.mark.thorough
def test_members_are_read_page_by_page(lanelog_client: Client, raw: Any) -> None:
    """Between two pages none is left out, whichever group it belongs to; those of one state are found among others."""
    for topic in ("t", "u"):
        lanelog_client.publish(topic, "k", b"x")
    names = []
    for group in ("a", "b"):
        for topic in ("t", "u"):
            made = Situations(raw, topic, group)
            made.register()
            for number in range(20):
                made.owner(f"m{number:02}", stopped=number == 19)
                names.append((group, topic, f"m{number:02}"))
    admin, found, after = lanelog_client.admin, [], None
    while page := admin.members(limit=7, after=after):
        found += [(each.group, each.topic, each.name) for each in page]
        after = (page[-1].topic, page[-1].group, page[-1].name)
    assert found == names
    behind = admin.members("u", "a", limit=2, after=("u", "a", "m04"))
    assert [each.name for each in behind] == ["m05", "m06"]
    visitor, address, seen = Visitor(dashboard(lanelog_client)), "/members", []
    while address:
        page = visitor.send("GET", address).text
        seen += re.findall(r"<span class=\"\">(m\d\d)</span>", page)
        assert len(seen) <= len(names)
        address = "".join(f"/{unescape(each)}" for each in re.findall(r'href="/(members[^"]*)">Next page', page))
    assert seen == [name for _, _, name in names]
    stopped = visitor.get("/members", state="stopped").text
    assert len(re.findall(r"<span class=\"\">m19</span>", stopped)) == 4
    assert visitor.get("/members", state="gone").status_code == HTTPStatus.NOT_FOUND


def test_members_behind_what_is_no_member_are_refused(lanelog_client: Client) -> None:
    """A place is a tuple of three names; within one group, of that group."""
    lanelog_client.subscribe("t", "g", accept).stop()
    members = lanelog_client.admin.members
    for wrong in (("t", "g"), (), "abc", ["t", "g", "m"], ("t", "g", 1), 7):
        with pytest.raises(ConfigurationError, match="after"):
            members(after=wrong)
    assert members("t", "g", after=("t", "g", "~")) == []
    for other in (("u", "g", "m"), ("t", "h", "m")):
        with pytest.raises(ConfigurationError, match="after must name a member of group g of topic t"):
            members("t", "g", after=other)


def test_members_needs_topic_and_group_or_neither(lanelog_client: Client, command: Command) -> None:
    """A topic alone, or a group alone, names no members."""
    for half in ({"topic": "t"}, {"group": "g"}):
        with pytest.raises(ConfigurationError, match="give both names or neither"):
            lanelog_client.admin.members(**half)
    assert "give both names or neither" in command("members", "t", status=2).stderr


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


@pytest.mark.thorough
def test_workers_that_wait_for_a_quarantined_message_are_busy(lanelog_client: Client, raw: Any) -> None:
    """The message hangs where it runs alone, so the process handles nothing: it is unhealthy until then."""
    seen, isolation = Record(), process_isolation()
    assert isolation.enter_alone(lambda: True)
    try:
        subscription = lanelog_client.subscribe("t", "g", seen, workers=2, unhealthy_after=60, **BEATS)
        lanelog_client.publish("t", "a", b"x")
        eventually(lambda: (w := workload(lanelog_client)) and w.busy == 1)
        let_pass(subscription, 100)
        assert lanelog_client.health().live  # one is free
        lanelog_client.publish("t", "b", b"x")
        eventually(lambda: (w := workload(lanelog_client)) and w.busy == 2)
        let_pass(subscription, 85)
        assert lanelog_client.health().live  # the second one has not waited for so long
        let_pass(subscription, 10)
        (why,) = lanelog_client.health().dying
        assert re.match(r"group 'g': 2 of 2 workers are busy, none has ended for 9\d s$", why)
        grow_older(raw, 65)
        eventually(lambda: "hung" in [each.what for each in problems(lanelog_client)])
    finally:
        isolation.leave()
    seen.wait(2)
    eventually(lambda: lanelog_client.health().live and (w := workload(lanelog_client)) and not w.busy)
