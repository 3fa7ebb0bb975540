"""Collection, seek and the registration of new groups on the same lanes, all at once, for many rounds.

Every statement that decides what may leave is held up now and then, for a random while. The dangerous orders of two at
a time are in `interleavings/test_seek.py` and `interleavings/test_registration.py`.
"""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog._database import Database
from lanelog._database.connection.wire import Wire
from lanelog._log.register import register
from lanelog.config import SubscriptionConfig
from support.pauses import name_of
from support.situations import Situations
from support.sql import audit, rows

KEYS = [f"k{n}" for n in range(4)]
ROUNDS = 40
EACH = 6
LONGEST = 0.02
HELD_UP = {
    *("partitions.SHARE_TOPIC", "partitions.LOCK_TOPIC", "offsets.TRY_LOCK_FLOORS", "offsets.SHARE_FLOORS"),
    *("offsets.WATERMARKS", "offsets.RAISE_FLOORS", "offsets.RAISE_DELETED", "offsets.MOVE"),
    *("leaving.DELETE", "groups.CREATE", "leases.TAKE_AWAY"),
}


@pytest.fixture
def _held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads wait now and then before and behind the statements that matter."""
    run, dice, never = Wire._run, random.Random(1), threading.Event()

    def slowly(wire: Wire, sql: str, args: Sequence[object]) -> Any:
        waits = name_of(sql) in HELD_UP
        if waits and dice.random() < 0.5:
            never.wait(dice.uniform(0, LONGEST))
        result = run(wire, sql, args)
        if waits and dice.random() < 0.5:
            never.wait(dice.uniform(0, LONGEST))
        return result

    monkeypatch.setattr(Wire, "_run", slowly)


@pytest.mark.thorough
@pytest.mark.usefixtures("_held_up")
def test_nothing_is_deleted_that_a_group_still_needs(lanelog_client: Client, database: Database, raw: Any) -> None:
    """Messages above a watermark are there, also one that a seek has just lowered; no floor rises above a new group."""
    register(database, GroupTopic(topic="t", group="old"), SubscriptionConfig.from_options(retention=0))
    audit(
        raw,
        "rises",
        "UPDATE",
        "queue_offsets",
        "lane, a, b",
        "NEW.partition_key, NEW.offset_acked, (SELECT COUNT(*) FROM queue_groups WHERE consumer_group LIKE 'late%')",
        "NEW.consumer_group = '' AND NEW.offset_acked <> OLD.offset_acked",
    )
    options = SubscriptionConfig.from_options()
    dice, admin, together = random.Random(2), lanelog_client.admin, threading.Barrier(5)
    never, lowered = threading.Event(), 0

    def begin(late: float, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        together.wait(20)
        never.wait(late)
        return work(*args, **options)

    with ThreadPoolExecutor(5) as threads:
        for number in range(ROUNDS):
            lanelog_client.publish_many("t", [(key, b"x") for key in KEYS for _ in range(EACH)])
            heads = everything_acked(raw)
            places = {key: dice.randint(heads[key] - 2 * EACH, heads[key]) for key in KEYS[:2]}
            late = GroupTopic(topic="t", group=f"late{number}")
            work = [
                threads.submit(begin, 0, admin.maintain, topics=["t"]),
                threads.submit(begin, 0, admin.maintain, topics=["t"]),
                *(
                    threads.submit(
                        begin, dice.uniform(0, 3 * LONGEST), admin.seek, "t", "old", key=k, to=max(1, to), dry_run=False
                    )
                    for k, to in places.items()
                ),
                threads.submit(begin, dice.uniform(0, 6 * LONGEST), register, database, late, options),
            ]
            done = [each.result(30) for each in work]
            lowered += sum(sought.again for sought in done[2:4])
            assert_everything_needed_is_there(raw, heads)
            admin.delete_group("t", f"late{number}", dry_run=False)
    risen = rows(raw, "SELECT b, COUNT(*) FROM rises GROUP BY b ORDER BY b")
    assert dict(risen).keys() == {0}, f"floors rose past a group that was registered: {risen}"
    assert risen[0][1] > ROUNDS / 4, "nothing was collected: there was no race"
    assert lowered > ROUNDS, "nothing was brought back: there was no race"


def everything_acked(raw: Any) -> dict[str, int]:
    """Let group old have acked whatever there is; the heads."""
    heads = dict(rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = 't'"))
    heads.pop("", None)
    for key, head in heads.items():
        Situations(raw, group="old").place(key, head)
    return heads


def assert_everything_needed_is_there(raw: Any, heads: dict[str, int]) -> None:
    """Above the floor the log has no hole, and no group is below the floor."""
    floors = dict(rows(raw, "SELECT partition_key, offset_acked FROM queue_offsets WHERE consumer_group = ''"))
    sql = "SELECT consumer_group, partition_key, offset_acked FROM queue_offsets WHERE topic = 't'"
    for group, key, acked in rows(raw, sql):
        assert acked >= floors[key], f"{group} needs {acked + 1} of {key}, which is released up to {floors[key]}"
    for key, head in heads.items():
        sql = "SELECT `offset` FROM queue_messages WHERE topic = 't' AND partition_key = %s AND `offset` > %s"
        stored = sorted(offset for (offset,) in rows(raw, sql, key, floors[key]))
        assert stored == list(range(floors[key] + 1, head + 1)), f"{key} above {floors[key]}"
