"""The deletion of a group against its settlements and its registration; the deletion of a topic against publishers.

One side is stopped in a process of its own after each of its locks, while the other runs; then the other way round.
`test_admin_remove.py` has the verbs undisturbed.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client
from lanelog._database import Database
from lanelog._engine.registration import register
from lanelog.config import SubscriptionConfig
from support.sql import delivery_rows, one, rows, watermark
from support.stage import Actor, Stage, wait_until_blocked
from support.waiting import Record, eventually

HANDLING = "in the handler"
ENDING = "before COMMIT following remove.DELETE_GROUP"
ENDED = "after COMMIT following remove.DELETE_GROUP"
BEFORE_THE_FENCE = {
    "return": "before leases.FENCE",
    "transaction": "before leases.FENCE following delivery.SET_PATIENCE",
}
BEHIND_THE_FENCE = {
    "return": "before COMMIT following offsets.FLUSH",
    "transaction": "before COMMIT following deliveries.SETTLE_SAME",
}


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def _effects(raw: Any) -> None:
    rows(
        raw,
        "CREATE TABLE effects (n INT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(9), o INT, who VARCHAR(9), attempt INT)",
    )


# -- delete_group and flush ----------------------------------------------------------------------------------------


def settling(stage: Stage, client: Client, raw: Any, how: str, point: str) -> Actor:
    """An owner of lane k that has settled offset 1, stopped at this point of settling offset 2."""
    owner = stage.actor("owner")
    owner.do("subscribe", topic="t", group="g")
    client.publish("t", "k", json.dumps({"how": how}))
    eventually(lambda: watermark(raw, "g", "t", "k") == 1 and not delivery_rows(raw, "g", "t"))
    client.publish("t", "k", json.dumps({"how": how, "wait": HANDLING}))
    owner.paused(HANDLING)
    owner.pause(point, "k").go(HANDLING)
    return owner.paused(point)


def left(raw: Any, group: str = "g") -> int:
    """Rows of the group, in every table."""
    tables = ("queue_groups", "queue_offsets", "queue_delivery_state", "queue_partition_leases")
    return sum(one(raw, f"SELECT COUNT(*) FROM {table} WHERE consumer_group = %s", group) for table in tables)


def effects(raw: Any) -> list[int]:
    return [o for (o,) in rows(raw, "SELECT o FROM effects ORDER BY n")]


def assert_begins_anew(client: Client, raw: Any, token: int) -> None:
    """A group of that name gets everything once more, under a token above those of the one that was deleted."""
    seen = Record()
    client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt, m.fencing_token > token)))
    assert seen.wait(2) == [(1, 1, True), (2, 1, True)]
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)


@pytest.mark.usefixtures("_effects")
@pytest.mark.parametrize("how", ["return", "transaction"])
def test_a_settlement_that_has_not_reached_its_fence_finds_no_lease_any_more(
    stage: Stage, lanelog_client: Client, raw: Any, how: str
) -> None:
    """The deletion does not wait; nothing is written for a group that is gone, and its subscription fails."""
    point = BEFORE_THE_FENCE[how]
    owner = settling(stage, lanelog_client, raw, how, point)
    token = one(raw, "SELECT lease_epoch FROM queue_partition_leases")
    deleted = lanelog_client.admin.delete_group("t", "g")
    assert (deleted.lanes, deleted.lag, deleted.members) == (1, 1, 1)
    owner.go(point)
    if how == "transaction":
        owner.program.said("lost")
    eventually(lambda: stage.fleet.logged("membership.failed"), what="the end of the subscription")
    assert left(raw) == 0
    assert effects(raw) == ([1] if how == "transaction" else [])
    assert_begins_anew(lanelog_client, raw, token)


@pytest.mark.usefixtures("_effects")
@pytest.mark.parametrize("how", ["return", "transaction"])
def test_the_deletion_waits_for_a_settlement_behind_its_fence_and_leaves_nothing_of_it(
    stage: Stage, lanelog_client: Client, raw: Any, thread: ThreadPoolExecutor, how: str
) -> None:
    """The settlement stands, what it wrote goes with the group."""
    point = BEHIND_THE_FENCE[how]
    owner = settling(stage, lanelog_client, raw, how, point)
    deleting = thread.submit(lanelog_client.admin.delete_group, "t", "g")
    wait_until_blocked(raw)
    assert not deleting.done()
    owner.go(point)
    deleting.result(20)
    eventually(lambda: stage.fleet.logged("membership.failed"), what="the end of the subscription")
    assert left(raw) == 0
    assert effects(raw) == ([1, 2] if how == "transaction" else [])
    assert_begins_anew(lanelog_client, raw, 1)


@pytest.mark.usefixtures("_effects")
@pytest.mark.parametrize("dies", [False, True], ids=["deletes", "dies"])
def test_a_settlement_that_meets_the_deletion_waits_and_is_decided_by_its_commit(
    stage: Stage, lanelog_client: Client, raw: Any, dies: bool
) -> None:
    """Refused when the group goes; written when the deletion dies, and the group is as it was."""
    before = BEFORE_THE_FENCE["transaction"]
    owner = settling(stage, lanelog_client, raw, "transaction", before)
    operator, deleting = stage.paused_in(ENDING, "admin", name="operator", verb="delete_group", topic="t", group="g")
    owner.go(before)
    wait_until_blocked(raw)
    if dies:
        operator.program.kill()
        eventually(lambda: watermark(raw, "g", "t", "k") == 2, what="the settlement")
        assert effects(raw) == [1, 2]
        assert not stage.fleet.logged("membership.failed")
        return
    operator.go(ENDING)
    owner.program.said("lost")
    deleting.result()
    eventually(lambda: left(raw) == 0)
    assert effects(raw) == [1]


# -- delete_group and registration ---------------------------------------------------------------------------------


@pytest.fixture
def abandoned(lanelog_client: Client, database: Database, raw: Any) -> None:
    """Lane k with two messages, and a group without workers that has acked the first and tried the second."""
    lanelog_client.publish_many("t", [("k", b"{}")] * 2)
    options(database)
    rows(
        raw,
        "INSERT INTO queue_offsets (consumer_group, topic, partition_key, offset_acked, marked_through, updated_at)"
        " VALUES ('g', 't', 'k', 1, 1, 0)",
    )
    rows(
        raw,
        "INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset,"
        " retry_count) VALUES ('g', 't', 'k', 2, 2, 3)",
    )
    rows(
        raw,
        "INSERT INTO queue_partition_leases (consumer_group, topic, partition_key, leased_by, lease_epoch, leased_at)"
        " VALUES ('g', 't', 'k', '', 7, 0)",
    )


def options(database: Database, **given: Any) -> int:
    return register(database, "g", "t", SubscriptionConfig.from_options(**given))


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("dies", [False, True], ids=["deletes", "dies"])
@pytest.mark.parametrize("point", ["after discovery.LOCK_TOPIC", ENDING])
def test_a_registration_waits_for_the_deletion_and_begins_anew(
    stage: Stage,
    lanelog_client: Client,
    database: Database,
    raw: Any,
    thread: ThreadPoolExecutor,
    point: str,
    dies: bool,
) -> None:
    """What the old group had is not the new one's; if the deletion dies, it is the old group that goes on."""
    operator, deleting = stage.paused_in(point, "admin", verb="delete_group", topic="t", group="g")
    registering = thread.submit(options, database)
    wait_until_blocked(raw)
    assert not registering.done()
    if dies:
        operator.program.kill()
        registering.result(20)
        assert watermark(raw, "g", "t", "k") == 1
        assert [row["retry_count"] for row in delivery_rows(raw, "g", "t")] == [3]
        return
    operator.go(point)
    registering.result(20)
    deleting.result()
    assert_begins_anew(lanelog_client, raw, 7)


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("point", [ENDED, "before remove.LEFT_DELIVERIES", "before remove.LEFT_OFFSETS"])
def test_what_is_registered_while_the_rest_is_deleted_keeps_what_is_its_own(
    stage: Stage, lanelog_client: Client, database: Database, raw: Any, thread: ThreadPoolExecutor, point: str
) -> None:
    """Between two of its transactions the deletion finds the group registered anew, and leaves it alone."""
    operator, deleting = stage.paused_in(point, "admin", verb="delete_group", topic="t", group="g")
    registering = thread.submit(options, database, start="latest")
    if point != ENDED:
        wait_until_blocked(raw)  # the batch under way has the topic row
        operator.go(point)
    registering.result(20)
    assert watermark(raw, "g", "t", "k") == 2
    operator.go(point)
    deleting.result()
    assert watermark(raw, "g", "t", "k") == 2
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt, m.fencing_token > 7)))
    lanelog_client.publish("t", "k", b"{}")
    assert seen.wait(1) == [(3, 1, True)]


@pytest.mark.usefixtures("abandoned")
def test_the_deletion_waits_for_a_registration_and_deletes_what_it_made(
    stage: Stage, lanelog_client: Client, raw: Any, thread: ThreadPoolExecutor
) -> None:
    """The registration of another group is none of its business."""
    point = "before COMMIT following groups.CREATE"
    other, registering = stage.paused_in(point, "register", topic="t", group="other", start="latest")
    deleting = thread.submit(lanelog_client.admin.delete_group, "t", "g")
    wait_until_blocked(raw)
    other.go(point)
    registering.result()
    deleting.result(20)
    assert (left(raw), watermark(raw, "other", "t", "k")) == (0, 2)
    assert lanelog_client.admin.delete_group("t", "other").lanes == 1
    assert left(raw, "other") == 0


# -- delete_topic and publish --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["after partitions.TRY_LOCK_HEADS", "before COMMIT following messages.INSERT"])
def test_a_topic_is_not_deleted_from_under_an_open_publish(
    stage: Stage, lanelog_client: Client, raw: Any, thread: ThreadPoolExecutor, point: str
) -> None:
    """The deletion waits for the head; what was published then was published after it began, and may go or stay."""
    lanelog_client.publish_many("t", [("k", b"{}"), ("l", b"{}")])
    publisher, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    deleting = thread.submit(lanelog_client.admin.delete_topic, "t")
    wait_until_blocked(raw)
    assert not deleting.done()
    publisher.go(point)
    assert publishing.result() == 2
    deleted = deleting.result(20)
    found = rows(raw, "SELECT partition_key, `offset` FROM queue_messages WHERE topic = 't'")
    assert (deleted.lanes, deleted.messages, found) in [(2, 3, []), (1, 2, [("k", 2)])]
    assert_above(lanelog_client, raw, 2)


@pytest.mark.parametrize(
    "point",
    ["after partitions.LOCK_HEADS", "after offsets.PURGE", "before COMMIT following discovery.PURGE"],
)
@pytest.mark.parametrize("dies", [False, True], ids=["deletes", "dies"])
def test_a_publisher_waits_for_the_deletion_of_its_lane_and_makes_it_anew(
    stage: Stage, lanelog_client: Client, raw: Any, thread: ThreadPoolExecutor, point: str, dies: bool
) -> None:
    """Its message is above all that ever was in the topic, and stays."""
    lanelog_client.publish_many("t", [("k", b"{}"), ("l", b"{}"), ("l", b"{}")])
    operator, deleting = stage.paused_in(point, "admin", "k", verb="delete_topic", topic="t")
    publishing = thread.submit(lanelog_client.publish, "t", "k", b"{}")
    wait_until_blocked(raw)
    if dies:
        operator.program.kill()
        assert publishing.result(20).offset == 2
        return
    operator.go(point)
    deleting.result()
    assert publishing.result(20).offset == 3
    assert rows(raw, "SELECT partition_key, `offset` FROM queue_messages WHERE topic = 't'") == [("k", 3)]
    assert_above(lanelog_client, raw, 3)


def assert_above(client: Client, raw: Any, offset: int) -> None:
    """The lane goes on above this offset, for a group that comes now as well."""
    assert client.publish("t", "k", b"{}").offset == offset + 1
    seen = Record()
    client.subscribe("t", "late", lambda m: seen((m.key, m.offset)))
    seen.until(lambda items: ("k", offset + 1) in items)
    eventually(lambda: watermark(raw, "late", "t", "k") == offset + 1)
