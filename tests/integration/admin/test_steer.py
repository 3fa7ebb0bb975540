"""Pause, resume, skip, retry and release: a group, a lane or a message is steered while its workers run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import lanelog
from lanelog import Client, LeaseLost, Message
from lanelog.admin import MessageState, OwnerState
from support.cli import everything
from support.commits import every_commit_unanswered_once
from support.situations import Situations, fill, settle
from support.sql import delivery_rows, one, owners, rows, take_lanes, watermark
from support.traffic import steady_load
from support.turns import Turns
from support.waiting import Gate, Record, accept, eventually

KEYS = [f"k{n}" for n in range(12)]


@contextmanager
def two_members(url: str, handle: Any, **options: Any) -> Iterator[list[lanelog.Subscription]]:
    """A group whose members are clients of their own."""
    with lanelog.connect(url) as one_client, lanelog.connect(url) as another:
        yield [client.subscribe("t", "g", handle, **options) for client in (one_client, another)]


@pytest.mark.thorough
@pytest.mark.parametrize("key", [None, "k3"], ids=["group", "lane"])
def test_pause_under_load(
    lanelog_client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """No handler starts later than a keeper turn after it; nothing is lost or counted as an attempt; resume goes on."""
    turns, started, other_group, gate = Turns(monkeypatch), Record(), Record(), Gate()
    admin = lanelog_client.admin

    def handle(message: Message) -> None:
        started((message.key, message.offset, message.attempt))
        if message.key == "k3" and message.offset == 5:
            gate()

    def of_paused() -> list[Any]:
        return [item for item in started.items if key in (None, item[0])]

    with (
        two_members(lanelog_url, handle) as members,
        steady_load(lanelog_client, "t", KEYS, pause=0.01) as traffic,
        gate,
    ):
        lanelog_client.subscribe("t", "other", lambda m: other_group((m.key, m.offset)))
        gate.reached()
        eventually(lambda: all(any(item[0] == each for item in started.items) for each in KEYS))
        eventually(lambda: set(owners(raw, "g", "t").values()) == {member.owner for member in members})
        paused = admin.pause("t", "g", key=key, by="me", reason="maintenance")
        assert (paused.changed, paused.by, paused.reason, paused.key) == (True, "me", "maintenance", key)
        turns.pass_by(members)
        # Handlers that had begun end in their own time; the one that is held settles while the pause lasts.
        gate.open()
        if key is None:
            eventually(lambda: sum(member.stats().running for member in members) == 0)
        else:
            eventually(lambda: watermark(raw, "g", "t", "k3") >= 5)
        before, others = len(of_paused()), len(started)
        turns.pass_by(members)
        assert len(of_paused()) == before
        if key is not None:
            assert len(started) > others
        other_group.until(lambda items: ("k3", 30) in items, what="the other group")
        again = admin.pause("t", "g", key=key, by="somebody else")
        assert (again.changed, again.by, again.paused_at) == (False, "me", paused.paused_at)
        assert again.lag > 0
        resumed = admin.resume("t", "g", key=key)
        assert (resumed.changed, resumed.by, resumed.paused_at) == (True, "me", paused.paused_at)
        assert not admin.resume("t", "g", key=key).changed
        started.until(lambda items: any(item[0] == "k3" and item[1] > 30 for item in items), what="going on")
    total = traffic.each
    with two_members(lanelog_url, handle):
        started.wait(total * len(KEYS), within=30)
    assert sorted(started.items) == sorted((each, n, 1) for each in KEYS for n in range(1, total + 1))
    for each in KEYS:
        assert [n for name, n, _ in started.items if name == each] == list(range(1, total + 1))


@pytest.mark.thorough
def test_a_paused_lane_survives_the_members_and_has_its_row(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that the group never reached can be paused: who comes later does not begin it; other lanes do begin."""
    with lanelog_client.subscribe("t", "g", accept):
        pass
    lanelog_client.publish_many("t", [(key, b"x") for key in ("a", "b")])
    paused = lanelog_client.admin.pause("t", "g", key="a", reason="first b")
    assert (paused.changed, paused.lag) == (True, 1)
    turns, seen = Turns(monkeypatch), Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.attempt))) as subscription:
        seen.wait(1)
        turns.pass_by([subscription])
        assert seen.items == [("b", 1)]
        lanelog_client.admin.resume("t", "g", key="a")
        assert seen.wait(2) == [("b", 1), ("a", 1)]


def test_dry_run_only_reports(lanelog_client: Client, raw: Any) -> None:
    """Each verb returns what it would do, and no row of any table changes."""
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    settle(lanelog_client, 3)
    lanelog_client.publish("t", "k", b"y")
    admin, before = lanelog_client.admin, everything(raw)
    assert admin.pause("t", "g", by="me", dry_run=True).changed
    assert admin.pause("t", "g", key="k", dry_run=True).changed
    assert not admin.resume("t", "g", dry_run=True).changed
    skipped = admin.skip("t", "g", "k", 4, reason="why", dry_run=True)
    assert (skipped.changed, skipped.state, skipped.dry_run) == (True, MessageState.PENDING, True)
    assert not admin.release("t", "g", "k", dry_run=True).changed
    assert everything(raw) == before


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["skip", "retry", "release"])
def test_what_is_about_one_lane_needs_its_key(lanelog_client: Client, verb: str) -> None:
    """A key that is none is refused before anything is locked."""
    lanelog_client.publish("t", "k", b"x")
    settle(lanelog_client, 1)
    options = {"dry_run": True, **({"offset": 1, "reason": "why"} if verb == "skip" else {})}
    with pytest.raises(lanelog.ConfigurationError, match="key must be"):
        getattr(lanelog_client.admin, verb)("t", "g", key=None, **options)


def test_skip_settles_one_message_for_one_group(lanelog_client: Client, raw: Any) -> None:
    """The group passes the message, without an attempt of the others lost; the log and the other group keep it."""
    lanelog_client.publish_many("t", [lanelog.Outgoing("k", str(n), id=f"m{n}") for n in range(1, 7)])
    for group in ("g", "other"):
        settle(lanelog_client, 6, group, start="earliest")
        lanelog_client.admin.seek("t", group, to="earliest", dry_run=False)
    admin = lanelog_client.admin
    ahead = admin.skip("t", "g", "k", 4, reason="poison", dry_run=False)
    assert (ahead.changed, ahead.id, ahead.state, ahead.owner) == (True, "m4", MessageState.PENDING, None)
    assert not admin.skip("t", "g", "k", 4, reason="poison", dry_run=False).changed
    assert watermark(raw, "g", "t", "k") == 0
    for offset, reached in ((1, 1), (3, 1), (2, 4)):  # the last one closes the gap to what was skipped ahead
        assert admin.skip("t", "g", "k", offset, reason="poison", dry_run=False).changed
        assert watermark(raw, "g", "t", "k") == reached
    assert delivery_rows(raw, "g", "t") == []
    assert admin.skip("t", "g", "k", 2, reason="poison", dry_run=False).state is MessageState.COMPLETED
    seen = Record()
    for group in ("g", "other"):
        lanelog_client.subscribe("t", group, lambda m: seen((m.group, m.offset, m.attempt)))
    expected = [("g", n, 1) for n in (5, 6)] + [("other", n, 1) for n in range(1, 7)]
    assert sorted(seen.wait(8)) == sorted(expected)


@pytest.mark.thorough
def test_retry_ends_the_wait_for_the_next_attempt(lanelog_client: Client, raw: Any) -> None:
    """A living owner hands out at once what waits for an hour, failed or postponed, as the attempt that it would be."""
    seen, broken = Record(), threading.Event()
    broken.set()

    def handle(message: Message) -> None:
        seen((message.key, message.offset, message.attempt))
        if broken.is_set() and message.key == "fails":
            message.nack(delay=3600, reason="not yet")
        if broken.is_set() and message.key == "later":
            message.postpone(3600)

    lanelog_client.publish_many("t", [(key, b"x") for key in ("fails", "fails", "later")])
    admin = lanelog_client.admin
    with lanelog_client.subscribe("t", "g", handle) as subscription:
        eventually(lambda: sum(admin.lane("t", "g", key).waiting for key in ("fails", "later")) == 2)
        assert not admin.retry("t", "g", "fails", 2, dry_run=False).changed  # it waits for its turn, not for a time
        before = everything(raw)
        planned = admin.retry("t", "g", "fails", dry_run=True)
        assert (planned.changed, planned.messages, planned.owner) == (True, 1, subscription.owner)
        assert everything(raw) == before
        broken.clear()
        assert admin.retry("t", "g", "fails", 1, dry_run=False).changed
        assert admin.acting("ann", "fixed").retry("t", "g", "later", dry_run=False).messages == 1
        handled = seen.wait(5)
        assert sorted(handled[:2]) == [("fails", 1, 1), ("later", 1, 1)]
        assert sorted(handled[2:]) == [("fails", 1, 2), ("fails", 2, 1), ("later", 1, 1)]
        eventually(lambda: admin.groups("t")[0].lag == 0)
        assert not admin.retry("t", "g", "fails", dry_run=False).changed
        assert delivery_rows(raw, "g", "t") == []
    (latest, first) = admin.audit("t")
    assert (latest.verb, latest.key, latest.by, latest.messages) == ("retry", "later", "ann", 1)
    assert (first.verb, first.key, first.choice) == ("retry", "fails", "offset 1")


@pytest.mark.thorough
def test_skip_of_what_is_failing_or_running(lanelog_client: Client, raw: Any) -> None:
    """A message that holds its lane back, or whose handler hangs, is passed; what it still settles is refused."""
    seen, gate, lost = Record(), Gate(), Record()

    def handle(message: Message) -> None:
        seen((message.key, message.offset, message.attempt))
        if message.key == "fails" and message.offset == 1:
            message.nack(delay=3600, reason="never")
        if message.key == "hangs" and message.offset == 1:
            gate()
            try:
                message.ack()
            except LeaseLost:
                lost(message)
                raise

    lanelog_client.publish_many("t", [(key, b"x") for key in ("fails", "hangs") for _ in range(3)])
    subscription = lanelog_client.subscribe("t", "g", handle)
    with gate:
        gate.reached()
        eventually(lambda: [row["retry_count"] for row in delivery_rows(raw, "g", "t")] == [1])
        failing = lanelog_client.admin.skip("t", "g", "fails", 1, reason="it will never work", dry_run=False)
        assert (failing.state, failing.attempts, failing.owner) == (MessageState.RETRYABLE, 1, subscription.owner)
        hanging = lanelog_client.admin.skip("t", "g", "hangs", 1, reason="it hangs", dry_run=False)
        assert (hanging.state, hanging.attempts, hanging.owner) == (MessageState.PROCESSING, 1, subscription.owner)
        seen.until(lambda items: {("fails", 3, 1), ("hangs", 3, 1)} <= set(items))
    lost.wait(1)
    assert subscription.stop(10)
    assert sorted(item for item in seen.items if item[1] == 1) == [("fails", 1, 1), ("hangs", 1, 1)]
    assert watermark(raw, "g", "t", "fails") == watermark(raw, "g", "t", "hangs") == 3
    assert delivery_rows(raw, "g", "t") == []


STAYS = """SELECT message_offset, acked, retry_count, postponed, crashed, lease_epoch, last_attempt_at, last_error
FROM queue_delivery_state WHERE consumer_group = 'g' ORDER BY message_offset"""


@pytest.mark.thorough
def test_retry_ends_waits_and_nothing_else(lanelog_client: Client, raw: Any) -> None:
    """One message or all of them, each once; whoever takes the lane from an owner that is gone handles them."""
    made = Situations(raw)
    fill(lanelog_client, "k", 9)
    made.register()
    made.owner("gone:1", stopped=True)
    made.lease("k", "gone:1", 7)
    made.place("k", 2, marked_through=8, marked_epoch=6)
    made.row("k", 2, retry_count=9, due=3600.0)  # below the watermark: settled
    made.row("k", 3, retry_count=2, due=3600.0, last_error="later")
    made.row("k", 4, postponed=1, due=3600.0)
    made.row("k", 5, acked=1)
    made.row("k", 6, retry_count=1, due=-5.0)
    made.row("k", 7, retry_count=1, lease_epoch=6, due=3600.0)  # its process died
    made.row("k", 8, retry_count=1, due=60.0)
    admin, before, stays = lanelog_client.admin, everything(raw), rows(raw, STAYS)

    def retry(offset: int | None = None, *, dry_run: bool = False) -> tuple[tuple[int, ...], str | None]:
        done = admin.retry("t", "g", "k", offset, dry_run=dry_run)
        assert (done.changed, done.dry_run) == (bool(done.offsets), dry_run)
        return done.offsets, done.owner

    assert retry(dry_run=True) == ((3, 4, 8), "gone:1")
    assert [retry(offset) for offset in (1, 2, 5, 6, 7, 9)] == [((), None)] * 6
    assert everything(raw) == before
    assert retry(4) == ((4,), "gone:1")
    assert retry(4) == ((), None)
    assert retry() == ((3, 8), None)
    assert retry() == ((), None)
    assert rows(raw, STAYS) == stays
    assert one(raw, "SELECT lease_epoch FROM queue_partition_leases") == 9
    kept = [(each.verb, each.key, each.choice, each.messages) for each in reversed(admin.audit("t"))]
    assert kept == [("retry", "k", "offset 4", 1), ("retry", "k", "", 2)]
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.offset, m.attempt))):
        assert seen.wait(6) == [(3, 3), (4, 1), (6, 2), (7, 2), (8, 2), (9, 1)]


def test_release_of_a_lane_that_nobody_ever_had(lanelog_client: Client, raw: Any) -> None:
    """There is nothing to take away: no lease row is made."""
    with lanelog_client.subscribe("t", "g", accept):
        pass
    lanelog_client.publish("t", "k", b"x")
    released = lanelog_client.admin.release("t", "g", "k", dry_run=False)
    assert (released.changed, released.epoch) == (False, 0)
    assert owners(raw, "g", "t") == {}


@pytest.mark.thorough
@pytest.mark.parametrize(("silent", "lost"), [(2000, ["a", "b", "c"]), (20, ["a"])])
def test_release_of_an_owner_that_is_gone_takes_all_its_lanes(
    lanelog_client: Client, raw: Any, open_raw: Any, silent: int, lost: list[str]
) -> None:
    """The owner is no member after that, whoever holds its lock. One that missed a beat or two keeps the others."""
    assert one(open_raw(), "SELECT GET_LOCK('lanelog:kept', 0)") == 1
    lanelog_client.publish_many("t", [(key, b"x") for key in "abc"])
    with lanelog_client.subscribe("t", "g", accept):
        eventually(lambda: len(owners(raw, "g", "t")) == 3)
    dead = "subscriber_name = 'gone:1', liveness_lock = 'lanelog:kept', deregistered_at = 0"
    times = f"heartbeat_at = heartbeat_at - {silent} * 1000, expires_at = heartbeat_at + 1000"
    rows(raw, f"UPDATE queue_subscriber_heartbeats SET {dead}, {times}")
    take_lanes(raw, "gone:1")
    admin = lanelog_client.admin
    assert admin.release("t", "g", "a", dry_run=True).others == tuple(lost[1:])
    assert set(owners(raw, "g", "t").values()) == {"gone:1"}
    released = admin.release("t", "g", "a", dry_run=False)
    assert (released.owner_state, released.others) == (OwnerState.EXPIRED, tuple(lost[1:]))
    assert [key for key, owner in sorted(owners(raw, "g", "t").items()) if not owner] == lost
    (member,) = admin.members("t", "g")
    assert member.state is (OwnerState.DEAD if len(lost) == 3 else OwnerState.EXPIRED)


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_unanswered_commits_change_nothing_twice(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """Each verb, repeated after an unknown COMMIT, leaves what one of them leaves."""
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    settle(lanelog_client, 3)
    lanelog_client.publish_many("t", [("k", b"x")] * 3)
    epoch = "SELECT lease_epoch FROM queue_partition_leases"
    before, admin = one(raw, epoch), lanelog_client.admin
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        admin.pause("t", "g", by="me", reason="why")
        admin.pause("t", "g", key="k", by="me", reason="why")
        admin.skip("t", "g", "k", 5, reason="no", dry_run=False)
        admin.skip("t", "g", "k", 4, reason="no", dry_run=False)
    assert sum(lost) >= 2
    assert watermark(raw, "g", "t", "k") == 5
    assert one(raw, epoch) == before + 2
    flags = "SELECT paused_by, pause_reason FROM {} WHERE consumer_group = 'g' AND paused_at > 0"
    assert rows(raw, flags.format("queue_groups")) == rows(raw, flags.format("queue_offsets")) == [("me", "why")]
