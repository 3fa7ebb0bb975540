"""A process that ends itself because a handler hangs: what counts an attempt, and what goes back.

Real processes: each one really ends, and another one has its messages.
"""

import json
import threading
import time
from typing import Any

import pytest

from lanelog import Client, Message
from lanelog._process import own_end
from lanelog.errors import ConfigurationError
from support.processes import Fleet, Program
from support.proxy import proxy_to
from support.sql import one, owners, rows
from support.waiting import Record, eventually

LIMIT = 2.0
HANG = json.dumps({"hang": "wait"})

pytestmark = pytest.mark.thorough


def hanging(fleet: Fleet, *, hangs: int = 1, **config: Any) -> Program:
    """Start a process with two workers, and wait until so many of them hang."""
    options = {"workers": 2, "hard_time_limit": LIMIT, **config.pop("options", {})}
    program = fleet.start("hanging", "hanging.py", options=options, **config)
    program.said("hangs", count=hangs)
    return program


def attempts(client: Client, count: int, group: str = "g", **options: Any) -> dict[tuple[str, int], int]:
    """Handle so many messages in this process; their attempts, by key and offset."""
    seen = Record()
    with client.subscribe("t", group, lambda m: seen(((m.key, m.offset), m.attempt)), **options):
        return dict(seen.wait(count, within=20))


def logged(program: Program, name: str) -> list[str]:
    return [each["text"] for each in program.lines if each.event == "log" and each["text"].startswith(name + " ")]


def test_only_the_handler_that_hangs_counts_an_attempt(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """The process ends with status 3, and says where it stood. What another thread ran goes back, and what waited."""
    lanelog_client.publish_many("t", [("a", HANG), ("a", b"{}"), *((key, b"{}") for key in "wxyz")])
    program = hanging(fleet, options={"workers": 1})
    (began,) = (line.at for line in program.said("hangs"))
    assert program.ended(within=20) == own_end.STATUS == 3
    assert LIMIT - 0.5 < time.monotonic() - began < LIMIT + own_end.WRITES
    (hung,) = logged(program, "handler.hung")
    assert "key=a" in hung
    assert "in hang" in hung
    assert "hard_time_limit is 2 s" in hung
    (ends,) = logged(program, "process.ends")
    assert "status=3 written=true" in ends
    held = {key for key, owner in owners(raw, "g", "t").items() if owner}
    assert held == {"a"}  # its handler ran until the end, so nobody had its lane before
    expected = {("a", 1): 2, ("a", 2): 1, **{(key, 1): 1 for key in "wxyz"}}
    assert attempts(lanelog_client, 6) == expected
    assert [each["key"] for each in program.lines if each.event == "started"][-1] == "a"


def test_what_runs_beside_it_goes_back_whosoever_it_is(fleet: Fleet, lanelog_client: Client) -> None:
    """Of the same subscription, of one of another client, and pulled. One second younger is no hanging handler."""
    lanelog_client.publish("t", "a", HANG)
    program = hanging(fleet, hangs=2, beside={"workers": 2}, options={"hard_time_limit": 5.0})
    program.said("ready")
    assert not threading.Event().wait(1)
    lanelog_client.publish("t", "b", HANG)
    program.said("hangs", count=4)
    assert program.ended(within=20) == 3
    assert len(logged(program, "handler.hung")) == 1
    assert len(logged(program, "handler.cut_off")) == 4
    assert attempts(lanelog_client, 2) == {("a", 1): 2, ("b", 1): 1}
    assert attempts(lanelog_client, 2, "beside") == {("a", 1): 1, ("b", 1): 1}
    assert attempts(lanelog_client, 2, "pulled") == {("a", 1): 1, ("b", 1): 1}


def test_two_that_hang_count_both(fleet: Fleet, lanelog_client: Client) -> None:
    """The two began together, so both are over the limit when the process ends, or the later one is given back."""
    lanelog_client.publish_many("t", [("a", HANG), ("b", HANG), ("c", b"{}")])
    program = hanging(fleet, hangs=2)
    assert program.ended(within=20) == 3
    hung = {key for key in "ab" if any(f"key={key}" in text for text in logged(program, "handler.hung"))}
    assert hung
    assert attempts(lanelog_client, 3) == {(key, 1): 2 if key in hung else 1 for key in "abc"}


def test_in_one_lane_others_than_the_one_that_hangs_go_back(fleet: Fleet, lanelog_client: Client) -> None:
    """Concurrent order: the run mark covers them, so each gets a row that says: no attempt."""
    lanelog_client.publish("t", "k", HANG)
    program = hanging(fleet, options={"workers": 3, "order": "concurrent"})
    assert not threading.Event().wait(LIMIT / 2)
    lanelog_client.publish_many("t", [("k", b"{}"), ("k", HANG), ("k", HANG), ("k", b"{}")])
    program.said("hangs", count=3)
    assert program.ended(within=20) == 3
    assert attempts(lanelog_client, 4, order="concurrent") == {("k", 1): 2, ("k", 3): 1, ("k", 4): 1, ("k", 5): 1}


def test_its_open_transaction_rolls_back(fleet: Fleet, lanelog_client: Client, raw: Any) -> None:
    """The transaction ends with the connection that the process had."""
    rows(raw, "CREATE TABLE effects (what VARCHAR(20))")
    lanelog_client.publish("t", "a", json.dumps({"hang": "transaction"}))
    assert hanging(fleet).ended(within=20) == 3
    assert attempts(lanelog_client, 1) == {("a", 1): 2}
    assert one(raw, "SELECT COUNT(*) FROM effects") == 0


def test_what_it_acked_before_stays_acked(fleet: Fleet, lanelog_client: Client) -> None:
    """A handler that hangs behind its `ack()` ends the process all the same."""
    lanelog_client.publish_many("t", [("a", json.dumps({"hang": "wait", "ack": True})), ("a", b"{}")])
    assert hanging(fleet, options={"workers": 1}).ended(within=20) == 3
    assert attempts(lanelog_client, 1) == {("a", 2): 1}


@pytest.mark.parametrize("most", [1, 2])
def test_after_its_last_attempt_it_is_a_dead_letter(fleet: Fleet, lanelog_client: Client, most: int) -> None:
    """As after a crash, the last attempt runs alone, and history has each outcome once."""
    options, seen = {"retry": most, "history": True}, Record()
    lanelog_client.publish_many("t", [("a", HANG), ("b", b"{}")])
    for name in ("first", "second")[:most]:
        program = fleet.start(name, "hanging.py", options={"workers": 1, "hard_time_limit": LIMIT, **options})
        assert program.ended(within=30) == 3
    with lanelog_client.subscribe("t", "g", lambda m: seen(m.key), **options):
        left = eventually(lambda: rows if len(rows := lanelog_client.admin.history("t", "g")) == 2 else None, within=20)
    assert "a" not in seen.items
    (letter,) = lanelog_client.admin.dead_letters("t_dlq")
    why = "its handler hung, and its process ended: hard_time_limit is 2 s"
    assert (letter.key, letter.failure_count, letter.last_error) == ("a", most, why)
    found = {(each.key, str(each.outcome), each.attempts) for each in left}
    assert found == {("a", "lock_expired", most), ("b", "success", 1)}


def test_a_lane_that_was_taken_away_meanwhile_is_left_to_its_owner(
    fleet: Fleet, lanelog_client: Client, raw: Any
) -> None:
    """The handler still holds its thread, so the process ends; the attempt is not counted twice."""
    lanelog_client.publish_many("t", [("a", HANG), ("b", b"{}")])
    program = hanging(fleet, options={"workers": 1})
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.key, m.attempt))):
        lanelog_client.admin.release("t", "g", "a", dry_run=False)
        assert program.ended(within=20) == 3
        assert sorted(seen.wait(2, within=20)) == [("a", 2), ("b", 1)]
    assert one(raw, "SELECT COUNT(*) FROM queue_delivery_state WHERE acked = 0") == 0


def test_a_server_that_stands_still_does_not_hold_up_the_end(fleet: Fleet, lanelog_client: Client) -> None:
    """Outcomes that could not be written count as crashes; the process ends within the bound all the same."""
    lanelog_client.publish_many("t", [("a", HANG), ("b", HANG)])
    with proxy_to(fleet.url) as proxy:
        program = hanging(fleet, url=proxy.url, hangs=2)
        proxy.silent = True
        began = time.monotonic()
        assert program.ended(within=30) == 3
        assert time.monotonic() - began < LIMIT + own_end.WRITES + own_end.LOGS + 2
    assert attempts(lanelog_client, 2) == {("a", 1): 2, ("b", 1): 2}


def test_a_log_that_stands_still_does_not_hold_up_the_end(fleet: Fleet, lanelog_client: Client) -> None:
    """Messages are given back before anything is logged. From then on, the log has `LOGS` seconds."""
    lanelog_client.publish_many("t", [("a", HANG), ("b", b"{}")])
    program = hanging(fleet, options={"workers": 1}, **{"log stands still": 0.5})
    began = time.monotonic()
    assert program.ended(within=30) == 3
    assert time.monotonic() - began < LIMIT + 0.5 + 2
    assert attempts(lanelog_client, 2) == {("a", 1): 2, ("b", 1): 1}


@pytest.mark.parametrize(
    "times",
    [
        {"visibility_timeout": 1.0, "max_handler_time": LIMIT + 0.1},
        {"visibility_timeout": LIMIT + 0.1, "auto_extend": False},
    ],
    ids=["max_handler_time", "visibility_timeout"],
)
def test_no_other_handler_begins_before_the_process_has_ended(
    fleet: Fleet, lanelog_client: Client, times: dict[str, Any]
) -> None:
    """The time at which it would be abandoned passes meanwhile, because the application's log stands still."""
    lanelog_client.publish("t", "a", HANG)
    program = hanging(fleet, options={"workers": 1, **times}, **{"log stands still": 2.0})
    seen = Record()
    with lanelog_client.subscribe("t", "g", lambda m: seen((m.attempt, program.popen.poll()))):
        assert seen.wait(1, within=20) == [(2, 3)]


def test_handlers_below_the_limit_end_nothing(lanelog_client: Client) -> None:
    """A handler that has ended before the process checks again ends nothing either."""
    seen = Record()

    def handle(message: Message) -> None:
        threading.Event().wait(0.05)
        seen(message.offset)

    with lanelog_client.subscribe("t", "g", handle, hard_time_limit=30, workers=1):
        lanelog_client.publish_many("t", [("k", b"1")] * 20)
        seen.wait(1)
        own_end.end_if_hung()
        assert seen.wait(20) == list(range(1, 21))


def test_a_limit_beyond_the_time_at_which_a_handler_is_abandoned_is_refused(lanelog_client: Client) -> None:
    """Such a limit would never be reached."""
    for limit, options, why in (
        (61, {"max_handler_time": 60}, "less than max_handler_time (60), at which a handler is abandoned"),
        (60, {"max_handler_time": 60}, "less than max_handler_time (60), at which a handler is abandoned"),
        (
            2,
            {"visibility_timeout": 2, "auto_extend": False},
            "less than visibility_timeout (2), at which a handler is abandoned without auto_extend",
        ),
    ):
        with pytest.raises(ConfigurationError) as raised:
            lanelog_client.subscribe("t", "g", print, hard_time_limit=limit, **options)
        assert str(raised.value) == f"hard_time_limit ({limit}) must be {why}"
