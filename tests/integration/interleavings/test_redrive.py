"""Redrive against the write of a dead letter, another redrive, the collection of letters, and publishers of the lane.

One side is stopped in a process of its own after each of its locks, while the other runs; then the other way round.
`admin/test_redrive.py` lets the same parties race without a plan.
"""

import json

import pytest

from lanelog import Message, Reject
from support.settling import HANDLING
from support.sql import rows
from support.stage import DIES, Call, Stage, thorough
from support.waiting import Record, eventually

COPYING = "before COMMIT following dead_letters.REDRIVE"
ALL = {"verb": "redrive", "topic": "t", "group": "g", "all": True, "dry_run": False}


@pytest.fixture(autouse=True)
def _letters(stage: Stage) -> None:
    """Lane k: three messages, all of them dead letters of group g, whose workers are gone."""

    def reject(message: Message) -> None:
        raise Reject(f"no {message.offset}")

    stage.client.publish_many("t", [("k", b"{}")] * 3)
    with stage.client.subscribe("t", "g", reject, retention=0):
        eventually(lambda: stage.letters() == [1, 2, 3])


def redriving(stage: Stage, point: str) -> Call:
    """A redrive of everything that is stopped at this point."""
    return stage.stopped(point, "admin", **ALL)


def redrive(stage: Stage) -> int:
    """Redrive everything; how many dead letters that were."""
    return stage.client.admin.redrive("t", "g", all=True, dry_run=False).messages


def assert_brought_back(stage: Stage, *places: tuple[int, int]) -> None:
    """These (offset of the redriven message, and of the dead letter that it was)."""
    pairs = "SELECT m.`offset`, l.`offset` FROM queue_messages m JOIN queue_messages l ON l.topic = 't_dlq'"
    same = "m.id = CONCAT('rd-', SHA2(CONCAT(l.id, CHAR(31), l.`offset`), 256))"
    assert places == tuple(rows(stage.raw, f"{pairs} AND {same} WHERE m.topic = 't' ORDER BY 1"))


def assert_handled(stage: Stage, *offsets: int) -> None:
    """The group gets these, once and in order; another redrive finds nothing."""
    assert redrive(stage) == 0
    seen = Record()
    with stage.client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt))):
        stage.until_acked(offsets[-1])
    assert seen.items == [(offset, 1) for offset in offsets]


# -- redrive and redrive -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@DIES
@pytest.mark.parametrize("point", [COPYING, "after partitions.TRY_LOCK_HEADS", "after deliveries.SETTLE_LETTERS"])
def test_a_second_redrive_waits_for_the_first_and_finds_nothing(stage: Stage, point: str, dies: bool) -> None:
    """The first holds the lane's head: the second comes back to it, and every dead letter is brought back once.

    If the first is killed, nothing of it is left: no copy, no settled dead letter, no hole in the lane.
    """
    moving = redriving(stage, point)
    second = stage.aside(stage.client.admin.redrive, "t", "g", all=True, dry_run=False)
    first = moving.end(dies=dies)
    assert second.result(20).messages + (0 if first is None else first["messages"]) == 3
    assert second.result().remaining == 0
    assert_brought_back(stage, (4, 1), (5, 2), (6, 3))
    assert_handled(stage, 4, 5, 6)


@pytest.mark.thorough
def test_a_redrive_that_dies_behind_its_commit_is_not_repeated(stage: Stage) -> None:
    """A redrive whose COMMIT was not answered finds its dead letters settled, and adds no copy."""
    redriving(stage, "after COMMIT following dead_letters.REDRIVE").end(dies=True)
    assert redrive(stage) == 0
    assert_handled(stage, 4, 5, 6)


# -- redrive and publish -------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_redrive_comes_back_to_a_head_that_a_publisher_has(stage: Stage) -> None:
    """The redriven message goes behind the publisher's message."""
    publishing = stage.stopped("before COMMIT following messages.INSERT", "publish", topic="t", key="k")
    redriver = stage.actor("redriver")
    moving = redriver.call("admin", **ALL)
    redriver.pass_by("after partitions.TRY_LOCK_HEADS")
    assert publishing.end() == 4
    assert moving.result()["messages"] == 3
    assert_brought_back(stage, (5, 1), (6, 2), (7, 3))
    assert_handled(stage, 4, 5, 6, 7)


@pytest.mark.thorough
def test_a_publisher_waits_for_a_redrive_that_has_its_head(stage: Stage) -> None:
    """The publisher's message comes behind all redriven ones."""
    moving = redriving(stage, COPYING)
    publishing = stage.waiting(stage.client.publish, "t", "k", b"{}")
    assert moving.end()["messages"] == 3
    assert publishing.result(20).offset == 7
    assert_handled(stage, 4, 5, 6, 7)


# -- redrive and the write of a dead letter ---------------------------------------------------------------------------


def test_a_redrive_does_not_wait_for_a_burial_and_leaves_it_to_the_next(stage: Stage) -> None:
    """A dead letter that is not committed is none yet; a redriven message stands in front of nobody."""
    point = "before COMMIT following dead_letters.BURY"
    owner = stage.member("owner").pause(point)
    stage.client.publish("t", "k", json.dumps({"how": "reject"}))
    owner.paused(point)
    assert redrive(stage) == 3
    owner.go(point)
    assert owner.handled(3, "offset", "attempt") == [(5, 1), (6, 1), (7, 1)]
    assert redrive(stage) == 1
    assert_brought_back(stage, (5, 1), (6, 2), (7, 3), (8, 4))


@DIES
@pytest.mark.thorough
def test_a_burial_does_not_wait_for_a_redrive_of_its_key(stage: Stage, dies: bool) -> None:
    """The dead letters grow while the redrive holds the head of the lane they go back to."""
    owner = stage.member("owner")
    stage.client.publish("t", "k", json.dumps({"how": "reject", "wait": HANDLING}))
    owner.paused(HANDLING)
    moving = redriving(stage, COPYING)
    owner.go(HANDLING)
    stage.until_acked(4)
    assert stage.letters() == [1, 2, 3, 4]
    moving.end(dies=dies)
    assert redrive(stage) == (4 if dies else 1)
    assert_brought_back(stage, (5, 1), (6, 2), (7, 3), (8, 4))
    assert owner.handled(3, "offset")[:3] == [5, 6, 7]


@pytest.mark.thorough
def test_a_message_that_fails_again_while_its_dead_letter_is_brought_back_is_not_lost(stage: Stage) -> None:
    """A seek brought it back; its second write finds the dead letter, which a redrive then takes: that is delivered."""
    stage.client.admin.seek("t", "g", key="k", to=3, dry_run=False)
    rows(stage.raw, "UPDATE queue_messages SET payload = '{\"how\": \"reject\"}' WHERE topic = 't' AND `offset` = 3")
    point = "after deliveries.IS_LETTER_SETTLED"
    owner = stage.member("owner", point)
    rows(stage.raw, "UPDATE queue_messages SET payload = '{}' WHERE topic = 't_dlq'")
    assert redrive(stage) == 3
    owner.go(point)
    assert owner.handled(3, "offset", "attempt") == [(4, 1), (5, 1), (6, 1)]
    assert redrive(stage) == 0


# -- redrive and the collection of dead letters --------------------------------------------------------------------


@DIES
@pytest.mark.parametrize("point", [COPYING, *thorough("after offsets.SHARE_FLOORS", "after deliveries.SETTLE_LETTERS")])
def test_a_collection_leaves_the_dead_letters_that_are_being_brought_back(stage: Stage, point: str, dies: bool) -> None:
    """The collection does not wait for them, and deletes them and their delivery rows once they are settled."""
    moving = redriving(stage, point)
    stage.client.admin.maintain()
    assert stage.letters() == [1, 2, 3]
    moving.end(dies=dies)
    if dies:
        stage.client.admin.maintain()
        assert redrive(stage) == 3
    assert stage.client.admin.maintain().dead_letters == 3
    assert stage.letters() == []
    assert rows(stage.raw, "SELECT * FROM queue_delivery_state WHERE consumer_group = ''") == []
    assert_handled(stage, 4, 5, 6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "point", ["before COMMIT following offsets.RAISE_FLOORS", "after offsets.TRY_LOCK_FLOORS", "after leaving.DELETE"]
)
def test_a_redrive_brings_nothing_back_a_second_time_from_under_a_collection(stage: Stage, point: str) -> None:
    """Dead letters that were brought back leave: with or without their rows, a redrive takes only what is new."""
    assert redrive(stage) == 3
    collecting = stage.stopped(point, "admin", "t_dlq", verb="maintain", topics=["t_dlq"])
    second = stage.aside(redrive, stage)
    collecting.end()
    assert second.result(20) == 0
    assert stage.letters() == []
    assert_handled(stage, 4, 5, 6)
