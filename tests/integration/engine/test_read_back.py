"""The read-back of leases and the poll of heads: digests that the server computes, and what a difference does."""

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog._engine.fetching.fetcher import Fetcher
from lanelog._engine.lane.lane import Lane
from lanelog._engine.member.fetching import FetchingSide
from lanelog._engine.member.leasing import LeasingSide
from lanelog._stores.log import fetches, partitions
from lanelog._stores.members import leases
from lanelog._stores.members.leases import LeasesDigest, OwnedLane
from lanelog.errors import DatabaseError
from support.pace import ALWAYS, paced
from support.sql import one, rows
from support.waiting import Record, eventually

KEYS = ["a", "A", "ä", "日本", "😀", "a'b\"c\\d", "%_", " ", "x" * 191, "0", "e\u0301", "\u200d"]

SETTLED = "SELECT COUNT(*) FROM queue_offsets WHERE consumer_group = 'g' AND offset_acked = 1"
"""Lanes whose first message is settled in the database, and not only in memory."""


def test_a_lease_that_was_taken_is_lost_and_one_under_a_new_epoch_is_loaded(lanelog_client: Client, raw: Any) -> None:
    """The rows are read when the digest differs: one lane goes to another owner, one comes back under another epoch."""
    seen = Record()
    lanelog_client.publish_many("t", [(key, b"1") for key in "abc"])
    subscription = lanelog_client.subscribe("t", "g", lambda message: seen((message.key, message.fencing_token)))
    eventually(lambda: one(raw, SETTLED) == 3)
    tokens = dict(seen.wait(3))
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'x', lease_epoch = 90 WHERE partition_key = 'a'")
    rows(raw, "UPDATE queue_partition_leases SET lease_epoch = 91 WHERE partition_key = 'b'")
    eventually(lambda: subscription.stats().lanes == 2)
    lanelog_client.publish_many("t", [(key, b"2") for key in "bc"])
    assert sorted(seen.wait(5)[3:]) == [("b", 91), ("c", tokens["c"])]


def turns(seen: Sequence[tuple[str, float]]) -> list[list[tuple[str, float]]]:
    """What came of each digest that was asked for, but the last one."""
    begins = [place for place, (name, _) in enumerate(seen) if name == "digest"]
    return [list(seen[begin:end]) for begin, end in pairwise(begins)]


@pytest.mark.thorough
def test_an_equal_digest_extends_authority_from_before_it_was_asked_for_and_a_different_one_does_not(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference extends it when the rows are read, in the same turn; as long as they cannot be read, it does not."""
    lease = 4.0
    digest, owned, grant = leases.digest, leases.owned, LeasingSide.grant_authority
    differs, unreadable = threading.Event(), threading.Event()
    seen: list[tuple[str, float]] = []

    def asked(*given: Any) -> LeasesDigest:
        seen.append(("digest", time.monotonic()))
        return LeasesDigest(0, 0) if differs.is_set() else digest(*given)

    def read(*given: Any) -> list[OwnedLane]:
        seen.append(("rows", time.monotonic()))
        if unreadable.is_set():
            seen.append(("failed", time.monotonic()))
            raise DatabaseError("the rows cannot be read", retriable=True)
        return owned(*given)

    def granted(self: LeasingSide, until: float, slept: float) -> None:
        seen.append(("extended", until - lease))
        grant(self, until, slept)

    def names(begin: int) -> list[tuple[str, ...]]:
        return [tuple(name for name, _ in turn) for turn in turns(seen[begin:])]

    monkeypatch.setattr(leases, "digest", asked)
    monkeypatch.setattr(leases, "owned", read)
    monkeypatch.setattr(LeasingSide, "grant_authority", granted)
    lanelog_client.publish("t", "a", b"1")
    lanelog_client.subscribe("t", "g", lambda _: None, lease_duration=lease, lease_renewal=1.0)
    eventually(lambda: ("digest", "extended") in names(0))
    differs.set()
    begin = len(seen)
    eventually(lambda: len(names(begin)) > 1)
    assert set(names(begin)) == {("digest", "rows", "extended")}
    for turn in turns(seen):
        extended = next(at for name, at in turn if name == "extended")
        assert extended <= turn[0][1]
    unreadable.set()
    eventually(lambda: seen[-1][0] == "failed")
    begin = len(seen)
    eventually(lambda: [name for name, _ in seen[begin:]].count("failed") > 1)
    assert "extended" not in {name for name, _ in seen[begin:]}


@pytest.mark.thorough
@pytest.mark.parametrize("question", ["digest", "owned"])
def test_authority_that_is_withdrawn_while_the_server_is_asked_stays_withdrawn(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """The answer is about the time before: only a question that is asked afterwards gives the authority back."""
    grant = LeasingSide.grant_authority
    began, seen = threading.Event(), Record()

    def asking(name: str) -> Any:
        ask = getattr(leases, name)

        def asked(*given: Any) -> Any:
            found = ask(*given)
            if began.is_set() and (name == question or "withdrawn" in seen.items):
                if "withdrawn" not in seen.items:
                    lanelog_client._engine.context.withdraw_authority()
                    seen("withdrawn")
                else:
                    seen("asked again")
            return found

        return asked

    def granted(self: LeasingSide, until: float, slept: float) -> None:
        seen("granted")
        grant(self, until, slept)

    for name in ("digest", "owned"):
        monkeypatch.setattr(leases, name, asking(name))
    monkeypatch.setattr(LeasingSide, "grant_authority", granted)
    lanelog_client.publish("t", "a", b"1")
    lanelog_client.subscribe("t", "g", lambda _: None, lease_duration=4.0, lease_renewal=1.0)
    seen.wait(1)
    began.set()
    eventually(lambda: "asked again" in seen.items and seen.items[-1] == "granted")
    after = seen.items[seen.items.index("withdrawn") + 1 :]
    assert after[0] == "asked again"


@pytest.mark.thorough
def test_all_rows_are_read_once_a_lease(lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest that was the same by chance would hide a lost lane for no longer."""
    lanelog_client.publish("t", "a", b"1")
    subscription = lanelog_client.subscribe("t", "g", lambda _: None, lease_duration=4.0, lease_renewal=1.0)
    eventually(lambda: one(raw, SETTLED) == 1)
    with lanelog_client._database.autocommit() as cx:
        known = leases.digest(cx, GroupTopic(group="g", topic="t"), subscription.owner)
    monkeypatch.setattr(leases, "digest", lambda *_: known)
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'x', lease_epoch = 90")
    eventually(lambda: lanelog_client.measures().groups[0].counters.lost == 1)


@pytest.mark.thorough
def test_what_is_published_while_its_lane_is_loaded_is_found(
    lanelog_client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll meets it when the lane is ours in the database, but not yet in memory. Nothing else is published."""
    paced(lanelog_client, fetcher={"digests": ALWAYS})
    poll, polled = Fetcher._poll, threading.Semaphore(0)
    opens = LeasingSide.open_lane
    seen = Record()

    def counted(self: Fetcher, member: Any, pace: Any) -> None:
        poll(self, member, pace)
        polled.release()

    def late(self: LeasingSide, lane: Lane) -> None:
        if (lane.key, lane.epoch) == ("b", 91):
            with lanelog.connect(lanelog_url) as other:
                other.publish("t", "b", b"2")
            while polled.acquire(blocking=False):
                pass
            for _ in range(2):  # the first one may have begun before the commit
                assert polled.acquire(timeout=30)
        opens(self, lane)

    lanelog_client.publish_many("t", [(key, b"1") for key in "ab"])
    lanelog_client.subscribe("t", "g", lambda message: seen(message.payload))
    eventually(lambda: one(raw, SETTLED) == 2)
    monkeypatch.setattr(Fetcher, "_poll", counted)
    monkeypatch.setattr(LeasingSide, "open_lane", late)
    rows(raw, "UPDATE queue_partition_leases SET lease_epoch = 91 WHERE partition_key = 'b'")
    assert seen.wait(3)[2:] == [b"2"]


def test_rows_of_the_server_before_get_into_no_lane(lanelog_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is loaded again while a fetch is under way: what it read is dropped, and read once more."""
    answers: list[Any] = []
    taken: list[Any] = []
    read, fetched = fetches.following, FetchingSide.fetched
    seen = Record()
    lanelog_client.publish("t", "k", b"1")
    lanelog_client.subscribe("t", "g", lambda message: seen(message.payload))
    seen.wait(1)
    server_identity = lanelog_client._engine.context.server_identity

    def overtaken(*given: Any, **options: Any) -> Any:
        found = read(*given, **options)
        if not answers:
            server_identity.generation += 1
        answers.append(found)
        return found

    def noted(self: FetchingSide, lane: Lane, cursor: int, rows: Any) -> None:
        taken.append(rows)
        fetched(self, lane, cursor, rows)

    monkeypatch.setattr(fetches, "following", overtaken)
    monkeypatch.setattr(FetchingSide, "fetched", noted)
    lanelog_client.publish("t", "k", b"2")
    assert seen.wait(2) == [b"1", b"2"]
    assert [row.payload for row in answers[0][0]] == [b"2"]
    assert taken
    assert all(rows is not answers[0][0] for rows in taken)


def test_a_server_that_ends_every_digest_of_a_poll_hides_no_message(
    lanelog_client: Client, lanelog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit may end the digests of a huge topic: the polls are made without digests then."""
    digest = partitions.digest

    def ended(cx: Any, topic: str) -> Any:
        if threading.current_thread().name == "lanelog-fetcher":
            raise lanelog.DatabaseError("the query was interrupted", code=1317, retriable=True)
        return digest(cx, topic)

    monkeypatch.setattr(partitions, "digest", ended)
    monkeypatch.setattr(partitions, "parts", ended)
    seen = Record()
    lanelog_client.publish("t", "k", b"0")
    lanelog_client.subscribe("t", "g", lambda message: seen(message.payload))
    with lanelog.connect(lanelog_url, wake=False) as other:  # with so few lanes, a notified member reads no digest
        for count in (1, 2, 3):
            seen.wait(count)
            other.publish("t", "k", b"%d" % count)
    assert seen.wait(4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("times", [1, 20])
def test_a_pause_that_ends_between_two_turns_pauses_nothing(lanelog_client: Client, times: int) -> None:
    """`pause` and `resume` in a row leave every lane going on, however the keeper's turns fall between them."""
    seen = Record()
    subscription = lanelog_client.subscribe("t", "g", lambda message: seen(message.offset))
    lanelog_client.publish("t", "k", b"0")
    seen.wait(1)
    for number in range(times):
        subscription.pause()
        subscription.resume()
        lanelog_client.publish("t", "k", b"x")
        seen.wait(number + 2)


@pytest.mark.thorough
def test_the_first_lanes_begin_before_the_last_is_leased(lanelog_client: Client, raw: Any) -> None:
    """The first page of leases is a small one: its messages are handled while the others are still acquired."""
    total = 3000
    lanelog_client.publish_many("t", [(f"k{n:04}", b"x") for n in range(total)])
    leased: list[int] = []

    def note(_message: object) -> None:
        if not leased:
            leased.append(int(one(raw, "SELECT COUNT(*) FROM queue_partition_leases")))

    subscription = lanelog_client.subscribe("t", "g", note, workers=1)
    eventually(lambda: subscription.stats().acked == total, within=30)
    assert leased[0] < total
    assert subscription.stats().lanes == total
