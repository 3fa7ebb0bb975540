"""The pull style: `client.deliveries()`, messages one by one in the caller's hands."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

import lanelog
from lanelog import AckPolicy, AlreadySettled, Client, ConfigurationError, Deliveries, LeaseLost, RetryPolicy
from support.refusing import refused
from support.sql import delivery_rows, one, owners, watermark
from support.waiting import Record, eventually

QUICK = RetryPolicy(stop=stop_after_attempt(3), wait=wait_fixed(0.05))


def test_deliveries_come_in_order_and_end_after_the_timeout(lanelog_client: Client, raw: Any) -> None:
    """Every message once, in order; `timeout` seconds without one end the iterator, which then holds nothing."""
    lanelog_client.publish_many("t", [("k", f"{n}") for n in range(1, 21)])
    got = []
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        for delivery in islice(deliveries, 20):
            got.append((delivery.offset, delivery.attempt))
            delivery.ack()
            assert watermark(raw, "g", "t", "k") == delivery.offset
    assert got == [(n, 1) for n in range(1, 21)]
    with lanelog_client.deliveries("t", "g", timeout=0.1) as drained:
        eventually(lambda: owners(raw, "g", "t")["k"] != "")
        assert list(drained) == []
        assert owners(raw, "g", "t") == {"k": ""}
        assert drained.subscription.state == "stopped"
        assert next(iter(drained), None) is None


def test_what_is_not_settled_goes_back_as_attempt_1(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """Leaving the block gives everything back, whatever waits in memory too: the next consumer sees attempt 1."""
    lanelog_client.publish_many("t", [(key, f"{n}") for n in range(5) for key in ("a", "b", "c")])
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        taken = [next(deliveries) for _ in range(3)]
        assert {d.offset for d in taken} == {1}
        taken[0].ack()
    assert set(owners(raw, "g", "t").values()) == {""}
    for delivery in taken[1:]:
        with pytest.raises((LeaseLost, AlreadySettled)):
            delivery.ack()
    with lanelog.connect(lanelog_url) as other, other.deliveries("t", "g", timeout=20.0) as deliveries:
        got = []
        for delivery in islice(deliveries, 14):
            got.append((delivery.key, delivery.offset, delivery.attempt))
            delivery.ack()
    assert sorted(got) == sorted(
        (key, offset, 1) for key in ("a", "b", "c") for offset in range(1, 6) if (key, offset) != (taken[0].key, 1)
    )
    assert delivery_rows(raw, "g", "t") == []


def test_consumers_share_an_iterator_and_clients_the_lanes(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """Two threads on an iterator of each of two clients: together every message once, each key in order."""
    lanelog_client.publish_many("t", [(f"k{n % 6}", f"{n}") for n in range(120)])
    got = Record()

    def consume(deliveries: Deliveries) -> None:
        for delivery in deliveries:
            got((delivery.key, delivery.offset))
            delivery.ack()

    with (
        ThreadPoolExecutor(4) as threads,
        lanelog.connect(lanelog_url) as other,
        lanelog_client.deliveries("t", "g", timeout=60.0) as ours,
        other.deliveries("t", "g", timeout=60.0) as theirs,
    ):
        consuming = [threads.submit(consume, each) for each in (ours, ours, theirs, theirs)]
        eventually(lambda: sum(watermark(raw, "g", "t", f"k{n}") for n in range(6)) == 120, within=60)
    for each in consuming:
        each.result(30)
    for n in range(6):
        assert [offset for key, offset in got.items if key == f"k{n}"] == list(range(1, 21))


def test_a_transaction_settles_a_pulled_message(lanelog_client: Client, raw: Any) -> None:
    """message.transaction() works in the caller's thread."""
    lanelog_client.publish_many("t", [("k", b"1"), ("k", b"2")])
    with lanelog_client.deliveries("t", "g", timeout=20.0) as deliveries:
        for _ in range(2):
            message = next(deliveries)
            with message.transaction() as connection:
                lanelog_client.publish("next", "k", message.payload, connection=connection)
    assert watermark(raw, "g", "t", "k") == 2
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic = 'next'") == 2


@pytest.mark.parametrize(
    ("options", "bound"), [({}, 1), ({"order": "concurrent", "lane_concurrency": 3}, 3)], ids=["strict", "concurrent"]
)
def test_as_many_of_a_key_are_handed_out_as_its_order_allows(
    lanelog_client: Client, options: dict[str, Any], bound: int
) -> None:
    """The caller holds at most so many unsettled messages of one key; a settled one makes room for the next."""
    lanelog_client.publish_many("t", [("k", f"{n}") for n in range(1, 8)])
    with lanelog_client.deliveries("t", "g", timeout=20.0, **options) as deliveries:
        taken = [next(deliveries) for _ in range(bound)]
        assert [d.offset for d in taken] == list(range(1, bound + 1))
        assert deliveries._core.pull(0.3) is None
        taken[bound // 2].ack()
        assert next(deliveries).offset == bound + 1
    settled = bound // 2 + 1
    with lanelog_client.deliveries("t", "g", timeout=20.0, **options) as deliveries:
        got = []
        for delivery in islice(deliveries, 6):
            got.append((delivery.offset, delivery.attempt))
            delivery.ack()
    assert sorted(got) == [(n, 1) for n in range(1, 8) if n != settled]


@pytest.mark.thorough
def test_ack_first_settles_before_it_hands_out(lanelog_client: Client, raw: Any) -> None:
    """At most once for the pull style: committed before the caller has it, and settled already."""
    lanelog_client.publish_many("t", [("k", b"1"), ("k", b"2")])
    with lanelog_client.deliveries("t", "g", timeout=20.0, ack_policy=AckPolicy.ACK_FIRST) as deliveries:
        for offset in (1, 2):
            message = next(deliveries)
            assert message.offset == offset
            assert watermark(raw, "g", "t", "k") >= offset
            with pytest.raises(AlreadySettled):
                message.ack()
        assert deliveries.subscription.stats().acked == 2


def test_a_deliveries_iterator_that_is_never_used_starts_nothing(lanelog_client: Client, raw: Any) -> None:
    """Options are checked at once, the group is registered by the first use."""
    with pytest.raises(ConfigurationError, match="prefetch_byte"):
        lanelog_client.deliveries("t", "g", prefetch_byte=1)
    lanelog_client.deliveries("t", "g")
    assert one(raw, "SELECT COUNT(*) FROM queue_groups") == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(
            ({option: value}, f"{option} is about handlers, and deliveries() has none: leave it out")
            for option, value in (
                ("auto_extend", False),
                ("hard_time_limit", 60),
                ("unhealthy_after", 60),
                ("middleware", (lambda message, call_next: call_next(message),)),
            )
        ),
        *(
            ({"ack_policy": policy}, f"ack_policy {policy} is about exceptions of a handler, and deliveries() has none")
            for policy in ("ACK", "REJECT_ON_ERROR")
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_about_handlers_is_refused_where_there_is_none(
    lanelog_client: Client, options: dict[str, Any], says: str
) -> None:
    """Nothing would read it. The defaults, and policies that are the caller's, are taken."""
    assert says in refused(lanelog_client.deliveries, "t", "g", **options)
    lanelog_client.deliveries("t", "g", workers=2, max_handler_time=60, auto_extend=True, ack_policy="manual")
