"""Recurring messages by several processes: wrong clocks, other time zone data, kills before and after COMMIT."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._client.announcements import ClientAnnouncements
from support.clocks import clock, libfaketime
from support.firing import Firing
from support.processes import Fleet
from support.sql import one, rows
from support.stage import Stage
from support.waiting import eventually
from support.zones import tzdata

NOW = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000"
SECONDS = 15
CLOCKS = [None, "+1h", "-1h", "+1h", "-1h"]
PAGE = 1000


def fire_times(client: Client) -> list[datetime]:
    """What the messages in the lane say, in its order."""
    if not any(topic.topic == "t" and topic.lanes for topic in client.admin.topics()):
        return []
    found = client.admin.messages("t", "k", limit=PAGE)
    return [datetime.fromisoformat(message.metadata["lanelog.fire_time"]) for message in found]


def consecutive(times: list[datetime]) -> bool:
    """Whether there is one for each second, in order."""
    return times == [times[0] + timedelta(seconds=number) for number in range(len(times))]


@pytest.mark.thorough
def test_five_processes_with_clocks_an_hour_apart_publish_once_a_second(fleet: Fleet, lanelog_client: Client) -> None:
    """There are as many messages as seconds, no duplicate, none missing."""
    library = libfaketime()
    programs = [
        fleet.start(
            f"p{number}", "ticking.py", environment=clock(library, wrong) if wrong else {}, expression="* * * * * *"
        )
        for number, wrong in enumerate(CLOCKS)
    ]
    read = [program.said("ready")[0]["clock"] - time.time() for program in programs]
    assert max(read) - min(read) == pytest.approx(7200, abs=60)
    begin = len(fire_times(lanelog_client))
    eventually(
        lambda: len(fire_times(lanelog_client)) >= begin + SECONDS,
        within=SECONDS + 15,
        what="a message for each second",
    )
    for program in programs:
        program.tell("stop")
    for program in programs:
        assert program.ended() == 0
    found = lanelog_client.admin.messages("t", "k", limit=PAGE)
    times = fire_times(lanelog_client)
    assert len(times) == len({message.id for message in found})
    assert consecutive(times)
    late = [message.published_at - at for message, at in zip(found, times, strict=True)]
    assert min(late) >= timedelta(0)  # by the server's clock, not by any of theirs
    assert max(late) < timedelta(seconds=5)  # what would count as missed
    assert not fleet.logged("schedule.missed")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("after schedules.TRY_LOCK", 0),
        ("before COMMIT following schedules.ADVANCE_WALL", 0),
        ("after COMMIT following schedules.ADVANCE_WALL", 1),
    ],
)
def test_a_process_killed_at_the_commit_loses_and_doubles_nothing(
    stage: Stage, lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, point: str, left: int
) -> None:
    """Another process fires what was not committed, and nobody fires again what was."""
    monkeypatch.setattr(ClientAnnouncements, "scheduled", lambda _announcements, **_: None)
    lanelog_client.schedule("s", "0 0 1 1 *", "t", "k", b"x")
    lanelog_client.publish_many("t", [("k", b"x"), ("other", b"x")])
    rows(raw, "DELETE FROM queue_messages")
    rows(raw, f"UPDATE queue_schedules SET next_fire_at = ({NOW}) DIV 1000 * 1000")
    first, call = stage.paused_in(point, "fire")
    assert len(fire_times(lanelog_client)) == left
    other = stage.actor("other")
    assert other.do("fire") == 0  # not while the first one has it, nor when it is done
    first.program.kill()
    eventually(lambda: other.do("fire") == 1 or len(fire_times(lanelog_client)) == 1, what="the other one firing it")
    assert len(fire_times(lanelog_client)) == 1
    assert other.do("fire") == 0
    assert one(raw, "SELECT fired FROM queue_schedules") == 1
    assert not call.done


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["fired", "paused", "removed"])
def test_what_changed_since_it_was_seen_to_be_due_is_not_fired(
    stage: Stage, lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Another process fired it, or somebody paused or removed it, between the poll and the lock."""
    monkeypatch.setattr(ClientAnnouncements, "scheduled", lambda _announcements, **_: None)
    lanelog_client.schedule("s", "0 0 1 1 *", "t", "k", b"x")
    rows(raw, f"UPDATE queue_schedules SET next_fire_at = ({NOW}) DIV 1000 * 1000")
    first, call = stage.paused_in("before schedules.TRY_LOCK", "fire")
    if then == "fired":
        assert stage.actor("other").do("fire") == 1
    elif then == "paused":
        lanelog_client.admin.pause_schedule("s")
    else:
        lanelog_client.admin.remove_schedule("s")
    first.go("before schedules.TRY_LOCK")
    assert call.result() == 0
    assert len(fire_times(lanelog_client)) == (then == "fired")


@pytest.mark.thorough
def test_a_client_that_schedules_fires_by_itself_and_one_that_subscribes_too(
    lanelog_client: Client, lanelog_url: str
) -> None:
    """From the declaration on, until it is closed; then those that are left go on."""
    with lanelog.connect(lanelog_url) as declaring:
        declaring.schedule("tick", "* * * * * *", "t", "k", b"x")
        eventually(lambda: len(fire_times(lanelog_client)) >= 2, within=20)
    count = len(fire_times(lanelog_client))
    handled: list[str] = []
    subscription = lanelog_client.subscribe("t", "g", lambda message: handled.append(message.id))
    eventually(lambda: len(handled) >= count + 2, within=20)
    subscription.stop()
    assert consecutive(fire_times(lanelog_client))
    assert sorted(handled)[: count + 2] == [
        f"tick@{each:%Y-%m-%dT%H:%M:%SZ}" for each in fire_times(lanelog_client)[: count + 2]
    ]


# -- other time zone data ----------------------------------------------------------------------------------------------

ZONE = "Europe/Berlin"
HOUR = 3600
NOON = "0 12 * * *"


@pytest.fixture
def old_data(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose Berlin is an hour ahead of UTC, always."""
    return {"PYTHONTZPATH": tzdata(tmp_path / "old", "2026a", ZONE, HOUR)}


@pytest.fixture
def new_data(tmp_path: Path) -> dict[str, str]:
    """The same after the country has moved to two hours."""
    return {"PYTHONTZPATH": tzdata(tmp_path / "new", "2026b", ZONE, 2 * HOUR)}


def message_ids(client: Client) -> list[str]:
    return [message.id for message in client.admin.messages("t", "k")]


def declared_by(process: Firing, raw: Any, expression: str = NOON, catch_up: str = "latest") -> int:
    """Declare; the moment of the first time."""
    process.tell(declare=expression, timezone=ZONE, catch_up=catch_up)
    return int(one(raw, "SELECT next_fire_at FROM queue_schedules"))


@pytest.mark.thorough
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_two_processes_with_different_time_zone_data_publish_once_a_day(
    fleet: Fleet,
    lanelog_client: Client,
    raw: Any,
    old_data: dict[str, str],
    new_data: dict[str, str],
    catch_up: str,
    restarted: bool,
) -> None:
    """Five noons are five messages, named by the wall clock, whoever is first; no word of a clock that went back."""
    old, new = Firing.start(fleet, "old", old_data), Firing.start(fleet, "new", new_data)
    first = declared_by(old, raw, catch_up=catch_up)
    for day in range(5):
        for number, minutes in enumerate((-90, -60, -59, -30, 0, 1, 30, 60)):
            for process in (old, new) if (day + number) % 2 else (new, old):
                if restarted:
                    process.tell(start=True)
                process.tell(turn=first + day * 24 * HOUR * 1000 + minutes * 60_000)
    day = datetime.fromtimestamp(first / 1000, UTC)
    noons = [f"s@{day + timedelta(days=each):%Y-%m-%dT12:00:00}[Europe/Berlin]" for each in range(5)]
    assert message_ids(lanelog_client) == noons
    assert one(raw, "SELECT fired FROM queue_schedules") == 5
    assert not fleet.logged("schedule.clock_went_back")
    assert not fleet.logged("schedule.missed")
    for line in fleet.logged("schedule.tzdata_differs"):
        other = {"old": "planned_with=2026b tzdata=2026a", "new": "planned_with=2026a tzdata=2026b"}[line.process]
        assert other in line["text"]
    assert fleet.logged("schedule.tzdata_differs")
