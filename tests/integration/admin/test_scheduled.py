"""What is not due yet, from outside: listed, cancelled, appended by maintenance, deleted with its topic, in a shell."""

from datetime import UTC, timedelta
from typing import Any

import pytest

from lanelog import Client, ConfigurationError, Outgoing
from lanelog._database import Database
from lanelog._stores.later import scheduled as store
from lanelog.admin.schedules import scheduled
from lanelog.publisher import Publisher
from support.cli import Command, everything
from support.commits import every_commit_unanswered_once
from support.sql import one, rows

HOUR = 3600.0


@pytest.fixture
def waiting(publisher: Publisher) -> None:
    """Three messages of two lanes that are due in an hour or two."""
    publisher.publish_many(
        "t",
        [
            Outgoing("b", b"12345", "x", {"by": "ann"}, delay=HOUR, ttl=1.5),
            Outgoing("a", b"1", "y", delay=2 * HOUR),
            Outgoing("a", b"", "x", delay=HOUR),
        ],
    )


def make_due(raw: Any) -> None:
    rows(raw, "UPDATE queue_scheduled SET deliver_at = 1")


def test_what_is_scheduled_is_listed_by_key_and_id(lanelog_client: Client, waiting: None, raw: Any) -> None:
    """A scheduled message is listed with its times by the database's clock, within the limit; none of the log is."""
    admin = lanelog_client.admin
    lanelog_client.publish("t", "a", b"x", id="logged")
    found = admin.scheduled("t")
    assert [(each.topic, each.key, each.id) for each in found] == [("t", "a", "x"), ("t", "a", "y"), ("t", "b", "x")]
    last = found[-1]
    assert (last.payload_bytes, dict(last.metadata), last.ttl) == (5, {"by": "ann"}, 1.5)
    assert last.deliver_at - last.published_at == timedelta(hours=1)
    assert HOUR - 60 < last.due_in <= HOUR
    assert found[0].ttl is None
    assert [each.id for each in admin.scheduled("t", "a")] == ["x", "y"]
    assert [each.id for each in admin.scheduled("t", limit=1)] == ["x"]
    assert admin.scheduled("t", "nobody") == []
    make_due(raw)
    assert {each.due_in for each in admin.scheduled("t")} == {0.0}
    assert found[0].deliver_at.tzinfo is UTC


def test_a_cancelled_message_is_gone_and_its_id_is_free(lanelog_client: Client, waiting: None, raw: Any) -> None:
    """True once; False for what is not there, and for what is in the log already."""
    cancel = lanelog_client.cancel_scheduled
    assert cancel("t", "a", "x") is True
    assert cancel("t", "a", "x") is False
    assert cancel("nope", "a", "x") is False
    assert [(each.key, each.id) for each in lanelog_client.admin.scheduled("t")] == [("a", "y"), ("b", "x")]
    assert lanelog_client.publish("t", "a", b"new", id="x").offset == 1
    assert cancel("t", "a", "x") is False
    make_due(raw)
    assert lanelog_client.admin.maintain().appended == 2
    assert cancel("t", "b", "x") is False


def test_cancelling_within_a_transaction_of_the_same_thread_is_refused(lanelog_client: Client) -> None:
    """The call would wait for the transaction's own message, and the transaction for it; the transaction goes on."""
    with lanelog_client.transaction() as connection:
        lanelog_client.publish("t", "a", b"x", id="mine", delay=3600, connection=connection)
        with pytest.raises(ConfigurationError, match="before it or after it"):
            lanelog_client.cancel_scheduled("t", "a", "mine")
    assert lanelog_client.cancel_scheduled("t", "a", "mine") is True


@pytest.mark.parametrize(("committed", "moved"), [(True, False), (False, False), (False, True)])
def test_a_cancellation_whose_commit_is_not_answered_says_what_became_of_it(
    database: Database, waiting: None, raw: Any, monkeypatch: pytest.MonkeyPatch, committed: bool, moved: bool
) -> None:
    """True if it was committed, or is by the repetition; False if somebody has moved the message in between."""
    really, attempts = store.cancel, []

    def cancel(cx: Any, topic: str, key: str, message_id: str) -> bool:
        if attempts and moved:
            rows(raw, "DELETE FROM queue_scheduled WHERE partition_key = 'a' AND id = 'x'")
            columns = "topic, partition_key, `offset`, id, payload, payload_bytes"
            rows(raw, f"INSERT INTO queue_messages ({columns}) VALUES ('t', 'a', 1, 'x', '', 0)")
        attempts.append(message_id)
        return really(cx, topic, key, message_id)

    monkeypatch.setattr(store, "cancel", cancel)
    with every_commit_unanswered_once(monkeypatch, committed=committed):
        assert scheduled.cancel(database, "t", "a", "x") is not moved
    assert len(attempts) == 2
    assert one(raw, "SELECT COUNT(*) FROM queue_scheduled WHERE partition_key = 'a' AND id = 'x'") == 0


@pytest.mark.thorough
def test_maintenance_appends_what_is_due(
    lanelog_client: Client, publisher: Publisher, waiting: None, raw: Any, open_raw: Any
) -> None:
    """Of the topics that were asked for, lanes that somebody holds excepted; again and again, without harm."""
    admin = lanelog_client.admin
    publisher.publish_many("u", [Outgoing(f"k{n}", b"x", delay=HOUR) for n in range(1500)])
    assert admin.maintain().appended == 0
    make_due(raw)
    assert admin.maintain(topics=["t"]).appended == 3
    mine = open_raw()
    publisher.publish("u", Outgoing("k7", b"x"), connection=mine)
    assert admin.maintain().appended == 1499
    mine.rollback()
    assert admin.maintain().appended == 1
    assert admin.maintain().appended == 0
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 1503


def test_a_topic_takes_what_it_has_scheduled_with_it(
    lanelog_client: Client, publisher: Publisher, waiting: None, raw: Any
) -> None:
    """In bounded batches; its own only, and it says how many that were."""
    publisher.publish_many("t", [Outgoing("a", b"x", delay=HOUR) for _ in range(scheduled.BATCH)])
    publisher.publish("other", Outgoing("a", b"x", id="x", delay=HOUR))
    publisher.publish("t", Outgoing("a", b"x"))
    dry = lanelog_client.admin.delete_topic("t", dry_run=True)
    assert (dry.scheduled, dry.messages, dry.lanes) == (scheduled.BATCH + 3, 1, 2)
    done = lanelog_client.admin.delete_topic("t", dry_run=False)
    assert (done.scheduled, done.messages, done.lanes) == (scheduled.BATCH + 3, 1, 2)
    assert rows(raw, "SELECT topic FROM queue_scheduled") == [("other",)]
    make_due(raw)
    assert lanelog_client.admin.maintain().appended == 1


# -- in a shell --------------------------------------------------------------------------------------------------------


def test_a_shell_publishes_for_later(command: Command, raw: Any) -> None:
    """One message, or every line of a file; at a time, after a delay, for a while."""
    assert command("publish", "t", "k", "x", "--id", "a", "--delay", "3600").stdout == (
        "published a, not due yet, of t, lane k\n"
    )
    assert command("publish", "t", "k", "x", "--id", "a").stdout == "there already: a, not due yet, of t, lane k\n"
    command("publish", "t", "k", "--deliver-at", "2031-01-01T00:00:00+01:00", "--ttl", "5", stdin=b"1\n2\n")
    command("publish", "t", "k", "x", "--ttl", "5")
    found = command.json("scheduled", "list", "t")
    assert sorted((each["ttl"] or 0, each["deliver_at"][:4]) for each in found)[1:] == [(5.0, "2030")] * 2
    assert one(raw, "SELECT CAST(expires_at AS SIGNED) - CAST(created_at AS SIGNED) FROM queue_messages") == 5000


def test_a_shell_lists_and_cancels(command: Command, waiting: None, raw: Any) -> None:
    """Cancelling only shows what it would do, unless --execute is given."""
    heads, lines = command.table("scheduled", "list", "t")
    assert heads == ["KEY", "ID", "DUE", "TTL", "PUBLISHED", "BYTES"]
    assert [line[:2] for line in lines] == [["a", "x"], ["a", "y"], ["b", "x"]]
    assert [(line[3], line[5]) for line in lines] == [("-", "0"), ("-", "1"), ("1s", "5")]
    assert lines[0][2] in {"in 59m", "in 1h"}
    assert len(command.table("scheduled", "list", "t", "--key", "b")[1]) == 1
    before = everything(raw)
    dry = command("scheduled", "cancel", "t", "a", "x")
    said = (dry.stdout, dry.stderr)
    assert said == ("would cancel x of t, lane a\n", "nothing was changed: add --execute to do it\n")
    assert everything(raw) == before
    assert command("scheduled", "cancel", "t", "a", "x", "--execute").stdout == "cancelled x of t, lane a\n"
    assert len(command.table("scheduled", "list", "t")[1]) == 2


def test_a_shell_maintains(command: Command, waiting: None, raw: Any) -> None:
    """`lanelog maintain` appends due messages to the log, and says so."""
    make_due(raw)
    assert "appended 3 messages that had become due" in command("maintain", "--once").stdout
    assert "appended" not in command("maintain", "--once").stdout
