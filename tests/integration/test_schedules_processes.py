"""Recurring messages by several processes: wrong clocks, and processes that are killed before and after COMMIT."""

from typing import Any

import pytest

import lanelog
from lanelog import Client
from support.processes import Fleet
from support.sql import one, rows
from support.stage import Stage
from support.ticking import consecutive, every_second, fire_times
from support.waiting import eventually

NOW = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) DIV 1000"
SECONDS = 15


@pytest.mark.thorough
def test_five_processes_with_clocks_an_hour_apart_publish_once_a_second(fleet: Fleet, lanelog_client: Client) -> None:
    """As many messages as seconds, no duplicate, none missing."""
    every_second(fleet, lanelog_client, SECONDS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("after schedules.TRY_LOCK", 0),
        ("before COMMIT following schedules.ADVANCE", 0),
        ("after COMMIT following schedules.ADVANCE", 1),
    ],
)
def test_a_process_killed_at_the_commit_loses_and_doubles_nothing(
    stage: Stage, lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, point: str, left: int
) -> None:
    """What it has not committed another one fires; what it has committed nobody fires again."""
    monkeypatch.setattr(Client, "_start_scheduler", lambda _client, **_: None)
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
    """Another process fired it, or somebody paused or removed it, between the look and the lock."""
    monkeypatch.setattr(Client, "_start_scheduler", lambda _client, **_: None)
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
    lanelog_client: Client, lanelog_url: str, raw: Any
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
