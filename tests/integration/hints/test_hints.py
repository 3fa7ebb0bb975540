"""Hints: what another process publishes is noticed at once, and without them everything works as well.

The second client of this process gets hints like another process: a sender leaves out its own receiver alone.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from attrs import evolve
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import lanelog
from lanelog import Client, Message, Retry, Subscription, instruments, metrics
from lanelog._engine.fetching.fetcher import Fetcher
from lanelog._engine.fetching.pace import FetcherPace, MemberPolls
from lanelog._engine.leasing.pace import KeeperPace
from lanelog._engine.member.fetching import BUSY_LANES
from lanelog._hints import sender as sender_module
from lanelog._hints.datagram import number_of
from lanelog._hints.host import own_host
from lanelog._hints.sender import Sender
from lanelog._stores.log import fetches, partitions
from lanelog._stores.members import leases
from lanelog.admin import Finding
from support.forking import exit_status_of
from support.memberships import Clock
from support.old_tables import set_back
from support.pace import ALWAYS, paced
from support.processes import Fleet
from support.sql import one, rows, tables_locked
from support.telemetry import metrics_of
from support.waiting import Record, accept, events, eventually, raising

pytestmark = pytest.mark.skipif(not own_host(), reason="hints need Linux")

NEVER = 600.0
SERVERS_PATIENCE = 4.0
"""Seconds, less than a statement of ours waits for a lock, and much more than the server needs to end one."""
PUBLISHED = "SELECT SUM(head_offset) FROM queue_partitions WHERE topic = 't'"
MEMBER_HERE = (
    "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, expires_at, wake_host, "
    "wake_address, wake_token) VALUES ('g', %s, %s, 99999999999999, %s, %s, 1)"
)
LOCKED = "LOCK TABLES queue_subscriber_heartbeats WRITE"
ADDRESSES = "SELECT COUNT(*) FROM queue_subscriber_heartbeats WHERE wake_address <> ''"


@pytest.fixture
def other(lanelog_client: Client, lanelog_url: str) -> Iterator[Client]:
    """A client that publishes, and knows nothing of the first one."""
    with lanelog.connect(lanelog_url) as client:
        yield client


def sender(client: Client) -> Sender:
    """Its sender, which is there unless `wake` is False."""
    hints = client._announcements.hints
    assert hints is not None
    return hints


def acquaint(publisher: Client, raw: Any) -> int:
    """Publish in lane k until this client sends hints. Returns how many messages the topic has then.

    Its first reading may come before the subscriber's heartbeat, and a busy server may end it. A later commit reads
    again.
    """
    eventually(lambda: one(raw, ADDRESSES))

    def hinted() -> bool:
        publisher.publish("t", "k", b"x")
        return sender(publisher).sent > 0

    eventually(hinted)
    return int(one(raw, PUBLISHED))


def acquainted(client: Client, publisher: Client, raw: Any, **options: Any) -> tuple[Subscription, Record, int]:
    """Subscribe, and have the publisher send hints. The messages until then are handled; how many they are is last."""
    handled = Record()
    subscription = client.subscribe("t", "g", handled, **options)
    known = acquaint(publisher, raw)
    handled.wait(known)
    return subscription, handled, known


def hints_found(client: Client) -> Finding:
    """What the doctor finds of hints, seen from this client."""
    (finding,) = (each for each in client.admin.doctor() if each.check == "hints")
    return finding


def hints_finding(client: Client) -> str:
    """The same where nothing is wrong."""
    finding = hints_found(client)
    assert (finding.status, finding.remedy) == ("ok", "")
    return finding.detail


def counted(client: Client) -> dict[str, float]:
    """The hints of a client as Prometheus gets them, and OpenTelemetry as well."""
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    metrics.observe(client, registry)
    instruments.observe(client, MeterProvider([reader]))
    points = {metric.name: metric.data.data_points for metric in metrics_of(reader)}
    exported = {name: [getattr(point, "value", None) for point in each] for name, each in points.items()}
    found = {}
    for name in ("sent", "lost", "heard"):
        value = registry.get_sample_value(f"lanelog_client_hints_{name}_total")
        assert value is not None
        assert exported[f"lanelog.hints.{name}"] == [value]
        found[name] = value
    return found


def calm_of(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what waits until the fetcher has polled for every hint."""
    seen, poll = set[MemberPolls](), Fetcher._poll
    monkeypatch.setattr(Fetcher, "_poll", lambda self, member, polls: (poll(self, member, polls), seen.add(polls)))

    def calm() -> None:
        (member,) = client._engine.context.members()
        eventually(lambda: seen and not (member.fetching._hinted or any(polls.notified for polls in seen)))

    return calm


UNHURRIED = {"soon_seconds": NEVER, "digests": ALWAYS}
"""After a poll that found something, the next one would come in ten minutes."""


@pytest.fixture
def no_polls(lanelog_client: Client) -> None:
    """The first client polls when it gets a hint, or in ten minutes."""
    paced(lanelog_client, fetcher=UNHURRIED)


@pytest.mark.usefixtures("no_polls")
def test_a_hint_makes_a_subscriber_poll(lanelog_client: Client, other: Client, raw: Any) -> None:
    """A subscriber that was notified polls at once: its next poll of its own is ten minutes away."""
    subscription, handled, known = acquainted(lanelog_client, other, raw, poll_interval=NEVER)
    for count in (1, 2, 3):
        other.publish("t", "k", b"x")
        handled.wait(known + count)
    assert sender(other).sent >= 3
    assert subscription.stats().hints >= 3


@pytest.mark.thorough
@pytest.mark.usefixtures("no_polls")
def test_a_poll_after_a_hint_reads_where_heads_rose(
    lanelog_client: Client, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred lanes the fetcher reads behind the one that rose. If several of a part rose, it reads their heads.

    Lanes that were busy last come first, as long as it is one of them.
    """
    asked: list[tuple[str, set[str]]] = []
    following, by_key = fetches.following, partitions.heads

    def noted(cx: Any, at: Any, lanes: Any, **kwargs: Any) -> list[list[Any]]:
        asked.append(("rows", {lane.key for lane in lanes}))
        return following(cx, at, lanes, **kwargs)

    def noted_heads(cx: Any, topic: str, keys: Any, *lock: Any) -> dict[str, int]:
        if threading.current_thread().name == "lanelog-fetcher":
            asked.append(("heads", set(keys)))
        return by_key(cx, topic, keys, *lock)

    keys = [f"key-{number}" for number in range(99)]
    other.publish_many("t", [(key, b"x") for key in keys])
    calm = calm_of(lanelog_client, monkeypatch)
    subscription, handled, known = acquainted(lanelog_client, other, raw, poll_interval=NEVER, start="earliest")
    eventually(lambda: subscription.stats().lanes == 100)
    (member,) = lanelog_client._engine.context.members()

    def publish(*keys: str) -> None:
        nonlocal known
        known += len(keys)
        other.publish_many("t", [(key, b"x") for key in keys])
        handled.wait(known)
        calm()  # the poll for the others has ended, too

    publish("key-7")  # by the poll for it, the parts are known
    publish("key-7")  # and by this one, that a lane is busy again
    busy = set(member.fetching.busy_last)
    assert len(busy) == BUSY_LANES
    monkeypatch.setattr(fetches, "following", noted)
    monkeypatch.setattr(partitions, "heads", noted_heads)
    monkeypatch.setattr(partitions, "owned_heads", raising(AssertionError, "all lanes were polled"))
    first, second = [key for key in keys if key not in busy][:2]
    steps = [
        ("key-7", [("rows", busy)]),  # by its rows alone, and the poll has nothing more to ask
        (first, [("rows", busy), ("rows", {first})]),  # none of the busy ones: so the next poll begins with no such
        (second, [("rows", {second})]),
        (second, [("rows", {second})]),  # this one was busy before: the next poll begins with such again
    ]
    for key, questions in steps:
        asked.clear()
        publish(key)
        assert asked == questions
    busy = set(member.fetching.busy_last)
    parts: dict[int, set[str]] = {}
    for key in [*keys, "k"]:
        parts.setdefault(partitions.part_of(key), set()).add(key)
    part = next(part for part in parts.values() if len(part - busy) >= 2)
    two = set(sorted(part - busy)[:2])
    asked.clear()
    publish(second, *two)  # the busy one hides neither
    assert asked == [("rows", busy), ("heads", part), ("rows", two)]
    assert subscription.state == "running"


@pytest.mark.usefixtures("no_polls")
def test_few_lanes_are_read_without_a_digest(
    lanelog_client: Client, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement reads behind all of them. Now and then a digest is read: only a digest shows what was set back."""
    _, handled, known = acquainted(lanelog_client, other, raw, poll_interval=NEVER, start="earliest")
    digests: list[str] = []
    parts = partitions.parts
    monkeypatch.setattr(partitions, "parts", lambda cx, topic: digests.append(topic) or parts(cx, topic))
    for count in range(1, 2 * FetcherPace().tail_reads + 3):
        other.publish("t", "k", b"x")
        handled.wait(known + count)
    assert 1 <= len(digests) <= 3


@pytest.mark.thorough
@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("lanes", [1, 100])
def test_a_fetch_of_few_rows_misses_nothing(lanelog_client: Client, other: Client, raw: Any, lanes: int) -> None:
    """Messages beyond its limit, behind a missing one, and with payloads too large for it are delivered as well."""
    for number in range(lanes - 1):
        other.publish("t", f"key-{number}", b"x")
    sizes = {"batch_size": 4, "prefetch": 200, "prefetch_bytes": 100_000}
    subscription, handled, known = acquainted(
        lanelog_client, other, raw, poll_interval=NEVER, start="earliest", **sizes
    )
    eventually(lambda: subscription.stats().lanes == lanes)
    other.publish_many("t", [("k", b"x")] * 11)
    handled.wait(known + 11)
    with other.transaction() as connection:
        other.publish("t", "k", b"missing", connection=connection)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM queue_messages WHERE payload = 'missing'")
        other.publish("t", "k", b"behind it", connection=connection)
    handled.wait(known + 12)
    other.publish_many("t", [("k", b"x" * 70_000), ("k", b"y" * 70_000), ("k", b"z")])
    assert [len(message.payload) for message in handled.wait(known + 15)[-3:]] == [70_000, 70_000, 1]


@pytest.mark.thorough
@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("idle", [0, 60])
def test_a_lane_that_has_messages_in_memory_hides_no_later_one(
    lanelog_client: Client, other: Client, raw: Any, idle: int
) -> None:
    """Later messages are read ahead, also if other lanes have none, and whether few or many lanes are polled."""
    for number in range(idle):
        other.publish("t", f"idle-{number}", b"x")
    handled, go_on = Record(), threading.Event()

    def handle(message: Message) -> None:
        if message.key == "slow":
            go_on.wait()
        handled(message)

    retry = 1  # so that a run has one message, and the others are ready
    subscription = lanelog_client.subscribe("t", "g", handle, poll_interval=NEVER, start="earliest", retry=retry)
    known = acquaint(other, raw)
    handled.wait(known)
    other.publish_many("t", [("slow", b"x")] * 20)
    eventually(lambda: subscription.stats().prefetched == 20)
    for count in (21, 22, 23):  # after a tail read that found nothing, the first may be a poll anyhow
        other.publish("t", "slow", b"x")
        eventually(lambda count=count: subscription.stats().prefetched == count)
    go_on.set()
    handled.wait(known + 23)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_polls")
def test_a_rise_in_a_lane_that_waits_for_an_attempt_disturbs_no_other(
    lanelog_client: Client, other: Client, raw: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many lanes only that one rose, and nothing can be read for it now: its head is read, and the others go on."""
    handled = Record()

    def handle(message: Message) -> None:
        if message.key == "fails":
            raise Retry(delay=NEVER)
        handled(message)

    for number in range(60):
        other.publish("t", f"idle-{number}", b"x")
    subscription = lanelog_client.subscribe("t", "g", handle, poll_interval=NEVER, start="earliest")
    known = acquaint(other, raw)
    handled.wait(known)
    other.publish("t", "fails", b"x")
    eventually(lambda: subscription.stats().waiting == 1)
    polled, parts = Record(), partitions.parts
    monkeypatch.setattr(partitions, "parts", lambda cx, topic: (parts(cx, topic), polled(topic))[0])
    for count in range(1, 4):
        other.publish("t", "fails", b"x")
        polled.wait(count)
    other.publish("t", "idle-0", b"x")
    handled.wait(known + 1)
    assert subscription.state == "running"
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each for each in warned if not each.startswith("handler.failed")] == []


@pytest.mark.thorough
@pytest.mark.usefixtures("no_polls")
def test_equal_sums_of_two_lanes_hide_neither(lanelog_client: Client, other: Client, raw: Any) -> None:
    """Two lanes rise so that the sums of their part name one of them: it has too few rows, and both are read."""
    alike: dict[int, str] = {}
    for number in itertools.count():
        key = f"key-{number}"
        twin = alike.setdefault(partitions.checksum(key) % 2**24, key)
        if twin != key:
            break
    keys = [key, twin, *(f"other-{number}" for number in range(98))]
    other.publish_many("t", [(each, b"x") for each in keys])
    subscription, handled, known = acquainted(lanelog_client, other, raw, poll_interval=NEVER, start="earliest")
    eventually(lambda: subscription.stats().lanes == 101)
    other.publish("t", "k", b"x")  # by the poll for it, the parts are known
    handled.wait(known + 1)
    other.publish_many("t", [(key, b"x"), *[(twin, b"x")] * 256])
    handled.wait(known + 258)


def test_a_forked_child_counts_its_own_hints(lanelog_client: Client, other: Client, raw: Any) -> None:
    """The child counts none of the hints that its parent has sent."""
    lanelog_client.subscribe("t", "g", accept)
    acquaint(other, raw)
    assert exit_status_of(lambda: other.measures().hints_sent + other.measures().hints_lost) == 0
    assert other.measures().hints_sent > 0


def test_no_thread_and_no_connection_more_is_needed(lanelog_url: str) -> None:
    """The fetcher's thread receives hints, and the publishing thread sends them."""

    def threads(*, wake: bool) -> list[str]:
        handled = Record()
        before = set(threading.enumerate())
        with lanelog.connect(lanelog_url, wake=wake) as client, client.subscribe("t", "g", handled):
            client.publish("t", "k", b"x")
            handled.wait(1)
            return sorted(each.name.rstrip("0123456789_- ") for each in set(threading.enumerate()) - before)

    assert threads(wake=True) == threads(wake=False) != []


def test_a_commit_of_the_callers_own_is_found_by_polling(lanelog_client: Client, other: Client, raw: Any) -> None:
    """The library does not see that commit, so it sends no hint."""
    subscription, handled, known = acquainted(lanelog_client, other, raw)
    sent, heard = sender(other).sent, subscription.stats().hints
    raw.begin()
    other.publish("t", "k", b"mine", connection=raw)
    raw.commit()
    handled.wait(known + 1)
    assert (sender(other).sent, subscription.stats().hints) == (sent, heard)


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("scheduled", ["delayed", "recurring"])
def test_messages_that_become_due_are_hinted(lanelog_client: Client, other: Client, raw: Any, scheduled: str) -> None:
    """The process whose scheduler appends a delayed message, or fires a schedule, notifies the others."""
    handled = Record()
    lanelog_client.subscribe("t", "g", handled, poll_interval=NEVER)
    engine = lanelog_client._engine
    engine._scheduling.stop()  # the other client's scheduler alone works
    known = acquaint(other, raw)
    handled.wait(known)
    if scheduled == "delayed":
        other.publish("t", "k", b"x", delay=0.2)
    else:
        other.schedule("s", "* * * * *", topic="t", key="k", payload=b"x")
        minute = "FLOOR(UNIX_TIMESTAMP() / 60) * 60000"  # in milliseconds: the one that has just begun
        rows(raw, f"UPDATE queue_schedules SET next_fire_at = {minute}, expression_at = {minute} - 60000")
    handled.wait(known + 1)


def keep_no_more(client: Client) -> None:
    """The keeper's next turn is ten minutes away."""
    engine = client._engine
    engine._keeper.pace = evolve(engine._keeper.pace, turn_seconds=NEVER)
    turned = threading.Event()
    supervise = engine._keeper.supervise
    engine._keeper.supervise = lambda now: (supervise(now), turned.set())
    engine.signals.wake_keeper()  # a turn may have begun before, and ended with the new pace
    eventually(turned.is_set)


@pytest.mark.parametrize("published", ["at once", "in a transaction"])
def test_a_hint_of_new_lanes_wakes_the_keeper(lanelog_client: Client, other: Client, raw: Any, published: str) -> None:
    """The lane gets its owner though the keeper's next turn is ten minutes away.

    The hint comes when the lane is created. Where its first message is still being written, it starts without another
    turn of the keeper.
    """
    subscription, handled, known = acquainted(lanelog_client, other, raw)
    keep_no_more(lanelog_client)
    if published == "at once":
        other.publish("t", "new", b"x")
    else:
        with other.transaction() as tx:
            other.publish("t", "new", b"x", connection=tx)
            eventually(lambda: subscription.stats().lanes == 2)
    handled.wait(known + 1)
    assert subscription.stats().lanes == 2


def test_new_lanes_of_this_process_wake_its_keeper(lanelog_url: str) -> None:
    """No hint is needed for that."""
    handled = Record()
    with lanelog.connect(lanelog_url, wake=False) as client, client.subscribe("t", "g", handled):
        keep_no_more(client)
        client.publish("t", "new", b"x")
        handled.wait(1)


@pytest.mark.thorough
def test_new_lanes_cost_no_poll_of_the_others(
    lanelog_client: Client, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic with a hundred lanes they are taken by name, and their messages are found without the other heads."""
    other.publish_many("t", [(f"key-{number}", b"x") for number in range(99)])
    paced(lanelog_client, fetcher=UNHURRIED, keeper={"claim_seconds": NEVER, "content_seconds": NEVER})
    calm = calm_of(lanelog_client, monkeypatch)
    subscription, handled, known = acquainted(lanelog_client, other, raw, poll_interval=NEVER, start="earliest")
    eventually(lambda: subscription.stats().lanes == 100)
    calm()
    other.publish("t", "key-7", b"x")  # by the poll for it, the parts are known
    handled.wait(known + 1)
    calm()

    asked: list[tuple[str, ...]] = []
    unclaimed = leases.unclaimed

    def noted(cx: Any, at: Any, limit: int, like: Any, among: Any) -> list[str]:
        asked.append(tuple(among))
        return unclaimed(cx, at, limit, like, among)

    monkeypatch.setattr(partitions, "owned_heads", raising(AssertionError, "all lanes were polled"))
    monkeypatch.setattr(leases, "unclaimed", noted)
    for count in (1, 2, 3):
        other.publish("t", f"new-{count}", b"x")
        handled.wait(known + 2 * count)
        other.publish("t", f"new-{count}", b"y")
        handled.wait(known + 2 * count + 1)
    assert set(asked) == {("new-1",), ("new-2",), ("new-3",)}
    assert subscription.state == "running"


@pytest.mark.thorough
def test_lanes_that_two_members_claim_at_once_are_shared_out(
    lanelog_client: Client, lanelog_url: str, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hint wakes both members, and both choose the same half of the new lanes: the later one takes the other half.

    The next try by itself is ten minutes away.
    """
    both, unclaimed = threading.Barrier(2, timeout=20), leases.unclaimed
    handled = Record()

    def at_once(*args: Any) -> list[str]:
        found = unclaimed(*args)
        if "new-1" in found and not both.broken:
            with suppress(threading.BrokenBarrierError):
                both.wait()
            both.abort()  # the first time alone
        return found

    other.publish_many("t", [(f"old-{number}", b"x") for number in range(20)])
    with lanelog.connect(lanelog_url) as second:
        members = [each.subscribe("t", "g", handled, start="earliest") for each in (lanelog_client, second)]
        known = acquaint(other, raw)
        handled.wait(known)
        eventually(lambda: {each.stats().lanes for each in members} <= {10, 11})
        for each in (lanelog_client, second):
            (coordinator,) = each._engine._keeper._coordinators.values()
            coordinator.pace = KeeperPace(claim_seconds=NEVER, content_seconds=NEVER)
            coordinator._claim_at = time.monotonic() + NEVER
        monkeypatch.setattr(leases, "unclaimed", at_once)
        other.publish_many("t", [(f"new-{number}", b"x") for number in range(20)])
        handled.wait(known + 20)
        eventually(lambda: {each.stats().lanes for each in members} <= {20, 21})


@pytest.mark.thorough
def test_new_lanes_are_hinted_once_the_targets_can_be_read_again(
    lanelog_client: Client, other: Client, lanelog_url: str, raw: Any
) -> None:
    """The publisher of the new lane could not read who is there; its next commit is in a lane that is known."""
    _, handled, _ = acquainted(lanelog_client, other, raw)
    keep_no_more(lanelog_client)
    with lanelog.connect(lanelog_url) as late:
        with tables_locked(raw, LOCKED):
            late.publish("t", "new", b"x")
        assert sender(late)._failing

        def hinted() -> bool:
            late.publish("t", "k", b"x")
            return sender(late).sent > 0

        eventually(hinted)
        handled.until(lambda items: "new" in {each.key for each in items})


def test_without_wake_no_hint_is_sent(lanelog_url: str, lanelog_client: Client, raw: Any) -> None:
    """There is no socket and no address in the heartbeat; polling finds the messages."""
    handled = Record()
    with lanelog.connect(lanelog_url, wake=False) as deaf, lanelog.connect(lanelog_url, wake=False) as mute:
        deaf.subscribe("t", "g", handled)
        assert mute._announcements.hints is None
        mute.publish("t", "k", b"x")
        lanelog_client.publish("t", "k", b"x")
        handled.wait(2)
        assert one(raw, ADDRESSES) == 0
        assert sender(lanelog_client).sent == 0


def test_a_subscriber_that_is_gone_costs_a_lost_hint(lanelog_client: Client, other: Client, raw: Any) -> None:
    """The publisher counts it and goes on; a living subscriber is notified."""
    lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: one(raw, ADDRESSES))
    rows(raw, MEMBER_HERE, "t", "gone", own_host(), "lanelog-gone")
    acquaint(other, raw)
    assert (sender(other).sent, sender(other).lost) == (1, 1)
    eventually(lambda: counted(lanelog_client) == {"sent": 0, "lost": 0, "heard": 1})
    assert counted(other) == {"sent": 1, "lost": 1, "heard": 0}
    found = hints_found(other)
    assert (found.status, found.detail) == ("warning", "2 of 2 subscriptions want them; on this host 2, reached 1")
    assert found.remedy.startswith("run it again after a `lease_duration`")
    rows(raw, "UPDATE queue_subscriber_heartbeats SET expires_at = 1 WHERE subscriber_name = 'gone'")
    assert hints_finding(other) == "1 of 1 subscriptions want them; on this host 1, reached 1"


def test_addresses_of_other_hosts_get_no_hint(lanelog_client: Client, other: Client, raw: Any) -> None:
    """A heartbeat row aims no packets at anybody."""
    lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: one(raw, ADDRESSES) == 1)
    rows(raw, "UPDATE queue_subscriber_heartbeats SET wake_host = 'elsewhere'")
    other.publish("t", "k", b"x")
    assert (sender(other).sent, sender(other).lost) == (0, 0)


def test_a_process_is_notified_by_another(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """Each of them has a socket of its own; a killed one is lost, and its lanes go on elsewhere."""
    workers = [fleet.worker(name) for name in ("a", "b")]
    eventually(lambda: one(raw, ADDRESSES) == 2)

    def handled() -> int:  # not how often: a lane that moves, or what a killed one had not committed, comes again
        return len({(line["key"], line["offset"]) for line in fleet.heard("handled")})

    for number in range(20):
        lanelog_client.publish("t", f"k{number}", {})
    eventually(lambda: handled() == 20)

    def hinted() -> bool:  # the server may have been too busy to tell in time who is there: a later commit asks again
        lanelog_client.publish("t", "k0", {})
        return sender(lanelog_client).sent >= 2

    eventually(hinted)
    workers[0].kill()
    before = one(raw, PUBLISHED)
    for number in range(20):
        lanelog_client.publish("t", f"k{number}", {})
    eventually(lambda: handled() == before + 20)


def test_no_publisher_waits_for_hint_targets_where_the_scheduler_runs(
    lanelog_client: Client, other: Client, raw: Any
) -> None:
    """The table of heartbeats is locked, and a publish returns; the subscriber is notified once it can be read."""
    lanelog_client.subscribe("t", "g", accept)
    other.subscribe("u", "g", accept)
    eventually(lambda: one(raw, ADDRESSES) == 2)
    with ThreadPoolExecutor(1) as pool, tables_locked(raw, LOCKED):  # unlocked first: then the publish ends, too
        pool.submit(other.publish, "t", "k", b"x").result(10)
        assert sender(other).sent == 0
    eventually(lambda: sender(other).sent == 1)


def test_a_process_that_only_publishes_waits_briefly_for_hint_targets(
    lanelog_client: Client, other: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends the read of the locked table: no error, one line of the log, and hints once it can be read."""
    lanelog_client.subscribe("t", "g", accept)
    acquaint(other, raw)  # lane and connection are there
    caplog.clear()
    hints = sender(other)
    with tables_locked(raw, LOCKED):
        for _ in range(2):
            hints._refresh_at = 0.0
            began = time.monotonic()
            other.publish("t", "k", b"x")
            assert time.monotonic() - began < SERVERS_PATIENCE
    assert len(events(caplog, "hints.places_unread")) == 1
    sent = hints.sent

    def read_again() -> bool:
        hints._refresh_at = 0.0
        other.publish("t", "k", b"x")
        return not hints._failing

    eventually(read_again)
    assert hints.sent > sent


def test_no_other_publisher_waits_for_the_thread_that_reads_hint_targets(
    lanelog_client: Client, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads has published, and has left the queue of the topic."""
    lanelog_client.subscribe("t", "g", accept)
    acquaint(other, raw)
    reading, go = threading.Event(), threading.Event()
    read = Sender.read_endpoints

    def slowly(self: Sender, cx: Any, **bounded: Any) -> None:
        reading.set()
        assert go.wait(15)
        read(self, cx, **bounded)

    monkeypatch.setattr(Sender, "read_endpoints", slowly)
    sender(other)._refresh_at = 0.0
    first = threading.Thread(target=other.publish, args=("t", "k", b"x"))
    first.start()
    try:
        assert reading.wait(15)
        before = int(one(raw, PUBLISHED))
        other.publish("t", "k", b"x")
        other.publish_many("t", [("k", b"x")])
        assert first.is_alive()
        assert int(one(raw, PUBLISHED)) == before + 2
    finally:
        go.set()
        first.join()


def test_a_topic_that_always_follows_another_one_is_hinted(
    lanelog_client: Client, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics published to within a second, and not again for longer than a topic is read, are each hinted in time."""
    sent = Record()
    monkeypatch.setattr(sender_module, "deliver", lambda targets, hint: sent(hint.topic) or len(targets))
    monkeypatch.setattr(sender_module, "time", clock := Clock(time.monotonic()))
    for topic in ("a", "b"):
        lanelog_client.subscribe(topic, "g", accept)
    eventually(lambda: one(raw, ADDRESSES) == 2)
    for _ in range(3):
        for topic in ("a", "b"):
            other.publish(topic, "k", b"x")
        clock.now += 15.0
    assert set(sent.items) == {number_of("a"), number_of("b")}


@pytest.mark.thorough
def test_hints_of_new_lanes_are_limited_and_made_up_for(
    lanelog_client: Client, other: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher with a key for each message sends no more than its share. The next hint says that lanes are new."""
    sent = Record()
    monkeypatch.setattr(sender_module, "deliver", lambda targets, hint: sent(hint) or len(targets))
    monkeypatch.setattr(sender_module, "time", clock := Clock(time.monotonic()))
    lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: one(raw, ADDRESSES))
    for number in range(200):
        other.publish("t", f"k{number}", b"x")
    assert 40 <= sum(hint.new_lanes for hint in sent.items) <= 60
    assert 40 <= sum(hint.messages for hint in sent.items) <= 60
    clock.now += 15.0
    other.publish("t", "k0", b"x")
    assert sent.items[-1].new_lanes
    other.publish("t", "k0", b"x")
    assert not sent.items[-1].new_lanes


def test_publish_succeeds_when_reading_hint_targets_fails(
    other: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is committed: who publishes it again would have it twice."""
    monkeypatch.setattr(Sender, "read_endpoints", raising(RuntimeError, "no such thing"))
    assert other.publish("t", "k", b"x").offset == 1
    assert events(caplog, "publish.notification_failed")


def test_a_row_of_another_program_harms_no_other_topic(
    lanelog_client: Client, other: Client, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The comparison does not see a space at the end of a name; a socket's name that is not ASCII is left out."""
    lanelog_client.subscribe("t", "g", accept)
    eventually(lambda: one(raw, ADDRESSES))
    for topic, name, address in (("t ", "spaced", "lanelog-spaced"), ("t", "snowman", "lanelog-\u2603")):
        rows(raw, MEMBER_HERE, topic, name, own_host(), address)
    acquaint(other, raw)
    assert sender(other).lost == 0
    assert not events(caplog, "hints.places_unread") + events(caplog, "publish.notification_failed")


@pytest.mark.parametrize(("address", "network"), [("127.0.0.1", "127.0.0.0/8"), ("::1", "::1/128")])
def test_a_subscriber_on_another_host_is_notified_where_both_allow_it(
    lanelog_url: str, other: Client, raw: Any, address: str, network: str
) -> None:
    """The row names another host; a publisher whose `wake_networks` have that address notifies it."""
    handled = Record()
    with (
        lanelog.connect(lanelog_url, wake_address=address) as subscriber,
        lanelog.connect(lanelog_url, wake_networks=["192.0.2.0/24", network]) as allowing,
    ):
        paced(subscriber, fetcher=UNHURRIED)
        subscription = subscriber.subscribe("t", "g", handled, poll_interval=NEVER, lease_duration=NEVER)
        eventually(lambda: one(raw, ADDRESSES) == 1)
        rows(raw, "UPDATE queue_subscriber_heartbeats SET wake_host = 'elsewhere'")
        if "@" not in one(raw, "SELECT wake_address FROM queue_subscriber_heartbeats"):
            pytest.skip("this machine does not have the address")
        other.publish("t", "k", b"x")
        assert (sender(other).sent, sender(other).lost) == (0, 0)
        known = acquaint(allowing, raw)
        handled.wait(known)
        for count in (1, 2, 3):
            allowing.publish("t", "k", b"x")
            handled.wait(known + count)
        assert sender(allowing).sent >= 2
        assert subscription.stats().hints >= 2
        assert hints_finding(other).endswith("sent to 0: this client has no wake_networks")
        assert hints_finding(allowing) == (
            "1 of 1 subscriptions want them; on this host 0, reached 0; elsewhere 1, 1 of them with wake_address, "
            "sent to 1"
        )


def test_on_one_host_the_unix_socket_is_used(lanelog_url: str, other: Client, raw: Any) -> None:
    """A subscriber that names an address for other hosts still gets hints of its own host by the socket."""
    handled = Record()
    with lanelog.connect(lanelog_url, wake_address="127.0.0.1") as subscriber:
        subscription = subscriber.subscribe("t", "g", handled)
        acquaint(other, raw)
        eventually(lambda: subscription.stats().hints)
        assert sender(other).lost == 0


def test_tables_without_the_columns_work_as_before(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """No hint is sent, and nothing else changes."""
    set_back(raw, 3)
    handled = Record()
    with lanelog.connect(lanelog_url) as subscriber, lanelog.connect(lanelog_url) as publisher:
        subscriber.subscribe("t", "g", handled)
        publisher.publish("t", "k", b"x")
        handled.wait(1)
        assert sender(publisher).sent == 0
    lanelog_client.migrate()
