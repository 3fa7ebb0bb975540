"""A suspect that hangs when it has the process to itself: it is given up, and the others go on."""

from typing import Any

import pytest
import tenacity

from lanelog import Client, Message, RetryPolicy
from support.sql import rows
from support.waiting import Gate, Record, events, eventually

WITHIN = 20.0


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
def test_a_hung_suspect_leaves_the_process_to_the_others(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Once its delivery is given up other messages are handled, although its handler has not returned yet."""
    seen, others, gate = Record(), Record(), Gate()
    with lanelog_client.subscribe("t", "g", seen):
        lanelog_client.publish_many("t", [("suspect", b"1"), ("a", b"1")])
        seen.wait(2)
    lanelog_client.publish("t", "suspect", b"2")
    lane = "consumer_group = 'g' AND partition_key = 'suspect'"
    rows(raw, f"UPDATE queue_offsets SET marked_through = 2, marked_epoch = 77 WHERE {lane}")

    def handle(message: Message) -> None:
        if message.key == "suspect":
            gate()
        else:
            others(message.offset)

    policy = RetryPolicy(stop=tenacity.stop_after_attempt(2))
    lanelog_client.subscribe(
        "t", "g", handle, retry=policy, visibility_timeout=0.5, auto_extend=False, max_deliveries=None, workers=2
    )
    with gate:
        gate.reached()
        lanelog_client.publish("t", "a", b"2")
        others.wait(1, within=WITHIN)
        assert events(caplog, "handler.abandoned")
        eventually(lambda: events(caplog, "message.dead_lettered"), within=WITHIN)
