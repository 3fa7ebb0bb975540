"""The original Go design's acceptance suite, re-told: groups, fair shares, collection. See tests/README.md."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lanelog
from lanelog import Client, Message
from support.pace import paced
from support.situations import Situations
from support.sql import audit, one, owners, rows
from support.traffic import shares, steady_load
from support.turns import Turns, collecting_turns
from support.waiting import Gate, Record, accept, eventually

Join = Callable[..., Client]


@pytest.fixture
def join(lanelog_url: str) -> Iterator[Join]:
    """Lets one more client join group g of topic t under a name; a close releases what it holds at once."""
    with ExitStack() as stack:

        def connect(name: str, handler: Callable[[Message], object] = accept, **options: Any) -> Client:
            client = stack.enter_context(lanelog.connect(lanelog_url))
            client.subscribe("t", "g", handler, name=name, lease_renewal=0.5, **options)
            return client

        yield connect


def publish(client: Client, lanes: int, each: int = 1) -> None:
    client.publish_many("t", [(f"pk-{n:02}", b"x") for n in range(lanes) for _ in range(each)])


def split(raw: Any) -> list[int]:
    """How many lanes each owner has, the most first; a lane that is nobody's counts as an owner of its own."""
    return sorted(shares(raw).values(), reverse=True)


def acked(raw: Any) -> int:
    sql = "SELECT COALESCE(SUM(offset_acked), 0) FROM queue_offsets WHERE consumer_group = 'g' AND topic = 't'"
    return int(one(raw, sql))


# -- groups and members ------------------------------------------------------------------------------------------------


def test_multiple_consumer_groups(lanelog_client: Client, lanelog_url: str) -> None:
    """Two groups get every message of a topic, each by itself."""
    seen = {group: Record() for group in ("A", "B")}
    with lanelog.connect(lanelog_url) as other:
        for client, group in ((lanelog_client, "A"), (other, "B")):
            client.subscribe("t", group, lambda message, group=group: seen[group](message.id))
        names = [f"msg-{n}" for n in range(3)]
        for name in names:
            lanelog_client.publish("t", "k", b"x", id=name)
        for record in seen.values():
            assert record.wait(3) == names


@pytest.mark.thorough
def test_multiple_workers_in_group(lanelog_client: Client, join: Join, raw: Any) -> None:
    """Two members of a group and ten messages under three keys: together they handle each message once."""
    handled_once(lanelog_client, join, raw, members=2, lanes=3, messages=10)


@pytest.mark.thorough
def test_concurrent_subscribers(lanelog_client: Client, join: Join, raw: Any) -> None:
    """Three members, five keys, fifteen messages that come while the members share out the lanes: each once."""
    handled_once(lanelog_client, join, raw, members=3, lanes=5, messages=15)


def handled_once(client: Client, join: Join, raw: Any, *, members: int, lanes: int, messages: int) -> None:
    """Publish to a group that has just begun, and see every message once, each key's in order."""
    seen = Record()
    for number in range(members):
        join(f"w{number}", lambda message: seen((message.key, message.id, message.attempt)))
    sent = [(f"k{n % lanes}", f"msg-{n}", 1) for n in range(messages)]
    for key, name, _ in sent:
        client.publish("t", key, b"x", id=name)
    seen.wait(messages)
    eventually(lambda: acked(raw) == messages)
    assert sorted(seen.items) == sorted(sent)
    for n in range(lanes):
        assert [item for item in seen.items if item[0] == f"k{n}"] == [item for item in sent if item[0] == f"k{n}"]


@pytest.mark.thorough
def test_groups_independent_state(lanelog_client: Client) -> None:
    """One group's nack and its second attempt are its own: the other sees each message once, as attempt 1."""
    lanelog_client.publish("t", "k", b"x", id="shared-1")
    lanelog_client.publish("t", "k", b"x", id="shared-2")
    with (
        lanelog_client.deliveries("t", "alpha", timeout=20.0, order="serial") as alpha,
        lanelog_client.deliveries("t", "beta", timeout=20.0, order="serial") as beta,
    ):
        first = next(alpha)
        assert (first.id, first.attempt) == ("shared-1", 1)
        first.nack(delay=0.2)
        taken: dict[str, list[tuple[str, int]]] = {"alpha": [], "beta": []}
        for deliveries in (alpha, beta):
            for _ in range(2):
                message = next(deliveries)
                taken[message.group].append((message.id, message.attempt))
                message.ack()
        assert sorted(taken["alpha"]) == [("shared-1", 2), ("shared-2", 1)]
        assert taken["beta"] == [("shared-1", 1), ("shared-2", 1)]
        assert beta._core.pull(0.5) is None
        assert alpha._core.pull(0.01) is None


# -- rebalancing -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_rebalance_even_distribution(lanelog_client: Client, join: Join, raw: Any) -> None:
    """Four lanes are all the only member's; with a second one, each has two."""
    publish(lanelog_client, 4)
    join("s1")
    eventually(lambda: shares(raw) == {"s1": 4})
    join("s2")
    eventually(lambda: shares(raw) == {"s1": 2, "s2": 2})


@pytest.mark.thorough
def test_subscriber_leaves(lanelog_client: Client, join: Join, raw: Any) -> None:
    """The remaining member takes the lanes of the one that leaves: two and two lanes, then four."""
    publish(lanelog_client, 4)
    join("s1")
    leaving = join("s2")
    eventually(lambda: shares(raw) == {"s1": 2, "s2": 2})
    leaving.close()
    eventually(lambda: shares(raw) == {"s1": 4})


@pytest.mark.thorough
def test_odd_partitions(lanelog_client: Client, join: Join, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five lanes and two members: three and two, and it stays so."""
    turns = Turns(monkeypatch)
    publish(lanelog_client, 5)
    members = [join(name)._subscriptions[0] for name in ("s1", "s2")]
    eventually(lambda: split(raw) == [3, 2])
    turns.pass_by(members)
    assert split(raw) == [3, 2]


@pytest.mark.thorough
def test_no_orphans(lanelog_client: Client, join: Join, raw: Any) -> None:
    """Six lanes, two for each of three members; one leaves, and the others have three each: none is nobody's."""
    publish(lanelog_client, 6)
    members = {name: join(name) for name in ("s1", "s2", "s3")}
    eventually(lambda: shares(raw) == {"s1": 2, "s2": 2, "s3": 2})
    members["s3"].close()
    eventually(lambda: shares(raw) == {"s1": 3, "s2": 3})


@pytest.mark.thorough
def test_more_subscribers_than_partitions(lanelog_client: Client, join: Join, raw: Any) -> None:
    """Two lanes and four members: two have one each, two have none, nobody has two, and both lanes are worked on."""
    publish(lanelog_client, 2)
    for name in ("s1", "s2", "s3", "s4"):
        join(name)
    eventually(lambda: split(raw) == [1, 1] and "" not in shares(raw))
    publish(lanelog_client, 2)
    eventually(lambda: acked(raw) == 4)


@pytest.mark.thorough
def test_no_starvation_uneven_split(lanelog_client: Client, join: Join, raw: Any) -> None:
    """Twelve lanes and five members: 3 + 3 + 2 + 2 + 2, where caps of three for each would leave one with none."""
    publish(lanelog_client, 12)
    for number in range(1, 6):
        join(f"s{number}")
    eventually(lambda: split(raw) == [3, 3, 2, 2, 2] and "" not in shares(raw), within=30)


@pytest.mark.thorough
@pytest.mark.parametrize("phantoms", ["stamped ahead", "content"])
def test_orphan_sweep(lanelog_client: Client, join: Join, raw: Any, phantoms: str) -> None:
    """Two members that never take a lane leave the third a share of one of three, and all three are worked on anyhow.

    The original's phantoms are heartbeats stamped ten minutes ahead: a clock was set back, and after a lease duration
    they count as dead. Phantoms that are alive, and content with lanes that are gone, are what the uncapped sweep is
    for.
    """
    lanelog_client.subscribe("t", "g", accept).stop()  # a new group would begin by removing what an old one has left
    made, ahead = Situations(raw), phantoms == "stamped ahead"
    for name in ("phantom-1", "phantom-2"):
        made.owner(name, expires=602 if ahead else 600)
        if not ahead:
            made.lease(f"gone-{name}", name, 1)
    if ahead:
        rows(raw, "UPDATE queue_subscriber_heartbeats SET heartbeat_at = expires_at - 2000 WHERE deregistered_at = 0")
    born = "NEW.partition_key, NEW.leased_at"
    audit(raw, "born", "INSERT", "queue_partition_leases", "lane, a", born, "NEW.leased_by LIKE 'worker:%'")
    publish(lanelog_client, 3)
    seen = Record()
    join("worker", lambda message: seen(message.key), lease_duration=2.0)  # two of them until the sweep
    assert sorted(seen.wait(3, within=30)) == ["pk-00", "pk-01", "pk-02"]
    first, *others = sorted(at for (at,) in rows(raw, "SELECT a FROM born"))
    assert len(others) == 2
    assert others[0] - first >= 1000  # by the database's clock: at first it had kept to its share


@pytest.mark.thorough
def test_idle_lease_release(lanelog_url: str, raw: Any) -> None:
    """The lease of a lane that is drained and stays empty is let go; with the next message the lane is back."""
    seen = Record()
    with lanelog.connect(lanelog_url, lane_idle_purge=0.2) as client:
        subscription = client.subscribe(
            "t", "g", lambda message: seen((message.id, message.fencing_token)), retention=0
        )
        client.publish("t", "k", b"x", id="1")
        ((_, token),) = seen.wait(1)
        eventually(lambda: owners(raw, "g", "t") == {} and subscription.stats().lanes == 0)
        client.publish("t", "k", b"x", id="2")
        name, later = seen.wait(2)[1]
        assert name == "2"
        assert later > token


# -- collection --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_collection_under_continuous_traffic(
    lanelog_client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While publishers never pause, what both groups have acked leaves, and nothing of what one is yet to read."""
    keys, turns = [f"k{n}" for n in range(4)], collecting_turns(monkeypatch)
    seen, late = {group: Record() for group in ("early", "late")}, Gate()

    def handle(message: Message) -> None:
        if message.group == "late":
            late()
        seen[message.group]((message.key, message.offset, message.attempt))

    def collected() -> dict[str, int]:
        sql = "SELECT partition_key, marked_through FROM queue_offsets WHERE consumer_group = '' AND topic = 't'"
        return dict(rows(raw, sql))

    def stored() -> int:
        return int(one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't' AND `offset` <= 50"))

    with lanelog.connect(lanelog_url) as other:
        for client, group in ((lanelog_client, "early"), (other, "late")):
            paced(client, janitor={"turn_seconds": 0.05}).subscribe("t", group, handle, retention=0)
        with late, steady_load(lanelog_client, "t", keys, pause=0.01, burst=5) as traffic:
            seen["early"].wait(100 * len(keys), within=30)
            turns.wait(len(turns) + 10)
            assert stored() == 50 * len(keys)
            late.open()
            eventually(lambda: min(collected().values()) >= 50, within=30)
            first = collected()
            eventually(lambda: all(collected()[key] >= first[key] + 50 for key in keys), within=30)
            assert stored() == 0
        for record in seen.values():
            items = record.wait(traffic.each * len(keys), within=30)
            for key in keys:
                assert [(o, a) for k, o, a in items if k == key] == [(n, 1) for n in range(1, traffic.each + 1)]
        eventually(lambda: one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 't'") == 0)
