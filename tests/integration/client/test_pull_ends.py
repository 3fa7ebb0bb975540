"""How the pull style ends: in a forked child at once, without waiting for what nobody took, or what nobody has left."""

import gc
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lanelog
from lanelog import AckPolicy, Client
from lanelog.errors import ClosedError
from support.forking import exit_status_of
from support.sql import owners, rows, running, watermark
from support.turns import Turns
from support.waiting import Record, eventually, never

WITHIN = 20.0


def test_a_forked_child_cannot_pull_what_its_parent_leased(lanelog_client: Client, raw: Any) -> None:
    """The child's next() raises ClosedError and takes nothing; its close gives nothing back; the parent gets all."""
    lanelog_client.publish_many("t", [("a", b"1"), ("b", b"1"), ("c", b"1")])
    deliveries = lanelog_client.deliveries("t", "g", timeout=10.0)
    first = next(deliveries)
    eventually(lambda: deliveries.subscription.stats().running == 3)  # two more wait, marked, to be pulled

    def pull() -> int:
        try:
            next(deliveries)
        except ClosedError:
            deliveries.close()
            return 0
        return 1

    assert exit_status_of(pull) == 0
    others = [next(deliveries), next(deliveries)]
    assert {message.key for message in (first, *others)} == {"a", "b", "c"}
    assert {message.attempt for message in (first, *others)} == {1}
    for message in (first, *others):
        message.ack()
    deliveries.close()
    assert {watermark(raw, "g", "t", key) for key in ("a", "b", "c")} == {1}


@pytest.mark.thorough
def test_closing_a_pulled_subscription_that_acks_first_does_not_wait(
    lanelog_client: Client, open_raw: Any, raw: Any
) -> None:
    """A message whose ack commits while the iterator is being closed does not hold up the end: at most once."""
    lanelog_client.publish("t", "a", b"1")
    deliveries = lanelog_client.deliveries("t", "g", timeout=10.0, ack_policy=AckPolicy.ACK_FIRST)
    next(deliveries)
    eventually(lambda: watermark(raw, "g", "t", "a") == 1)
    holder = open_raw()
    rows(holder, "SELECT * FROM queue_partition_leases WHERE consumer_group = 'g' AND topic = 't' FOR UPDATE")
    lanelog_client.publish("t", "a", b"2")
    flushing = re.compile("FROM queue_partition_leases.*SHARE MODE", re.DOTALL)
    eventually(lambda: any(flushing.search(each.sql) for each in running(raw)), what="the flush that acks it")
    ended = Record()
    thread = threading.Thread(target=lambda: ended(deliveries.close()))
    thread.start()
    try:
        never(lambda: len(ended), during=0.3, what="the end before the flush")
        holder.rollback()
        ended.wait(1, within=15)
    finally:
        thread.join()
    assert deliveries.subscription.state == "stopped"
    assert watermark(raw, "g", "t", "a") == 2
    assert set(owners(raw, "g", "t").values()) == {""}


@pytest.mark.thorough
def test_closing_the_client_gives_back_what_nobody_can_settle_any_more(
    lanelog_client: Client, lanelog_url: str, raw: Any
) -> None:
    """An iterator that was left in the middle, and its message forgotten: no wait, no attempt lost, no lane kept."""
    lanelog_client.publish_many("t", [("k", b"1"), ("k", b"2")])
    client = lanelog.connect(lanelog_url)
    for message in client.deliveries("t", "g", visibility_timeout=600.0):
        assert (message.offset, message.attempt) == (1, 1)
        break
    del message
    gc.collect()
    assert client.close(timeout=WITHIN)
    assert owners(raw, "g", "t") == {"k": ""}
    with lanelog_client.deliveries("t", "g", timeout=WITHIN) as deliveries:
        again = next(deliveries)
        assert (again.offset, again.attempt) == (1, 1)
        again.ack()


@pytest.mark.thorough
def test_closing_the_client_waits_for_what_another_thread_may_have(
    lanelog_client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that somebody holds is settled as ever while the client closes; one let go of ends the wait."""
    turns = Turns(monkeypatch)
    lanelog_client.publish_many("t", [("a", b"1"), ("b", b"1")])
    client = lanelog.connect(lanelog_url)
    deliveries = client.deliveries("t", "g", visibility_timeout=600.0)
    held = {message.key: message for message in (next(deliveries), next(deliveries))}
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(client.close, 2 * WITHIN)
        eventually(lambda: deliveries.subscription.state == "stopping")
        turns.pass_by([deliveries.subscription])
        assert not closing.done()
        pool.submit(held["a"].ack).result(WITHIN)
        turns.pass_by([deliveries.subscription])
        assert not closing.done()
        held.clear()
        gc.collect()
        assert closing.result(WITHIN)
    assert (watermark(raw, "g", "t", "a"), watermark(raw, "g", "t", "b")) == (1, 0)
    assert owners(raw, "g", "t") == {"a": "", "b": ""}
