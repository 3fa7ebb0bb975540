"""Groups, messages and topics, removed: what goes, what stays, and who is fenced."""

from datetime import UTC, datetime
from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError, LeaseLost, Message, Reject
from lanelog._base.places import GroupTopic
from lanelog._log import end_groups
from lanelog.admin.change import purge_messages
from support.commits import every_commit_unanswered_once
from support.dead_letters import give_up
from support.situations import settle
from support.sql import delivery_rows, one, owners, rows, stored, watermark
from support.waiting import Gate, Record, accept, eventually

TABLES = ("queue_groups", "queue_offsets", "queue_partition_leases", "queue_delivery_state", "queue_messages")


def left_of(raw: Any, group: str, topic: str = "t") -> int:
    """Rows of a group, in every table that has some."""
    tables = [*TABLES[:4], "queue_subscriber_heartbeats"]
    count = "SELECT COUNT(*) FROM {} WHERE consumer_group = %s AND topic = %s"
    return sum(int(one(raw, count.format(table), group, topic)) for table in tables)


def leave_rows(raw: Any, group: str, key: str, first: int, count: int) -> None:
    """Make so many delivery rows of a group, one for each offset from the first on."""
    columns = "consumer_group, topic, partition_key, message_offset, through_offset"
    values = ",".join(f"('{group}','t','{key}',{n},{n})" for n in range(first, first + count))
    rows(raw, f"INSERT INTO queue_delivery_state ({columns}) VALUES {values}")


def topic_row(raw: Any, topic: str = "t") -> tuple[int, int]:
    sql = "SELECT head_offset, max_epoch FROM queue_partitions WHERE topic = %s AND partition_key = ''"
    ((head, epoch),) = rows(raw, sql, topic)
    return head, epoch


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_deleted_group_holds_nothing_back_any_more(lanelog_client: Client, raw: Any) -> None:
    """The deletion reports what collection will delete, and collection does; its rows go in batches; others stay.

    The reader begins anew before the collection: while another group is behind, its janitor waits ever longer.
    """
    lanelog_client.publish_many("t", [(f"k{n % 10}", b"x") for n in range(50)])
    settle(lanelog_client, 50, "slow")
    lanelog_client.publish_many("t", [(f"k{n % 10}", b"x") for n in range(30)])
    other = lanelog_client.subscribe("t", "g", accept, retention=0)
    eventually(lambda: other.stats().acked == 80)
    eventually(lambda: sum(watermark(raw, "g", "t", f"k{n}") for n in range(10)) == 80)
    other.stop()
    leave_rows(raw, "slow", "k1", 7, 2 * end_groups.BATCH)
    dry = lanelog_client.admin.delete_group("t", "slow", dry_run=True)
    assert left_of(raw, "slow") > 20
    deleted = lanelog_client.admin.delete_group("t", "slow", dry_run=False)
    assert (deleted.lanes, deleted.lag, deleted.members, deleted.groups_left) == (10, 30, 0, ("g",))
    assert deleted.collectable == dry.collectable == 30
    assert left_of(raw, "slow") == 0
    assert left_of(raw, "g") > 0
    lanelog_client.subscribe("t", "g", accept, retention=0)
    eventually(lambda: stored(raw) == 0, what="the collection of what only that group held back")
    with pytest.raises(ConfigurationError, match="no group 'slow'"):
        lanelog_client.admin.delete_group("t", "slow", dry_run=False)


def test_deleting_the_last_group_collects_nothing(lanelog_client: Client, raw: Any) -> None:
    """Without a group there is no collection, and the answer says so."""
    lanelog_client.publish_many("t", [("k", b"x")] * 5)
    settle(lanelog_client, 5)
    deleted = lanelog_client.admin.delete_group("t", "g", dry_run=False)
    assert (deleted.collectable, deleted.groups_left) == (0, ())
    assert stored(raw) == 5


def test_a_running_subscription_fails_and_settles_nothing(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The handler's ack is refused, the subscription fails, and a group of that name begins anew above its epochs."""
    gate, lost = Gate(), Record()

    def handle(message: Message) -> None:
        gate()
        try:
            message.ack()
        except LeaseLost as error:
            lost(error)

    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    subscription = lanelog_client.subscribe("t", "g", handle)
    with lanelog.connect(lanelog_url) as other, gate:
        gate.reached()
        epoch = one(raw, "SELECT lease_epoch FROM queue_partition_leases")
        deleted = other.admin.delete_group("t", "g", evict=True, dry_run=False)
        assert (deleted.members, deleted.lag) == (1, 3)
        gate.open()
        lost.wait(1)
        eventually(lambda: subscription.state == "failed")
        subscription.stop(10)
        assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g'") == 0
        assert topic_row(raw)[1] >= epoch
        tokens = Record()
        other.subscribe("t", "g", lambda m: tokens((m.offset, m.attempt, m.fencing_token)), recreate=True)
        found = tokens.wait(3)
    assert [(offset, attempt) for offset, attempt, _ in found] == [(1, 1), (2, 1), (3, 1)]
    assert all(token > epoch for *_, token in found)


def test_leftovers_are_not_taken_from_a_group_registered_meanwhile(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that was cut short goes on when it is repeated, and stops when the name is in use again."""
    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(10)])
    settle(lanelog_client, 10)
    monkeypatch.setattr(end_groups, "clear", lambda *_: None)  # it dies after its first transaction
    lanelog_client.admin.delete_group("t", "g", dry_run=False)
    monkeypatch.undo()
    assert left_of(raw, "g") > 0
    assert lanelog_client.admin.delete_group("t", "g", dry_run=False).groups_left == ()
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g'") == 0

    settle(lanelog_client, 10)
    database = lanelog_client.admin._database
    assert not end_groups._clear_some(database, GroupTopic(topic="t", group="g"))
    assert one(raw, "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g'") == 10


# -- messages ----------------------------------------------------------------------------------------------------------


def test_purge_takes_messages_from_groups_that_have_not_settled_them(lanelog_client: Client, raw: Any) -> None:
    """Watermarks are raised and owners fenced at once; who is past it keeps its lease; what is left is delivered."""
    gate, refused, seen = Gate(), Record(), Record()

    def handle(message: Message) -> None:
        seen((message.key, message.offset))
        if message.offset == 2 and message.key == "a":
            gate()
            try:
                message.ack()
            except LeaseLost:
                refused(message)
                raise

    lanelog_client.publish_many("t", [(key, b"old") for key in ("a", "b") for _ in range(5)])
    lanelog_client.publish("t", "young", b"x")
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 3600000 WHERE payload = 'old'")
    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b") for _ in range(3)])
    settle(lanelog_client, 17, "fast")
    slow = lanelog_client.subscribe("t", "slow", handle)
    with gate:
        gate.reached()
        eventually(lambda: watermark(raw, "slow", "t", "b") == 8)
        epochs = "SELECT consumer_group, partition_key, lease_epoch FROM queue_partition_leases"
        before = {row[:2]: row[2] for row in rows(raw, epochs)}
        moment = datetime.fromtimestamp(
            one(raw, "SELECT MIN(created_at) FROM queue_messages WHERE payload = 'x'") / 1000, UTC
        )
        dry = lanelog_client.admin.purge("t", before=moment, dry_run=True)
        assert stored(raw) == 17
        purged = lanelog_client.admin.purge("t", before=moment, dry_run=False)
        assert (purged.messages, purged.lanes, purged.remaining) == (10, 2, 0)
        assert (dry.messages, dry.lanes, dry.remaining) == (10, 2, 0)
        assert purged.unsettled.keys() == dry.unsettled.keys() == {"slow"}
        assert 4 <= purged.unsettled["slow"] <= 5
        assert stored(raw) == 7
        seen.until(lambda items: ("a", 8) in items)
    refused.wait(1)
    assert slow.stop(10)
    assert [item for item in seen.items if item[0] == "a"] == [("a", n) for n in (1, 2, 6, 7, 8)]
    assert watermark(raw, "slow", "t", "a") == 8
    after = {row[:2]: row[2] for row in rows(raw, epochs)}
    assert after["fast", "a"] == before["fast", "a"]
    assert after["slow", "a"] > before["slow", "a"]
    assert lanelog_client.admin.purge("t", before=moment, dry_run=False).messages == 0


def test_purge_by_offset_of_a_group_that_never_came(lanelog_client: Client, raw: Any) -> None:
    """Offsets settled ahead are not counted, waits below are removed, and the group begins behind the purge."""
    with lanelog_client.subscribe("t", "never", accept):
        pass

    def handle(message: Message) -> None:
        if message.offset in (2, 6):
            message.nack(delay=3600)

    lanelog_client.publish_many("t", [("k", b"x")] * 8)
    with lanelog_client.subscribe("t", "g", handle, order="serial") as subscription:
        eventually(lambda: subscription.stats().acked == 6)
    purged = lanelog_client.admin.purge("t", before=5, dry_run=False)
    assert (purged.messages, dict(purged.unsettled)) == (4, {"g": 1, "never": 4})
    assert watermark(raw, "g", "t", "k") == 5  # 5 was settled ahead of what was purged
    assert [(row["message_offset"], row["acked"]) for row in delivery_rows(raw, "g", "t")] == [(6, 0), (7, 1)]
    seen = Record()
    with lanelog_client.subscribe("t", "never", lambda m: seen(m.offset)):
        assert seen.wait(4) == [5, 6, 7, 8]


def test_purged_dead_letters_leave_no_rows(lanelog_client: Client, raw: Any) -> None:
    """The rows that settle them go with them."""
    give_up(lanelog_client, raw, [("k", str(n)) for n in range(4)], group="g")
    lanelog_client.admin.delete_dead_letters(
        "t", "g", ids=[lanelog_client.admin.dead_letters("t")[1].id], dry_run=False
    )
    assert lanelog_client.admin.purge("t_dlq", before=4, dry_run=False).messages == 3
    assert delivery_rows(raw, "", "t_dlq") == []
    assert [letter.offset for letter in lanelog_client.admin.dead_letters("t")] == [4]


def test_a_purge_that_dies_in_the_middle_is_finished_by_the_next(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call again deletes the messages that were released and not deleted yet."""
    lanelog_client.publish_many("t", [("k", b"x")] * 10)
    settle(lanelog_client, 10)
    monkeypatch.setattr(purge_messages, "delete_released", lambda *_: 0)
    lanelog_client.admin.purge("t", before=8, dry_run=False)
    monkeypatch.undo()
    assert stored(raw) == 10
    assert lanelog_client.admin.purge("t", before=8, dry_run=False).messages == 7
    assert stored(raw) == 3


@pytest.mark.thorough
def test_a_floor_that_somebody_holds_is_reported(lanelog_client: Client, lanelog_url: str, open_raw: Any) -> None:
    """Other lanes are purged; what is left is counted, and goes with the next call."""
    lanelog_client.publish_many("t", [(key, b"x") for key in ("free", "held") for _ in range(5)])
    holder = open_raw()
    held = "consumer_group = '' AND topic = 't' AND partition_key = 'held'"
    rows(holder, f"SELECT 1 FROM queue_offsets WHERE {held} FOR UPDATE")
    with lanelog.connect(lanelog_url, publish_timeout=0.3) as impatient:
        purged = impatient.admin.purge("t", before=4, dry_run=False)
    assert (purged.messages, purged.remaining) == (3, 3)
    holder.rollback()
    assert lanelog_client.admin.purge("t", before=4, dry_run=False).messages == 3


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_comes_back_above_its_offsets_and_epochs(lanelog_client: Client, raw: Any) -> None:
    """Groups, lanes and messages go; the next message and the next lease continue; dead letters stay."""

    def handle(message: Message) -> None:
        if message.payload == b"bad":
            raise Reject("no")

    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(5) for _ in range(4)])
    lanelog_client.publish("t", "k0", b"bad")
    with lanelog_client.subscribe("t", "g", handle) as subscription:
        eventually(lambda: subscription.stats().acked + subscription.stats().dead_lettered == 21)
    with lanelog_client.subscribe("t", "late", accept):
        eventually(lambda: len([owner for owner in owners(raw, "late", "t").values() if owner]) == 5)
    epoch = one(raw, "SELECT MAX(lease_epoch) FROM queue_partition_leases WHERE topic = 't'")
    lanelog_client.publish("t", "k1", b"y")
    dry = lanelog_client.admin.delete_topic("t", dry_run=True)
    assert stored(raw) == 22
    deleted = lanelog_client.admin.delete_topic("t", dry_run=False)
    assert (deleted.lanes, deleted.messages, deleted.groups) == (5, 22, ("g", "late"))
    assert (dry.lanes, dry.messages, dry.groups, dict(dry.unsettled)) == (5, 22, ("g", "late"), dict(deleted.unsettled))
    assert deleted.unsettled["g"] == 1
    assert deleted.dead_letter_topics == ("t_dlq",)
    for table in TABLES:
        assert one(raw, f"SELECT COUNT(*) FROM {table} WHERE topic = 't'") == 0, table
    assert rows(raw, "SELECT partition_key FROM queue_partitions WHERE topic = 't'") == [("",)]
    assert stored(raw, "t_dlq") == 1
    assert [info.topic for info in lanelog_client.admin.topics()] == ["t_dlq"]
    assert topic_row(raw)[0] == 5
    assert topic_row(raw)[1] >= epoch
    assert lanelog_client.publish("t", "k3", b"again").offset == 6
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.fencing_token))):
        [(offset, token)] = seen.wait(1)
    assert offset == 6
    assert token > epoch


def test_a_topic_that_is_being_read_is_not_deleted(lanelog_client: Client, raw: Any) -> None:
    """The refusal names the living members; nothing is changed, and the subscription goes on."""
    seen = Record()
    lanelog_client.publish("t", "k", b"x")
    subscription = lanelog_client.subscribe("t", "g", lambda m: seen(m.offset))
    seen.wait(1)
    with pytest.raises(ConfigurationError, match="stop the 1 member of group 'g'") as refused:
        lanelog_client.admin.delete_topic("t", dry_run=False)
    assert subscription.owner in str(refused.value)
    assert stored(raw) == 1
    lanelog_client.publish("t", "k", b"x")
    seen.wait(2)


def test_a_group_that_comes_before_the_first_change_keeps_its_topic(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion has looked and has changed nothing yet: it refuses, and all stays; also what waits for its time."""
    lanelog_client.publish_many("t", [("k", b"x"), ("l", b"x")])
    lanelog_client.publish("t", "k", b"x", delay=3600)
    settle(lanelog_client, 2, "g")
    end = end_groups.end

    def late(*args: Any, **options: Any) -> None:
        lanelog_client.subscribe("t", "late", lambda _message: None).stop()
        end(*args, **options)

    monkeypatch.setattr(end_groups, "end", late)
    with pytest.raises(ConfigurationError, match=r"group 'late' was registered for topic 't'.*: nothing was changed"):
        lanelog_client.admin.delete_topic("t", dry_run=False)
    assert stored(raw) == 2
    assert one(raw, "SELECT COUNT(*) FROM queue_scheduled") == 1
    assert [each.group for each in lanelog_client.admin.groups("t")] == ["g", "late"]
    monkeypatch.setattr(end_groups, "end", end)
    assert lanelog_client.admin.delete_topic("t", dry_run=False).groups == ("g", "late")
    assert stored(raw) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_unanswered_commits_remove_nothing_twice(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """Every verb of this file ends where it would have ended, with more rows than one batch has."""
    each = end_groups.BATCH
    lanelog_client.publish_many("t", [(key, b"x") for key in "abc" for _ in range(each)])
    for group in ("g", "h"):
        settle(lanelog_client, 3 * each, group)
    leave_rows(raw, "g", "a", each + 1, 2 * each)
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        lanelog_client.admin.delete_group("t", "g", dry_run=False)
        assert left_of(raw, "g") == 0
        lanelog_client.admin.purge("t", before=5, dry_run=False)
        assert stored(raw) == 3 * (each - 4)
        lanelog_client.admin.delete_topic("t", dry_run=False)
    assert sum(lost) > 5
    assert stored(raw) == 0
    assert rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = 't'") == [("", each)]
