"""Administration, looking at groups, members, leases and topics: what is added up, and who is alive."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from attrs import evolve

from lanelog import Client, DatabaseError
from lanelog._base.places import GroupTopic
from lanelog._log.lookup.owners import UNKNOWN
from lanelog._stores.log import lane_columns
from lanelog._stores.members import heartbeats
from lanelog.admin import Admin, OwnerState
from lanelog.admin.totals import group_lanes, group_sums, topics
from lanelog.admin.totals.ages import Breadth
from support.refusing import refused
from support.situations import HOUR, Situations, around, fill
from support.sql import one, rows

# -- groups, members, leases -------------------------------------------------------------------------------------------


def test_a_group_is_the_sum_of_its_lanes(made: Situations, admin: Admin) -> None:
    """Lag, waiting and in flight of a group are exactly those of its lanes, whatever they are in the middle of."""
    for key in ("ahead", "running", "dead", "floor", "waiting", "drained"):
        made.fill(key, 9)
    made.owner("alice")
    made.owner("bob", expires=-5)
    made.place("ahead", 3)
    made.row("ahead", 5, through=7, acked=1)
    made.row("ahead", 1, retry_count=1)
    made.lease("running", "alice", 7)
    made.place("running", 2, marked_through=6, marked_epoch=7)
    made.row("running", 4, retry_count=2, lease_epoch=7)
    made.row("running", 5, acked=1)
    made.lease("dead", "bob", 9)
    made.place("dead", 1, marked_through=4, marked_epoch=8)
    made.row("dead", 3, retry_count=2, lease_epoch=8)
    made.place("floor", 4, group="")
    made.place("waiting", 1)
    made.row("waiting", 2, retry_count=1, due=60)
    made.row("waiting", 3, postponed=1, due=60)
    made.place("drained", 9)
    made.written("waiting", 2, ago=5000)
    lanes = admin.lanes("t", "g")
    (group,) = admin.groups("t")
    assert (group.lanes, group.lag, group.lagging_lanes) == (7, sum(lane.lag for lane in lanes), 6)
    assert group.lag == 1 + 3 + 6 + 8 + 5 + 8
    assert (group.in_flight, group.waiting) == (3, 3 + 2)
    assert group.in_flight == sum(lane.in_flight for lane in lanes)
    assert group.waiting == sum(lane.waiting for lane in lanes)
    assert (group.members, group.owned_lanes, group.stale_lanes) == (1, 1, 1)
    assert around(group.oldest_age, 5000)


@pytest.mark.thorough
def test_many_groups_read_together_are_as_each_read_alone(
    lanelog_client: Client, made: Situations, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they are, whichever lanes they have rows in, and however many pages and statements it takes."""
    monkeypatch.setattr(lane_columns, "PAGE", 4)
    keys = [f"k{number}" for number in range(7)]
    for number, key in enumerate(keys):
        fill(lanelog_client, key, 9)
        made.place(key, number % 3, group="")
        made.written(key, 4, ago=1000 * (number + 1))
    names = [f"g{number:02}" for number in range(12)]  # more than one statement takes
    for number, name in enumerate(names):
        its = Situations(made.raw, group=name)
        its.register()
        for at, key in enumerate(keys[: number % 9]):
            its.place(key, (number + at) % 11, paused_at=at % 2, marked_through=at + 3, marked_epoch=at % 3)
            its.lease(key, "alice", at % 3 + number % 2)
        its.row("k1", 5, through=7, acked=1)
        its.row("k2", 3 + number % 4, retry_count=2, lease_epoch=number % 3, first_attempt_at=1)
    database = lanelog_client._database
    together = {each.group: each for each in topics.groups(database, "t")}
    lean = {each.group: each for each in topics.groups(database, "t", Breadth(exact=0, candidates=2))}
    for name in names:
        lanes = admin.lanes("t", name)
        group = together[name]
        (alone,) = topics.groups(database, "t", group=name)
        for each in (alone, lean[name]):
            ages = {"oldest_age": group.oldest_age, "oldest_age_exact": True}
            assert evolve(each, members_unchanged=group.members_unchanged, **ages) == group
        assert (group.lanes, group.head) == (8, sum(lane.head for lane in lanes))
        assert group.lag == sum(lane.lag for lane in lanes)
        assert group.lagging_lanes == sum(lane.head > lane.watermark for lane in lanes)
        assert group.paused_lanes == sum(lane.paused_at is not None for lane in lanes)
        assert group.in_flight == sum(lane.in_flight for lane in lanes)
        assert group.waiting == sum(lane.waiting for lane in lanes)
        oldest = max((lane.oldest_age for lane in lanes if lane.oldest_age is not None), default=0.0)
        assert around(group.oldest_age or 0.0, oldest)


def test_a_column_that_does_not_fit_into_one_text_is_read_in_parts(
    lanelog_client: Client, made: Situations, admin: Admin
) -> None:
    """A server that cuts texts off changes no figure."""
    keys = [f"{number:02}{'é' * 200}" for number in range(20)]
    lanelog_client.publish_many("t", [(key, b"x") for key in keys for _ in range(3)])
    for number, key in enumerate(keys):
        made.place(key, number % 4)
    with lanelog_client._database.snapshot() as cx:
        whole = group_lanes.load(cx, "t", ["g"], 5)["g"]
        for most in (2000, 1024):
            cx.execute("SET SESSION group_concat_max_len = %s", (most,))
            assert evolve(group_lanes.load(cx, "t", ["g"], 5)["g"], now=whole.now) == whole
        cx.execute("SET SESSION group_concat_max_len = 100")
        with pytest.raises(DatabaseError, match="group_concat_max_len"):
            group_lanes.load(cx, "t", ["g"], 5)
        cx.execute("SET SESSION group_concat_max_len = 1048576")  # the pool lends it again
    assert (whole.count, whole.lagging, whole.behind) == (21, 15 + 1, admin.groups("t")[0].lag)


@pytest.mark.parametrize("most", [1, 3, 4, 5, 8, 100])
def test_groups_beyond_heads_are_found_among_the_first_lanes(
    lanelog_client: Client, made: Situations, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The search reads as many lanes as asked for, in the order of keys, over any pages; the floor counts, too."""
    monkeypatch.setattr(lane_columns, "PAGE", 4)
    keys = [f"k{number}" for number in range(9)]
    for number, key in enumerate(keys):
        fill(lanelog_client, key, 2)
        made.place(key, 2 + number % 2)
    made.place("k4", 3, group="")
    with lanelog_client._database.snapshot() as cx:
        first = [key for lanes, _ in lane_columns.pages(cx, "t", ["", "g"], most) for key in lanes.keys]
        beyond = set(lane_columns.beyond_heads(cx, "t", ["", "g"], most))
    assert first == ["first", *keys][:most]  # the fixture's lane is "first"
    assert beyond == {*first} & {"k1", "k3", "k4", "k5", "k7"}


def test_a_key_with_a_tab_is_named(made: Situations, admin: Admin) -> None:
    """Only another program can have written it; no figure is wrong without a word."""
    made.fill("k", 1)
    rows(made.raw, "INSERT INTO queue_partitions (topic, partition_key, created_at) VALUES ('t', %s, 1)", "a\tb")
    with pytest.raises(DatabaseError, match="a tab in it"):
        admin.groups("t")


def test_what_is_collected_meanwhile_makes_no_group_young(
    made: Situations, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first messages are settled and collected between the sums and the ages: the next one is the oldest."""
    made.fill("k", 5)
    for offset in range(1, 6):
        made.written("k", offset, ago=3600)
    made.place("k", 0)
    load = group_sums.load

    def collected(*given: Any) -> Any:
        sums = load(*given)
        for group in ("g", ""):
            made.place("k", 2, group=group)
        for offset in (1, 2):
            made.lose("k", offset)
        return sums

    monkeypatch.setattr(group_sums, "load", collected)
    (group,) = admin.groups("t")
    assert around(group.oldest_age, 3600)


def test_the_lag_of_one_group_is_found_among_any_number_of_groups(
    lanelog_client: Client, made: Situations, admin: Admin
) -> None:
    """The groups that are asked for count for the limit, and no others."""
    lag = partial(topics.lag, lanelog_client._database, limit=2)
    made.fill("k", 3)
    for name in ("a", "b", "z"):
        made.register(name)
    assert [each.group for each in lag("t", None)] == ["a", "b"]
    assert [(each.topic, each.group, each.lag) for each in lag("t", "z")] == [("t", "z", 1 + 3)]
    assert [(each.topic, each.group) for each in lag(None, "z")] == [("t", "z")]
    assert "no group 'y' is registered for any topic" in refused(admin.lag, group="y")
    assert "no group 'y' is registered for topic 't'" in refused(admin.lag, "t", "y")
    assert "no topic 'other'" in refused(admin.lag, "other", "z")


def test_owners_are_alive_aside_dead_expired_stopped_or_missing(made: Situations, admin: Admin, raw: Any) -> None:
    """By their heartbeat, and by the lock that a dead process does not hold; a restart of the server proves nothing."""
    started = made.server_started_at()
    rows(raw, "SELECT GET_LOCK('lanelog-test-held', 0)")
    made.owner("alive", liveness_lock="lanelog-test-held", server_started_at=started)
    made.owner("dead", liveness_lock="lanelog-test-free", server_started_at=started)
    made.owner("restarted", liveness_lock="lanelog-test-free", server_started_at=started - HOUR)
    made.owner("expired", expires=-10)
    made.owner("stopped", stopped=True)
    made.owner("aside", liveness_lock="lanelog-test-held", server_started_at=started)
    rows(raw, "UPDATE queue_subscriber_heartbeats SET deregistered_at = heartbeat_at WHERE subscriber_name = 'aside'")
    for number, name in enumerate(("alive", "aside", "dead", "restarted", "expired", "stopped", "missing", "")):
        made.fill(name or "nobody", 1)
        made.lease(name or "nobody", name, number + 1)
    states = {lease.key: lease.owner_state for lease in admin.leases("t", "g")}
    as_named = {name: OwnerState(name) for name in ("alive", "aside", "dead", "expired", "stopped", "missing")}
    assert states == {**as_named, "restarted": OwnerState.ALIVE, "nobody": None}
    stale = admin.leases(stale=True)
    assert [lease.key for lease in stale] == ["dead", "expired", "missing", "stopped"]
    assert all(lease.stale for lease in stale)
    assert {lease.key for lease in admin.leases() if not lease.stale} == {"alive", "aside", "restarted", "nobody"}
    assert [lease.lease_left for lease in stale[1:]] == [0.0, 0.0, 0.0]
    members = {member.name: member for member in admin.members("t", "g")}
    seen = {name: member.state for name, member in members.items()}
    assert seen == {name: state for name, state in states.items() if name not in ("missing", "nobody")}
    assert [members[name].lanes for name in ("alive", "dead")] == [1, 1]
    assert members["aside"].stopped_at is None
    assert members["aside"].lease_left > 0
    (group,) = admin.lag("t", "g")
    assert (group.members, group.stale_lanes) == (3, 4)
    assert members["dead"].found_dead_by is None
    assert members["stopped"].stopped_at == datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)


def test_a_dead_member_stays_dead_when_others_have_deregistered_it(
    lanelog_client: Client, made: Situations, admin: Admin, raw: Any
) -> None:
    """The member's row names the first of two that found it dead, until it writes a heartbeat or leaves by itself."""
    at, started = GroupTopic(topic="t", group="g"), made.server_started_at()
    made.owner("killed", liveness_lock="lanelog-test-free", server_started_at=started)
    beat = one(raw, "SELECT heartbeat_at FROM queue_subscriber_heartbeats")

    def seen() -> tuple[OwnerState, str | None, bool]:
        (member,) = admin.members("t", "g")
        return member.state, member.found_dead_by, member.stopped_at is None

    with lanelog_client._database.transaction() as cx:
        heartbeats.deregister_dead(cx, at, "killed", beat, by="ä" + "x" * 200)
        heartbeats.deregister_dead(cx, at, "killed", beat, by="late")
    assert seen() == (OwnerState.DEAD, "?" + "x" * 55, True)
    assert [(each.name, each.state) for each in admin.groups("t")[0].last_members] == [("killed", OwnerState.DEAD)]
    with lanelog_client._database.transaction() as cx:
        heartbeats.deregister(cx, at, "killed")
    assert seen() == (OwnerState.STOPPED, None, False)
    with lanelog_client._database.transaction() as cx:
        heartbeats.deregister_dead(cx, at, "killed", beat, by="𝄞" * 200)
        assert len(heartbeats.members(cx, at, tables=1)) == 1  # its name is short enough for the function on locks
        heartbeats.beat(cx, at, "killed", duration=60, lock="", incarnation=UNKNOWN, tables=1)
    assert seen() == (OwnerState.ALIVE, None, True)
    assert admin.groups("t")[0].last_members == ()


def test_nothing_is_in_flight_without_a_living_member(made: Situations, admin: Admin) -> None:
    """Messages of a dead owner count as waiting, in its lane as in the sums of the group."""
    made.fill("k", 5)
    made.owner("bob", expires=-60)
    made.lease("k", "bob", 7)
    made.place("k", 1, marked_through=3, marked_epoch=7)

    def seen() -> list[tuple[int, int]]:
        (group,) = admin.groups("t")
        (lane,) = [each for each in admin.lanes("t", "g") if each.key == "k"]
        return [(each.in_flight, each.waiting) for each in (group, lane)]

    assert seen() == [(0, 2), (0, 2)]
    made.owner("alice")
    assert seen() == [(2, 0), (2, 0)]


def test_leases_of_several_topics_and_groups(lanelog_client: Client, raw: Any, admin: Admin) -> None:
    """By topic, group and key, of one topic or one group if asked, cut by the limit."""
    for topic, group in (("a", "x"), ("a", "y"), ("b", "x")):
        made = Situations(raw, topic, group)
        made.register()
        for key in ("k1", "k2"):
            lanelog_client.publish(topic, key, b"x")
            made.lease(key, "gone", 3)

    def found(*args: Any, **options: Any) -> list[str]:
        return [f"{lease.topic}/{lease.group}/{lease.key}" for lease in admin.leases(*args, **options)]

    assert found() == ["a/x/k1", "a/x/k2", "a/y/k1", "a/y/k2", "b/x/k1", "b/x/k2"]
    assert found(group="x") == ["a/x/k1", "a/x/k2", "b/x/k1", "b/x/k2"]
    assert found("a", limit=3) == ["a/x/k1", "a/x/k2", "a/y/k1"]
    assert found("b", "x", stale=True, limit=1) == ["b/x/k1"]
    assert [f"{group.topic}/{group.group}" for group in admin.groups()] == ["a/x", "a/y", "b/x"]


def test_offsets_of_every_group(made: Situations, admin: Admin) -> None:
    """By key and group; the limit counts places, not lanes."""
    made.register("h")
    for key in ("a", "b"):
        made.fill(key, 4)
    made.place("a", 3)
    made.place("b", 2, group="h")
    places = [(place.key, place.group, place.watermark) for place in admin.offsets("t")]
    assert places[:5] == [("a", "g", 3), ("a", "h", 0), ("b", "g", 0), ("b", "h", 2), ("first", "g", 0)]
    assert [(place.key, place.group) for place in admin.offsets("t", limit=3)] == [("a", "g"), ("a", "h"), ("b", "g")]
    assert [place.key for place in admin.offsets("t", "h")] == ["a", "b", "first"]


# -- topics ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_topics_are_added_up(lanelog_client: Client, raw: Any, admin: Admin) -> None:
    """Lanes, what the log holds, heads and floors; dead letters belong to the longest name they begin with."""
    assert (admin.topics(), admin.groups(), admin.leases()) == ([], [], [])
    for topic in ("fork_dlq", "merge", "merge_cat", "merge_fast", "merge_fast_dlq", "merge_dlq", "merge_old"):
        fill(lanelog_client, "k", 6, topic)
    fill(lanelog_client, "l", 4, "merge")
    rows(raw, "UPDATE queue_partitions SET holds_dead_letters = 1 WHERE topic LIKE '%%dlq' AND partition_key = ''")
    Situations(raw, "merge").register("builders")
    Situations(raw, "merge").register("auditors")
    Situations(raw, "merge").place("k", 5, group="", marked_through=4)
    Situations(raw, "merge_dlq").place("k", 2, group="", marked_through=2)
    Situations(raw, "merge_dlq").settle_letter("merge_dlq", "k", 2)  # collected already, its row about to go
    Situations(raw, "merge_dlq").settle_letter("merge_dlq", "k", 5)
    found = {topic.topic: topic for topic in admin.topics()}
    assert list(found) == ["fork_dlq", "merge", "merge_cat", "merge_dlq", "merge_fast", "merge_fast_dlq", "merge_old"]
    merge = found["merge"]
    assert (merge.lanes, merge.head, merge.floor, merge.messages) == (2, 10, 5, 6)
    assert merge.groups == ("auditors", "builders")
    assert merge.dead_letter_topics == ("merge_dlq",)
    assert merge.dead_letters == 3
    assert merge.newest_lane_at is not None
    assert (found["merge_dlq"].holds_dead_letters, found["merge_dlq"].dead_letters) == (True, 3)
    assert (found["merge_fast"].dead_letter_topics, found["merge_fast"].dead_letters) == (("merge_fast_dlq",), 6)
    for name in ("merge_cat", "merge_old"):
        assert (found[name].dead_letter_topics, found[name].dead_letters) == ((), 0)
    assert [topic.topic for topic in admin.topics(limit=2)] == ["fork_dlq", "merge"]
    for name, topic in found.items():
        assert admin.topic(name) == topic


def test_a_topic_that_was_emptied_and_left_is_not_listed(lanelog_client: Client, raw: Any, admin: Admin) -> None:
    """The topic's row stays, because its offsets must never come again; without lanes and groups it is not listed."""
    lanelog_client.publish("t", "k", b"x")
    rows(raw, "DELETE FROM queue_partitions WHERE partition_key <> ''")
    assert admin.topics() == []
    assert admin.topic("t").lanes == 0
    Situations(raw).register()
    assert [topic.topic for topic in admin.topics()] == ["t"]


def test_topics_beyond_the_limit_are_counted(
    lanelog_client: Client, raw: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer about a topic does not depend on the limit, and each topic is listed or counted.

    A deleted topic is neither. A topic is there by a lane, by a group, or by the dead letters that it held. These may
    be in a topic behind the limit.
    """
    for topic in ("a", "b", "b1", "b_dlq", "d", "e"):
        fill(lanelog_client, "k", 2, topic)
    Situations(raw, "g").register()
    for topic in ("c", "f", "g"):
        rows(raw, "INSERT INTO queue_partitions (topic, partition_key, created_at) VALUES (%s, '', 1)", topic)
    rows(raw, "UPDATE queue_partitions SET holds_dead_letters = 1 WHERE topic = 'b_dlq' AND partition_key = ''")
    rows(raw, "DELETE FROM queue_partitions WHERE topic = 'd' AND partition_key = ''")  # the row was lost
    every = admin.topics()
    assert [each.topic for each in every] == ["a", "b", "b1", "b_dlq", "d", "e", "g"]
    assert every[1].dead_letters == 2
    for page in (1, 2, 1000):
        monkeypatch.setattr(topics, "PAGE", page)
        for limit in range(1, len(every) + 2):
            found = topics.topics_and_rest(lanelog_client._database, limit)
            assert found == (every[:limit], len(every[limit:])), (page, limit)
