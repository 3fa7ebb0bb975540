"""Redrive against burial, another redrive, the collection of dead letters, and publishers of the same lane.

One side is stopped in a process of its own after each of its locks, while the other runs; then the other way round.
`test_admin_redrive.py` lets the same parties race without a plan.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client, Message, Reject
from support.sql import rows, watermark
from support.stage import Stage, wait_until_blocked
from support.waiting import Record, eventually, never

HANDLING = "in the handler"
MOVING = ["after partitions.TRY_LOCK_HEADS", "after chosen.SETTLE", "before COMMIT following redrive.COPY"]
ALL = {"verb": "redrive", "topic": "t", "group": "g", "all": True}


@pytest.fixture
def letters(lanelog_client: Client, raw: Any) -> None:
    """Lane k: three messages, all of them dead letters of group g, whose workers are gone."""
    give_up(lanelog_client, raw, 3)


def give_up(client: Client, raw: Any, count: int) -> None:
    def reject(message: Message) -> None:
        raise Reject(f"no {message.offset}")

    before = len(dead(raw))
    client.publish_many("t", [("k", b"{}")] * count)
    with client.subscribe("t", "g", reject, retention=0):
        eventually(lambda: len(dead(raw)) == before + count)


def dead(raw: Any) -> list[int]:
    """The original offsets of the dead letters, settled or not."""
    return [
        o for (o,) in rows(raw, "SELECT original_offset FROM queue_messages WHERE topic = 't_dlq' ORDER BY `offset`")
    ]


def brought_back(raw: Any) -> list[tuple[int, int]]:
    """Offset of each redriven message, and of the dead letter that it was."""
    return rows(
        raw,
        "SELECT m.`offset`, l.`offset` FROM queue_messages m JOIN queue_messages l ON l.topic = 't_dlq'"
        " AND m.id = CONCAT('rd-', SHA2(CONCAT(l.id, CHAR(31), l.`offset`), 256)) WHERE m.topic = 't' ORDER BY 1",
    )


def assert_handled(client: Client, raw: Any, offsets: list[int]) -> None:
    """The group gets these, once and in order; another redrive finds nothing."""
    assert client.admin.redrive("t", "g", all=True).messages == 0
    seen = Record()
    with client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt))):
        eventually(lambda: watermark(raw, "g", "t", "k") == offsets[-1])
    assert seen.items == [(offset, 1) for offset in offsets]


# -- redrive and redrive -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("point", MOVING)
def test_a_second_redrive_waits_for_the_first_and_finds_nothing(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """The first holds the lane's head: the second comes back to it, and every dead letter is brought back once."""
    first, moving = stage.paused_in(point, "admin", **ALL)
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(lanelog_client.admin.redrive, "t", "g", all=True)
        first.go(point)
        assert moving.result()["messages"] + second.result(20).messages == 3
        assert second.result().remaining == 0
    assert brought_back(raw) == [(4, 1), (5, 2), (6, 3)]
    assert_handled(lanelog_client, raw, [4, 5, 6])


@pytest.mark.usefixtures("letters")
def test_a_redrive_that_dies_leaves_everything_to_the_second(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """Killed before its COMMIT: no copy, no settled dead letter, no hole in the lane."""
    first, _ = stage.paused_in(MOVING[-1], "admin", **ALL)
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(lanelog_client.admin.redrive, "t", "g", all=True)
        first.program.kill()
        assert second.result(20).messages == 3
    assert brought_back(raw) == [(4, 1), (5, 2), (6, 3)]
    assert_handled(lanelog_client, raw, [4, 5, 6])


@pytest.mark.usefixtures("letters")
def test_a_redrive_that_dies_behind_its_commit_is_not_repeated(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """Nobody heard of it; the dead letters know."""
    point = "after COMMIT following redrive.COPY"
    first, _ = stage.paused_in(point, "admin", **ALL)
    first.program.kill()
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == 0
    assert_handled(lanelog_client, raw, [4, 5, 6])


# -- redrive and publish -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("letters")
def test_a_redrive_comes_back_to_a_head_that_a_publisher_has(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """It goes behind the publisher's message."""
    point = "before COMMIT following messages.INSERT"
    publisher, publishing = stage.paused_in(point, "publish", topic="t", key="k")
    with ThreadPoolExecutor(1) as thread:
        moving = thread.submit(lanelog_client.admin.redrive, "t", "g", all=True)
        never(moving.done, during=0.2, what="a redrive past the head of a publisher")
        publisher.go(point)
        assert publishing.result() == 4
        assert moving.result(20).messages == 3
    assert brought_back(raw) == [(5, 1), (6, 2), (7, 3)]
    assert_handled(lanelog_client, raw, [4, 5, 6, 7])


@pytest.mark.usefixtures("letters")
def test_a_publisher_waits_for_a_redrive_that_has_its_head(stage: Stage, lanelog_client: Client, raw: Any) -> None:
    """Its message comes behind all that was brought back."""
    redriver, moving = stage.paused_in(MOVING[-1], "admin", **ALL)
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(lanelog_client.publish, "t", "k", b"{}")
        wait_until_blocked(raw)
        redriver.go(MOVING[-1])
        assert moving.result()["messages"] == 3
        assert publishing.result(20).offset == 7
    assert_handled(lanelog_client, raw, [4, 5, 6, 7])


# -- redrive and burial --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("letters")
def test_a_redrive_does_not_wait_for_a_burial_and_leaves_it_to_the_next(
    stage: Stage, lanelog_client: Client, raw: Any
) -> None:
    """What is not committed is no dead letter yet; what was brought back meanwhile stands in front of nobody."""
    point = "before COMMIT following moves.BURY"
    owner = stage.actor("owner").pause(point)
    owner.do("subscribe", topic="t", group="g")
    lanelog_client.publish("t", "k", json.dumps({"how": "reject"}))
    owner.paused(point)
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == 3
    owner.go(point)
    said = owner.program.said("handled", count=3)
    assert [(line["offset"], line["attempt"]) for line in said] == [(5, 1), (6, 1), (7, 1)]
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == 1
    assert brought_back(raw)[-1] == (8, 4)


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
def test_a_burial_does_not_wait_for_a_redrive_of_its_key(
    stage: Stage, lanelog_client: Client, raw: Any, dies: bool
) -> None:
    """The dead letters grow while the redrive holds the head of the lane they go back to."""
    owner = stage.actor("owner")
    owner.do("subscribe", topic="t", group="g")
    lanelog_client.publish("t", "k", json.dumps({"how": "reject", "wait": HANDLING}))
    owner.paused(HANDLING)
    redriver, moving = stage.paused_in(MOVING[-1], "admin", **ALL)
    owner.go(HANDLING)
    eventually(lambda: dead(raw) == [1, 2, 3, 4], what="the burial")
    eventually(lambda: watermark(raw, "g", "t", "k") == 4)
    if dies:
        redriver.program.kill()
    else:
        redriver.go(MOVING[-1])
        assert moving.result()["messages"] == 3
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == (4 if dies else 1)
    assert brought_back(raw) == [(5, 1), (6, 2), (7, 3), (8, 4)]
    assert [line["offset"] for line in owner.program.said("handled", count=3)[:3]] == [5, 6, 7]


@pytest.mark.usefixtures("letters")
def test_a_message_that_fails_again_while_its_dead_letter_is_brought_back_is_not_lost(
    stage: Stage, lanelog_client: Client, raw: Any
) -> None:
    """A seek brought it back; its burial finds the dead letter, which a redrive then takes: that copy is delivered."""
    lanelog_client.admin.seek("t", "g", key="k", to=3)
    rows(raw, "UPDATE queue_messages SET payload = '{\"how\": \"reject\"}' WHERE topic = 't' AND `offset` = 3")
    point = "after deliveries.IS_LETTER_SETTLED"
    owner = stage.actor("owner").pause(point)
    owner.do("subscribe", topic="t", group="g")
    owner.paused(point)
    rows(raw, "UPDATE queue_messages SET payload = '{}' WHERE topic = 't_dlq'")
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == 3
    owner.go(point)
    said = owner.program.said("handled", count=3)
    assert [(line["offset"], line["attempt"]) for line in said] == [(4, 1), (5, 1), (6, 1)]
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == 0


# -- redrive and the collection of dead letters --------------------------------------------------------------------


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])
@pytest.mark.parametrize("point", ["after fence.SHARE_FLOORS", *MOVING[1:]])
def test_a_collection_leaves_the_dead_letters_that_are_being_brought_back(
    stage: Stage, lanelog_client: Client, raw: Any, point: str, dies: bool
) -> None:
    """It does not wait for them, and deletes them once they are settled, with the rows that say so."""
    redriver, moving = stage.paused_in(point, "admin", **ALL)
    lanelog_client.admin.maintain()
    assert dead(raw) == [1, 2, 3]
    if dies:
        redriver.program.kill()
        lanelog_client.admin.maintain()
        assert lanelog_client.admin.redrive("t", "g", all=True).messages == 3
    else:
        redriver.go(point)
        assert moving.result()["messages"] == 3
    assert lanelog_client.admin.maintain().dead_letters == 3
    assert dead(raw) == []
    assert rows(raw, "SELECT * FROM queue_delivery_state WHERE consumer_group = ''") == []
    assert_handled(lanelog_client, raw, [4, 5, 6])


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    "point", ["after offsets.LOCK_FLOORS", "before COMMIT following offsets.RAISE_FLOORS", "after moves.DELETE"]
)
def test_a_redrive_brings_nothing_back_a_second_time_from_under_a_collection(
    stage: Stage, lanelog_client: Client, raw: Any, point: str
) -> None:
    """Dead letters that were brought back leave: with or without their rows, a redrive takes only what is new."""
    assert lanelog_client.admin.redrive("t", "g", all=True).messages == 3
    collector, collecting = stage.paused_in(point, "admin", "t_dlq", verb="maintain", topics=["t_dlq"])
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(lanelog_client.admin.redrive, "t", "g", all=True)
        collector.go(point)
        assert second.result(20).messages == 0
    collecting.result()
    assert dead(raw) == []
    assert_handled(lanelog_client, raw, [4, 5, 6])
