"""Messages that kill their process, and the innocent ones beside them."""

from typing import Any

import pytest

from lanelog import Client
from support.processes import Fleet
from support.sql import one
from support.traffic import handled
from support.waiting import eventually

ATTEMPTS = 2


def run_until_settled(fleet: Fleet, raw: Any, count: int, *, most: int, **config: Any) -> int:
    """Start a process again as often as it dies, until the group has settled `count` messages; how often it died."""
    deaths = 0
    while True:
        # Not waited for: it may die of its first message before it says that it is ready.
        process = fleet.start(f"w{deaths}", attempts=ATTEMPTS, starts=True, **config)
        eventually(
            lambda process=process: process.popen.poll() is not None or settled(raw) == count,
            within=30,
            what=f"the death of {process} or {count} settled messages ({settled(raw)} so far)",
        )
        if process.popen.poll() is None:
            process.said("ready")
            process.terminate()
            assert process.ended() == 0
            return deaths
        assert process.ended() == 9
        deaths += 1
        assert deaths <= most


def settled(raw: Any) -> int:
    """How many messages are behind the watermarks of group g."""
    return int(one(raw, "SELECT COALESCE(SUM(offset_acked), 0) FROM queue_offsets WHERE consumer_group = 'g'"))


def dead_letters(client: Client) -> list[tuple[str, int, int]]:
    """(key, original offset, failure count) of each dead letter of topic t."""
    found = client.admin.dead_letters("t", "g")
    return [(letter.key, letter.original_offset, letter.failure_count) for letter in found]


def test_a_message_that_kills_its_process_ends_in_the_dead_letters_and_nothing_beside_it(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """After its attempts, which are counted by the database; 50 messages around it and a slow one elsewhere succeed."""
    quiet: dict[str, object] = {}
    slow = {"sleep": 0.5}
    lanelog_client.publish_many(
        "t",
        [("guilty", quiet)] * 20
        + [("guilty", {"exit": True, "number": 1})]
        + [("guilty", quiet)] * 20
        + [(f"other-{n}", quiet) for n in range(10)]
        + [("slow", slow), ("slow", quiet)],
    )
    deaths = run_until_settled(fleet, raw, 53, most=ATTEMPTS)
    assert deaths == ATTEMPTS
    guilty = [(line["key"], line["offset"], line["attempt"]) for line in fleet.heard("started") if line["offset"] == 21]
    assert guilty == [("guilty", 21, attempt) for attempt in range(1, ATTEMPTS + 1)]
    assert dead_letters(lanelog_client) == [("guilty", 21, ATTEMPTS)]
    done = handled(fleet.journal.items)
    assert done["guilty"] == [*range(1, 21), *range(22, 42)]
    assert done["slow"] == [1, 2]
    assert all(done[f"other-{n}"] == [1] for n in range(10))


@pytest.mark.thorough
def test_two_messages_that_kill_their_process_are_both_found(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """Two lanes of one process crash it: each runs alone before it is given up, and the third lane is not."""
    lanelog_client.publish_many(
        "t", [("a", {"exit": True, "n": 1}), ("b", {"exit": True, "n": 1}), ("c", {"sleep": 0.5}), ("a", {}), ("b", {})]
    )
    run_until_settled(fleet, raw, 5, most=2 * ATTEMPTS)
    assert sorted((key, offset) for key, offset, _ in dead_letters(lanelog_client)) == [("a", 1), ("b", 1)]
    assert handled(fleet.journal.items) == {"a": [2], "b": [2], "c": [1]}
