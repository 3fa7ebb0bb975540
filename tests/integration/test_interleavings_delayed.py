"""Who appends what is due, against publishers, against another one who does, a purge, and a cancellation.

One side is stopped in a process of its own after each of its locks, while the other side runs; then the other way
round. `test_delayed.py` has what a delay is for.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client, Receipt
from lanelog._database import Database
from lanelog._engine.appending import MOST_WAIT, Appending
from lanelog._engine.purge import Purge
from lanelog.publisher import Publisher
from support.memberships import Clock
from support.sql import one, rows
from support.stage import Stage, wait_until_blocked
from support.waiting import accept, eventually

BEFORE_THE_ROWS = "after partitions.TRY_LOCK_HEADS"
BEHIND_THE_ROWS = [
    "after scheduled.LOCK",
    "after scheduled.APPEND",
    "before COMMIT following scheduled.DELETE",
]
APPENDING = [BEFORE_THE_ROWS, *BEHIND_THE_ROWS]
SCHEDULING = [BEFORE_THE_ROWS, "before COMMIT following scheduled.INSERT"]
DIES = pytest.mark.parametrize("dies", [False, True], ids=["commits", "dies"])


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def appending(database: Database, publisher: Publisher, published: list[str]) -> Iterator[Appending]:
    session = database.session("appending")
    yield Appending(session, publisher.ensure_lanes, published.append)
    session.close()


@pytest.fixture
def due(publisher: Publisher, raw: Any) -> None:
    """One message of lane k, due, with the id a."""
    publisher.publish("t", "k", b"a", id="a", delay=3600)
    publisher.publish("t", "other", b"0")
    make_due(raw)


def make_due(raw: Any) -> None:
    rows(raw, "UPDATE queue_scheduled SET deliver_at = 1 WHERE deliver_at > 1")


def log(raw: Any, key: str = "k") -> list[tuple[int, str]]:
    return rows(raw, "SELECT `offset`, id FROM queue_messages WHERE partition_key = %s ORDER BY `offset`", key)


def waiting(raw: Any) -> list[str]:
    return [message_id for (message_id,) in rows(raw, "SELECT id FROM queue_scheduled ORDER BY id")]


# -- against publishers ----------------------------------------------------------------------------------------------


@DIES
@pytest.mark.parametrize("delay", [None, 3600.0], ids=["at once", "delayed"])
@pytest.mark.parametrize("point", APPENDING)
def test_publishers_wait_for_who_appends_to_their_lane(
    due: None,
    stage: Stage,
    publisher: Publisher,
    raw: Any,
    threads: ThreadPoolExecutor,
    point: str,
    delay: Any,
    dies: bool,
) -> None:
    """And find the id in the log; or in the schedule still, if that one dies. Other lanes do not wait."""
    mover, moving = stage.paused_in(point, "append")
    again = threads.submit(publisher.publish, "t", "k", b"again", id="a", delay=delay)
    new = threads.submit(publisher.publish, "t", "k", b"new", id="b")
    wait_until_blocked(raw)
    assert publisher.publish("t", "other", b"1").offset == 2
    assert not again.done()
    assert not new.done()
    if dies:
        mover.program.kill()
    else:
        mover.go(point)
        assert moving.result() == 1
    assert again.result(15) == Receipt(0 if dies else 1, "a", duplicate=True)
    assert new.result(15).offset == (1 if dies else 2)
    assert waiting(raw) == (["a"] if dies else [])
    assert log(raw) == ([(1, "b")] if dies else [(1, "a"), (2, "b")])


@DIES
@pytest.mark.parametrize("point", SCHEDULING)
def test_who_appends_leaves_the_lane_of_a_publisher_for_later(
    due: None,
    stage: Stage,
    publisher: Publisher,
    appending: Appending,
    raw: Any,
    point: str,
    dies: bool,
    threads: ThreadPoolExecutor,
) -> None:
    """And moves other lanes. A second publish of the id that is being scheduled waits for what becomes of it."""
    publisher.publish("t", "other", b"x", id="other", delay=3600)
    make_due(raw)
    actor, publishing = stage.paused_in(point, "publish", topic="t", key="k", id="new", delay=3600.0)
    assert appending.append() == 1
    assert log(raw, "other")[1:] == [(2, "other")]
    assert waiting(raw) == ["a"]
    again = threads.submit(publisher.publish, "t", "k", b"again", id="new")
    wait_until_blocked(raw)
    if dies:
        actor.program.kill()
    else:
        actor.go(point)
        assert publishing.result() == 0
    assert again.result(15) == Receipt(1 if dies else 0, "new", duplicate=not dies)
    # The actor, if it lives, has a scheduler by now, which may be faster.
    eventually(lambda: appending.append() == 1 or "a" not in waiting(raw))
    assert [message_id for _, message_id in log(raw)] == (["new", "a"] if dies else ["a"])
    assert waiting(raw) == ([] if dies else ["new"])


# -- against another one who appends -----------------------------------------------------------------------------------


@DIES
@pytest.mark.parametrize("point", APPENDING)
def test_two_who_append_share_the_lanes(
    due: None, stage: Stage, publisher: Publisher, appending: Appending, raw: Any, point: str, dies: bool
) -> None:
    """The second skips what the first has, and takes it over if that dies."""
    mover, moving = stage.paused_in(point, "append")
    publisher.publish("t", "other", b"x", id="other", delay=3600)
    make_due(raw)
    assert appending.append() == 1
    assert log(raw, "other")[1:] == [(2, "other")]
    if dies:
        mover.program.kill()
    else:
        mover.go(point)
        assert moving.result() == 1
    eventually(lambda: appending.wait() is None)
    eventually(lambda: appending.append() or not waiting(raw))
    assert log(raw) == [(1, "a")]
    assert waiting(raw) == []


def test_one_who_looked_before_the_other_committed_moves_nothing_twice(
    due: None, stage: Stage, appending: Appending, raw: Any
) -> None:
    """What it found due is gone when it comes to lock it, also if the id was scheduled anew for later."""
    mover, moving = stage.paused_in("after scheduled.DUE", "append")
    assert appending.append() == 1
    rows(
        raw,
        "INSERT INTO queue_scheduled (topic, partition_key, id, payload, payload_bytes, deliver_at)"
        " VALUES ('t', 'k', 'a', 'later', 5, 1 << 42)",
    )
    mover.go("after scheduled.DUE")
    assert moving.result() == 0
    assert log(raw) == [(1, "a")]
    assert waiting(raw) == ["a"]


# -- against a purge ---------------------------------------------------------------------------------------------------


@pytest.fixture
def drained(lanelog_client: Client, publisher: Publisher, raw: Any) -> None:
    """Lane k: two messages, acked and collected; one that has become due since."""
    subscription = lanelog_client.subscribe("t", "g", accept, retention=0)
    publisher.publish_many("t", [("k", b"1"), ("k", b"2")])
    eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages") == 0)
    subscription.stop()
    lanelog_client.close()
    publisher.publish("t", "k", b"a", id="a", delay=3600)
    make_due(raw)


def purged(database: Database) -> bool:
    session = database.session("purge")
    try:
        return Purge(session).drained("t", "k")
    finally:
        session.close()


@DIES
@pytest.mark.parametrize("point", APPENDING)
def test_a_purge_leaves_a_lane_that_somebody_appends_to(
    drained: None, stage: Stage, database: Database, appending: Appending, raw: Any, point: str, dies: bool
) -> None:
    """It never waits. The message comes behind the lane's old end in any case."""
    mover, moving = stage.paused_in(point, "append")
    assert purged(database) is False
    if dies:
        mover.program.kill()
        eventually(lambda: purged(database))
        eventually(appending.append)
    else:
        mover.go(point)
        assert moving.result() == 1
        assert purged(database) is False
    assert log(raw) == [(3, "a")]
    assert waiting(raw) == []


@DIES
@pytest.mark.parametrize("point", ["after discovery.TRY_LOCK_HEAD", "before COMMIT following offsets.PURGE"])
def test_what_is_due_in_a_lane_that_is_being_purged_comes_when_that_is_over(
    drained: None, stage: Stage, appending: Appending, raw: Any, point: str, dies: bool
) -> None:
    """Nobody waits for the purge; the lane is made again above its old end, if it went."""
    actor, purging = stage.paused_in(point, "purge", topic="t", key="k")
    assert appending.append() == 0
    if dies:
        actor.program.kill()
    else:
        actor.go(point)
        assert purging.result() is True
    eventually(lambda: appending.append() == 1)
    assert log(raw) == [(3, "a")]
    assert waiting(raw) == []


# -- against a cancellation --------------------------------------------------------------------------------------------


@DIES
@pytest.mark.parametrize("point", BEHIND_THE_ROWS)
def test_a_cancellation_waits_for_who_appends_the_message(
    due: None, stage: Stage, lanelog_client: Client, raw: Any, threads: ThreadPoolExecutor, point: str, dies: bool
) -> None:
    """False, because it is in the log; True if that one dies."""
    mover, moving = stage.paused_in(point, "append")
    cancelling = threads.submit(lanelog_client.cancel_scheduled, "t", "k", "a")
    wait_until_blocked(raw)
    assert not cancelling.done()
    if dies:
        mover.program.kill()
    else:
        mover.go(point)
        assert moving.result() == 1
    assert cancelling.result(15) is dies
    assert log(raw) == ([] if dies else [(1, "a")])
    assert waiting(raw) == []


def test_a_message_cancelled_before_its_row_is_locked_is_not_appended(
    due: None, stage: Stage, lanelog_client: Client, raw: Any
) -> None:
    """The head alone is no claim on it."""
    mover, moving = stage.paused_in(BEFORE_THE_ROWS, "append")
    assert lanelog_client.cancel_scheduled("t", "k", "a") is True
    mover.go(BEFORE_THE_ROWS)
    assert moving.result() == 0
    assert log(raw) == []


@DIES
@pytest.mark.parametrize("point", ["after scheduled.CANCEL", "before COMMIT following scheduled.CANCEL"])
def test_who_appends_leaves_a_message_that_is_being_cancelled(
    due: None,
    stage: Stage,
    publisher: Publisher,
    appending: Appending,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    dies: bool,
) -> None:
    """And moves the others of its lane; if the one who cancels dies, it follows."""
    clock = Clock()
    monkeypatch.setattr("lanelog._engine.appending.time", clock)
    publisher.publish("t", "k", b"b", id="b", delay=3600)
    make_due(raw)
    actor, cancelling = stage.paused_in(point, "cancel", topic="t", key="k", message_id="a")
    assert appending.append() == 1
    assert log(raw) == [(1, "b")]
    assert appending.append() == 0
    assert appending.wait() is not None

    def append_after_the_wait() -> int:
        clock.now += MOST_WAIT
        assert appending.wait() is None
        return appending.append()

    if dies:
        actor.program.kill()
        eventually(lambda: append_after_the_wait() == 1)
    else:
        actor.go(point)
        assert cancelling.result() is True
        assert append_after_the_wait() == 0
    assert log(raw) == ([(1, "b"), (2, "a")] if dies else [(1, "b")])
    assert waiting(raw) == []
