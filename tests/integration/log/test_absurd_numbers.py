"""Numbers that lanelog never writes, as another program, a damaged disk or a restore may leave them in one row."""

from collections.abc import Iterator
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._database import Database
from lanelog._log import collect
from lanelog._stores.consumers import groups
from lanelog.admin import Admin
from lanelog.admin.operate import status
from support.situations import NOW
from support.sql import one, owners, rows
from support.waiting import Record, events, eventually

GREATEST = 2**64 - 1
FIRST = 2**53
"""The first number that is beyond counting."""
QUICK = {"lease_duration": 2.0, "lease_renewal": 0.4}
KEYS = ("a", "bad", "c")
EPOCH = "SELECT lease_epoch FROM queue_partition_leases WHERE partition_key = 'bad'"
SET_EPOCH = "UPDATE queue_partition_leases SET lease_epoch = %s WHERE partition_key = 'bad'"
MAX_EPOCH = "SELECT max_epoch FROM queue_partitions WHERE partition_key = ''"
GHOST = (
    "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at, expires_at)"
    f" VALUES ('g', 't', 'ghost:1', COALESCE(%s, {NOW}), COALESCE(%s, {NOW}))"
)
"""A member that no process is. None: now."""
HEAD = "SELECT head_offset FROM queue_partitions WHERE partition_key = %s"
SET_HEAD = "UPDATE queue_partitions SET head_offset = %s WHERE partition_key = %s"
SET_FLOOR = "UPDATE queue_offsets SET offset_acked = %s WHERE consumer_group = '' AND partition_key = 'bad'"
SET_MAX_EPOCH = "UPDATE queue_partitions SET max_epoch = %s WHERE partition_key = ''"


class Group:
    """Members of one group, and what they have handled."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen = Record()

    def join(self, client: Client | None = None) -> Any:
        """Another member."""
        return (client or self.client).subscribe(
            "t", "g", lambda message: self.seen((message.key, message.payload)), **QUICK
        )

    def handles(self, payload: bytes, *keys: str) -> None:
        """Each key's message is handled."""
        self.client.publish_many("t", [(key, payload) for key in keys])
        self.seen.until(lambda items: {(key, payload) for key in keys} <= set(items))


@pytest.fixture
def group(lanelog_client: Client) -> Group:
    """A group without members."""
    return Group(lanelog_client)


@pytest.fixture
def other(lanelog_url: str) -> Iterator[Client]:
    """Another process, as the server sees it."""
    with lanelog.connect(lanelog_url) as client:
        yield client


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("epoch", [FIRST, GREATEST])
def test_an_epoch_to_which_nothing_can_be_added_stops_no_lane(
    group: Group, raw: Any, caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    """The lane is free: it is taken with all others, under an epoch that it never had, and a WARNING names it."""
    first = group.join()
    group.handles(b"1", *KEYS)
    assert first.stop(10)
    rows(raw, SET_EPOCH, epoch)
    second = group.join()
    group.handles(b"2", *KEYS)
    assert events(caplog, "lanes.epochs_replaced") == [
        f"lanes.epochs_replaced topic=t group=g lanes=1 keys=[bad] epoch={epoch}"
    ]
    new = one(raw, EPOCH)
    assert 1_000_000_000_000 < new < FIRST  # the clock, which is above what was counted
    assert second.stop(10)
    assert one(raw, EPOCH) == new + 1


@pytest.mark.thorough
def test_an_owner_whose_epoch_was_made_absurd_goes_on_and_hands_over(group: Group, raw: Any, other: Client) -> None:
    """The owner's read-back finds another epoch, and loads the lane again. At its end it gives all lanes back."""
    first = group.join()
    group.handles(b"1", *KEYS)
    rows(raw, SET_EPOCH, GREATEST)
    group.handles(b"2", *KEYS)
    second = group.join(other)
    assert first.stop(10)
    group.handles(b"3", *KEYS)
    eventually(lambda: set(owners(raw, "g", "t").values()) == {second.owner})
    assert one(raw, EPOCH) < FIRST


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["seek", "release"])
def test_administration_takes_a_lane_with_an_absurd_epoch_away(group: Group, admin: Admin, raw: Any, verb: str) -> None:
    """The owner is fenced as ever: it has lost the lane, and takes it again under a new epoch."""
    group.join()
    group.handles(b"1", *KEYS)
    rows(raw, SET_EPOCH, GREATEST)
    if verb == "seek":
        admin.seek("t", "g", key="bad", to="latest", dry_run=False)
    else:
        released = admin.release("t", "g", "bad", dry_run=False)
        assert 1_000_000_000_000 < released.epoch < FIRST
    assert one(raw, EPOCH) < FIRST
    group.handles(b"2", *KEYS)


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
def test_a_topic_row_with_an_absurd_epoch_stops_no_lane(
    group: Group, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """New lanes get an epoch that no purged lane had; the row gets another number, once, and a WARNING says so."""
    group.join()
    group.handles(b"1", *KEYS)
    rows(raw, SET_MAX_EPOCH, GREATEST)
    group.handles(b"2", *KEYS, "new")
    eventually(lambda: one(raw, MAX_EPOCH) < FIRST)
    group.handles(b"3", *KEYS, "new", "newer")
    assert events(caplog, "topic.epoch_replaced") == [f"topic.epoch_replaced topic=t epoch={GREATEST}"]


def test_a_deleted_group_leaves_no_absurd_epoch_behind(group: Group, admin: Admin, raw: Any) -> None:
    """The topic row remembers what the lane never had. A group of that name, and new lanes, begin above it."""
    first = group.join()
    group.handles(b"1", *KEYS)
    assert first.stop(10)
    rows(raw, SET_EPOCH, GREATEST)
    admin.delete_group("t", "g", dry_run=False)
    retired = one(raw, MAX_EPOCH)
    assert 1_000_000_000_000 < retired < FIRST
    group.join()
    group.handles(b"2", *KEYS, "new")
    assert one(raw, EPOCH) == retired + 1


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("head", [FIRST, 2**63, GREATEST])
@pytest.mark.parametrize("running", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["running", "loaded"])
def test_a_head_to_which_nothing_can_be_added_goes_back_to_the_log(
    group: Group, raw: Any, caplog: pytest.LogCaptureFixture, running: bool, head: int
) -> None:
    """The lane goes on behind its last message. The others go on meanwhile, and no offset counts as a hole."""
    first = group.join()
    group.handles(b"1", *KEYS)
    if not running:
        assert first.stop(10)
    rows(raw, SET_HEAD, head, "bad")
    if not running:
        group.join()
    group.handles(b"2", "a", "c")
    eventually(lambda: one(raw, HEAD, "bad") == 1)
    group.handles(b"3", *KEYS)
    assert one(raw, HEAD, "bad") == 2
    assert events(caplog, "lane.mended") == [
        f"lane.mended topic=t key=bad group='' problem='too great a number for the head' offset={head} head=1"
    ]
    assert events(caplog, "log.hole_found") == []


def test_a_floor_to_which_nothing_can_be_added_releases_nothing(group: Group, raw: Any) -> None:
    """The head stays where the log ends, so that the lane takes messages. What is stored is delivered."""
    first = group.join()
    group.handles(b"1", *KEYS)
    assert first.stop(10)
    group.client.publish("t", "bad", b"2")
    rows(raw, SET_FLOOR, GREATEST)
    group.join()
    group.seen.until(lambda items: ("bad", b"2") in items)
    group.handles(b"3", *KEYS)
    assert one(raw, HEAD, "bad") == 3


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("floor", [2**40, GREATEST])
def test_a_floor_above_the_head_of_a_running_lane_releases_nothing(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, floor: int
) -> None:
    """The janitor leaves the lane out. What waits for its next attempt stays in the log, and is delivered in order."""
    seen, ready = Record(), [b"0"]

    def handle(message: lanelog.Message) -> None:
        if message.payload not in ready:
            raise lanelog.Retry(1)
        seen((message.key, message.payload))

    own = "FROM queue_offsets WHERE consumer_group = %s AND partition_key = 'bad'"
    lanelog_client.subscribe("t", "g", handle, lease_duration=30, lease_renewal=10, retention=0)
    lanelog_client.publish("t", "bad", b"0")
    eventually(lambda: one(raw, f"SELECT COALESCE(MAX(marked_through), 0) {own}", "") == 1)
    rows(raw, SET_FLOOR, floor)
    lanelog_client.publish_many("t", [("bad", b"%d" % n) for n in range(1, 6)])
    ready.append(b"1")
    eventually(lambda: one(raw, f"SELECT MAX(offset_acked) {own}", "g") == 2)
    lanelog_client.publish("t", "good", b"0")
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'good'") == 0)
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'bad'") == 5
    assert one(raw, f"SELECT MAX(marked_through) {own}", "") == 1
    ready += [b"%d" % n for n in range(2, 6)]
    seen.until(lambda items: ("bad", b"5") in items)
    assert [payload for key, payload in seen.items if key == "bad"] == [b"%d" % n for n in range(6)]
    assert events(caplog, "log.hole_found") == []


@pytest.mark.thorough
def test_no_hole_is_skipped_up_to_a_floor_above_the_head(group: Group, raw: Any) -> None:
    """The owner loads the lane again, which repairs it. Later messages are handled."""
    group.client.subscribe("t", "g", lambda message: group.seen((message.key, message.payload)), lease_duration=30)
    group.handles(b"1", "bad")
    rows(raw, SET_FLOOR, GREATEST)
    rows(raw, SET_HEAD, 2, "bad")  # as if the message with offset 2 was lost
    group.handles(b"2", "bad")
    group.handles(b"3", "bad")
    assert one(raw, HEAD, "bad") == 4
    eventually(lambda: one(raw, "SELECT MAX(offset_acked) FROM queue_offsets WHERE consumer_group = 'g'") == 4)


def test_a_lane_that_lost_head_and_floor_gives_out_no_offset_again(group: Group, admin: Admin, raw: Any) -> None:
    """Only the groups' watermarks show how far the lane was: it goes on above them."""
    first = group.join()
    for payload in (b"1", b"2", b"3"):
        group.handles(payload, *KEYS)
    assert first.stop(10)
    rows(raw, "DELETE FROM queue_messages")
    rows(raw, SET_HEAD, GREATEST, "bad")
    rows(raw, SET_FLOOR, GREATEST)
    assert [each.head for each in admin.contradictions()] == [3]
    group.join()
    eventually(lambda: one(raw, HEAD, "bad") == 3)
    group.handles(b"4", *KEYS)
    assert one(raw, HEAD, "bad") == 4


def test_a_watermark_beyond_counting_says_nothing_about_a_lost_head(group: Group, admin: Admin, raw: Any) -> None:
    """The group begins again at the floor. The other group's watermark says where the lane ends."""
    for name in ("g", "h"):
        assert group.client.subscribe("t", name, group.seen).stop(10)
    group.client.publish_many("t", [("bad", b"%d" % n) for n in range(5)])
    for name in ("g", "h"):
        admin.seek("t", name, to="latest", dry_run=False)
    rows(raw, "DELETE FROM queue_messages")
    rows(raw, SET_HEAD, GREATEST, "bad")
    rows(raw, SET_FLOOR, GREATEST)
    rows(raw, "UPDATE queue_offsets SET offset_acked = %s WHERE consumer_group = 'h'", GREATEST)
    admin.doctor(repair=True)
    assert one(raw, HEAD, "bad") == 5
    assert rows(raw, "SELECT DISTINCT offset_acked FROM queue_offsets WHERE partition_key = 'bad'") == [(5,)]
    assert group.client.publish("t", "bad", b"6").offset == 6


def test_collection_ends_where_the_head_was_raised_far_above_the_log(group: Group, admin: Admin, raw: Any) -> None:
    """Offsets that were never stored are not deleted one by one. The lane goes on behind its head."""
    first = group.join()
    group.handles(b"1", *KEYS)
    assert first.stop(10)
    group.client.publish("t", "bad", b"2")
    rows(raw, SET_FLOOR, 2**40)
    maintained = admin.maintain()
    assert (maintained.mended, maintained.failed) == (1, {})
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'bad'") == 0
    deleted = "SELECT marked_through FROM queue_offsets WHERE consumer_group = '' AND partition_key = 'bad'"
    assert one(raw, deleted) == 2**40
    group.join()
    group.handles(b"3", *KEYS)
    assert one(raw, HEAD, "bad") == 2**40 + 1


@pytest.mark.thorough
@pytest.mark.parametrize("floor", [2**40, GREATEST])
def test_a_floor_above_the_head_releases_no_dead_letters(
    lanelog_client: Client, database: Database, raw: Any, floor: int
) -> None:
    """The collector of dead letters leaves the lane out, too."""
    lanelog_client.subscribe("t", "g", lambda _: 1 / 0, retry=1, **QUICK)
    lanelog_client.publish("t", "bad", b"1")
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic <> 't'") == 1)
    topic = one(raw, "SELECT topic FROM queue_messages WHERE topic <> 't'")
    rows(raw, SET_FLOOR + " AND topic = %s", floor, topic)
    with database.transaction() as cx:
        assert collect.release_letters(cx, topic, ["bad"], {}).lanes == {}


@pytest.mark.thorough
@pytest.mark.parametrize("column", ["head_offset", "offset_acked"])
@pytest.mark.parametrize("number", [2**63, GREATEST])
def test_lanes_are_listed_by_their_lag(group: Group, admin: Admin, raw: Any, column: str, number: int) -> None:
    """The lane is listed with the others, wherever such a number puts it."""
    assert group.join().stop(10)
    group.client.publish_many("t", [(key, b"1") for key in KEYS])
    table = {"head_offset": "queue_partitions", "offset_acked": "queue_offsets"}[column]
    rows(raw, f"UPDATE {table} SET {column} = %s WHERE partition_key = 'bad'", number)
    assert {lane.key for lane in admin.lanes("t", "g", order_by="lag")} == set(KEYS)


def test_a_lane_is_paused_and_resumed_where_the_count_of_pauses_is_absurd(group: Group, admin: Admin, raw: Any) -> None:
    """The count begins again. The members see that it has changed."""
    group.join()
    group.handles(b"1", *KEYS)
    rows(raw, "UPDATE queue_groups SET lane_pauses = %s", GREATEST)
    admin.pause("t", "g", key="bad", reason="a test")
    group.handles(b"2", "a", "c")
    group.client.publish("t", "bad", b"2")
    assert admin.resume("t", "g", key="bad").changed
    group.handles(b"3", "bad")
    assert one(raw, "SELECT lane_pauses FROM queue_groups") == 1


def test_a_member_that_never_expires_keeps_no_group(group: Group, admin: Admin, database: Database, raw: Any) -> None:
    """The member has no liveness lock, so administration counts it as expired, and its group as unattended."""
    assert group.join().stop(10)
    rows(raw, "DELETE FROM queue_subscriber_heartbeats")
    rows(raw, GHOST, None, GREATEST)
    with database.autocommit() as cx:
        assert [each.group for each in groups.unattended(cx, "t")] == ["g"]
    assert [member.state for member in admin.members("t", "g")] == ["expired"]


@pytest.mark.parametrize("table", ["heads", "floors"])
def test_status_names_such_a_lane_and_the_doctor_repairs_it(
    group: Group, admin: Admin, raw: Any, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Without a consumer, publishes of this key are refused until the repair, and those of other keys are not."""
    monkeypatch.setattr(status, "COMPARING", 60.0)  # a busy machine compares more slowly
    group.client.publish_many("t", [(key, b"1") for key in KEYS])
    rows(raw, SET_HEAD, GREATEST, "bad")
    if table == "floors":  # as the version before has repaired a floor
        rows(raw, SET_FLOOR, GREATEST)
    (named,) = admin.status().problems
    assert (named.what, named.key, named.command) == ("contradiction", "bad", "lanelog doctor")
    with pytest.raises(lanelog.DatabaseError):
        group.client.publish("t", "bad", b"2")
    group.client.publish("t", "a", b"2")
    assert [each.status for each in admin.doctor(repair=True) if each.check == "contradictions"] == ["ok"]
    assert group.client.publish("t", "bad", b"3").offset == 2
    assert admin.status().problems == ()


def test_a_topic_row_with_an_absurd_offset_stops_no_new_lane(group: Group, raw: Any) -> None:
    """A new lane begins at the clock, which is above what any purged lane had given out."""
    group.join()
    group.handles(b"1", *KEYS)
    rows(raw, SET_HEAD, GREATEST, "")
    group.handles(b"2", *KEYS, "new")
    assert 1_000_000_000_000 < one(raw, HEAD, "new") < FIRST


@pytest.mark.thorough
@pytest.mark.parametrize(("written", "ends"), [(None, GREATEST), (GREATEST, GREATEST), (GREATEST, None)])
def test_a_member_that_never_expires_holds_its_lanes_for_one_lease(
    group: Group, admin: Admin, raw: Any, written: int | None, ends: int | None
) -> None:
    """Others go on meanwhile, take its lanes then, and note that it has left. `doctor` says that the clock went back.

    It counts in no fair share any more: one member has all lanes.
    """
    first = group.join()
    group.handles(b"1", *KEYS)
    assert first.stop(10)
    rows(raw, GHOST, written, ends)
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'ghost:1' WHERE partition_key = 'bad'")
    (clock,) = (each for each in admin.doctor() if each.check == "clock")
    assert clock.status == "error"
    assert "of member ghost:1 of group g of topic t: it went back, or another program wrote that row" in clock.detail
    second = group.join()
    group.handles(b"2", *KEYS)
    eventually(lambda: set(owners(raw, "g", "t").values()) == {second.owner})
    left = "SELECT deregistered_at FROM queue_subscriber_heartbeats WHERE subscriber_name = 'ghost:1'"
    eventually(lambda: one(raw, left))
    group.handles(b"3", *KEYS, "new")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("queue_partitions", "created_at"),
        ("queue_offsets", "paused_at"),
        ("queue_groups", "paused_at"),
        ("queue_messages", "created_at"),
        ("queue_messages", "expires_at"),
    ],
)
def test_a_time_beyond_all_calendars_fails_no_command(
    group: Group, admin: Admin, raw: Any, table: str, column: str
) -> None:
    """The time is shown as the end of the year 9998, and `status` goes on to name what is wrong elsewhere."""
    member = group.join()
    group.handles(b"1", *KEYS)
    assert member.stop(10)
    group.client.publish_many("t", [(key, b"2") for key in KEYS])
    rows(raw, f"UPDATE {table} SET {column} = %s WHERE topic = 't'", GREATEST)
    assert admin.status().topics == 1
    assert {lane.key for lane in admin.lanes("t", "g")} == set(KEYS)
    assert admin.messages("t", "bad")
    assert admin.topics()[0].topic == "t"
