"""One judge of an owner's life: keepers, administration and the search for unattended groups agree on real rows."""

from math import inf
from typing import Any

import pytest
from attrs import frozen

from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog._database import Incarnation, server_start
from lanelog._engine.leasing.liveness import LivenessMonitor
from lanelog._log.lookup.liveness import may_live
from lanelog._log.lookup.owners import OwnerState
from lanelog._stores.consumers import groups
from lanelog._stores.members import heartbeats
from lanelog.admin import Admin
from support.situations import HOUR, NOW, Situations
from support.sql import rows

FREE, HELD = "lanelog-test-free", "lanelog-test-held"


@frozen(kw_only=True)
class Case:
    """An owner's row: how old its heartbeat is, for how long that was valid, in seconds, and its lock."""

    age: float
    lease: float
    lock: str
    restarted: bool = False
    stopped: bool = False
    aside: bool = False
    lives: bool


CASES = {
    "held and fresh": Case(age=2, lease=3600, lock=HELD, lives=True),
    "held and expired": Case(age=5400, lease=3600, lock=HELD, lives=True),
    "held and expired, aside": Case(age=5400, lease=3600, lock=HELD, aside=True, lives=True),
    "held and silent": Case(age=70, lease=2, lock=HELD, lives=False),
    "free and fresh": Case(age=2, lease=3600, lock=FREE, lives=False),
    "free and expired": Case(age=70, lease=2, lock=FREE, lives=False),
    "of an earlier run of the server and fresh": Case(age=2, lease=3600, lock=FREE, restarted=True, lives=True),
    "of an earlier run of the server and expired": Case(age=70, lease=2, lock=FREE, restarted=True, lives=False),
    "no lock and fresh": Case(age=2, lease=3600, lock="", lives=True),
    "no lock and expired": Case(age=70, lease=2, lock="", lives=False),
    "no lock and expired a moment ago": Case(age=30, lease=2, lock="", lives=False),
    "a heartbeat later than the clock": Case(age=-600, lease=2, lock="", lives=True),
    "deregistered": Case(age=2, lease=3600, lock=HELD, stopped=True, lives=False),
}


@pytest.fixture
def cases(made: Situations, raw: Any) -> dict[str, Case]:
    """Each case in a group of its own."""
    rows(raw, "SELECT GET_LOCK(%s, 0)", HELD)
    started = made.server_started_at()
    for name, case in CASES.items():
        made.group = name
        made.register(dead_letter_topic="")
        granted = started - HOUR if case.restarted else started
        made.owner(name, stopped=case.stopped, liveness_lock=case.lock, server_started_at=granted)
        sql = f"UPDATE queue_subscriber_heartbeats SET heartbeat_at = {NOW} - %s, expires_at = heartbeat_at + %s"
        rows(raw, f"{sql} WHERE consumer_group = %s", int(case.age * 1000), int(case.lease * 1000), name)
    aside = [name for name, case in CASES.items() if case.aside]
    rows(raw, "UPDATE queue_subscriber_heartbeats SET deregistered_at = heartbeat_at WHERE consumer_group IN %s", aside)
    return CASES


@pytest.mark.parametrize("read_lock", [False, True], ids=["writable", "read lock"])
def test_a_screen_shows_no_owner_dead_that_a_keeper_that_watched_it_calls_alive(
    lanelog_client: Client, admin: Admin, cases: dict[str, Case], raw: Any, read_lock: bool
) -> None:
    """The keeper has seen the row since its heartbeat was written, and the lock as it is now.

    A heartbeat that ran out is shown as such, whoever holds the lock: an operator may free the lanes at once.
    """
    if read_lock:
        rows(raw, "FLUSH TABLES WITH READ LOCK")
    for name, case in cases.items():
        with lanelog_client._database.autocommit() as cx:
            found = heartbeats.members(cx, GroupTopic(topic="t", group=name), tables=1)
            server = Incarnation(server_start(cx), "")
        keeper = LivenessMonitor(me="me", lease_duration=case.lease)
        for now in (0.0, max(0, found[0].now - found[0].heartbeat_at) / 1000):
            view = keeper.judge(found, now=now, steady_since=-inf, incarnation=server)
        (member,) = admin.members("t", name)
        assert member.state.lives == (case.lives and not found[0].expired), name
        assert member.state is not OwnerState.DEAD or not case.lives, name
        if case.stopped:
            assert (view.live, view.dead) == (("me",), ()), name
        else:
            assert (not view.dead) == case.lives, name


def test_the_search_for_unattended_groups_judges_as_the_judge(lanelog_client: Client, cases: dict[str, Case]) -> None:
    """The search has the condition in SQL once more, because it reads all members of all groups of a topic."""
    with lanelog_client._database.autocommit() as cx:
        unattended = {each.group for each in groups.unattended(cx, "t")}
        for name in cases:
            at = GroupTopic(topic="t", group=name)
            (row,) = heartbeats.members(cx, at, tables=1)
            assert may_live(row, silence_ms=groups.SILENCE_MS) == (name not in unattended), name
            assert (groups.unattended_now(cx, at) is None) == (name not in unattended), name
    assert "no lock and expired a moment ago" not in unattended
    assert {"no lock and expired", "free and expired", "deregistered"} <= unattended
