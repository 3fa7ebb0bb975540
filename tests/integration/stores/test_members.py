"""Stores of who works, by the bare executor: rows in, rows out."""

from typing import Any

from lanelog._base.places import GroupTopic, LaneId
from lanelog._database import Database, Executor, Incarnation
from lanelog._stores import origins
from lanelog._stores.members import heartbeats, lease_removal, leases, member_rows
from lanelog._stores.members._heartbeat_rows import VERSION_WITH_WORKLOAD
from lanelog._stores.members.leases import Held, LeasesDigest, OwnedLane, TakenLeases
from lanelog._stores.origins import Origins
from lanelog.migrations import VERSION
from support.situations import Situations
from support.sql import one, rows

AT = GroupTopic(topic="t", group="g")
KEYS = ["a", "A", "ä", "日本", "😀", "a'b\"c\\d", "%_", " ", "x" * 191, "0", "e\u0301", "\u200d"]


def test_leases_are_made_taken_given_back_and_taken_away(cx: Executor) -> None:
    """Each change of the owner is a new epoch; who names another owner or epoch changes nothing."""
    leases.create(cx, AT, "a", ["k1", "k2", "k3"], 7)
    leases.create(cx, AT, "b", ["k1", "k4"], 9)
    assert leases.counts(cx, AT) == {"a": 3, "b": 1}
    assert leases.take(cx, AT, "b", ["k1", "k2", "none"], ["a"]) == TakenLeases(2, {})
    assert leases.take(cx, AT, "c", ["k1", "k4"], ["a", ""]) == TakenLeases(0, {})
    assert leases.owned_among(cx, AT, "b", ["k1", "k3"]) == [OwnedLane("k1", 8, paused=False)]
    leases.release(cx, AT, "b", [("k1", 7), ("k2", 8), ("k3", 7)])
    assert leases.counts(cx, AT) == {"": 1, "a": 1, "b": 2}
    leases.take_away(cx, [LaneId(topic="t", group="g", key=key) for key in ("k3", "new")], 20)
    held = leases.lock_owners(cx, AT, ["k2", "k3", "k4", "new", "none"])
    assert held == {"k2": Held("", 9), "k3": Held("", 8), "k4": Held("b", 9), "new": Held("", 20)}
    assert (leases.holds(cx, AT, "a"), leases.holds(cx, AT, "b")) == (False, True)


def test_the_server_and_the_keeper_compute_the_same_digest(cx: Executor, raw: Any) -> None:
    """Over keys of every kind and epochs up to 64 bits; one lane more, one less or another epoch is another digest."""
    owned = [OwnedLane(key, epoch, paused=False) for epoch, key in enumerate(KEYS, start=2**63 - 7)]
    for lane in owned:
        leases.create(cx, AT, "me", [lane.key], lane.epoch)
    rows(raw, "INSERT INTO queue_partition_leases VALUES ('g', 't', 'other', 'you', 1, 1), ('h', 't', 'a', 'me', 1, 1)")
    whole = leases.digest(cx, AT, "me")
    assert whole == LeasesDigest.of(owned) == LeasesDigest.of(owned[1:], LeasesDigest.of(owned[:1]))
    assert LeasesDigest.of([]) == LeasesDigest(0, 0)
    rows(raw, "UPDATE queue_partition_leases SET lease_epoch = lease_epoch + 1 WHERE partition_key = 'ä'")
    assert leases.digest(cx, AT, "me") != whole
    rows(raw, "UPDATE queue_partition_leases SET lease_epoch = lease_epoch - 1 WHERE partition_key = 'ä'")
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'you' WHERE partition_key = 'A'")
    assert leases.digest(cx, AT, "me") == LeasesDigest.of(lane for lane in owned if lane.key != "A")


def test_rows_of_members_long_gone_are_found_and_deleted(cx: Executor, made: Situations) -> None:
    """Not the own one, nor those of the living; the mark of an eviction stays until it is taken away."""
    made.owner("left", stopped=True)
    made.owner("silent", expires=-90)
    made.owner("me", stopped=True)
    made.owner("lives")
    heartbeats.mark_evicted(cx, AT)
    made._insert("queue_subscriber_heartbeats", {"subscriber_name": "left", "deregistered_at": 1}, group="other")
    assert heartbeats.purge_left(cx, AT, "me", 60) == 1
    assert heartbeats.silent(cx, AT, "me", 60) == ["silent"]
    assert [heartbeats.purge_silent(cx, AT, name, 60) for name in ("silent", "silent", "lives")] == [1, 0, 0]
    found = heartbeats.members_of(cx, "t", ["g", "other"], tables=VERSION)
    assert {group: sorted(row.owner for row in each) for group, each in found.items()} == {
        "g": ["lives", "me"],
        "other": ["left"],
    }
    assert heartbeats.evicted(cx, AT)
    heartbeats.unmark(cx, AT)
    assert not heartbeats.evicted(cx, AT)


def test_members_that_have_left_take_no_room_of_those_that_work(cx: Executor, made: Situations, raw: Any) -> None:
    """What workers do is read of 1,000 members at most, of those that have not left: they keep what they said."""
    raw.begin()
    for number in range(1000):
        made.owner(f"left-{number:04}", stopped=True, workload="{}")
    made.owner("works", workload="{}")
    raw.commit()
    found = member_rows.at_work(cx, "t", ["g"], tables=VERSION_WITH_WORKLOAD, handlers=True)
    assert [row.owner for row in found["g"]] == ["works"]


def test_leases_leave_with_their_lane_or_their_group(cx: Executor, database: Database, made: Situations) -> None:
    """A lane with a row that another transaction has locked stays: the highest of its epochs is not known."""
    for group, key, epoch in (("g", "a", 3), ("g", "b", 9), ("g", "c", 1), ("h", "a", 5), ("h", "b", 2)):
        made.lease(key, "me", epoch, group=group)
    with database.transaction() as other:
        assert lease_removal.lock_lane(other, "t", "a", ["h"]) == 5
        assert [lease_removal.lock_lane(cx, "t", "a", groups) for groups in (["g"], ["g", "h"])] == [3, None]
    assert [lease_removal.lock_lane(cx, "t", key, ["g", "h"]) for key in ("a", "none")] == [5, 0]
    lease_removal.purge(cx, "t", "a", ["h", "g", "none"])
    assert [lease_removal.keys_of_group(cx, AT, after) for after in ("", "b", "c")] == [["b", "c"], ["c"], []]
    assert lease_removal.max_epoch(cx, AT) == 9
    lease_removal.delete(cx, AT, ["none", "b"])
    assert lease_removal.max_epoch(cx, AT) == 1
    lease_removal.delete_group(cx, AT)
    assert lease_removal.max_epoch(cx, AT) == 0
    assert lease_removal.keys_of_group(cx, GroupTopic(topic="t", group="h")) == ["b"]


def test_heartbeats_say_which_server_wrote_them(cx: Executor, database: Database, made: Situations, raw: Any) -> None:
    """The latest heartbeat shows a copy. A member that left has no end, and a row of an older version has no server."""
    mariadb = database.facts().mariadb
    assert origins.load(cx, mariadb=mariadb) == Origins()
    here = one(raw, f"SELECT {Incarnation.identity_in_sql(mariadb=mariadb)}")
    members = (("mine", here, 5, 0), ("aside", "x", 4, 4), ("left", "x", 7, 1), ("old", "", 9, 0))
    for name, server, beat, left in members:
        times = {"heartbeat_at": beat, "expires_at": 10 * beat, "deregistered_at": left}
        made._insert("queue_subscriber_heartbeats", {"subscriber_name": name, "incarnation": server, **times})
    found = origins.load(cx, mariadb=mariadb)
    assert (found, found.copied) == (Origins(1, 2, 5, 7, 40, found.now), True)
    rows(raw, "UPDATE queue_subscriber_heartbeats SET heartbeat_at = 8 WHERE subscriber_name = 'mine'")
    assert not origins.load(cx, mariadb=mariadb).copied
