"""Redriven messages: which are found, how they are counted, when and how often they are delivered."""

from typing import Any

import pytest
import tenacity

from lanelog import Client, Message, RetryPolicy
from lanelog._stores._redriven import CAP
from lanelog.admin import MessageState
from lanelog.admin.dead_letters import selection
from support.commits import every_commit_unanswered_once
from support.dead_letters import give_up, letters, refuse
from support.processes import Fleet
from support.sql import delivery_rows, one, rows, watermark
from support.waiting import Record, eventually

NOW = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000"


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_an_unanswered_deletion_is_counted_once(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """The repetition distinguishes its own deletions from those that somebody else made before."""
    give_up(lanelog_client, raw, [("k", str(n)) for n in range(10)])
    assert lanelog_client.admin.delete_dead_letters("t", "a", all=True, limit=1, dry_run=False).messages == 1
    with every_commit_unanswered_once(monkeypatch, committed=committed) as lost:
        deleted = lanelog_client.admin.delete_dead_letters("t", "a", all=True, dry_run=False)
    assert sum(lost) == 1
    assert (deleted.messages, deleted.keys) == (9, 1)
    assert len(delivery_rows(raw, "", "t_dlq")) == 10


def test_dead_letters_are_found_by_their_own_ids(
    lanelog_client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other dead letters are not read; an id that only looks like one is searched among the originals' ids."""
    looks_so = "dl-" + "0" * 64
    give_up(lanelog_client, raw, [(key, str(n)) for n in range(10) for key in ("k", "l")])
    lanelog_client.publish("t", "k", "10", id=looks_so)
    with lanelog_client.subscribe("t", "a", refuse):
        eventually(lambda: letters(raw) == 21)
    own = {(each.key, each.original_offset): each.id for each in lanelog_client.admin.dead_letters("t", "a")}
    chosen = [own["l", 7], own["k", 3], own["l", 2]]
    read = selection._read
    monkeypatch.setattr(selection, "_read", None)
    assert lanelog_client.admin.redrive("t", "a", ids=chosen[:2], dry_run=False).messages == 2
    assert lanelog_client.admin.delete_dead_letters("t", "a", ids=chosen[2:], dry_run=False).messages == 1
    monkeypatch.setattr(selection, "_read", read)
    redriven = lanelog_client.admin.redrive("t", "a", ids=[looks_so, own["k", 1], chosen[0]], dry_run=False)
    assert (redriven.messages, redriven.missing) == (2, 1)
    sql = "SELECT partition_key, payload FROM queue_messages WHERE target_group = 'a' ORDER BY 1, `offset`"
    assert rows(raw, sql) == [("k", b"2"), ("k", b"0"), ("k", b"10"), ("l", b"6")]


@pytest.mark.parametrize("collected", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_message_is_failed_when_what_it_became_has_failed(
    lanelog_client: Client, raw: Any, *, collected: bool
) -> None:
    """Redriven and dead-lettered again, it shows the letter there is now, whether or not the first ones are collected.

    While no letter of it is there it counts as completed: its copy has a state of its own.
    """
    give_up(lanelog_client, raw, [("k", "one"), ("k", "two")])
    admin = lanelog_client.admin

    def seen(offset: int) -> tuple[MessageState, str | None]:
        info = admin.message("t", "k", offset=offset)
        [state] = info.states
        return state.state, state.dead_letter_id

    for round_ in (1, 2):
        known = {letter.original_id: letter.id for letter in admin.dead_letters("t", "a")}
        assert seen(1) == (MessageState.FAILED, known["k-one"])
        assert seen(2) == (MessageState.FAILED, known["k-two"])
        admin.redrive("t", "a", all=True, dry_run=False)
        if collected:
            admin.maintain()
            assert letters(raw) == 0
        assert seen(1) == (MessageState.COMPLETED, None)
        assert seen(2 * round_ + 1) == (MessageState.PENDING, None)
        with lanelog_client.subscribe("t", "a", refuse):
            eventually(lambda: len(admin.dead_letters("t", "a")) == 2)
        letter = admin.dead_letters("t", "a")[0]
        assert seen(1) == seen(2 * round_ + 1) == (MessageState.FAILED, letter.id)
    admin.delete_dead_letters("t", "a", reason="no one", dry_run=False)
    assert seen(1) == (MessageState.COMPLETED, None)
    assert seen(2)[0] is MessageState.FAILED


# -- later -------------------------------------------------------------------------------------------------------------


def waiting(raw: Any) -> list[tuple[Any, ...]]:
    """What is in the schedule, in the order in which it goes into the log."""
    columns, order = "topic, partition_key, payload, target_group", "partition_key, deliver_at, created_at, seq"
    return rows(raw, f"SELECT {columns} FROM queue_scheduled ORDER BY {order}")


def test_with_a_delay_they_wait_outside_the_log(lanelog_client: Client, raw: Any) -> None:
    """Settled at once, due after the delay, to the failing group alone, in order; nothing is held up."""
    give_up(lanelog_client, raw, [(key, str(n)) for n in range(5) for key in ("k", "l")])
    seen, other, admin = Record(), Record(), lanelog_client.admin
    before = one(raw, NOW)
    redriven = admin.redrive("t", "a", all=True, delay=3600, dry_run=False)
    after = one(raw, NOW)
    assert (redriven.messages, redriven.keys, redriven.delay) == (10, 2, 3600)
    assert admin.dead_letters("t", "a") == []
    assert waiting(raw) == [("t", key, str(n).encode(), "a") for key in ("k", "l") for n in range(5)]
    ((first, last),) = rows(raw, "SELECT MIN(deliver_at), MAX(deliver_at) FROM queue_scheduled")
    assert before + 3_600_000 <= first <= last <= after + 3_600_000
    assert admin.redrive("t", "a", all=True, delay=3600, dry_run=False).messages == 0
    lanelog_client.subscribe("t", "b", lambda m: other((m.key, m.payload)))
    lanelog_client.subscribe("t", "a", lambda m: seen((m.key, m.payload, m.attempt)))
    lanelog_client.publish("t", "k", b"new")
    assert seen.wait(1) == [("k", b"new", 1)]
    rows(raw, f"UPDATE queue_scheduled SET deliver_at = ({NOW})")
    found = seen.wait(11)[1:]
    for key in ("k", "l"):
        assert [item[1:] for item in found if item[0] == key] == [(str(n).encode(), 1) for n in range(5)]
    assert waiting(raw) == []
    other.until(lambda items: ("k", b"new") in items)
    eventually(lambda: watermark(raw, "b", "t", "l") == 10)
    assert len(other) == 11  # the first time, and the new one


@pytest.mark.thorough
def test_a_delayed_one_that_fails_again_is_dead_lettered_again(lanelog_client: Client, raw: Any) -> None:
    """Like any other: with its first id, and to be redriven once more."""
    give_up(lanelog_client, raw, [("k", "1")])
    for round_ in (2, 3):
        lanelog_client.admin.redrive("t", "a", all=True, delay=0.1, dry_run=False)
        with lanelog_client.subscribe("t", "a", refuse):
            eventually(lambda: lanelog_client.admin.dead_letters("t", "a"))
        [letter] = lanelog_client.admin.dead_letters("t", "a")
        assert (letter.original_id, letter.original_offset) == ("k-1", round_)


# -- how often ---------------------------------------------------------------------------------------------------------

NEVER_GIVES_UP = RetryPolicy(stop=tenacity.stop_never, wait=tenacity.wait_none())


@pytest.mark.parametrize(
    ("cap", "own", "attempts"),
    [(2, 20, 2), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((2, None, 2), (1, 20, 1), (5, 3, 3)))],
)
def test_a_redriven_message_may_have_a_cap_of_its_own(
    lanelog_client: Client, raw: Any, cap: int, own: int | None, attempts: int
) -> None:
    """The lower of the two counts, whatever the retry policy says; other messages have the subscription's."""
    give_up(lanelog_client, raw, [("k", "1")])
    assert lanelog_client.admin.redrive("t", "a", all=True, max_deliveries=cap, dry_run=False).messages == 1
    seen = Record()

    def fail(message: Message) -> None:
        seen((message.key, message.attempt))
        if message.key == "k" or message.attempt < 4:
            raise RuntimeError("not yet")

    with lanelog_client.subscribe("t", "a", fail, max_deliveries=own, retry=NEVER_GIVES_UP):
        eventually(lambda: lanelog_client.admin.dead_letters("t", "a"))
        if own != 3:
            lanelog_client.publish("t", "other", b"x", metadata={CAP: "1"})
            seen.until(lambda items: ("other", 4) in items)
    assert [item for item in seen.items if item[0] == "k"] == [("k", n) for n in range(1, attempts + 1)]
    [letter] = lanelog_client.admin.dead_letters("t", "a")
    assert letter.failure_count == attempts


@pytest.mark.thorough
def test_the_cap_ends_with_the_redrive_that_gave_it(lanelog_client: Client, raw: Any) -> None:
    """Redriven without one, the message is delivered as often as any other; also from the schedule."""
    give_up(lanelog_client, raw, [("k", "1"), ("k", "2")])
    admin, seen = lanelog_client.admin, Record()
    admin.redrive("t", "a", all=True, max_deliveries=1, delay=0.1, dry_run=False)

    def fail(message: Message) -> None:
        seen((message.payload, message.attempt))
        raise RuntimeError("not yet")

    options: dict[str, Any] = {"retry": NEVER_GIVES_UP, "max_deliveries": 3}
    with lanelog_client.subscribe("t", "a", fail, **options):
        eventually(lambda: len(admin.dead_letters("t", "a")) == 2)
    assert seen.items == [(b"1", 1), (b"2", 1)]
    admin.redrive("t", "a", reason="RuntimeError: not yet", dry_run=False)
    with lanelog_client.subscribe("t", "a", fail, **options):
        eventually(lambda: len(admin.dead_letters("t", "a")) == 2)
    assert seen.items[2:] == [(payload, n) for payload in (b"1", b"2") for n in (1, 2, 3)]


@pytest.mark.thorough
def test_a_capped_message_that_kills_its_process_runs_alone_and_is_dead_lettered(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """A crash is never the last in company: one delivery more than the cap, alone, decides."""
    give_up(lanelog_client, raw, [("k", '{"exit": true}')])
    lanelog_client.admin.redrive("t", "a", all=True, max_deliveries=1, dry_run=False)
    for name in ("w1", "w2"):
        assert fleet.start(name, group="a", starts=True).ended() == 9  # perhaps before it is ready
    fleet.worker("w3", group="a", starts=True)
    eventually(lambda: lanelog_client.admin.dead_letters("t", "a"), within=30)
    assert [line["attempt"] for line in fleet.heard("started")] == [1, 2]
