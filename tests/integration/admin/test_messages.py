"""Administration, looking at messages: their state for every group, stretches of lanes, dead letters."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import lanelog
from lanelog import Client, Message
from lanelog.admin import Admin, GroupState, MessageState
from lanelog.admin.read.messages import messages
from support.situations import Situations, around, fill
from support.sql import one, rows
from support.waiting import eventually


@pytest.fixture
def made(raw: Any, lanelog_client: Client) -> Situations:
    """Topic t with group g and nine messages under k."""
    fill(lanelog_client, "k", 9)
    made = Situations(raw)
    made.register()
    return made


def states(admin: Admin, offset: int, key: str = "k") -> dict[str, GroupState]:
    message = admin.message("t", key, offset=offset)
    return {state.group: state for state in message.states}


# -- states ------------------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_id_and_by_offset(lanelog_client: Client, made: Situations, admin: Admin) -> None:
    """Payload, metadata and times as published; None for what the log does not have."""
    before = datetime.now(UTC)
    receipt = lanelog_client.publish("t", "k", b"\x00payload", id="mine", metadata={"trace": "7"})
    found = admin.message("t", "k", id="mine")
    assert found == admin.message("t", "k", offset=receipt.offset)
    assert (found.topic, found.key, found.offset, found.id) == ("t", "k", 10, "mine")
    assert (found.payload, found.payload_bytes, dict(found.metadata)) == (b"\x00payload", 8, {"trace": "7"})
    assert abs((found.published_at - before).total_seconds()) < 60
    assert found.created_at == found.published_at
    assert (found.expires_at, found.target_group, found.dead_letter, found.settled) == (None, None, None, False)
    assert [(state.group, state.state) for state in found.states] == [("g", MessageState.PENDING)]
    assert "payload" not in repr(found).replace("payload_bytes", "")
    assert admin.message("t", "k", id="not there") is None
    assert admin.message("t", "k", offset=11) is None


def test_a_message_has_a_state_for_every_group(made: Situations, admin: Admin) -> None:
    """Pending, processing, retryable, postponed, completed; and what each says about attempts and the next one."""
    made.owner("alice")
    made.lease("k", "alice", 4)
    made.place("k", 1, marked_through=3, marked_epoch=4, marked_at=8000)
    made.row("k", 3, retry_count=2, lease_epoch=4, first_attempt_at=2000, last_error="boom")
    made.row("k", 4, through=5, acked=1)
    made.row("k", 6, retry_count=3, due=300, last_error="bang")
    made.row("k", 7, postponed=2, due=200)
    made.register("h")
    seen = {offset: states(admin, offset)["g"] for offset in range(1, 10)}
    shown = " ".join(seen[offset].state.value for offset in range(1, 10))
    assert shown == "completed processing processing completed completed retryable postponed pending pending"
    assert {states(admin, offset)["h"].state for offset in (1, 9)} == {MessageState.PENDING}
    assert [seen[offset].attempts for offset in (1, 2, 3, 6, 7, 8)] == [0, 1, 2, 3, 0, 0]
    assert (seen[2].first_attempt_at, seen[3].first_attempt_at) == tuple(
        datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (8, 2)
    )
    assert (seen[3].last_error, seen[6].last_error, seen[8].last_error) == ("boom", "bang", None)
    assert around(seen[6].next_attempt_in, 300)
    assert (around(seen[7].next_attempt_in, 200), seen[7].postponed) == (True, 2)
    assert (seen[2].next_attempt_in, seen[8].next_attempt_in) == (None, None)
    assert (seen[2].owner, states(admin, 2)["h"].owner) == ("alice", None)


def test_a_message_whose_time_is_over_is_expired_until_it_is_settled(raw: Any, made: Situations, admin: Admin) -> None:
    """By the database's clock; one that is being handled is processing, and one that was is tried again."""
    rows(raw, "UPDATE queue_messages SET expires_at = 1000")
    made.lease("k", "alice", 4)
    made.place("k", 1, marked_through=2, marked_epoch=4)
    made.row("k", 3, retry_count=1, due=60)
    shown = [states(admin, offset)["g"].state.value for offset in (1, 2, 3, 4)]
    assert shown == ["completed", "processing", "retryable", "expired"]
    rows(raw, "UPDATE queue_messages SET expires_at = 4000000000000")
    assert states(admin, 4)["g"].state is MessageState.PENDING


def test_a_redriven_message_is_settled_for_every_other_group(raw: Any, made: Situations, admin: Admin) -> None:
    """The copy is meant for one group; the others pass it."""
    made.register("h")
    rows(raw, "UPDATE queue_messages SET target_group = 'h' WHERE `offset` = 2")
    seen = states(admin, 2)
    assert (seen["g"].state, seen["h"].state) == (MessageState.COMPLETED, MessageState.PENDING)
    found = admin.message("t", "k", offset=2)
    assert found.target_group == "h"


@pytest.fixture
def buried(lanelog_client: Client, raw: Any) -> Situations:
    """Groups a and b have given up offset 2 of lane k, a also offset 3; both have settled all 4 messages."""
    fill(lanelog_client, "k", 4)

    def refuse(*offsets: int) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            if message.offset in offsets:
                raise lanelog.Reject(f"no good\nat offset {message.offset}")

        return handle

    for group, offsets in (("a", (2, 3)), ("b", (2,))):
        lanelog_client.subscribe("t", group, refuse(*offsets))
    through = "SELECT COUNT(*) FROM queue_offsets WHERE offset_acked = 4 AND consumer_group IN ('a', 'b')"
    eventually(lambda: one(raw, through) == 2)
    return Situations(raw)


def test_a_dead_letter_makes_the_message_failed_for_its_group_alone(buried: Situations, admin: Admin) -> None:
    """The message has its error, attempts, and the id to redrive it by. Once settled, it is just completed."""
    shown = [[states(admin, offset)[group].state.value for offset in (1, 2, 3, 4)] for group in ("a", "b")]
    assert shown == [["completed", "failed", "failed", "completed"], ["completed", "failed", "completed", "completed"]]
    failed = states(admin, 3)["a"]
    assert (failed.dead_letter_topic, failed.attempts) == ("t_dlq", 1)
    assert failed.last_error == "no good\nat offset 3"
    assert failed.last_attempt_at is not None
    letter = admin.message("t_dlq", "k", id=str(failed.dead_letter_id))
    assert (letter.dead_letter.original_topic, letter.dead_letter.original_offset) == ("t", 3)
    assert (letter.dead_letter.group, letter.dead_letter.failure_count, letter.settled) == ("a", 1, False)
    buried.settle_letter("t_dlq", "k", letter.offset)
    assert states(admin, 3)["a"].state is MessageState.COMPLETED
    settled = admin.message("t_dlq", "k", offset=letter.offset)
    assert settled.settled


def test_dead_letters_are_listed_and_counted_by_reason(buried: Situations, admin: Admin) -> None:
    """Of all groups or of one, by the name of either topic; those that were settled are left out."""
    letters = admin.dead_letters("t")
    found = sorted((letter.group, letter.original_offset, letter.original_id) for letter in letters)
    assert found == [("a", 2, "k-2"), ("a", 3, "k-3"), ("b", 2, "k-2")]
    assert [letter.offset for letter in letters] == [1, 2, 3]
    lanes = {(letter.dead_letter_topic, letter.original_topic, letter.key) for letter in letters}
    assert lanes == {("t_dlq", "t", "k")}
    assert {(letter.reason, letter.failure_count, letter.payload_bytes) for letter in letters} == {("no good", 1, 1)}
    assert {letter.last_error for letter in letters} == {"no good\nat offset 2", "no good\nat offset 3"}
    assert letters == admin.dead_letters("t_dlq")
    assert admin.dead_letters("t", "a") == [letter for letter in letters if letter.group == "a"]
    assert admin.dead_letters("t", limit=2) == letters[:2]
    reasons = [(reason.group, reason.reason, reason.count, reason.keys) for reason in admin.dead_letter_reasons("t")]
    assert reasons == [("a", "no good", 2, 1), ("b", "no good", 1, 1)]
    topic = admin.topic("t")
    assert (topic.dead_letters, topic.dead_letter_topics) == (3, ("t_dlq",))
    (first, *_) = [letter for letter in letters if letter.group == "a"]
    buried.settle_letter("t_dlq", "k", first.offset)
    assert first not in admin.dead_letters("t")
    assert [(reason.group, reason.count) for reason in admin.dead_letter_reasons("t_dlq")] == [("a", 1), ("b", 1)]
    assert admin.topic("t").dead_letters == 2
    assert [reason.group for reason in admin.dead_letter_reasons("t", "b")] == ["b"]


# -- stretches of a lane -----------------------------------------------------------------------------------------------


def test_messages_are_read_a_stretch_at_a_time(made: Situations, admin: Admin) -> None:
    """In offset order from where it is asked, from above what collection deleted, over holes, up to the limit."""
    assert [message.offset for message in admin.messages("t", "k", limit=4)] == [1, 2, 3, 4]
    made.place("k", 2, group="")
    for offset in (1, 2, 6):
        made.lose("k", offset)
    assert [message.offset for message in admin.messages("t", "k")] == [3, 4, 5, 7, 8, 9]
    assert [message.id for message in admin.messages("t", "k", from_offset=8)] == ["k-8", "k-9"]
    assert admin.messages("t", "k", from_offset=10) == []
    assert {message.states for message in admin.messages("t", "k")} == {()}


def test_an_answer_is_bounded_in_bytes(lanelog_client: Client, admin: Admin) -> None:
    """An answer has as many messages as fit, at least one; the next answer continues behind them."""
    lanelog_client.publish_many("t", [("k", b"x" * size) for size in (100, 100, 100, 400, 50)])
    stretches, start = [], 1
    while found := messages(admin._database, "t", "k", from_offset=start, limit=100, bytes_max=250):
        stretches.append([message.payload_bytes for message in found])
        start = found[-1].offset + 1
    assert stretches == [[100, 100], [100], [400], [50]]


# -- the client --------------------------------------------------------------------------------------------------------


def test_an_admin_of_a_closed_client_says_so(lanelog_url: str) -> None:
    """ClosedError, as everything else of the client."""
    client = lanelog.connect(lanelog_url)
    admin = client.admin
    assert admin is client.admin
    client.close()
    with pytest.raises(lanelog.ClosedError):
        admin.topics()


def test_an_admin_shows_no_password() -> None:
    """The repr of an `Admin` names the database as the client's does."""
    with lanelog.connect("mysql://root:s3cret@localhost/jobs") as client:
        assert "s3cret" not in repr(client.admin)
        assert "jobs" in repr(client.admin)
