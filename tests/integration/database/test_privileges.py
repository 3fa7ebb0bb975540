"""A database that is not as it should be: missing privileges, wrong passwords."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import tenacity

import lanelog
from lanelog import Client, DatabaseError, Message, RetryPolicy
from lanelog.config import ConnectConfig
from support.accounts import account, as_user
from support.cli import TABLES
from support.sql import one, owners, rows, watermark
from support.traffic import shares
from support.waiting import Record, accept, events, eventually

Make = Callable[[dict[str, str]], str]


@pytest.fixture
def make(raw: Any, lanelog_url: str) -> Iterator[Make]:
    """Makes a user with these privileges by table, for the length of the test; its URL."""
    with ExitStack() as stack:
        yield lambda privileges: stack.enter_context(account(raw, lanelog_url, privileges))


pytestmark = pytest.mark.usefixtures("logged")

ALL = "SELECT, INSERT, UPDATE, DELETE"


def everything_but(table: str, privileges: str) -> dict[str, str]:
    return {**dict.fromkeys(TABLES, ALL), table: privileges}


@pytest.mark.parametrize(
    ("verb", "table", "left"),
    [
        ("publish", "queue_messages", "SELECT"),
        ("publish", "queue_partitions", "SELECT, INSERT"),
        ("publish", "queue_messages", "INSERT, UPDATE"),
        ("subscribe", "queue_groups", "SELECT"),
        ("subscribe", "queue_partitions", "SELECT"),
        ("subscribe", "queue_groups", "INSERT"),
    ],
)
def test_publishing_or_subscribing_without_the_privilege_says_so(
    make: Make, raw: Any, verb: str, table: str, left: str
) -> None:
    """At once, from the call itself, not after publish_timeout; the message names the table; nothing is written."""
    with (
        lanelog.connect(make(everything_but(table, left))) as client,
        pytest.raises(DatabaseError, match=table) as raised,
    ):
        if verb == "publish":
            client.publish("t", "k", b"x", id="x")
            client.publish("t", "k", b"y", id="x")  # only the second has to read
        else:
            client.subscribe("t", "g", accept)
    assert not raised.value.retriable
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") <= (table == "queue_messages" and "INSERT" in left)
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0


@pytest.mark.thorough
def test_a_privilege_that_is_missing_later_fails_the_subscription(make: Make) -> None:
    """Registration does not need the privilege, the engine does: state failed after a lease, with the error."""
    with lanelog.connect(make(everything_but("queue_partition_leases", "SELECT"))) as client:
        client.publish("t", "k", b"x")
        subscription = client.subscribe("t", "g", accept, lease_duration=1.0, lease_renewal=0.3)
        eventually(lambda: subscription.state == "failed")
        assert isinstance(subscription.failure, DatabaseError)
        assert "queue_partition_leases" in str(subscription.failure)


@pytest.mark.thorough
def test_unreadable_heartbeats_stop_nothing(
    make: Make, lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """SELECT revoked: who lives is unknown, so unowned lanes are taken without limit, and worked; an ERROR says so."""
    # UPDATE and DELETE by a WHERE need SELECT of its columns: only what needs none is left to it.
    url = make(everything_but("queue_subscriber_heartbeats", "INSERT, UPDATE, DELETE"))
    seen = Record()
    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(20)])
    with lanelog.connect(url) as blind:
        subscription = blind.subscribe(
            "t", "g", lambda m: seen((m.key, m.offset)), lease_duration=1.0, lease_renewal=0.3
        )
        assert sorted(seen.wait(20)) == sorted((f"k{n}", 1) for n in range(20))
        assert len(events(caplog, "heartbeat.read_failed", logging.ERROR)) == 1
        # Longer than a lease: its lanes stay its own, and new ones are found.
        pause = threading.Event()
        pause.wait(1.5)
        lanelog_client.publish_many("t", [("k0", b"x"), ("new", b"x")])
        assert sorted(seen.wait(22)[20:]) == [("k0", 2), ("new", 1)]
        assert subscription.state == "running"
        assert subscription.stop(10)
    assert one(raw, "SELECT COUNT(*) FROM queue_partition_leases WHERE leased_by <> ''") == 0


@pytest.mark.thorough
def test_who_never_wrote_a_heartbeat_takes_nothing_and_fails(
    make: Make, lanelog_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a privilege on that table: another member handles everything once; after a lease the remedy is logged.

    Others would see no sign of life and take its lanes, and it theirs.
    """
    privileges = everything_but("queue_subscriber_heartbeats", "")
    del privileges["queue_subscriber_heartbeats"]
    seen, taken = Record(), Record()
    lanelog_client.publish_many("t", [(f"k{n}", b"x") for n in range(5)])
    with lanelog.connect(make(privileges)) as mute:
        subscription = mute.subscribe("t", "g", taken, lease_duration=1.5, lease_renewal=0.5)
        why = eventually(lambda: next((each.why for each in mute.health().heartbeats if each.why), ""))
        assert "queue_subscriber_heartbeats" in why
        eventually(lambda: subscription.state == "failed")
        assert "INSERT and UPDATE queue_subscriber_heartbeats" in str(subscription.failure)
        assert events(caplog, "heartbeat.write_failed", logging.ERROR)
        lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.attempt)))
        seen.wait(5)
    assert sorted(seen.items) == [(f"k{n}", 1) for n in range(5)]
    assert not taken.items


@pytest.mark.thorough
@pytest.mark.parametrize("comes_back", [True, False])
def test_members_that_may_not_write_their_heartbeats_any_more_rob_nobody(
    make: Make, raw: Any, lanelog_client: Client, caplog: pytest.LogCaptureFixture, comes_back: bool
) -> None:
    """The grant is taken away while handlers run: none is started twice, none is dead-lettered, whatever follows.

    If it comes back within a lease nothing has happened; if not, both subscriptions fail.
    """
    urls = [make(dict.fromkeys(TABLES, ALL)) for _ in range(2)]
    started, go = Record(), threading.Event()

    def handle(message: Message) -> None:
        started((message.key, message.offset))
        if message.offset == 2:
            assert go.wait(30)

    keys = [f"k{n}" for n in range(6)]
    once = RetryPolicy(stop=tenacity.stop_after_attempt(1))
    with ExitStack() as stack:
        members = [
            stack.enter_context(lanelog.connect(url)).subscribe(
                "t", "g", handle, name=f"w{n}", retry=once, lease_duration=2.0, lease_renewal=0.3
            )
            for n, url in enumerate(urls)
        ]
        lanelog_client.publish_many("t", [(key, b"x") for key in keys])
        eventually(lambda: shares(raw) == {"w0": 3, "w1": 3})
        lanelog_client.publish_many("t", [(key, b"x") for key in keys])
        started.wait(12)
        before = owners(raw, "g", "t")
        for verb, direction in (("REVOKE", "FROM"), ("GRANT", "TO")):
            for url in urls:
                user, where = ConnectConfig.from_url(url).user, "queue_subscriber_heartbeats"
                rows(raw, f"{verb} INSERT, UPDATE ON {where} {direction} '{user}'@'%'")
            eventually(lambda: len(events(caplog, "heartbeat.write_failed", logging.ERROR)) == 2)
            if not comes_back:
                break
        if comes_back:
            beats = "SELECT MIN(heartbeat_at) FROM queue_subscriber_heartbeats"
            last = one(raw, beats)
            eventually(lambda: one(raw, beats) > last)
        else:
            eventually(lambda: all(member.state == "failed" for member in members))
        assert owners(raw, "g", "t") == before
        go.set()
        eventually(lambda: all(watermark(raw, "g", "t", key) == 2 for key in keys))
        assert all(member.state == ("running" if comes_back else "failed") for member in members)
    assert sorted(started.items) == [(key, offset) for key in keys for offset in (1, 2)]
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic <> 't'") == 0
    assert events(caplog, "lanes.taken_over") == []


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["ping", "publish", "subscribe", "migrate"])
def test_a_wrong_password_is_refused_at_once(lanelog_url: str, call: str) -> None:
    """A client that never connected fails at once, with what to check."""
    with lanelog.connect(as_user(lanelog_url, "nobody_of_this_name", "s3cret")) as client:
        calls: dict[str, Callable[[], object]] = {
            "ping": client.ping,
            "publish": lambda: client.publish("t", "k", b"x"),
            "subscribe": lambda: client.subscribe("t", "g", accept),
            "migrate": client.migrate,
        }
        with pytest.raises(DatabaseError, match="password") as raised:
            calls[call]()
        assert not raised.value.retriable
        assert raised.value.code in (1045, 1698)
