"""What runs in a lane that an operator takes away: delivered again, and no crash, unless its process is dead."""

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tenacity

from lanelog import Client, LeaseLost, Message, RetryPolicy
from lanelog._log.interrupt import INTERRUPTED
from support.commits import every_commit_unanswered_once
from support.dead_letters import letters
from support.processes import Fleet
from support.situations import Situations, fill
from support.sql import delivery_rows, rows, watermark
from support.waiting import Record, eventually

ONCE = RetryPolicy(stop=tenacity.stop_after_attempt(1), wait=tenacity.wait_none())
TWICE = RetryPolicy(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_none())

thorough = partial(pytest.param, marks=pytest.mark.thorough)
Verb = Callable[[Client], object]
VERBS: dict[str, Verb] = {
    "release": lambda client: client.admin.release("t", "g", "k", dry_run=False),
    "skip a neighbour": lambda client: client.admin.skip("t", "g", "k", 1, reason="not needed", dry_run=False),
    "purge a neighbour": lambda client: client.admin.purge("t", before=2, dry_run=False),
}


@pytest.mark.parametrize("verb", ["release", thorough("skip a neighbour"), thorough("purge a neighbour")])
@pytest.mark.parametrize(
    ("failing", "options"),
    [
        thorough(0, {"retry": ONCE}),
        (0, {"max_deliveries": 1}),
        thorough(1, {"retry": TWICE}),
        thorough(1, {"max_deliveries": 2}),
    ],
    ids=["a policy of one attempt", "one delivery", "the last attempt", "the last delivery"],
)
def test_a_message_that_runs_is_handled_again(
    lanelog_client: Client, raw: Any, verb: str, failing: int, options: dict[str, Any]
) -> None:
    """Although its attempts are used up by the one that runs: it is the operator who ended that one."""
    seen, go, lost = Record(), threading.Event(), Record()

    def handle(message: Message) -> None:
        if message.offset == 1:
            message.postpone(3600)
            return
        seen(message.attempt)
        if message.attempt <= failing:
            raise RuntimeError("not yet")
        if message.attempt == failing + 1:
            assert go.wait(30)
            try:
                message.ack()
            except LeaseLost:
                lost(message)
                raise

    lanelog_client.publish_many("t", [("k", b"x")] * 2)
    config = {"retry": RetryPolicy(wait=tenacity.wait_none()), **options}
    subscription = lanelog_client.subscribe("t", "g", handle, order="concurrent", **config)
    seen.wait(failing + 1)
    eventually(lambda: any(row["postponed"] for row in delivery_rows(raw, "g", "t")))
    VERBS[verb](lanelog_client)
    assert seen.wait(failing + 2) == list(range(1, failing + 3))
    go.set()
    lost.wait(1)
    if verb == "release":
        lanelog_client.admin.skip("t", "g", "k", 1, reason="the test ends", dry_run=False)
    eventually(lambda: watermark(raw, "g", "t", "k") == 2)
    assert subscription.stop(10)
    assert letters(raw) == 0
    assert delivery_rows(raw, "g", "t") == []


@pytest.mark.thorough
def test_a_granted_delivery_that_fails_is_the_last(lanelog_client: Client, raw: Any) -> None:
    """An operator's word is good for one delivery: when that fails, the message is dead-lettered as usual."""
    seen, go = Record(), threading.Event()

    def handle(message: Message) -> None:
        seen(message.attempt)
        assert message.attempt > 1 or go.wait(30)
        raise RuntimeError("it does not work")

    lanelog_client.publish("t", "k", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, max_deliveries=1)
    seen.wait(1)
    lanelog_client.admin.release("t", "g", "k", dry_run=False)
    seen.wait(2)
    eventually(lambda: letters(raw) == 1)
    go.set()
    assert subscription.stop(10)
    assert seen.items == [1, 2]
    [letter] = lanelog_client.admin.dead_letters("t", "g")
    assert (letter.failure_count, letter.reason) == (2, "RuntimeError: it does not work")


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["release", "skip a neighbour"])
def test_what_a_killed_process_ran_is_a_crash(fleet: Fleet, lanelog_client: Client, verb: str) -> None:
    """A message of a killed process counts as a crash as before. Under a policy of one attempt it was the last."""
    worker = fleet.worker("w", starts=True, options={"order": "concurrent"})
    lanelog_client.publish_many("t", [("k", {"how": "nack"}), ("k", {"sleep": 60})])
    worker.journal.until(lambda lines: any(line.event == "started" and line["offset"] == 2 for line in lines))
    worker.kill()
    # The server frees a dead session's lock when it has noticed. Until then, and in the second after its last
    # heartbeat, the owner counts as alive.
    admin = lanelog_client.admin
    eventually(lambda: [each.state for each in admin.members("t", "g")] == ["dead"], what="the owner's death")
    VERBS[verb](lanelog_client)
    seen = Record()

    def buried() -> list[int]:
        return [letter.original_offset for letter in lanelog_client.admin.dead_letters("t", "g")]

    with lanelog_client.subscribe("t", "g", lambda m: seen(m.offset), order="concurrent", retry=ONCE):
        eventually(lambda: 2 in buried(), within=30)
    assert 2 not in seen.items


# -- rows --------------------------------------------------------------------------------------------------------------


COLUMNS = "message_offset, through_offset, acked, retry_count, crashed, alone, released, lease_epoch, last_error"


def in_flight(client: Client, raw: Any, *, alive: bool) -> Situations:
    """A lane of 10 messages at 2: 3 waits, 5 to 6 are acked, 8 runs again (a suspect, alone), and the mark is at 9."""
    made = Situations(raw)
    fill(client, "k", 10)
    made.register()
    made.owner("w:1", expires=3600.0 if alive else -5.0)
    made.lease("k", "w:1", 7)
    made.place("k", 2, marked_through=9, marked_epoch=7, marked_at=5000)
    made.row("k", 3, retry_count=2, due=3600.0, last_error="later")
    made.row("k", 5, through=6, acked=1)
    made.row("k", 8, retry_count=3, crashed=1, alone=1, lease_epoch=7, last_error="it failed")
    return made


def found(raw: Any) -> list[tuple[Any, ...]]:
    return rows(raw, f"SELECT {COLUMNS} FROM queue_delivery_state WHERE consumer_group = 'g' ORDER BY message_offset")


def mark(raw: Any) -> list[tuple[Any, ...]]:
    return rows(raw, "SELECT offset_acked, marked_through, marked_epoch FROM queue_offsets WHERE consumer_group = 'g'")


THREE = (3, 3, 0, 2, 0, 0, 0, 0, "later")
ACKED = (5, 6, 1, 0, 0, 0, 0, 0, None)
EIGHT = (8, 8, 0, 3, 1, 0, 1, 0, INTERRUPTED)


def first(offset: int) -> tuple[Any, ...]:
    return (offset, offset, 0, 1, 0, 0, 1, 0, INTERRUPTED)


@pytest.mark.parametrize(
    ("verb", "left", "place"),
    [
        ("release", [THREE, first(4), ACKED, first(7), EIGHT, first(9)], (2, 2, 0)),
        ("retry", [THREE, first(4), ACKED, first(7), EIGHT, first(9)], (2, 2, 0)),
        ("skip", [THREE, (4, 6, 1), first(7), EIGHT, first(9)], (2, 2, 0)),
        ("purge", [first(7), EIGHT, first(9)], (6, 2, 0)),
    ],
)
@pytest.mark.parametrize("committed", [None, True, False], ids=["", "committed unanswered", "rolled back unanswered"])
def test_what_was_in_flight_gets_rows(
    lanelog_client: Client,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    verb: str,
    left: list[tuple[Any, ...]],
    place: tuple[int, int, int],
    committed: bool | None,
) -> None:
    """Each offset under the run mark without a row gets one, those in flight wait, nothing else is touched; once."""
    in_flight(lanelog_client, raw, alive=True)
    verbs: dict[str, Callable[[], object]] = {
        "release": lambda: lanelog_client.admin.release("t", "g", "k", dry_run=False),
        "retry": lambda: lanelog_client.admin.retry("t", "g", "k", dry_run=False),
        "skip": lambda: lanelog_client.admin.skip("t", "g", "k", 4, reason="not needed", dry_run=False),
        "purge": lambda: lanelog_client.admin.purge("t", before=5, dry_run=False),
    }
    if committed is None:
        verbs[verb]()
    else:
        with every_commit_unanswered_once(monkeypatch, committed=committed):
            verbs[verb]()
    covered = [row for row in found(raw) if not row[2]]
    assert covered == [row for row in left if not row[2]]
    acked = set(itertools.chain(*(range(row[0], row[1] + 1) for row in found(raw) if row[2])))
    assert acked == {"release": {5, 6}, "retry": {5, 6}, "skip": {4, 5, 6}, "purge": set()}[verb]
    assert mark(raw) == [place]


@pytest.mark.parametrize("dead", ["expired", "missing", "stopped", "an earlier owner"])
def test_a_dead_owner_leaves_a_crash(lanelog_client: Client, raw: Any, dead: str) -> None:
    """Rows and run mark keep the dead epoch, by which the next owner sees that they died.

    So do those of an earlier owner, whom the present one has not taken over from yet: only what is under its own epoch
    was running.
    """
    in_flight(lanelog_client, raw, alive=dead in ("stopped", "an earlier owner"))
    if dead == "missing":
        rows(raw, "DELETE FROM queue_subscriber_heartbeats")
    elif dead == "stopped":
        rows(raw, "UPDATE queue_subscriber_heartbeats SET deregistered_at = 9000")
    elif dead == "an earlier owner":
        rows(raw, "UPDATE queue_partition_leases SET lease_epoch = 8")
    before = (found(raw), mark(raw))
    assert lanelog_client.admin.release("t", "g", "k", dry_run=False).changed
    assert (found(raw), mark(raw)) == before


def test_a_mark_beyond_the_head_gives_no_rows(lanelog_client: Client, raw: Any) -> None:
    """A crashed server lost the end of the lane: what comes there next has had no attempt."""
    in_flight(lanelog_client, raw, alive=True)
    rows(raw, "UPDATE queue_offsets SET marked_through = 15 WHERE consumer_group = 'g'")
    lanelog_client.admin.release("t", "g", "k", dry_run=False)
    assert [row[0] for row in found(raw)] == [3, 4, 5, 7, 8, 9, 10]
