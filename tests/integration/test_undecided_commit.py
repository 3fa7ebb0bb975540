"""A COMMIT that nobody can tell the outcome of: its lane goes on under another fencing token."""

import threading
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from lanelog import Client, Message, RetryPolicy
from lanelog._database import Executor
from lanelog._engine.delivery import Delivery
from lanelog.errors import DatabaseError
from support.sql import one, rows, watermark
from support.waiting import Record, eventually

WITHIN = 20.0
QUICK = RetryPolicy(stop=stop_after_attempt(5), wait=wait_fixed(0.05))


def test_a_neighbour_about_to_commit_is_refused_once_the_lane_is_read_again(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was claimed before the lane was lost, and commits after another attempt has: each effect is there once."""
    rows(raw, "CREATE TABLE effects (message BIGINT) ENGINE=InnoDB")
    claimed, release, undecided, begun = threading.Event(), threading.Event(), threading.Event(), Record()
    settle = Delivery._settle

    def settles(self: Delivery, cx: Executor) -> None:
        if self.attempt.offset == 2 and not claimed.is_set():
            claimed.set()
            assert release.wait(WITHIN)
        settle(self, cx)
        if self.attempt.offset == 1 and not undecided.is_set():
            undecided.set()
            raise DatabaseError("no answer", code=2013, retriable=True, outcome_unknown=True)

    def unreadable(_self: Delivery) -> bool:
        raise DatabaseError("denied", code=1142, retriable=False)

    def handle(message: Message) -> None:
        begun((message.offset, message.fencing_token))
        assert message.offset == 2 or claimed.wait(WITHIN)
        with message.transaction() as connection:
            connection.cursor().execute("INSERT INTO effects VALUES (%s)", (message.offset,))

    monkeypatch.setattr(Delivery, "_settle", settles)
    monkeypatch.setattr(Delivery, "_was_committed", unreadable)
    lanelog_client.publish_many("t", [("k", b"1"), ("k", b"2")])
    lanelog_client.subscribe("t", "g", handle, order="concurrent", workers=4, retry=QUICK)
    try:
        eventually(lambda: {offset for offset, _ in begun.items[2:]} == {1, 2}, within=WITHIN)
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM effects") == 2, within=WITHIN)
    finally:
        release.set()
    eventually(lambda: watermark(raw, "g", "t", "k") == 2, within=WITHIN)
    lanelog_client.close()
    assert sorted(message for (message,) in rows(raw, "SELECT message FROM effects")) == [1, 2]
    tokens = [token for _, token in begun.items]
    assert min(tokens[2:]) > max(tokens[:2])
