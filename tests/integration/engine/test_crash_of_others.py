"""A process that is killed counts an attempt for what it ran, and for nothing that only waited in it."""

from collections import Counter
from typing import Any

import pytest

from lanelog import Client, Message
from lanelog._engine.member.attempts import Attempts
from support.processes import Fleet
from support.sql import one, rows, watermark
from support.turns import Turns
from support.waiting import Gate, Record, eventually, never

KEYS = [f"k{number}" for number in range(8)]
GROUPS = ["g", "h"]
WITHIN = 30.0

# What a new owner of a lane would count, of all lanes of a group: under the run mark, or in flight in a row.
COUNTED = """
SELECT (SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = %s AND marked_through > offset_acked)
     + (SELECT COUNT(*) FROM queue_delivery_state WHERE consumer_group = %s AND lease_epoch > 0 AND NOT acked)
"""


def counted(raw: Any, group: str) -> int:
    """How many messages of this group are marked."""
    return int(one(raw, COUNTED, group, group))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "running"), [({"workers": 2}, 2), ({"pulled": True}, 1)], ids=["workers", "pulled"]
)
def test_a_killed_process_counts_only_what_it_ran(
    fleet: Fleet, lanelog_client: Client, raw: Any, options: dict[str, Any], running: int
) -> None:
    """Of eight keys, two are worked at (or one is pulled) in each of two groups; after two kills the rest is new.

    Nothing of it runs alone for what it never did, and nothing is a dead letter.
    """
    lanelog_client.publish_many("t", [(key, b"1") for key in KEYS])
    had: Counter[tuple[str, str]] = Counter()
    for death in range(2):
        process = fleet.start(f"w{death}", "holding.py", groups=GROUPS, count=len(KEYS), **options)
        for line in process.said("started", count=running * len(GROUPS), within=WITHIN):
            had[(line["group"], line["key"])] += 1
            assert line["attempt"] == had[(line["group"], line["key"])]
        process.said("crowded", within=WITHIN)  # all the others wait for a worker, or for who pulls
        never(lambda: any(counted(raw, group) != running for group in GROUPS), during=0.3)
        process.kill()
    seen = Record()
    for group in GROUPS:
        lanelog_client.subscribe("t", group, lambda message: seen((message.group, message.key, message.attempt)))
    attempts = {(group, key): attempt for group, key, attempt in seen.wait(len(GROUPS) * len(KEYS), within=WITHIN)}
    assert attempts == {(group, key): had[(group, key)] + 1 for group in GROUPS for key in KEYS}
    assert 1 in attempts.values()
    assert not lanelog_client.admin.dead_letters("t", "g")


@pytest.mark.thorough
def test_what_waits_for_a_worker_when_an_operator_takes_its_lane_was_not_tried(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released while it waits behind another key, a message comes back as attempt 1: no mark has to be judged."""
    turns, seen, gate = Turns(monkeypatch), Record(), Gate()

    def handle(message: Message) -> None:
        seen((message.key, message.attempt))
        if message.key == "busy":
            gate()

    with lanelog_client.subscribe("t", "g", handle, workers=1) as subscription, gate:
        lanelog_client.publish("t", "busy", b"1")
        gate.reached()
        lanelog_client.publish("t", "waits", b"1")
        eventually(lambda: subscription.stats().running == 2, what="the message that waits for a worker")
        turns.pass_by([subscription])
        assert counted(raw, "g") == 1  # no mark of what only waits
        lanelog_client.admin.release("t", "g", "waits", dry_run=False)
        assert rows(raw, "SELECT * FROM queue_delivery_state") == []
        gate.open()
        assert sorted(seen.wait(2, within=WITHIN)) == [("busy", 1), ("waits", 1)]
        eventually(lambda: watermark(raw, "g", "t", "waits") == 1)


def test_a_pull_that_is_interrupted_gives_back_what_it_had_taken(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the mark is being written: the next pull has the message, as the attempt that it is."""
    lanelog_client.publish("t", "a", b"1")
    deliveries = lanelog_client.deliveries("t", "g", timeout=WITHIN)
    really = Attempts.mark

    def interrupted(self: Attempts, run: Any, until: float | None = None) -> bool | None:
        really(self, run, until)
        raise KeyboardInterrupt

    monkeypatch.setattr(Attempts, "mark", interrupted)
    with deliveries:
        with pytest.raises(KeyboardInterrupt):
            next(deliveries)
        monkeypatch.undo()
        message = next(deliveries)
        assert (message.offset, message.attempt) == (1, 1)
        message.ack()
    assert watermark(raw, "g", "t", "a") == 1
    assert counted(raw, "g") == 0
