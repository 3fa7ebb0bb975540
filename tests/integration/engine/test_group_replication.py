"""One client on three members of a group of Group Replication, whose primaries are killed."""

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import lanelog
from lanelog.errors import ConfigurationError, DatabaseError
from support.group import USER, Group, group_of
from support.waiting import Record

pytestmark = pytest.mark.one_family("mysql")

KILLS = int(os.environ.get("LANELOG_FAILOVERS", "1"))
"""How many primaries die, one after the other: one in CI, ten in `make proof`."""
KEYS = ("a", "b", "c")


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Three members, with lanelog's tables; the account may see the members."""
    with group_of() as group:
        group.primary().tell(f"GRANT SELECT ON performance_schema.replication_group_members TO '{USER}'@'%'")
        with lanelog.connect(group.url) as client:
            client.migrate()
        yield group


@pytest.mark.thorough
@pytest.mark.timeout(120 + 60 * KILLS)
def test_no_acknowledged_message_is_lost_when_primaries_are_killed(group: Group) -> None:
    """Under load, by SIGKILL; the dead one is back before the next dies. What was acknowledged is handled, in order."""
    seen, acknowledged, over = Record(), {key: list[bytes]() for key in KEYS}, threading.Event()
    pauses: list[float] = []

    def publish(key: str) -> None:
        number = 0
        while not over.is_set():
            began = time.monotonic()
            client.publish("t", key, payload := f"{number}".encode())
            acknowledged[key].append(payload)
            pauses.append(time.monotonic() - began)
            number += 1

    with lanelog.connect(group.url, publish_timeout=60.0) as client:
        client.subscribe("t", "g", lambda message: seen((message.key, message.payload)))
        publishers = [threading.Thread(target=publish, args=(key,)) for key in KEYS]
        for publisher in publishers:
            publisher.start()
        try:
            for _ in range(KILLS):
                known = len(seen)
                seen.wait(known + 100, within=60)
                killed = group.primary()
                killed.kill()
                known = len(seen)
                seen.wait(known + 100, within=60)
                killed.restart()
                group.join(killed)
        finally:
            over.set()
            for publisher in publishers:
                publisher.join()
        for key in KEYS:
            last = acknowledged[key][-1]
            seen.until(lambda items, last=(key, last): last in items, within=60)
    for key in KEYS:
        handled = [payload for at, payload in seen.items if at == key]
        assert sorted(set(handled), key=int) == list(dict.fromkeys(handled)) == acknowledged[key]
    longest = sorted(pauses, reverse=True)[: KILLS * len(KEYS)]
    sys.stdout.write(
        f"{KILLS} primaries killed, {len(pauses)} published; longest pauses of {len(KEYS)} publishers: "
        f"median {statistics.median(longest):.1f} s, p99 {longest[len(longest) // 100]:.1f} s\n"
    )


@pytest.mark.thorough
def test_a_member_that_left_its_group_is_not_used(group: Group) -> None:
    """After a restart it takes writes, and its group never sees them. It alone answers, and is refused."""
    alone = next(member for member in group.members if member is not group.primary())
    alone.kill()
    alone.restart()
    assert alone.ask("SELECT @@GLOBAL.super_read_only") == [(0,)]
    others = [member for member in group.members if member is not alone]
    url = group.url
    for member in others:
        url = url.replace(f":{member.port}", ":1" if member is others[0] else ":2")
    with (
        lanelog.connect(url, publish_timeout=1.0) as client,
        pytest.raises(DatabaseError, match="OFFLINE in its group"),
    ):
        client.publish("t", "k", b"x")
    group.join(alone)


@pytest.mark.thorough
def test_an_account_that_may_not_see_the_members_is_refused(group: Group) -> None:
    """The client could not tell the primary from a member that has left. The error says which grant is missing."""
    group.primary().tell(f"REVOKE SELECT ON performance_schema.replication_group_members FROM '{USER}'@'%'")
    client, began = lanelog.connect(group.url), time.monotonic()
    try:
        with client, pytest.raises(ConfigurationError, match="GRANT SELECT ON performance_schema"):
            client.publish("t", "k", b"x")
        assert time.monotonic() - began < client.config.publish_timeout  # at once, not after repetitions
    finally:
        group.primary().tell(f"GRANT SELECT ON performance_schema.replication_group_members TO '{USER}'@'%'")


@pytest.mark.thorough
def test_doctor_wants_a_new_primary_to_apply_what_the_old_one_wrote(group: Group) -> None:
    """Under EVENTUAL a new primary takes writes too early, and refuses some of them afterwards."""
    primary = group.primary()
    before = primary.ask("SELECT @@GLOBAL.group_replication_consistency")[0][0]
    primary.tell("SET GLOBAL group_replication_consistency = 'EVENTUAL'")
    with lanelog.connect(group.url) as client:
        found = next(finding for finding in client.admin.doctor() if finding.check == "replication")
        primary.tell(f"SET GLOBAL group_replication_consistency = '{before}'")
        assert (found.status, "BEFORE_ON_PRIMARY_FAILOVER" in found.remedy) == ("warning", True)
        found = next(finding for finding in client.admin.doctor() if finding.check == "replication")
        assert found.status == "ok"
