"""What `status` makes of values: which problem, how bad, and with which command."""

import os
import re
import shlex
import subprocess
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.text import Text

from lanelog._base.reasons import names_of
from lanelog._log.interrupt import INTERRUPTED
from lanelog._log.repair import Contradiction
from lanelog._views.columns import LANES
from lanelog.admin import (
    DeadLetterReason,
    GroupInfo,
    LaneInfo,
    LastMember,
    MessageState,
    OpenAck,
    OwnerState,
    RunningHandler,
    Status,
    TopicInfo,
    Workload,
)
from lanelog.admin.operate.held_heads import HeldHead
from lanelog.admin.operate.hung import members_hung
from lanelog.admin.operate.problem import Problem, Rank, command
from lanelog.admin.operate.problems import (
    lanes_may_be_wrong,
    of_contradiction,
    of_group,
    of_held_head,
    of_lane,
    of_letters,
    of_open_ack,
    of_server,
    worst_first,
)
from lanelog.admin.operate.writes import Unwritten
from lanelog.cli.output.answer import Line
from lanelog.cli.output.totals import lanes
from lanelog.cli.read.problem_lines import entries
from lanelog.dashboard.pages.stuck import _buttons, headline
from support.cli import all_verbs

WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
GROUP = GroupInfo(
    topic="merge", group="builders", order="strict", start="earliest", retention=300.0, created_at=WHEN, paused_at=None,
    paused_by="", pause_reason="", members=2, members_unchanged=31.0, lanes=5, owned_lanes=5,
    stale_lanes=0, paused_lanes=0, lagging_lanes=1, head=10, lag=3, oldest_age=31.0, oldest_age_exact=True,
    waiting=0, in_flight=0,
)  # fmt: skip
LANE = LaneInfo(
    topic="merge", group="builders", key="repo 1", watermark=6, head=9, floor=0, lag=3, acked_ahead=0, oldest_age=31.0,
    owner="host-1:abc", owner_state=OwnerState.ALIVE, owner_silent=31.0, lease_left=20.0, lease_epoch=1,
    in_flight=0, waiting=0, state=MessageState.PENDING, attempts=0, last_error=None, next_attempt_in=None,
    paused_at=None, paused_by="", pause_reason="", group_paused=False,
)  # fmt: skip
TOPIC = TopicInfo(
    topic="merge", lanes=5, messages=9, head=9, floor=0, dead_letters=9, groups=("builders",),
    dead_letter_topics=("merge_dlq",), holds_dead_letters=False, newest_lane_at=WHEN,
)  # fmt: skip
HUNG = Workload(
    host="vm", pid=23734, workers=2, busy=2, quiet=31.0, longest=0.0, patience=30.0,
    handlers=(
        RunningHandler(topic="merge", key="repo 1", offset=7, seconds=32.0, stack='File "a.py", line 1, in f\nb\x1b'),
        RunningHandler(topic="merge", key="repo 2", offset=1, seconds=31.0, stack='File "a.py", line 1, in f\nb\x1b'),
    ),
)  # fmt: skip


def group(**changes: Any) -> GroupInfo:
    return attrs.evolve(GROUP, **changes)


def lane(**changes: Any) -> LaneInfo:
    return attrs.evolve(LANE, **changes)


def reason(text: str, count: int) -> DeadLetterReason:
    named = {"reason": text, "name": names_of([text])[text]}
    found = {"count": count, "keys": 1, "oldest_failed_at": WHEN, "newest_failed_at": WHEN}
    return DeadLetterReason(dead_letter_topic="merge_dlq", group="builders", **named, **found)


MEMBERS = "lanelog members merge builders"
RESUME = "lanelog resume merge builders"
RELEASE = "lanelog release merge builders 'repo 1'"
RETRY = "lanelog retry merge builders 'repo 1'"
FAILING = {"state": MessageState.RETRYABLE, "attempts": 2, "last_error": "no", "next_attempt_in": 3.0}
FREE = {"owner": None, "owner_state": None}


@pytest.mark.parametrize(
    ("changes", "what", "mend"),
    [
        ({"lag": 0, "oldest_age": None, "members": 0}, None, None),
        ({}, None, None),
        ({"members": 0}, "nobody consumes", MEMBERS),
        ({"members": 0, "members_unchanged": 30.0}, None, None),
        ({"oldest_age": 61.0}, "behind", "lanelog lanes merge builders --by lag"),
        ({"paused_at": WHEN, "members": 0}, "paused", RESUME),
        ({"paused_at": WHEN, "lag": 0}, "paused", RESUME),
        ({"order": "archive", "members": 0, "oldest_age": 86_400.0}, None, None),
        ({"order": "archive", "oldest_age": 100_000.0}, None, None),
        ({"order": "archive", "members": 0, "oldest_age": 86_401.0}, "not archived", MEMBERS),
        ({"order": "replay", "members": 0, "oldest_age": 86_401.0}, "replay unfinished", MEMBERS),
    ],
)
def test_a_group(changes: dict[str, Any], what: str | None, mend: str | None) -> None:
    """A pause explains everything; no member comes before being behind; a young backlog with members is work."""
    assert [(each.what, each.command) for each in of_group(group(**changes), None)] == ([(what, mend)] if what else [])


def every_problem() -> list[Problem]:
    """One of each state that `status` can print."""
    groups = (
        {"members": 0},
        {"oldest_age": 61.0},
        {"paused_at": WHEN},
        *({"order": job, "members": 0, "oldest_age": 86_401.0} for job in ("archive", "replay")),
    )
    lanes: tuple[dict[str, Any], ...] = (
        {"owner_state": OwnerState.DEAD},
        FAILING,
        {"state": MessageState.PROCESSING, "attempts": 1},
        FREE,
        {"lease_epoch": 2**64 - 1},
        {"lease_epoch": 2**64 - 1, **FREE},
        {"paused_at": WHEN},
    )
    servers = (Unwritten(what=what, detail="", seconds=1.0) for what in ("read only", "no writes", "another server"))
    wrong = Contradiction(topic="merge", group="builders", key="a", problem="lost", offset=1, head=0)
    found = [
        *map(of_server, servers),
        of_contradiction(wrong),
        held("a", 12),
        of_open_ack("builders", OpenAck(topic="merge", key="repo-1", offset=7, seconds=9.0, connection=41), "app@db-1"),
        *(each for changes in groups for each in of_group(group(**changes), None)),
        *(of_lane(lane(**changes), GROUP, 61.0) for changes in lanes),
        *of_letters(TOPIC, [reason("bad", 5), reason("a\x1b", 4), reason("b", 3), reason("c", 2)]),
        *of_letters(TOPIC, None),
        *members_hung(GROUP, {"vm-23734:abc": HUNG, "vm-1:abc": attrs.evolve(HUNG, pid=1)}),
    ]
    return [each for each in found if each is not None]


def test_no_problem_names_a_command_that_destroys() -> None:
    """For each state of the runbook: what it names looks, hands out again, puts back, or ends a process that hangs."""
    runbook = (Path(__file__).parents[3] / "docs/operations/runbook.md").read_text()
    states = re.findall(r"^\| `([A-Z ]+)` \|", runbook, re.MULTILINE)
    found = every_problem()
    assert {each.what.upper() for each in found} == set(states)
    heals = re.compile("lanelog (doctor|status|members|lanes|retry|release|resume|dlq list|dlq redrive) ?")
    others = [each.command for each in found if not heals.match(each.command)]
    assert others == ['[ "$(uname -n)" = vm ] && kill -KILL 23734']
    assert [each.what for each in found if re.search("skip|delete|purge|give it up", each.sentence)] == []
    buttons = {(each.what, button.href.partition("?")[0]) for each in found for button in _buttons(each)[:1]}
    assert {href for _, href in buttons} == {"act/redrive", "act/release", "act/resume", "act/retry"}


def test_a_group_without_members_names_who_was_there_last() -> None:
    """The problem has the host, and since when each is gone; without their rows, it says that this is not known."""
    gone = (
        LastMember(name="vm-1-23:abc", state=OwnerState.DEAD, silent=185.0),
        LastMember(name="vm-2-7:def", state=OwnerState.STOPPED, silent=4000.0),
    )
    (found,) = of_group(group(members=0, last_members=gone), None)
    who = "vm-1-23:abc (dead, gone for 3m05s), vm-2-7:def (stopped, gone for 1h06m)"
    assert found.detail == f"3 messages in 1 lane; last there: {who}; start its subscribers again"
    assert found.sentence == f"{found.detail}; who they were:"
    assert found.lines()[0] == "NOBODY CONSUMES  merge builders, for 3m05s"
    (found,) = of_group(group(members=0), None)
    assert "; who was there last is not known any more; start" in found.detail


def test_a_growing_lag_says_so() -> None:
    """The growth is shown as messages a second; a lag that shrinks has none."""
    (growing,) = of_group(group(oldest_age=61.0), 12.34)
    (shrinking,) = of_group(group(oldest_age=61.0), -1.0)
    assert "growing by 12.3/s" in growing.detail
    assert "growing" not in shrinking.detail


@pytest.mark.parametrize(
    ("changes", "running", "what", "mend"),
    [
        ({}, None, None, None),
        ({"lag": 0, "state": None, "oldest_age": None}, None, None, None),
        ({"owner_state": OwnerState.DEAD}, None, "owner gone", RELEASE),
        ({"owner_state": OwnerState.DEAD, "owner_silent": 30.0}, None, None, None),
        ({"owner_state": OwnerState.MISSING, "owner_silent": None}, None, "owner gone", RELEASE),
        (FAILING, None, "failing", RETRY),
        ({**FAILING, "oldest_age": 30.0}, None, None, None),
        ({"state": MessageState.PROCESSING}, 60.0, None, None),
        ({"state": MessageState.PROCESSING, "attempts": 1}, 61.0, "slow", RELEASE),
        ({**FREE, "oldest_age": 30.0}, None, None, None),
        (FREE, None, "no owner", "lanelog members merge builders"),
        ({"lease_epoch": 2**53 - 1}, None, None, None),
        ({"lease_epoch": 2**64 - 1}, None, "absurd epoch", RELEASE),
        ({"lease_epoch": 2**64 - 1, **FREE}, None, "absurd epoch", "lanelog members merge builders"),
        ({"paused_at": WHEN}, None, "paused", f"{RESUME} --key 'repo 1'"),
        ({"paused_at": WHEN, "lag": 0, "state": None}, None, "paused", f"{RESUME} --key 'repo 1'"),
        ({"paused_at": WHEN, "group_paused": True}, None, None, None),
        ({"state": MessageState.POSTPONED, "next_attempt_in": 60.0}, None, None, None),
    ],
)
def test_a_lane(changes: dict[str, Any], running: float | None, what: str | None, mend: str | None) -> None:
    """The problem is a lane that does not move by itself, with its offset; a wait that a handler asked for is none."""
    found = of_lane(lane(**changes), GROUP, running)
    assert (found and (found.what, found.command)) == (what and (what, mend))


def test_lanes_of_a_group_without_members_are_no_problems_of_their_own() -> None:
    """One line for the group says it."""
    gone = lane(owner_state=OwnerState.DEAD, state=MessageState.RETRYABLE, attempts=2)
    assert of_lane(gone, group(members=0), None) is None


def test_a_group_whose_lanes_are_not_read_has_no_lane_with_a_problem() -> None:
    """No lane has one, whatever the lanes are, as far as their sums in the group allow it."""
    lanes: tuple[dict[str, Any], ...] = (
        {},
        FREE,
        FAILING,
        {"owner_state": OwnerState.DEAD},
        {"owner_state": OwnerState.MISSING, "owner_silent": None},
        {"state": MessageState.PROCESSING, "attempts": 1},
        {"paused_at": WHEN},
        {"paused_at": WHEN, "lag": 0},
    )
    found = 0
    for believed, order, paused_at, members, exact, oldest, lag, state in product(
        (True, False), ("strict", "archive"), (None, WHEN), (0, 2), (True, False), (30.0, 31.0), (0, 3), lanes
    ):
        owner = state.get("owner_state", OwnerState.ALIVE)
        of = group(
            order=order, paused_at=paused_at, members=members, lag=lag, oldest_age=oldest, oldest_age_exact=exact,
            stale_lanes=int(owner is not None and not owner.lives), paused_lanes=int("paused_at" in state),
        )  # fmt: skip
        for age in (30.0, oldest if exact else 99.0):
            one = lane(**{"lag": lag, "oldest_age": age, "group_paused": paused_at is not None, **state})
            if of_lane(one, of, 61.0, believed=believed) is not None:
                assert lanes_may_be_wrong(of, believed=believed), (one, of)
                found += 1
    assert found > 100


def test_lanes_of_a_group_that_moves_are_not_read() -> None:
    """Lanes of a group that is paused, or that nobody consumes, are not read either: one line says it all."""
    assert lanes_may_be_wrong(GROUP)
    for changes in ({"oldest_age": 30.0}, {"lag": 0, "oldest_age": None}, {"members": 0}, {"paused_at": WHEN}):
        assert not lanes_may_be_wrong(group(**changes)), changes


def test_dead_letters_by_reason() -> None:
    """The three most frequent ones with the command that puts them back, the others in one line."""
    found = of_letters(TOPIC, [reason("rare", 1), reason("it's bad", 5), reason("x", 2), reason("y\x1b", 3)])
    assert [each.command for each in found] == [
        "lanelog dlq redrive merge builders --reason r-8c8a",
        "lanelog dlq redrive merge builders --reason r-ed9b",  # a reason that cannot be typed has a name, too
        "lanelog dlq redrive merge builders --reason r-2d71",
        "lanelog dlq list merge --reasons",
    ]
    assert found[0].since == "2026-01-31T12:00:00Z"
    assert [each.command for each in of_letters(TOPIC, None)] == ["lanelog dlq list merge --reasons"]


def test_the_worst_comes_first() -> None:
    """By how bad it is, then by age."""
    stuck = of_lane(lane(owner_state=OwnerState.DEAD), GROUP, None)
    older = of_lane(lane(owner_state=OwnerState.DEAD, oldest_age=99.0), GROUP, None)
    (nobody,) = of_group(group(members=0, oldest_age=999.0), None)
    (letters,) = of_letters(TOPIC, None)
    assert stuck
    assert older
    assert worst_first([letters, nobody, stuck, older]) == [older, stuck, nobody, letters]
    assert [rank.name for rank in Rank] == ["SERVER", "STUCK", "NOBODY", "PAUSED", "BEHIND", "DEAD_LETTERS"]


@pytest.mark.parametrize("name", ["plain", "two words", "it's", "$(x)", "-rf", "--execute", "ä;b", "a`b", "#"])
def test_a_command_can_be_pasted(name: str) -> None:
    """A shell and click take it apart into the names it was made of, whatever they are."""
    words = shlex.split(command("skip", name, name, name, "7", options=["--why", "…", "--execute"]))
    assert words[:2] == ["lanelog", "skip"]
    verb = all_verbs()["skip"]
    params = verb.make_context("skip", words[2:]).params
    assert (params["topic"], params["group"], params["key"], params["offset"]) == (name, name, name, 7)
    assert (params["reason"], params["execute"]) == ("…", True)


def test_a_problem_of_the_server_names_no_topic() -> None:
    """The state and how long it has lasted; why; and where more is seen."""
    assert of_server(Unwritten(what="no writes", detail="a lock", seconds=65.0)).lines() == [
        "NO WRITES, for 1m05s",
        "    a lock; nothing is said about members here; to see more:",
        "    $ lanelog doctor",
    ]


@pytest.mark.parametrize(
    "changes", [{"members": 0}, {"oldest_age": 999.0}, {"order": "archive", "members": 0, "oldest_age": 99999.0}]
)
def test_nothing_is_concluded_from_heartbeats_that_are_not_believed(changes: dict[str, Any]) -> None:
    """A group has no living member, is behind, or is not archived: all of it may be untrue."""
    assert of_group(group(**changes), None)
    assert of_group(group(**changes), None, believed=False) == []
    assert of_lane(lane(owner_state=OwnerState.DEAD), GROUP, None, believed=False) is None


def test_a_problem_is_three_lines() -> None:
    """The lines are: what, where, since when and who; the detail; the command."""
    found = of_lane(lane(state=MessageState.RETRYABLE, attempts=2, last_error="no\nway"), GROUP, None)
    assert isinstance(found, Problem)
    assert found.lines() == [
        "FAILING  merge builders repo 1 offset 7, the oldest waits 31s, owner host-1:abc",
        r"    attempt 2 failed: no\nway; the next is due; when the cause is repaired, at once:",
        f"    $ {RETRY}",
    ]


def test_a_lane_that_waits_for_its_next_attempt_names_the_verb_that_ends_the_wait() -> None:
    """Beside when the attempt comes by itself; the command stays the one that gives the message up."""
    found = of_lane(lane(**FAILING | {"next_attempt_in": 540.0}), GROUP, None)
    assert isinstance(found, Problem)
    assert found.sentence.endswith("; the next in 9m00s; when the cause is repaired, at once:")
    assert found.command == RETRY


def plain(entries: list[list[Line]]) -> list[str]:
    """All lines, with an empty one between two entries."""
    return [str(line) for entry in entries for line in (*entry, "")][:-1]


def test_forty_lanes_that_fail_alike_are_one_line_with_a_count() -> None:
    """Problems that differ in numbers: the oldest is shown, some are named, and the command shows them all."""
    failing = [
        of_lane(lane(**{**FAILING, "last_error": f"no branch {n}"}, key=f"k{n}", oldest_age=100.0 - n), GROUP, None)
        for n in range(40)
    ]
    other = of_lane(lane(**{**FAILING, "last_error": "no disk"}, key="other"), GROUP, None)
    detail = "attempt 2 failed: no branch 0; the next in 3s; when the cause is repaired, at once:"
    lines = plain(entries([*filter(None, failing), *filter(None, [other])], most=100))
    assert lines[:4] == [
        "FAILING  merge builders 40 lanes, the oldest waits 1m40s",
        f"    lanes k0, k1, k2, …; the first: {detail}",
        "    $ lanelog retry merge builders --all",
        "",
    ]
    assert lines[4].startswith("FAILING  merge builders other offset 7")
    gone = [lane(key=f"k{n}", owner_state=OwnerState.DEAD) for n in range(3)]
    lines = plain(entries([each for one in gone if (each := of_lane(one, GROUP, None))], most=100))
    gone_all = "its owner is dead, and others have not taken the lane yet; to free all its lanes:"
    assert lines == [
        "OWNER GONE  merge builders 3 lanes, the longest for 31s",
        f"    lanes k0, k1, k2; the first: {gone_all}",
        "    $ lanelog release merge builders k0",
    ]
    slow = [lane(key=f"k{n}", state=MessageState.PROCESSING, attempts=1) for n in range(2)]
    lines = plain(entries([each for n, one in enumerate(slow) if (each := of_lane(one, GROUP, 61.0 + n))], most=100))
    assert lines == [
        "SLOW  merge builders 2 lanes, the longest for 1m02s",
        "    lanes k0, k1; the first: attempt 1 has been running for 1m01s; which they are:",
        "    $ lanelog lanes merge builders --by age",
    ]
    assert "40 lanes or more" in plain(entries([*filter(None, failing)], most=40))[0]
    assert plain(entries([], most=100)) == ["nothing is stuck"]


def test_nothing_is_stuck_counts_what_waits_for_its_next_attempt() -> None:
    """A wait that is young is no problem, and is no silence either."""
    assert plain(entries([], most=100, waiting=1)) == ["nothing is stuck; 1 message waits for its next attempt"]
    several = "nothing is stuck in what was read; 1,200 messages wait for their next attempt"
    assert plain(entries([], most=100, waiting=1200, complete=False)) == [several]
    seen = Status(
        at=WHEN, topics=1, groups=(group(waiting=2), group(waiting=1)), lag=3, oldest_age=1.0, oldest_age_exact=True,
        dead_letters=0, problems=(),
    )  # fmt: skip
    assert headline(seen)[0].startswith("Nothing is stuck; 3 messages wait for their next attempt. 1 topic,")


def held(key: str, connection: int) -> Problem:
    found = of_held_head(
        HeldHead(topic="merge", key=key, connection=connection, account="app@h", seconds=9.0, waiting=1)
    )
    assert found
    return found


def test_each_connection_that_holds_heads_is_an_entry_of_its_own() -> None:
    """To end one of them frees only its own lanes. The lanes that one connection holds are one entry."""
    by = (
        "Connection {0} (app@h) has an open transaction that has locked this key. Publishes of the key wait for it and "
        "time out. Commit it, roll it back, or `KILL {0}`; then check again:"
    )
    assert plain(entries([held("a", 12), held("b", 15), held("c", 12)], most=100)) == [
        "HEAD LOCKED  merge - 2 lanes, the longest for 9s",
        f"    lanes a, c; the first: {by.format(12)}",
        "    $ lanelog status merge",
        "",
        "HEAD LOCKED  merge - b, for 9s",
        f"    {by.format(15)}",
        "    $ lanelog status merge",
    ]


def test_a_held_row_of_a_topic_is_not_taken_for_a_key() -> None:
    """No key is meant, and what waits is not a publish of a key that is there."""
    problem = held("", 12)
    assert problem.key is None
    assert problem.detail == (
        "Connection 12 (app@h) has an open transaction that has locked the topic's own row. The first publish under a "
        "key, members that take lanes and administration may wait for it. Commit it, roll it back, or `KILL 12`"
    )


def test_the_colour_of_a_problem_says_how_bad_it_is() -> None:
    """A pause is yellow, what is stuck is red; only the word is coloured."""
    stuck = of_lane(lane(**FAILING), GROUP, None)
    (paused,) = of_group(group(paused_at=WHEN), None)
    assert stuck
    for problem, word, tone in ((stuck, "FAILING", "red"), (paused, "PAUSED", "yellow")):
        line = entries([problem], most=100)[0][0]
        assert isinstance(line, Text)
        assert [(line.plain[span.start : span.end], span.style) for span in line.spans] == [(word, tone)]


def test_an_attempt_that_an_operator_ended_is_no_failure() -> None:
    """The attempt is no problem of its lane, nor counted or coloured as one; a lane that nobody takes is a problem."""
    ended = lane(**{**FAILING, "last_error": INTERRUPTED})
    assert of_lane(ended, GROUP, None) is None
    free = of_lane(attrs.evolve(ended, **FREE), GROUP, None)
    assert (free.what, lanes([ended])) == ("no owner", "1 lane")
    assert lanes([lane(**FAILING)]) == "1 lane, 1 failing"
    assert {column.tone(ended) for column in LANES if column.head in {"ATTEMPTS", "ERROR"}} == {None}


def test_dead_letters_of_several_topics_are_one_line_each() -> None:
    """Each line has the most frequent reason; those of a single topic keep the command that puts them back."""
    orders = attrs.evolve(TOPIC, topic="orders")
    letters = [*of_letters(TOPIC, [reason("bad " * 40, 5), reason("x", 2)]), *of_letters(orders, [reason("y", 1)])]
    head, merge, other, look = plain(entries(letters, most=100))
    assert (head, look) == ("DEAD LETTERS  2 topics", "    $ lanelog dlq list merge --reasons")
    assert merge.startswith("    merge: 5 messages: bad bad")
    assert merge.endswith(", and 1 reason more")
    assert len(merge) <= 78
    assert other == "    orders: 1 message: y"
    assert "dlq redrive merge builders --reason r-2d71" in "".join(
        plain(entries(of_letters(TOPIC, [reason("x", 2)]), most=9))
    )


def test_a_hung_process_shows_where_its_handlers_stand() -> None:
    """Handlers with the same stack once, between the sentence and the command; a terminal breaks the sentence alone."""
    (hung,) = members_hung(GROUP, {"vm-23734:abc": HUNG})
    (entry,) = entries([hung], most=100)
    assert [str(line) for line in entry] == hung.lines()
    head, sentence, *rest = entry
    assert (str(head), isinstance(sentence, Text)) == ("HUNG  merge builders, for 31s, owner vm-23734:abc", True)
    assert str(sentence) == (
        "    2 of 2 workers of vm-23734 are busy, none has ended for 31s, which is longer than is normal there (30s); "
        "to end its process 23734, run this on the host or in the container vm (SIGTERM alone waits for its handlers):"
    )
    assert rest == [
        "    merge repo 1 offset 7 and 1 more, for 32s, at:",
        '      File "a.py", line 1, in f',
        r"      b\x1b",
        '    $ [ "$(uname -n)" = vm ] && kill -KILL 23734',
    ]


def test_elsewhere_the_command_of_status_ends_nothing() -> None:
    """The process number may be another process's there. The first process of a container is ended from outside."""
    of = attrs.evolve(HUNG, host="it's else", pid=os.getpid())
    (hung,) = members_hung(GROUP, {"vm:1": of})
    assert subprocess.run(["sh", "-c", hung.command], check=False).returncode == 1
    (first,) = members_hung(GROUP, {"vm:1": attrs.evolve(of, pid=1)})
    assert "End the container it's else without a grace period" in first.detail
    assert first.sentence.endswith("; what the members do:")
    assert first.command == MEMBERS
