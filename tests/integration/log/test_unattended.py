"""What expires where nobody consumes: buried by maintenance and by other groups' janitors, and by nobody twice."""

import logging
import signal
from typing import Any

import pytest

from lanelog import Client
from support.cli import Command
from support.commits import every_commit_unanswered_once
from support.dead_letters import fates
from support.pace import paced
from support.situations import NOW
from support.sql import delivery_rows, one, rows, watermark
from support.stage import DIES, Stage, thorough, wait_until_blocked
from support.waiting import Record, accept, events, eventually

pytestmark = pytest.mark.usefixtures("logged")

EPOCH = "SELECT lease_epoch FROM queue_partition_leases WHERE partition_key = 'k'"


def expired(client: Client, raw: Any, count: int, *, of: int, topic: str = "t") -> None:
    """Lane k: so many messages of these have expired."""
    client.publish_many(topic, [("k", b"{}")] * of)
    rows(raw, f"UPDATE queue_messages SET expires_at = {NOW} - 1 WHERE topic = %s AND `offset` <= %s", topic, count)


def test_maintenance_buries_what_nobody_consumes(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each expired one is logged, announced, and in history, up to the first that has not; a consumer goes on there."""
    lanelog_client.subscribe("t", "g", accept, history=True).stop()
    expired(lanelog_client, raw, 250, of=252)
    assert lanelog_client.admin.maintain().expired == 250
    assert fates(raw) == [("g", offset, 0, "expired", 0) for offset in range(1, 251)]
    assert watermark(raw, "g", "t", "k") == 250
    left = "SELECT message_offset, outcome, attempts, first_delivered_at, last_error FROM queue_history ORDER BY 1"
    assert rows(raw, left) == [(offset, "expired", 0, 0, "expired") for offset in range(1, 251)]
    assert len(events(caplog, "message.expired", logging.WARNING)) == 250
    assert lanelog_client.admin.maintain().expired == 0
    seen = Record()
    lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt)))
    assert seen.wait(2) == [(251, 1), (252, 1)]
    heard = Record()
    lanelog_client.subscribe("t_dlq", "alerts", lambda m: heard(m.dead_letter.original_offset))
    heard.wait(250)


@pytest.mark.thorough
def test_without_dead_letters_it_is_passed(lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each dropped message is logged as an ERROR, as by a consumer."""
    lanelog_client.subscribe("t", "g", accept, dead_letter_suffix=None).stop()
    expired(lanelog_client, raw, 3, of=3)
    assert lanelog_client.admin.maintain().expired == 3
    assert watermark(raw, "g", "t", "k") == 3
    assert len(events(caplog, "message.expired", logging.ERROR)) == 3
    assert one(raw, "SELECT COUNT(*) FROM queue_partitions WHERE topic LIKE '%dlq'") == 0


@pytest.mark.thorough
def test_the_command_line_says_what_became_of_it(lanelog_client: Client, command: Command, raw: Any) -> None:
    """The output counts settled messages. Dead letters are no more than a part of them: a group need not keep any."""
    lanelog_client.subscribe("t", "g", accept, dead_letter_suffix=None).stop()
    expired(lanelog_client, raw, 3, of=3)
    said = command("maintain", "--once").stdout
    assert "settled 3 messages that had expired unread, as dead letters where kept" in said


def test_another_groups_janitor_does_it(lanelog_client: Client, raw: Any) -> None:
    """Any member of the topic looks after the groups that nobody runs."""
    paced(lanelog_client, janitor={"turn_seconds": 0.1, "expired_seconds": 0.1})
    lanelog_client.subscribe("t", "gone", accept).stop()
    expired(lanelog_client, raw, 2, of=3)
    with lanelog_client.subscribe("t", "here", accept):
        eventually(lambda: watermark(raw, "gone", "t", "k") == 2)
    assert [row[:2] for row in fates(raw) if row[0] == "gone"] == [("gone", 1), ("gone", 2)]


@pytest.mark.thorough
def test_who_holds_his_lock_is_alive_whatever_the_clock_says(stage: Stage) -> None:
    """The server's clock was set forward, or it stood still: heartbeats are over, and everybody is there."""
    stage.client.publish("t", "k", "{}")
    member = stage.member("member", group="g")
    stage.until_acked(1)
    member.program.popen.send_signal(signal.SIGSTOP)
    expired(stage.client, stage.raw, 3, of=2)
    rows(stage.raw, f"UPDATE queue_subscriber_heartbeats SET expires_at = {NOW} - 61000")
    assert stage.client.admin.maintain().expired == 0
    member.program.popen.send_signal(signal.SIGCONT)
    stage.until_acked(3)
    assert stage.letters() == [2, 3]


@pytest.mark.parametrize("why", ["alive", "aside", "silent for a moment", "paused", "lane paused", "archive"])
def test_what_somebody_is_responsible_for_is_left_alone(lanelog_client: Client, raw: Any, why: str) -> None:
    """A member that lives, or may be back; an operator's pause; a group that has not said where letters go."""
    subscription = lanelog_client.subscribe("t", "g", accept)
    lanelog_client.publish("t", "k", b"{}")
    eventually(lambda: watermark(raw, "g", "t", "k") == 1)
    if why == "alive":
        subscription.pause()
    else:
        subscription.stop()
    expired(lanelog_client, raw, 3, of=2)
    if why == "silent for a moment":
        rows(raw, f"UPDATE queue_subscriber_heartbeats SET deregistered_at = 0, expires_at = {NOW} - 1000")
    elif why == "aside":
        rows(raw, f"UPDATE queue_subscriber_heartbeats SET heartbeat_at = deregistered_at, expires_at = {NOW} + 9000")
    elif why.endswith("paused"):
        lanelog_client.admin.pause(
            "t", "g", key="k" if why == "lane paused" else None, reason="we look into it", by="ann"
        )
    elif why == "archive":
        rows(raw, "UPDATE queue_groups SET dead_letter_topic = NULL")
    assert lanelog_client.admin.maintain().expired == 0
    assert watermark(raw, "g", "t", "k") == 1
    assert fates(raw) == []


@pytest.mark.parametrize("how", ["retryable", "crashed", "taken back"])
def test_what_a_handler_may_have_seen_is_left_to_the_consumer(lanelog_client: Client, raw: Any, how: str) -> None:
    """An attempt has begun in time; one that was only handed out and taken back has not."""
    lanelog_client.subscribe("t", "g", accept).stop()
    expired(lanelog_client, raw, 3, of=3)
    if how == "crashed":
        mark = "INSERT INTO queue_offsets (consumer_group, topic, partition_key, marked_through, marked_epoch) VALUES"
        rows(raw, f"{mark} ('g', 't', 'k', 2, 1)")
    else:
        retried = 1 if how == "retryable" else 0
        columns = "consumer_group, topic, partition_key, message_offset, through_offset, retry_count"
        rows(raw, f"INSERT INTO queue_delivery_state ({columns}) VALUES ('g', 't', 'k', 1, 1, %s)", retried)
    assert lanelog_client.admin.maintain().expired == (3 if how == "taken back" else 0)
    assert len(delivery_rows(raw, "g", "t")) == (1 if how == "retryable" else 0)


@pytest.mark.thorough
def test_a_dead_owner_that_only_slept_is_fenced(stage: Stage) -> None:
    """Stopped for a minute beyond its lease, and without its lock: what it believes to have is somebody else's."""
    stage.client.publish("t", "k", "{}")
    sleeper = stage.member("sleeper", group="g")
    stage.until_acked(1)
    sleeper.program.popen.send_signal(signal.SIGSTOP)
    expired(stage.client, stage.raw, 3, of=2)
    rows(stage.raw, f"UPDATE queue_subscriber_heartbeats SET expires_at = {NOW} - 61000, liveness_lock = ''")
    epoch = one(stage.raw, EPOCH)
    assert stage.client.admin.maintain().expired == 2
    assert one(stage.raw, EPOCH) == epoch + 1
    sleeper.program.popen.send_signal(signal.SIGCONT)
    stage.client.publish("t", "k", "{}")
    stage.until_acked(4)
    assert sleeper.started() == [(1, 1), (4, 1)]
    assert stage.letters() == [2, 3]


@pytest.mark.parametrize("committed", [True, False])
def test_an_unanswered_commit_buries_nothing_twice(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """Whether it came or not: each message has one letter."""
    lanelog_client.subscribe("t", "g", accept).stop()
    expired(lanelog_client, raw, 5, of=5)
    with every_commit_unanswered_once(monkeypatch, committed=committed):
        assert lanelog_client.admin.maintain().failed == {}
    assert [row[1] for row in fates(raw)] == [1, 2, 3, 4, 5]
    assert watermark(raw, "g", "t", "k") == 5


# -- beside others -------------------------------------------------------------------------------------------------

POINTS = ["after leases.LOCK_OWNERS", *thorough("after groups.UNATTENDED_NOW", "after dead_letters.BURY")]
COMMITTING = "before COMMIT following offsets.RAISE"


@pytest.fixture
def _nobody(stage: Stage) -> None:
    """Group g, which nobody runs, with three messages of which two have expired."""
    stage.register("g")
    expired(stage.client, stage.raw, 2, of=3)


@pytest.mark.thorough
@pytest.mark.usefixtures("_nobody")
@DIES
@pytest.mark.parametrize("point", [COMMITTING, *POINTS])
def test_a_consumer_that_comes_meanwhile(stage: Stage, point: str, dies: bool) -> None:
    """The registration waits, or comes before; each message is dead-lettered once, and the third handled once."""
    burying = stage.stopped(point, "admin", verb="maintain")
    member = stage.actor("member")
    coming = member.call("subscribe", topic="t", group="g")
    wait_until_blocked(stage.raw)  # its registration, for the row of the topic
    burying.end(dies=dies)
    coming.result()
    assert member.handled(1, "offset") == [3]
    stage.until_acked(3)
    assert stage.letters() == [1, 2]
    assert member.started() == [(3, 1)]


@pytest.mark.thorough
@pytest.mark.usefixtures("_nobody")
@DIES
@pytest.mark.parametrize("point", [COMMITTING, *POINTS])
def test_two_at_once(stage: Stage, point: str, dies: bool) -> None:
    """The second skips the dead letters' lane or waits for the lease, and finds what the first has left."""
    first = stage.stopped(point, "admin", verb="maintain")
    second = stage.aside(stage.client.admin.maintain)
    done = first.end(dies=dies)
    also = second.result(30).expired
    if not dies:
        assert (done["expired"], also) == (2, 0)
    stage.client.admin.maintain()
    assert stage.letters() == [1, 2]
    assert stage.acked() == 2
