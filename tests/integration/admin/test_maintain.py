"""Maintenance: what nobody's subscription does is done by one call."""

from collections.abc import Iterator
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._engine.cleanup.janitor import Janitor
from lanelog._log.collect import STEP_OFFSETS
from lanelog._log.members import KEPT_SECONDS
from lanelog.admin.operate.maintain import LANES_A_TRANSACTION
from support.commits import every_commit_unanswered_once
from support.dead_letters import give_up, refuse
from support.situations import Situations, settle
from support.sql import delivery_rows, one, rows, stored, watermark
from support.waiting import eventually


@pytest.fixture(autouse=True)
def no_janitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else collects here."""
    monkeypatch.setattr(Janitor, "turn", lambda _self, _now: 1.0)


@pytest.fixture
def client(lanelog_url: str) -> Iterator[Client]:
    """A client for which a lane is idle at once."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0.001) as client:
        yield client


@pytest.mark.thorough
def test_topics_without_a_subscriber_are_collected_and_purged(client: Client, raw: Any) -> None:
    """Messages that every group has settled leave, in bounded steps; drained lanes go; needed messages stay."""
    lanes, long = LANES_A_TRANSACTION + 5, 2 * STEP_OFFSETS + 5
    count = lanes + long
    for topic in ("done", "behind", "unread"):
        client.publish_many(topic, [*((f"k{n}", b"x") for n in range(lanes)), *[("long", b"x")] * long])
    settle(client, count, topic="done", retention=0)
    settle(client, count, topic="behind", retention=0)
    settle(client, 0, "slow", "behind", start="earliest", retention=0)
    done, rest = client.admin.maintain(), client.admin.maintain()
    assert (done.collected, done.failed, rest.collected) == (count, {}, 0)
    assert (
        done.lanes_purged + rest.lanes_purged == lanes + 1
    )  # one that was emptied in this millisecond is not idle yet
    assert done.topics == ("behind", "done", "unread")
    assert (stored(raw, "done"), stored(raw, "behind"), stored(raw, "unread")) == (0, count, count)
    assert rows(raw, "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = 'done'") == [("", long)]
    again = client.admin.maintain()
    assert (again.collected, again.lanes_purged) == (0, 0)


def test_the_retention_holds(client: Client, raw: Any) -> None:
    """Messages younger than the longest retention of the topic's groups stay, and a paused lane is not purged."""
    client.publish_many("t", [("k", b"x")] * 10)
    client.publish("t", "paused", b"x")
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 3600000 WHERE `offset` <= 4")
    settle(client, 11, retention=600)
    client.admin.pause("t", "g", key="paused")
    assert client.admin.maintain(topics=["t"]).collected == 5
    assert stored(raw, "t") == 6
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 3600000")
    done, rest = client.admin.maintain(), client.admin.maintain()
    assert (done.collected, done.lanes_purged + rest.lanes_purged) == (6, 1)
    assert rows(raw, "SELECT partition_key FROM queue_partitions WHERE topic = 't'") == [("",), ("paused",)]


@pytest.mark.thorough
def test_settled_dead_letters_leave_with_their_rows(client: Client, raw: Any) -> None:
    """The contiguous ones that were redriven or deleted; what nobody settled holds them, and nothing comes twice."""
    give_up(client, raw, [(key, str(n)) for key in ("a", "b") for n in range(6)], group="g", retention=0)
    settle(client, 12, "alerts", "t_dlq", retention=0)
    assert client.admin.maintain().dead_letters == 0
    letters = client.admin.dead_letters("t", "g")
    settled = [letter.id for letter in letters if letter.key == "a" and letter.offset != 4]
    client.admin.redrive("t", "g", ids=settled[:2], dry_run=False)
    client.admin.delete_dead_letters("t", "g", ids=settled[2:], dry_run=False)
    assert client.admin.maintain().dead_letters == 3
    assert stored(raw, "t_dlq") == 9
    assert [row["message_offset"] for row in delivery_rows(raw, "", "t_dlq")] == [5, 6]
    assert client.admin.redrive("t", "g", all=True, dry_run=False).messages == 7
    assert client.admin.maintain().dead_letters == 9
    assert (stored(raw, "t_dlq"), delivery_rows(raw, "", "t_dlq")) == (0, [])
    assert client.admin.redrive("t", "g", all=True, dry_run=False).messages == 0
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE target_group = 'g'") == 9
    client.publish("t", "a", b"y")
    with client.subscribe("t", "g", refuse, retention=0):
        eventually(lambda: stored(raw, "t_dlq") == 10)  # nine again, and a new one: the offsets go on
    assert one(raw, "SELECT MIN(`offset`) FROM queue_messages WHERE topic = 't_dlq'") == 7


def test_heartbeats_of_members_long_gone_leave(lanelog_client: Client, raw: Any) -> None:
    """Members that left and members that fell silent lose their rows, unless a lease still names them."""
    lanelog_client.publish("t", "k", b"x")
    made, long = Situations(raw), KEPT_SECONDS + 60
    made.register()
    made.owner("silent", expires=-long)
    made.owner("left", stopped=True)  # in 1970
    made.owner("owns", expires=-long)
    made.lease("k", "owns", 1)
    made.owner("new")
    assert lanelog_client.admin.maintain().heartbeats == 2
    assert rows(raw, "SELECT subscriber_name FROM queue_subscriber_heartbeats ORDER BY 1") == [("new",), ("owns",)]


@pytest.mark.thorough
def test_what_stops_one_topic_does_not_stop_the_others(lanelog_client: Client, lanelog_url: str, open_raw: Any) -> None:
    """The error is reported for its topic; the rest is done; the next call finds nothing in its way."""
    for topic in ("a", "b", "c"):
        lanelog_client.publish_many(topic, [("k", b"x")] * 5)
        settle(lanelog_client, 5, topic=topic, retention=0)
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_partitions WHERE topic = 'b' AND partition_key = '' FOR UPDATE")
    with lanelog.connect(lanelog_url, publish_timeout=0.2) as impatient:
        done = impatient.admin.maintain()
    assert (done.collected, list(done.failed)) == (10, ["b"])
    assert "\n" not in done.failed["b"]
    holder.rollback()
    assert lanelog_client.admin.maintain().collected == 5


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_unanswered_commits(client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """Whichever COMMIT loses its answer, what was to leave has left."""
    client.publish_many("t", [(f"k{n % 3}", b"x") for n in range(30)])
    settle(client, 30, retention=0)
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        client.admin.maintain()
        client.admin.maintain()
    assert sum(lost) >= 1
    assert stored(raw, "t") == 0
    assert rows(raw, "SELECT partition_key FROM queue_partitions WHERE topic = 't'") == [("",)]
    assert watermark(raw, "g", "t", "k0") == 0
