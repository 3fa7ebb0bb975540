"""Who appends what is due, against publishers, against another one who does, a purge, and a cancellation.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `log/test_delayed.py` has what a delay is for.
"""

from typing import Any

import pytest

from lanelog import Outgoing, Receipt
from lanelog._log.due import DelayedMessages
from lanelog.publisher import Publisher
from support.memberships import Clock
from support.situations import Situations
from support.sql import rows
from support.stage import DIES, Call, Stage, thorough, wait_until_blocked
from support.waiting import eventually

HEADS = "after partitions.TRY_LOCK_HEADS"
LAST = "before COMMIT following scheduled.DELETE"
BEHIND_THE_ROWS = pytest.mark.parametrize(
    "point", [LAST, *thorough("after scheduled.LOCK", "after messages.APPEND_SCHEDULED")]
)
APPENDING = pytest.mark.parametrize(
    "point", [LAST, *thorough(HEADS, "after scheduled.LOCK", "after messages.APPEND_SCHEDULED")]
)


@pytest.fixture(autouse=True)
def _due(stage: Stage, publisher: Publisher) -> None:
    """One message of lane k, due, with the id a."""
    publisher.publish("t", Outgoing("k", b"a", id="a", delay=3600))
    publisher.publish("t", Outgoing("other", b"0"))
    make_due(stage)


def make_due(stage: Stage) -> None:
    rows(stage.raw, "UPDATE queue_scheduled SET deliver_at = 1 WHERE deliver_at > 1")


def moving(stage: Stage, point: str) -> Call:
    """One who appends what is due, stopped at this point."""
    return stage.stopped(point, "append")


def log(stage: Stage, key: str = "k") -> list[tuple[int, str]]:
    return rows(stage.raw, "SELECT `offset`, id FROM queue_messages WHERE partition_key = %s ORDER BY `offset`", key)


def waiting(stage: Stage) -> list[str]:
    return [message_id for (message_id,) in rows(stage.raw, "SELECT id FROM queue_scheduled ORDER BY id")]


def ended(step: Call, *, dies: bool) -> None:
    """It moves the one message, or dies."""
    assert step.end(dies=dies) == (None if dies else 1)


# -- against publishers ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@DIES
@pytest.mark.parametrize("delay", [None, 3600.0], ids=["at once", "delayed"])
@APPENDING
def test_publishers_wait_for_who_appends_to_their_lane(
    stage: Stage, publisher: Publisher, point: str, delay: Any, dies: bool
) -> None:
    """Then they find the id in the log; or in the schedule, if the appender dies. Other lanes do not wait."""
    mover = moving(stage, point)
    again = stage.aside(publisher.publish, "t", Outgoing("k", b"again", id="a", delay=delay))
    new = stage.aside(publisher.publish, "t", Outgoing("k", b"new", id="b"))
    wait_until_blocked(stage.raw)
    assert publisher.publish("t", Outgoing("other", b"1")).offset == 2
    assert not again.done()
    assert not new.done()
    ended(mover, dies=dies)
    assert again.result(15) == Receipt(0 if dies else 1, "a", duplicate=True)
    assert new.result(15).offset == (1 if dies else 2)
    assert waiting(stage) == (["a"] if dies else [])
    assert log(stage) == ([(1, "b")] if dies else [(1, "a"), (2, "b")])


@pytest.mark.thorough
@DIES
@pytest.mark.parametrize("point", ["before COMMIT following scheduled.INSERT", HEADS])
def test_who_appends_leaves_the_lane_of_a_publisher_for_later(
    stage: Stage, publisher: Publisher, appending: DelayedMessages, point: str, dies: bool
) -> None:
    """The appender moves other lanes. A second publish of the scheduled id waits for the outcome."""
    publisher.publish("t", Outgoing("other", b"x", id="other", delay=3600))
    make_due(stage)
    publishing = stage.stopped(point, "publish", topic="t", key="k", id="new", delay=3600.0)
    assert appending.append() == 1
    assert log(stage, "other")[1:] == [(2, "other")]
    assert waiting(stage) == ["a"]
    again = stage.waiting(publisher.publish, "t", Outgoing("k", b"again", id="new"))
    assert publishing.end(dies=dies) == (None if dies else 0)
    assert again.result(15) == Receipt(1 if dies else 0, "new", duplicate=not dies)
    # The actor, if it lives, has a scheduler by now, which may be faster.
    eventually(lambda: appending.append() == 1 or "a" not in waiting(stage))
    assert [message_id for _, message_id in log(stage)] == (["new", "a"] if dies else ["a"])
    assert waiting(stage) == ([] if dies else ["new"])


# -- against another one who appends -----------------------------------------------------------------------------------


@DIES
@APPENDING
def test_two_who_append_share_the_lanes(
    stage: Stage, publisher: Publisher, appending: DelayedMessages, point: str, dies: bool
) -> None:
    """The second skips what the first has, and takes it over if that dies."""
    mover = moving(stage, point)
    publisher.publish("t", Outgoing("other", b"x", id="other", delay=3600))
    make_due(stage)
    assert appending.append() == 1
    assert log(stage, "other")[1:] == [(2, "other")]
    ended(mover, dies=dies)
    eventually(lambda: appending.wait() is None)
    eventually(lambda: appending.append() or not waiting(stage))
    assert log(stage) == [(1, "a")]
    assert waiting(stage) == []


@pytest.mark.thorough
def test_one_who_read_before_the_other_committed_moves_nothing_twice(stage: Stage, appending: DelayedMessages) -> None:
    """A due row that was read is gone when it is to be locked, also if the id was scheduled anew for later."""
    mover = moving(stage, "after scheduled.DUE")
    assert appending.append() == 1
    columns = "topic, partition_key, id, payload, payload_bytes, deliver_at"
    rows(stage.raw, f"INSERT INTO queue_scheduled ({columns}) VALUES ('t', 'k', 'a', 'later', 5, 1 << 42)")
    assert mover.end() == 0
    assert log(stage) == [(1, "a")]
    assert waiting(stage) == ["a"]


# -- against a purge ---------------------------------------------------------------------------------------------------


@pytest.fixture
def drained(stage: Stage, publisher: Publisher) -> None:
    """Lane k had two messages more, acked by group g, the only one, and collected."""
    stage.register("g")
    publisher.publish_many("t", [("k", b"1"), ("k", b"2")])
    rows(stage.raw, "DELETE FROM queue_messages")
    for group in ("", "g"):
        Situations(stage.raw).place("k", 2, group=group)


@DIES
@APPENDING
@pytest.mark.usefixtures("drained")
def test_a_purge_leaves_a_lane_that_somebody_appends_to(
    stage: Stage, appending: DelayedMessages, point: str, dies: bool
) -> None:
    """The purge never waits. The message comes behind the lane's old end in any case."""
    mover = moving(stage, point)
    assert stage.purge() is False
    ended(mover, dies=dies)
    if dies:
        eventually(stage.purge)
        eventually(appending.append)
    else:
        assert stage.purge() is False
    assert log(stage) == [(3, "a")]
    assert waiting(stage) == []


@pytest.mark.thorough
@DIES
@pytest.mark.usefixtures("drained")
@pytest.mark.parametrize("point", ["before COMMIT following offsets.PURGE", "after partitions.TRY_LOCK_HEAD"])
def test_what_is_due_in_a_lane_that_is_being_purged_comes_when_that_is_over(
    stage: Stage, appending: DelayedMessages, point: str, dies: bool
) -> None:
    """No other lane waits for the purge; if the lane went, it is made again above its old end."""
    purging = stage.stopped(point, "purge", topic="t", key="k")
    assert appending.append() == 0
    assert purging.end(dies=dies) is (None if dies else True)
    eventually(lambda: appending.append() == 1)
    assert log(stage) == [(3, "a")]
    assert waiting(stage) == []


# -- against a cancellation --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@DIES
@BEHIND_THE_ROWS
def test_a_cancellation_waits_for_who_appends_the_message(stage: Stage, point: str, dies: bool) -> None:
    """False, because it is in the log; True if that one dies."""
    mover = moving(stage, point)
    cancelling = stage.waiting(stage.client.cancel_scheduled, "t", "k", "a")
    ended(mover, dies=dies)
    assert cancelling.result(15) is dies
    assert log(stage) == ([] if dies else [(1, "a")])
    assert waiting(stage) == []


@pytest.mark.thorough
def test_a_message_cancelled_before_its_row_is_locked_is_not_appended(stage: Stage) -> None:
    """The head alone is no claim on it."""
    mover = moving(stage, HEADS)
    assert stage.client.cancel_scheduled("t", "k", "a") is True
    assert mover.end() == 0
    assert log(stage) == []


@pytest.mark.thorough
@DIES
@pytest.mark.parametrize("point", ["before COMMIT following scheduled.CANCEL", "after scheduled.CANCEL"])
def test_who_appends_leaves_a_message_that_is_being_cancelled(
    stage: Stage,
    publisher: Publisher,
    appending: DelayedMessages,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    dies: bool,
) -> None:
    """The appender moves the others of its lane; if the cancelling process dies, the message follows."""
    clock = Clock()
    monkeypatch.setattr("lanelog._log.due.time", clock)
    publisher.publish("t", Outgoing("k", b"b", id="b", delay=3600))
    make_due(stage)
    cancelling = stage.stopped(point, "cancel", topic="t", key="k", message_id="a")
    assert appending.append() == 1
    assert log(stage) == [(1, "b")]
    assert appending.append() == 0
    assert appending.wait() is not None

    def append_after_the_wait() -> int:
        clock.now += appending.locked.most
        assert appending.wait() is None
        return appending.append()

    assert cancelling.end(dies=dies) is (None if dies else True)
    if dies:
        eventually(lambda: append_after_the_wait() == 1)
    else:
        assert append_after_the_wait() == 0
    assert log(stage) == ([(1, "b"), (2, "a")] if dies else [(1, "b")])
    assert waiting(stage) == []
