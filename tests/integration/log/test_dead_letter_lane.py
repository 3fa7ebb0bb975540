"""The lane of dead letters, when somebody else has its head, and when its messages are deleted under a reader."""

import threading
from typing import Any

import pytest

import lanelog
from lanelog import ConfigurationError, Message, Reject, Retry
from lanelog._engine.fetching.gaps import Gaps
from lanelog._engine.lane.lane import Lane
from lanelog._engine.member.member import Member
from lanelog._engine.settling import settler
from support.dead_letters import give_up
from support.sql import one, rows
from support.waiting import Gate, Record, eventually, raising

LETTERS = 100
HEAD = "SELECT head_offset FROM queue_partitions WHERE topic = 't_dlq' AND partition_key = 'a' FOR UPDATE"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Record:
    """How long the settler was to pause after each turn that left a dead letter waiting."""
    seen = Record()
    real = settler.Settler.turn

    def turn(self: settler.Settler, now: float) -> float:
        pause = real(self, now)
        if any(member.dead_letters for member in self.context.members()):
            seen(pause)
        return pause

    monkeypatch.setattr(settler.Settler, "turn", turn)
    return seen


@pytest.mark.thorough
def test_a_dead_letter_whose_head_is_taken_is_tried_again_soon(
    lanelog_url: str, raw: Any, open_raw: Any, pauses: Record
) -> None:
    """While one waits, the settler's turns come every tenth of a second: what is behind it in its lane waits, too."""
    behind, holder = threading.Event(), open_raw()

    def handle(message: Message) -> None:
        if message.payload == b"bad":
            raise Reject("no")
        behind.set()

    with lanelog.connect(lanelog_url) as client:
        give_up(client, raw, [("a", "first")])
        rows(holder, HEAD)
        with client.subscribe("t", "g", handle, start="latest"):
            client.publish_many("t", [("a", b"bad"), ("a", b"good")])
            seen = pauses.wait(3)
            assert not behind.is_set()
            holder.rollback()
            assert behind.wait(20)
    assert set(seen) <= {0.0, 0.1}


@pytest.mark.thorough
def test_deleted_dead_letters_are_passed_in_one_step(
    lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader of the dead letter topic that is behind meets one hole, not one for each; and it is nobody's loss."""
    looks, check = Record(), Gaps.check

    def counted(self: Gaps, member: Member, lane: Lane, offset: int) -> None:
        looks(offset)
        check(self, member, lane, offset)

    monkeypatch.setattr(Gaps, "check", counted)
    seen, gate = Record(), Gate()

    def handle(message: Message) -> None:
        seen(message.offset)
        if message.offset == 1:
            gate()
            raise Retry(delay=0.05)

    with lanelog.connect(lanelog_url) as client:
        give_up(client, raw, [("a", str(number)) for number in range(LETTERS)])
        with client.subscribe("t_dlq", "alerts", handle, prefetch=5):
            with gate:
                gate.reached()
                client.admin.delete_dead_letters("t", "a", all=True, dry_run=False)
                client.admin.maintain()
                assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't_dlq'") == 0
                client.publish("t_dlq", "a", b"new")
            eventually(lambda: LETTERS + 1 in seen.items, within=30)
    assert len(looks) <= 3, looks
    assert not [record for record in caplog.records if "message.vanished" in record.getMessage()]


@pytest.mark.parametrize("length", [248, 251])
def test_the_dead_letters_of_a_topic_with_a_long_name_can_be_read(lanelog_url: str, raw: Any, length: int) -> None:
    """The dead letter topic's name has no room for a second suffix, and needs none: a dead letter is tried again.

    A message that was published there by hand and fails becomes a dead letter of the same topic.
    """
    topic, letters = "t" * length, Record()

    def read(message: Message) -> None:
        letters((message.payload, message.dead_letter and message.dead_letter.original_topic))
        if message.dead_letter is None:
            raise Reject("by hand")

    with lanelog.connect(lanelog_url) as client:
        client.publish(topic, "a", b"bad")
        client.subscribe(topic, "g", raising(Reject, "no"))
        client.subscribe(topic + "_dlq", "alerts", read)
        assert letters.wait(1) == [(b"bad", topic)]
        client.publish(topic + "_dlq", "a", b"mine")
        assert letters.wait(3)[1:] == [(b"mine", None), (b"mine", topic + "_dlq")]
        with pytest.raises(ConfigurationError, match="topic with its dead letter suffix must have 1 to 255"):
            client.subscribe("t" * 252, "g", read)
    assert one(raw, "SELECT COUNT(*) FROM queue_partitions WHERE CHAR_LENGTH(topic) > 251 AND partition_key = ''") == 1
