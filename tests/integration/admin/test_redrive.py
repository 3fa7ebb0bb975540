"""Redrive and deletion of dead letters: back to the failing group alone, in order, exactly once."""

import itertools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import lanelog
from lanelog import Client, Message, Reject
from lanelog._base.reasons import names_of
from support.commits import every_commit_unanswered_once
from support.dead_letters import give_up, letters, refuse
from support.situations import NOW
from support.sql import delivery_rows, one, rows, watermark
from support.waiting import Record, eventually

KEYS, EACH = 60, 10  # more than one batch


def in_order(seen: list[tuple[str, int]]) -> dict[str, list[int]]:
    """What was seen of each key, in order."""
    found: dict[str, list[int]] = {}
    for key, number in seen:
        found.setdefault(key, []).append(number)
    return found


@pytest.mark.thorough
def test_redrive_of_many_dead_letters_beside_another_group(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The failing group gets each exactly once and in order, the other none; twice, and after collection: no more."""
    mended, seen_a, seen_b = threading.Event(), Record(), Record()

    def handle(message: Message) -> None:
        if not mended.is_set():
            raise Reject("it is down")
        seen_a((message.key, int(message.payload)))

    with lanelog.connect(lanelog_url) as other:
        admin = other.admin
        running = lanelog_client.subscribe("t", "a", handle, retention=0)
        lanelog_client.subscribe("t", "b", lambda m: seen_b((m.key, m.offset)), retention=0)
        for number in range(EACH):
            lanelog_client.publish_many("t", [(f"k{n}", str(number)) for n in range(KEYS)])
        eventually(lambda: letters(raw) == KEYS * EACH, within=60)
        seen_b.wait(KEYS * EACH, within=60)
        mended.set()

        redriven = admin.redrive("t", "a", all=True, dry_run=False)
        assert (redriven.messages, redriven.keys, redriven.remaining) == (KEYS * EACH, KEYS, 0)
        seen_a.wait(KEYS * EACH, within=60)
        assert in_order(seen_a.items) == {f"k{n}": list(range(EACH)) for n in range(KEYS)}
        assert admin.redrive("t", "a", all=True, dry_run=False).messages == 0

        for group in ("a", "b"):  # both pass what is there, and only one of them was given it
            eventually(lambda group=group: all(watermark(raw, group, "t", f"k{n}") == 2 * EACH for n in range(KEYS)))
        assert admin.maintain().dead_letters == KEYS * EACH
        assert letters(raw) == 0
        assert delivery_rows(raw, "", "t_dlq") == []
        assert admin.redrive("t", "a", all=True, dry_run=False).messages == 0
        heads = "SELECT SUM(head_offset) FROM queue_partitions WHERE topic = 't' AND partition_key <> ''"
        assert one(raw, heads) == 2 * KEYS * EACH
        assert len(seen_a) == len(seen_b) == KEYS * EACH
        assert running.stats().dead_lettered == KEYS * EACH  # the first time, and not again


def test_a_redriven_message_that_fails_again_is_dead_lettered_again(lanelog_client: Client, raw: Any) -> None:
    """The new dead letter has an id of its own, knows its first id, and can be redriven like the first one."""
    give_up(lanelog_client, raw, [("k", "1"), ("k", "2")])
    letters_before = lanelog_client.admin.dead_letters("t", "a")
    known = {letter.id for letter in letters_before}
    published = [letter.published_at for letter in letters_before]
    for round_ in (1, 2):
        attempts = Record()

        def reject(message: Message, attempts: Record = attempts) -> None:
            attempts((message.offset, message.attempt))
            raise Reject("still down")

        assert lanelog_client.admin.redrive("t", "a", all=True, dry_run=False).messages == 2
        with lanelog_client.subscribe("t", "a", reject):
            eventually(lambda: len(lanelog_client.admin.dead_letters("t", "a")) == 2)
        assert attempts.items == [(2 * round_ + 1, 1), (2 * round_ + 2, 1)]
        again = lanelog_client.admin.dead_letters("t", "a")
        assert len(again) == 2
        assert not {letter.id for letter in again} & known
        assert [letter.original_id for letter in again] == ["k-1", "k-2"]
        assert [letter.published_at for letter in again] == published
        known |= {letter.id for letter in again}
    seen = Record()
    lanelog_client.admin.redrive("t", "a", all=True, dry_run=False)
    with lanelog_client.subscribe("t", "a", lambda m: seen((m.payload, m.id, dict(m.metadata), m.dead_letter))):
        found = seen.wait(2)
    assert [payload for payload, *_ in found] == [b"1", b"2"]
    assert [metadata["lanelog.original_id"] for _, _, metadata, _ in found] == ["k-1", "k-2"]
    assert all(message_id.startswith("rd-") and letter is None for _, message_id, _, letter in found)


@pytest.mark.thorough
def test_a_message_that_a_seek_brings_back_is_dead_lettered_anew(lanelog_client: Client, raw: Any) -> None:
    """A deleted dead letter that is not collected yet does not count as the new one. One that is there does."""
    give_up(lanelog_client, raw, [("k", "1")])
    admin = lanelog_client.admin
    for number, settled in enumerate((True, False, True, True), 2):
        if settled:
            assert admin.delete_dead_letters("t", "a", all=True, dry_run=False).messages == 1
        admin.seek("t", "a", to="earliest", dry_run=False)
        with lanelog_client.subscribe("t", "a", refuse) as subscription:
            eventually(lambda subscription=subscription: subscription.stats().dead_lettered == 1)
        letters_there = admin.dead_letters("t", "a")
        assert len(letters_there) == 1
        assert letters_there[0].original_id == "k-1"
        assert letters_there[0].offset == number - (number > 2)


@pytest.mark.thorough
def test_a_dead_letter_released_by_a_purge_does_not_count_as_the_new_one(lanelog_client: Client, raw: Any) -> None:
    """A purge of dead letters died before it deleted them; a message that a seek brings back is dead-lettered anew."""
    give_up(lanelog_client, raw, [("k", "1")])
    released = "UPDATE queue_offsets SET offset_acked = 1 WHERE consumer_group = '' AND topic = 't_dlq'"
    rows(raw, released)
    admin = lanelog_client.admin
    admin.seek("t", "a", to="earliest", dry_run=False)
    with lanelog_client.subscribe("t", "a", refuse) as subscription:
        eventually(lambda: subscription.stats().dead_lettered == 1)
    admin.maintain(topics=["t_dlq"])
    assert [letter.offset for letter in admin.dead_letters("t", "a")] == [2]


def test_dead_letters_are_chosen_by_their_ids_their_messages_ids_or_their_reason(
    lanelog_client: Client, raw: Any
) -> None:
    """Each choice takes what it names and nothing else, reports what is not there, and dry_run changes nothing."""
    words = ["zero", "one", "two", "three", "four", "five"]
    give_up(lanelog_client, raw, [("k", word) for word in words] + [("l", "zero")])
    admin = lanelog_client.admin
    by_original = {letter.original_id: letter for letter in admin.dead_letters("t", "a")}
    chosen = [by_original["k-one"].id, "k-two", "no such id"]
    dry = admin.redrive("t", "a", ids=chosen, dry_run=True)
    assert (dry.messages, dry.missing, dry.dry_run) == (2, 1, True)
    assert len(admin.dead_letters("t", "a")) == 7
    assert admin.redrive("t", "a", ids=chosen, dry_run=False).messages == 2
    assert admin.redrive("t", "a", ids=chosen, dry_run=False) == lanelog.admin.Redriven(
        topic="t", group="a", to_topic="t", messages=0, keys=0, missing=3, remaining=0, delay=0.0, dry_run=False
    )
    for verb in (admin.redrive, admin.delete_dead_letters):  # no ids choose nothing: not all
        nothing = verb("t", "a", ids=[], dry_run=False)
        assert (nothing.messages, nothing.missing) == (0, 0)
    assert len(admin.dead_letters("t", "a")) == 5
    assert admin.delete_dead_letters("t", "a", reason="no zero", dry_run=True).messages == 2
    deleted = admin.delete_dead_letters("t_dlq", "a", reason="no zero", dry_run=False)
    assert (deleted.topic, deleted.messages, deleted.keys) == ("t", 2, 2)
    assert admin.delete_dead_letters("t", "a", reason="no zero", dry_run=False).messages == 0
    assert admin.redrive("t_dlq", "a", reason="no four", dry_run=False).messages == 1
    assert [letter.original_id for letter in admin.dead_letters("t", "a")] == ["k-three", "k-five"]
    assert admin.redrive("t", "a", all=True, dry_run=False).messages == 2
    seen = Record()
    with lanelog_client.subscribe("t", "a", lambda m: seen(m.payload)):
        eventually(lambda: watermark(raw, "a", "t", "k") == 6 + 5)
    assert seen.items == [b"one", b"two", b"four", b"three", b"five"]


def test_a_short_name_takes_exactly_the_dead_letters_of_its_reason(lanelog_client: Client, raw: Any) -> None:
    """Errors that differ in an address are one reason; its name takes all of them, and none of another reason.

    A repetition finds none, whether it puts back or deletes.
    """
    carts_held = [("k", f"cart at 0x7f{number:06x}") for number in range(40)]
    give_up(lanelog_client, raw, [*carts_held[:20], ("k", "stock"), ("l", "stock"), *carts_held[20:]])
    admin = lanelog_client.admin
    carts, stock = admin.dead_letter_reasons("t")
    assert (carts.reason, carts.count, carts.keys) == ("no cart at #", 40, 1)
    assert (stock.reason, stock.count, stock.keys) == ("no stock", 2, 2)
    found = admin.dead_letters("t", reason=carts.name)
    assert found == admin.dead_letters("t", "a", reason=carts.reason)
    assert {letter.reason for letter in found} == {carts.reason}
    assert admin.redrive("t", "a", reason=carts.name, dry_run=True).messages == 40
    assert admin.redrive("t", "a", reason=carts.name, limit=3, dry_run=False).messages == 3
    assert admin.redrive("t", "a", reason=carts.name, dry_run=False).messages == 37
    assert admin.redrive("t", "a", reason=carts.name, dry_run=False).messages == 0
    assert [letter.reason for letter in admin.dead_letters("t")] == [stock.reason] * 2
    assert admin.delete_dead_letters("t", "a", reason=stock.name, key="l", dry_run=False).messages == 1
    assert admin.delete_dead_letters("t", "a", reason=stock.name, dry_run=False).messages == 1
    assert admin.delete_dead_letters("t", "a", reason=stock.name, dry_run=False).messages == 0
    assert {act.choice for act in admin.audit("t")} >= {"reason no cart at #", "reason no stock, key l"}


def test_a_short_name_of_two_reasons_is_refused_with_longer_ones(lanelog_client: Client, raw: Any) -> None:
    """Nothing is taken: not even the dead letters before the second reason's first one. The longer names take one each.

    A reason that looks like the name of another one is ambiguous, too.
    """
    by_name: dict[str, str] = {}
    for word in map("".join, itertools.product("abcdefgh", repeat=4)):
        (name,) = names_of([f"no {word}"]).values()
        if name in by_name:
            break
        by_name[name] = word
    one, other = by_name[name], word
    give_up(lanelog_client, raw, [("k", one), ("k", "third"), ("l", other), ("m", one)])
    admin = lanelog_client.admin
    longer = {each.reason: each.name for each in admin.dead_letter_reasons("t")}
    assert len({longer[f"no {one}"], longer[f"no {other}"]}) == 2
    for verb in (admin.redrive, admin.delete_dead_letters):
        with pytest.raises(lanelog.ConfigurationError, match=f"{name} is the name of 2 reasons") as refused:
            verb("t", "a", reason=name, limit=1, dry_run=False)
        assert longer[f"no {one}"] in str(refused.value)
        assert longer[f"no {other}"] in str(refused.value)
    with pytest.raises(lanelog.ConfigurationError, match="2 reasons"):
        admin.dead_letters("t", reason=name)
    assert len(admin.dead_letters("t")) == 4
    assert admin.redrive("t", "a", reason=longer[f"no {other}"], dry_run=False).messages == 1
    assert admin.redrive("t", "a", reason=name, dry_run=False).messages == 2  # nobody shares it any more
    assert [letter.reason for letter in admin.dead_letters("t")] == ["no third"]


def test_dead_letters_of_a_reason_are_read_in_bounded_pages(lanelog_client: Client, raw: Any) -> None:
    """Each page says how far it looked; one after another, they have each dead letter of the reason once."""
    give_up(lanelog_client, raw, [(f"k{n}", "rare" if n % 5 == 3 else "usual") for n in range(10)])
    admin = lanelog_client.admin
    pages, after = [], None
    while not pages or after is not None:
        page = admin.dead_letter_page("t", "a", reason="no rare", after=after, most=3)
        after = page.after
        pages.append(page)
    assert [page.looked for page in pages] == [3, 3, 3, 1]
    assert [page.after for page in pages] == [("t_dlq", f"k{n}", 1) for n in (2, 5, 8)] + [None]
    assert [letter.key for page in pages for letter in page.letters] == ["k3", "k8"]
    full = admin.dead_letter_page("t", limit=9)
    assert (len(full.letters), full.looked, full.after) == (9, 9, ("t_dlq", "k8", 1))
    assert admin.dead_letter_page("t", limit=10).after is None
    counted = admin.count_dead_letters("t", most=4)
    assert (counted.looked, counted.complete) == (4, False)
    assert [(each.reason, each.count) for each in counted.reasons] == [("no usual", 3), ("no rare", 1)]
    every = admin.count_dead_letters("t", most=10)
    assert (every.looked, every.complete, every.reasons) == (10, True, admin.dead_letter_reasons("t"))


def test_a_page_of_dead_letters_does_not_read_the_pages_before_it(lanelog_client: Client, raw: Any) -> None:
    """Within one long lane, too, all pages together read each dead letter about once."""
    give_up(lanelog_client, raw, [("k", "x")])
    columns = "topic, partition_key, payload, payload_bytes, original_topic, failed_group, failed_at"
    same = f"SELECT {columns} FROM queue_messages WHERE topic = 't_dlq'"
    number = 1000
    numbers = f"WITH RECURSIVE n AS (SELECT 2 AS o UNION ALL SELECT o + 1 FROM n WHERE o < {number})"
    copies = f"{numbers} SELECT one.*, n.o, n.o FROM ({same}) one, n"
    rows(raw, f"INSERT INTO queue_messages ({columns}, `offset`, id) {copies}")

    def read() -> int:
        return sum(int(value) for _, value in rows(raw, "SHOW GLOBAL STATUS LIKE 'Handler_read_next'"))

    before, found, after = read(), 0, None
    while not found or after is not None:
        page = lanelog_client.admin.dead_letter_page("t", after=after, limit=25)
        found, after = found + len(page.letters), page.after
    assert found == number
    assert read() - before < 4 * number


@pytest.mark.thorough
def test_two_redrives_at_once_bring_each_back_once(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """Beside each other and beside a deletion, every dead letter goes one way, once, in order."""
    give_up(lanelog_client, raw, [(f"k{n % 10}", str(n)) for n in range(400)])
    lanelog_client.publish("elsewhere", "k0", b"x")
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        first, second, third, fourth = (stack.enter_context(lanelog.connect(lanelog_url)).admin for _ in range(4))
        calls = [
            pool.submit(first.redrive, "t", "a", all=True, dry_run=False),
            pool.submit(second.redrive, "t", "a", all=True, dry_run=False),
            pool.submit(third.redrive, "t", "a", all=True, to_topic="elsewhere", dry_run=False),
            pool.submit(fourth.delete_dead_letters, "t", "a", all=True, dry_run=False),
        ]
        home, home_too, away, deleted = (call.result().messages for call in calls)
    assert home + home_too + away + deleted == 400
    copies = rows(raw, "SELECT topic, partition_key, `offset`, id, payload FROM queue_messages WHERE id LIKE 'rd-%%'")
    assert len(copies) == home + home_too + away
    assert len({payload for *_, payload in copies}) == len(copies)
    for lane, group in itertools.groupby(sorted(copies), key=lambda row: row[:2]):
        numbers = [int(row[4]) for row in group]
        assert numbers == sorted(numbers), lane
    sql = "SELECT partition_key, head_offset FROM queue_partitions WHERE topic = 't' AND partition_key <> ''"
    counted = Counter(key for topic, key, *_ in copies if topic == "t")
    assert dict(rows(raw, sql)) == {f"k{n}": 40 + counted[f"k{n}"] for n in range(10)}


@pytest.mark.thorough
def test_a_lane_that_somebody_holds_waits_and_keeps_its_order(lanelog_client: Client, raw: Any, open_raw: Any) -> None:
    """Other lanes go on; what is held goes once the head is free, the first dead letter first."""
    give_up(lanelog_client, raw, [(key, str(n)) for n in range(10) for key in ("free", "held")])
    holder = open_raw()
    rows(holder, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'held' FOR UPDATE")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lanelog_client.admin.redrive, "t", "a", all=True, rate=40, dry_run=False)  # 4 in a batch
        count = "SELECT COUNT(*) FROM queue_messages WHERE topic = 't' AND target_group = 'a' AND partition_key = %s"
        eventually(lambda: one(raw, count, "free") == 10)
        assert one(raw, count, "held") == 0
        holder.rollback()
        redriven = call.result(20)
    assert (redriven.messages, redriven.remaining) == (20, 0)
    mine = "target_group = 'a' AND partition_key = 'held'"
    found = rows(raw, f"SELECT payload FROM queue_messages WHERE {mine} ORDER BY `offset`")
    assert [int(payload) for (payload,) in found] == list(range(10))


@pytest.mark.thorough
def test_what_stays_held_is_reported(lanelog_url: str, raw: Any, open_raw: Any) -> None:
    """A head that nobody lets go ends the call after publish_timeout; it says what is left, and can be called again."""
    with lanelog.connect(lanelog_url, publish_timeout=0.5) as client:
        give_up(client, raw, [("free", "1"), ("held", "2")])
        holder = open_raw()
        rows(holder, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'held' FOR UPDATE")
        redriven = client.admin.redrive("t", "a", all=True, dry_run=False)
        assert (redriven.messages, redriven.remaining) == (1, 1)
        holder.rollback()
        assert client.admin.redrive("t", "a", all=True, dry_run=False).messages == 1


@pytest.mark.thorough
@pytest.mark.parametrize("consumed", [True, False])
def test_what_is_redriven_with_a_time_to_live_expires(lanelog_client: Client, raw: Any, *, consumed: bool) -> None:
    """The expired copy is a dead letter of the same group again, whether a consumer or maintenance finds it."""
    give_up(lanelog_client, raw, [("k", "1")])
    lanelog_client.admin.redrive("t", "a", all=True, ttl=0.05, dry_run=False)
    late = f"SELECT expires_at < {NOW} FROM queue_messages WHERE topic = 't' AND expires_at > 0"
    eventually(lambda: one(raw, late))
    if consumed:
        lanelog_client.subscribe("t", "a", refuse)
    else:
        assert lanelog_client.admin.maintain().expired == 1
    eventually(lambda: watermark(raw, "a", "t", "k") == 2)
    reasons = "SELECT failed_group, last_error FROM queue_messages WHERE topic = 't_dlq' ORDER BY `offset` DESC LIMIT 1"
    assert rows(raw, reasons) == [("a", "expired")]


@pytest.mark.parametrize("delay", [0, 3600])
def test_a_new_time_to_live(lanelog_client: Client, raw: Any, delay: float) -> None:
    """The copies expire so long after they are there, or due; without `ttl` they live for ever."""
    give_up(lanelog_client, raw, [("k", "1"), ("k", "2")])
    admin = lanelog_client.admin
    admin.redrive("t", "a", ids=["k-1"], ttl=600, delay=delay, dry_run=False)
    admin.redrive("t", "a", ids=["k-2"], delay=delay, dry_run=False)
    if delay:
        assert rows(raw, "SELECT ttl_ms FROM queue_scheduled ORDER BY created_at, seq") == [(600_000,), (0,)]
    else:
        copies = "FROM queue_messages WHERE topic = 't' AND target_group = 'a' ORDER BY `offset`"
        assert rows(raw, f"SELECT IF(expires_at = 0, 0, expires_at - created_at) {copies}") == [(600_000,), (0,)]
    with pytest.raises(lanelog.ConfigurationError):
        admin.redrive("t", "a", all=True, ttl=0, dry_run=False)


@pytest.mark.thorough
@pytest.mark.parametrize("delay", [0, 3600])
@pytest.mark.parametrize("committed", [True, False])
def test_an_unanswered_commit_adds_nothing(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool, delay: float
) -> None:
    """Whether the COMMIT had been done or not, every dead letter is copied once and settled once; scheduled as well."""
    give_up(lanelog_client, raw, [(f"k{n % 2}", str(n)) for n in range(20)])
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        redriven = lanelog_client.admin.redrive("t", "a", all=True, rate=40, delay=delay, dry_run=False)  # 4 in a batch
    assert sum(lost) >= 3
    assert (redriven.messages, redriven.keys, redriven.remaining) == (20, 2, 0)
    order = ("queue_scheduled", "deliver_at, created_at, seq") if delay else ("queue_messages", "`offset`")
    copies = "SELECT payload FROM {} WHERE target_group = 'a' ORDER BY partition_key, {}"
    assert [int(payload) for (payload,) in rows(raw, copies.format(*order))] == [*range(0, 20, 2), *range(1, 20, 2)]
    assert len(delivery_rows(raw, "", "t_dlq")) == 20
    assert lanelog_client.admin.dead_letters("t", "a") == []


@pytest.mark.thorough
def test_another_topic_gets_them_for_everybody_there(lanelog_client: Client, raw: Any) -> None:
    """to_topic: for all groups of that topic, but for the failing group alone where it is registered."""
    give_up(lanelog_client, raw, [("k", "1"), ("k", "2")])
    seen = Record()
    lanelog_client.subscribe("other", "x", lambda m: seen(("x", m.key, m.payload)))
    lanelog_client.subscribe("other", "y", lambda m: seen(("y", m.key, m.payload)))
    ids = [letter.id for letter in lanelog_client.admin.dead_letters("t", "a")]
    redriven = lanelog_client.admin.redrive("t", "a", ids=ids[:1], to_topic="other", dry_run=False)
    assert (redriven.to_topic, redriven.messages) == ("other", 1)
    assert sorted(seen.wait(2)) == [("x", "k", b"1"), ("y", "k", b"1")]
    lanelog_client.subscribe("other", "a", lambda m: seen(("a", m.key, m.payload)), start="latest")
    lanelog_client.admin.redrive("t", "a", ids=ids[1:], to_topic="other", dry_run=False)
    assert seen.wait(3)[2:] == [("a", "k", b"2")]
    eventually(lambda: watermark(raw, "x", "other", "k") == 2)
    assert len(seen) == 3


@pytest.mark.thorough
def test_a_rate_spreads_a_redrive_over_time(lanelog_client: Client, raw: Any) -> None:
    """Never more than the rate allows: the last batch begins when all the others have had their time."""
    give_up(lanelog_client, raw, [("k", str(n)) for n in range(12)])
    began = time.monotonic()
    assert lanelog_client.admin.redrive("t", "a", all=True, rate=20, dry_run=False).messages == 12
    assert time.monotonic() - began >= 10 / 20


@pytest.mark.thorough
def test_a_purged_lane_comes_back(lanelog_url: str, raw: Any) -> None:
    """A dead letter whose original lane was drained and purged goes to a new lane above the old offsets."""
    with lanelog.connect(lanelog_url, lane_idle_purge=0.2) as client:
        client.publish("t", "k", b"1")
        with client.subscribe("t", "a", refuse, retention=0):
            lane = "SELECT COUNT(*) FROM queue_partitions WHERE topic = 't' AND partition_key = 'k'"
            eventually(lambda: letters(raw) == 1 and one(raw, lane) == 0)
        assert client.admin.redrive("t", "a", all=True, dry_run=False).messages == 1
        seen = Record()
        with client.subscribe("t", "a", lambda m: seen((m.offset, m.payload)), retention=0):
            assert seen.wait(1) == [(2, b"1")]
