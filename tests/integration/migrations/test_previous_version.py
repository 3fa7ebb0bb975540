"""Processes of the version before and of this one, on the same tables: while they are upgraded, and while they are not.

The old ones run its wheel, built from the history of the repository.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import lanelog
from lanelog.migrations import VERSION
from lanelog.migrations.steps import added
from support.accounts import account
from support.firing import Firing
from support.old_tables import set_back
from support.previous import Previous
from support.processes import Fleet, Program
from support.sql import connect, one, owners, rows
from support.traffic import Traffic, shares, steady_load, wait_until_all_handled
from support.waiting import eventually

pytestmark = pytest.mark.thorough

KEYS = [f"repo-{n:02}" for n in range(12)]
PING = "import lanelog, sys; lanelog.connect(sys.argv[1]).ping()"


@pytest.fixture(scope="module")
def previous() -> Previous:
    return Previous()


@pytest.fixture
def old_url(empty_url: str, previous: Previous) -> str:
    """A database whose tables the version before has made."""
    made = previous.lanelog("migrate", "--url", empty_url)
    assert made.returncode == 0, made.stderr
    return empty_url


@pytest.fixture
def old_raw(old_url: str) -> Iterator[Any]:
    with connect(old_url) as raw:
        yield raw


@pytest.fixture
def old_fleet(old_url: str) -> Iterator[Fleet]:
    fleet = Fleet(old_url)
    yield fleet
    fleet.close()


def takes_over(fleet: Fleet, raw: Any, traffic: Traffic, victim: Program, others: list[Program]) -> None:
    """Kill one: the others share its lanes between them, and each of the lanes goes on."""
    orphans = {key for key, owner in owners(raw, "g", "t").items() if owner.startswith(f"{victim.name}:")}
    assert orphans
    at = victim.kill()
    wanted = {other.name: len(KEYS) // len(others) for other in others}
    eventually(lambda: shares(raw) == wanted, within=30, what=f"the shares {wanted}")
    reached = traffic.each

    def further(lines: Any) -> bool:
        seen = [line for line in lines if line.event == "handled" and line.at > at and line.process != victim.name]
        return {line["key"] for line in seen if line["offset"] > reached} >= orphans

    fleet.journal.until(further, within=30, what="what was published after the kill")


@pytest.mark.parametrize("migrated", ["before any starts", "before the new ones start", "while both run", "never"])
def test_old_and_new_share_a_group_and_take_over_from_each_other(
    old_url: str, old_raw: Any, old_fleet: Fleet, previous: Previous, migrated: str
) -> None:
    """One of each is killed under load: nothing is lost, nothing out of order, nobody reports an error."""
    with lanelog.connect(old_url) as client, steady_load(client, "t", KEYS) as traffic:
        if migrated == "before any starts":  # what was before looks at the version only where it is asked to check
            assert client.migrate()
        old = [old_fleet.worker(name, sleep=0.01, environment=previous.environment) for name in ("old1", "old2")]
        if migrated == "before the new ones start":
            assert client.migrate()
        new = [old_fleet.worker(name, sleep=0.01) for name in ("new1", "new2")]
        for program in (*old, *new):
            (ready,) = program.said("ready")
            assert ready["code"].startswith(str(previous.path)) is (program in old)
        balanced = {worker.name: 3 for worker in (*old, *new)}
        eventually(lambda: shares(old_raw) == balanced, within=30, what=f"the shares {balanced}")
        if migrated == "while both run":
            assert client.migrate()
        takes_over(old_fleet, old_raw, traffic, old[0], [old[1], *new])
        takes_over(old_fleet, old_raw, traffic, new[0], [old[1], new[1]])
        if migrated == "never":
            assert {line.process for line in old_fleet.logged("tables.older")} == {"new1", "new2"}
        else:
            assert client.migrate() == []
    assert wait_until_all_handled(old_fleet, traffic) == traffic.offsets()
    assert [line["text"] for line in old_fleet.heard("log") if line["level"] not in ("INFO", "WARNING")] == []


def test_upgraded_tables_are_as_new_ones(old_url: str, old_raw: Any, lanelog_url: str) -> None:
    """Column by column and comment by comment: what the version before made, and this one has added to."""
    with lanelog.connect(old_url) as client:
        client.migrate()
    with connect(lanelog_url) as fresh:
        tables = [table for (table,) in rows(fresh, "SHOW TABLES")]
        for table in tables:
            assert rows(old_raw, f"SHOW CREATE TABLE {table}") == rows(fresh, f"SHOW CREATE TABLE {table}")
    assert tables


def test_tables_that_are_set_back_are_those_of_the_version_before(old_url: str, old_raw: Any, lanelog_url: str) -> None:
    """The other tests of old tables, which need no wheel, look at the right ones."""
    with connect(lanelog_url) as fresh:
        set_back(fresh, one(old_raw, "SELECT MAX(version) FROM queue_schema"))
        for (table,) in rows(fresh, "SHOW TABLES"):
            assert rows(old_raw, f"SHOW CREATE TABLE {table}") == rows(fresh, f"SHOW CREATE TABLE {table}")
    assert added()


def test_the_version_before_works_on_newer_tables_as_long_as_they_admit_it(
    lanelog_url: str, raw: Any, previous: Previous
) -> None:
    """The older version changes nothing there; refused, its own error asks for an upgrade."""
    asked = [lambda: previous.script(PING, lanelog_url), lambda: previous.lanelog("migrate", "--url", lanelog_url)]
    for ask in asked:
        done = ask()
        assert done.returncode == 0, done.stderr
    rows(raw, "UPDATE queue_schema SET oldest_code = version WHERE version = %s", VERSION)
    for ask in asked:
        done = ask()
        assert done.returncode != 0
        assert f"are of version {VERSION}" in done.stderr
        assert "upgrade lanelog in this process" in done.stderr
    with lanelog.connect(lanelog_url) as client:
        client.ping()
        assert client.migrate() == []


def test_the_version_before_takes_the_lanes_of_who_stands_aside(
    old_url: str, old_raw: Any, old_fleet: Fleet, previous: Previous
) -> None:
    """A new client without a fetcher leaves the plan of an old worker, too, and comes back into it."""
    with lanelog.connect(old_url) as client, account(old_raw, old_url, {"*": "ALL"}) as url:
        client.migrate()
        client.publish_many("t", [(key, "{}") for key in KEYS])
        user = lanelog.config.ConnectConfig.from_url(url).user
        rows(old_raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS 2")
        old_fleet.worker("old", environment=previous.environment)
        with lanelog.connect(url, pool_size=2) as lacking:
            lacking.subscribe("t", "g", lambda _message: None, name="new")
            eventually(lambda: shares(old_raw) == {"old": 6, "new": 6}, within=30, what="equal shares")
            eventually(lambda: shares(old_raw) == {"old": 12}, within=30, what="all lanes for the old worker")
            rows(old_raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS 20")
            eventually(lambda: shares(old_raw) == {"old": 6, "new": 6}, within=40, what="equal shares again")


def test_old_workers_have_open_lanes_beside_new_ones(
    old_url: str, old_raw: Any, old_fleet: Fleet, previous: Previous
) -> None:
    """To them these are lanes like any other: no message waits for somebody who would not take it."""
    with lanelog.connect(old_url) as client:
        client.migrate()
        client.publish_many("t", [(key, "{}") for key in KEYS])
        old_fleet.worker("old", environment=previous.environment)
        old_fleet.worker("new")
        sent = [client.publish("t", None, "{}") for _ in range(200)]
        eventually(lambda: shares(old_raw) == {"old": 38, "new": 38}, within=60, what="shares of 76 lanes")
        sent += [client.publish("t", None, "{}") for _ in range(200)]

        def handled(lines: Any) -> bool:
            found = {(line["key"], line["offset"]) for line in lines if line.event == "handled"}
            return found >= {(receipt.key, receipt.offset) for receipt in sent}

        old_fleet.journal.until(handled, within=60, what="every message")


@pytest.mark.parametrize("migrated", ["before any starts", "never"])
def test_old_and_new_fire_a_schedule_once_where_clocks_are_set_back(
    old_url: str, old_raw: Any, old_fleet: Fleet, previous: Previous, migrated: str
) -> None:
    """In turns, and with restarts: each half hour of that night has one message, at its moment. No clock went back."""
    with lanelog.connect(old_url) as client:
        if migrated == "before any starts":
            assert client.migrate()
        old = Firing.start(old_fleet, "old", previous.environment)
        new = Firing.start(old_fleet, "new", {})
        old.tell(declare="*/30 * * * *", timezone="Europe/Berlin", catch_up="all")
        first = datetime(2027, 10, 30, 23, tzinfo=UTC)
        begin = int(first.timestamp() * 1000)
        rows(old_raw, "UPDATE queue_schedules SET next_fire_at = %s, expression_at = 1", begin)
        for number in range(16):
            for process in (old, new) if number % 3 else (new, old):
                if number % 2:
                    process.tell(start=True)
                process.tell(turn=begin + number * 15 * 60_000)
        messages = client.admin.messages("t", "k")
    assert {message.id.endswith("Z") for message in messages} == {True, False}  # each has fired some, under its ids
    found = [message.metadata["lanelog.fire_time"] for message in messages]
    assert found == [f"{first + timedelta(minutes=30 * number):%Y-%m-%dT%H:%M:%SZ}" for number in range(8)]
    assert not old_fleet.logged("schedule.clock_went_back")
    assert not old_fleet.logged("schedule.tzdata_differs")
