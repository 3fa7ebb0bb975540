"""The original Go design's acceptance suite, re-told: administration. See tests/README.md."""

from datetime import UTC, datetime, timedelta

import pytest

import lanelog
from lanelog import Client, LeaseLost
from lanelog.admin import MessageState, OwnerState
from support.situations import settle
from support.waiting import Record, eventually


def test_admin_list_topics(lanelog_client: Client) -> None:
    """Topics by name, each with the number of messages that the log holds."""
    lanelog_client.publish_many("build", [("repo-1", b"x"), ("repo-2", b"x"), ("repo-1", b"x")])
    lanelog_client.publish("merge", "repo-1", b"x")
    assert [(topic.topic, topic.messages) for topic in lanelog_client.admin.topics()] == [("build", 3), ("merge", 1)]


def test_admin_topic_stats(lanelog_client: Client) -> None:
    """Messages, lanes and dead letters of a topic, and who reads it."""
    lanelog_client.publish_many("t", [("k1", b"x"), ("k1", b"x"), ("k2", b"x")])
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        next(deliveries).reject("no good")
    stats = lanelog_client.admin.topic("t")
    assert (stats.messages, stats.lanes, stats.dead_letters, stats.groups) == (3, 2, 1, ("g",))
    assert (stats.head, stats.floor, stats.dead_letter_topics) == (3, 0, ("t_dlq",))


def test_admin_inspect_message(lanelog_client: Client) -> None:
    """One message by its id, payload and metadata included, and what became of it for a group."""
    lanelog_client.publish("t", "k", b"payload", id="the-one", metadata={"trace": "7"})
    lanelog_client.publish("t", "k", b"another")
    found = lanelog_client.admin.message("t", "k", id="the-one")
    assert (found.key, found.offset, found.payload, dict(found.metadata)) == ("k", 1, b"payload", {"trace": "7"})
    settle(lanelog_client, 2)
    again = lanelog_client.admin.message("t", "k", offset=1)
    assert [(state.group, state.state) for state in again.states] == [("g", MessageState.COMPLETED)]


def test_admin_delete_and_purge(lanelog_client: Client) -> None:
    """One message is passed by a group without being handled; then the rest of the topic is purged."""
    lanelog_client.publish_many("t", [lanelog.Outgoing("k", b"x", id=f"m{n}") for n in range(1, 6)])
    seen = Record()
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        message = next(deliveries)
        seen(message.id)
        message.ack()
    skipped = lanelog_client.admin.skip("t", "g", "k", 2, reason="poison", dry_run=False)
    assert (skipped.changed, skipped.id) == (True, "m2")
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        message = next(deliveries)
        seen(message.id)
        message.ack()
    assert seen.items == ["m1", "m3"]
    purged = lanelog_client.admin.purge("t", before=datetime.now(UTC) + timedelta(hours=1), dry_run=False)
    assert dict(purged.unsettled) == {"g": 2}
    assert lanelog_client.admin.topic("t").messages == 0
    assert lanelog_client.admin.messages("t", "k") == []
    assert [lane.lag for lane in lanelog_client.admin.lanes("t", "g")] == [0]


def test_admin_lag_after_partial_ack(lanelog_client: Client) -> None:
    """Five messages, of which a group has acked two in order and one ahead: two are left."""
    lanelog_client.publish_many("t", [("k", b"x")] * 5)
    with lanelog_client.deliveries("t", "g", timeout=20.0, order="concurrent") as deliveries:
        taken = {message.offset: message for message in (next(deliveries) for _ in range(5))}
        lags = []
        for offset in (1, 2, 4):
            taken[offset].ack()
            (lane,) = lanelog_client.admin.lanes("t", "g")
            lags.append((lane.lag, lane.acked_ahead, lane.in_flight))
    assert lags == [(4, 0, 4), (3, 0, 3), (2, 1, 2)]


def test_admin_leases_and_offsets(lanelog_client: Client) -> None:
    """The lists show who owns which lane while it is worked on, and how far the group is."""
    lanelog_client.publish_many("t", [("k1", b"x"), ("k2", b"x")])
    with lanelog_client.deliveries("t", "g", timeout=20.0, name="worker-1") as deliveries:
        first, second = next(deliveries), next(deliveries)
        first.ack()
        leases = lanelog_client.admin.leases("t", "g")
        assert {lease.key for lease in leases} >= {second.key}
        (held,) = [lease for lease in leases if lease.key == second.key]
        assert (held.owner_state, held.epoch) == (OwnerState.ALIVE, second.fencing_token)
        assert str(held.owner).startswith("worker-1")
        assert lanelog_client.admin.leases("t", "g", stale=True) == []
        places = {place.key: place.watermark for place in lanelog_client.admin.offsets("t", "g")}
        assert places == {first.key: 1, second.key: 0}
        second.ack()


def test_admin_reset_offset_and_release_lease(lanelog_client: Client) -> None:
    """Set back to the beginning a group gets everything again; a lease taken away fences its owner off."""
    lanelog_client.publish_many("t", [("k", f"{n}") for n in range(1, 4)])
    settle(lanelog_client, 3)
    sought = lanelog_client.admin.seek("t", "g", to="earliest", dry_run=False)
    assert (sought.lanes, sought.again) == (1, 3)
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        message = next(deliveries)
        assert (message.offset, message.attempt) == (1, 1)
        released = lanelog_client.admin.release("t", "g", "k", dry_run=False)
        owner = deliveries.subscription.owner
        assert (released.changed, released.owner, released.owner_state) == (True, owner, OwnerState.ALIVE)
        assert released.epoch > message.fencing_token
        with pytest.raises(LeaseLost):
            message.ack()
        again = next(deliveries)
        assert (again.offset, again.attempt) == (1, 2)
        assert again.fencing_token > released.epoch
        again.ack()
        for offset in (2, 3):
            message = next(deliveries)
            assert message.offset == offset
            message.ack()
    eventually(lambda: lanelog_client.admin.groups("t")[0].lag == 0)
