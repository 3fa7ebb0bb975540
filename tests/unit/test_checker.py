"""The history checker of the chaos runs: every anomaly it names is found, and a correct history has none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.checker import check, unexplained
from chaos.history import Buried, Effect, Event, Journal, read
from support.histories import KEY, TOPIC, drained, fault, handled, kinds, logged, sent

THREE = [*sent(1), *sent(2), *sent(3)]
EFFECTS = {"settled": True, "effect": True}

BAD = {
    "lost-write: the second is never handled": (
        {"lost-write", "poll-skip"},
        [*THREE, *handled(1, 1), *handled(3, 2)],
    ),
    "unseen: the last is not handled after the drain": (
        {"unseen"},
        [*THREE, *handled(1, 1), *handled(2, 2), *drained()],
    ),
    "unseen: the last was begun and never finished": (
        {"unseen"},
        [*sent(1), *handled(1, 1, outcome=None), *fault("kill", 1.2, 1.3), *drained()],
    ),
    "unseen: a drained group without any handler": ({"unseen"}, [*sent(1), *drained()]),
    "duplicate: no fault at all": ({"duplicate"}, [*sent(1), *handled(1, 1), *handled(1, 2)]),
    "duplicate: the fault hit another process": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *handled(1, 4, process="p2", epoch=2), *fault("kill", 1.2, 1.3, "p3")],
    ),
    "duplicate: the fault was long over": (
        {"duplicate"},
        [*sent(1), *fault("server", 1, 2, None), *handled(1, 50), *handled(1, 51)],
    ),
    "duplicate: the fault came long after the settlement": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("kill", 50, 50.1), *handled(1, 52, process="p2", epoch=2)],
    ),
    "duplicate: a drain repeats nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("term", 1.2, 3), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: the settlement was confirmed before": (
        {"duplicate"},
        [*sent(1), *handled(1, 1, settled=True), *fault("kill", 1.6, 1.7), *handled(1, 4, process="p2", epoch=2)],
    ),
    "poll-skip: the second began while the first still ran": (
        {"poll-skip", "dual-ownership"},
        [*sent(1), *sent(2), *handled(1, 1), *handled(2, 1.2)],
    ),
    "poll-skip: the second began after the first had failed": (
        {"poll-skip", "nonmonotonic-poll"},
        [*sent(1), *sent(2), *handled(1, 1, outcome="raised"), *handled(2, 2), *handled(1, 3, attempt=2)],
    ),
    "poll-skip: a message of unknown outcome that another group has seen": (
        {"poll-skip"},
        [*sent(1, outcome="unknown"), *sent(2), *handled(1, 1, group="h"), *handled(2, 2, group="h"), *handled(2, 1)],
    ),
    "nonmonotonic-poll: back to the first without a fault": (
        {"nonmonotonic-poll", "duplicate"},
        [*sent(1), *sent(2), *handled(1, 1), *handled(2, 2), *handled(1, 3), *handled(2, 4)],
    ),
    "inconsistent-offsets: two acknowledged ids at one offset": (
        {"inconsistent-offsets"},
        [*sent(1, name="a"), *sent(1, name="b"), *handled(1, 1, name="a")],
    ),
    "inconsistent-offsets: one id at two offsets": (
        {"inconsistent-offsets"},
        [*sent(1, name="a"), *sent(2, name="a"), *handled(1, 1, name="a")],
    ),
    "inconsistent-offsets: a server crash does not excuse an acknowledged one": (
        {"inconsistent-offsets"},
        [*sent(1, name="a"), *sent(1, name="b"), *handled(1, 1, name="a"), *fault("server", 0.5, 2, None)],
    ),
    "dual-ownership: two processes at once": (
        {"dual-ownership", "duplicate"},
        [*sent(1), *handled(1, 1, until=3), *handled(1, 2, process="p2", epoch=2)],
    ),
    "dual-ownership: its owner was killed only later": (
        {"dual-ownership", "duplicate"},
        [
            *sent(1),
            *handled(1, 1, outcome=None),
            *fault("kill", 2, 2.1),
            *handled(1, 1.5, process="p2", epoch=2),
        ],
    ),
    "aborted-read: a message that was rolled back": (
        {"aborted-read"},
        [*sent(1, outcome="rolled-back"), *handled(1, 1)],
    ),
    "aborted-read: a message that nobody published": ({"aborted-read"}, handled(1, 1)),
    "effect-twice: two rows": (
        {"effect-twice", "duplicate"},
        [*sent(1), *handled(1, 1, group="e", **EFFECTS), *handled(1, 2, group="e", **EFFECTS)],  # type: ignore[arg-type]
    ),
    "effect-lost: confirmed, but no row": ({"effect-lost"}, [*sent(1), *handled(1, 1, group="e", settled=True)]),
    "effect-lost: confirmed, of unknown outcome, no row": (
        {"effect-lost"},
        [*sent(1, outcome="unknown"), *handled(1, 1, group="e", settled=True)],
    ),
    "effect-lost: drained, but no row": (
        {"effect-lost"},
        [*sent(1), *handled(1, 1, group="e", outcome=None), *fault("kill", 1.2, 1.3), *drained("e")],
    ),
    "ghost-ack: confirmed after a later epoch had begun the message": (
        {"ghost-ack"},
        [
            *sent(1),
            *handled(1, 1, until=20, settled=True),
            *fault("stop", 1.2, 12),
            *handled(1, 10, process="p2", epoch=2),
        ],
    ),
    "ghost-ack: asked for after a later epoch had begun another message": (
        {"ghost-ack", "poll-skip"},
        [
            *sent(1),
            *sent(2),
            *handled(1, 1, until=20, settled=True),
            *fault("stop", 1.2, 12),
            *handled(2, 10, process="p2", epoch=2),
        ],
    ),
    "ghost-ack: confirmed after a later attempt of the same epoch had begun": (
        {"ghost-ack"},
        [*sent(1), *handled(1, 1, until=9, settled=True), *handled(1, 5, attempt=2), *fault("stop", 2, 4)],
    ),
}

GOOD = {
    "nothing happened": [],
    "three in order": [*THREE, *handled(1, 1), *handled(2, 2), *handled(3, 3), *drained()],
    "failed, repeated, and then the next": [
        *sent(1),
        *sent(2),
        *handled(1, 1, outcome="raised"),
        *handled(1, 2, attempt=2),
        *handled(2, 3),
        *drained(),
    ],
    "killed at work, and redelivered elsewhere": [
        *sent(1),
        *handled(1, 1, outcome=None),
        *fault("kill", 1.2, 1.3),
        *handled(1, 4, process="p2", epoch=2, attempt=2),
        *drained(),
    ],
    "killed before the flush: two are repeated in order": [
        *sent(1),
        *sent(2),
        *handled(1, 1),
        *handled(2, 2),
        *fault("kill", 2.6, 2.7),
        *handled(1, 5, process="p2", epoch=2, outcome="raised"),
        *handled(1, 6, process="p2", epoch=2, attempt=2),
        *handled(2, 7, process="p2", epoch=2),
        *drained(),
    ],
    "stopped past its lease: the zombie is refused": [
        *sent(1),
        *handled(1, 1, until=20, settled=False, outcome="raised"),
        *fault("stop", 1.2, 19),
        *handled(1, 10, process="p2", epoch=2, attempt=2),
        *drained(),
    ],
    "stopped after its commit, which it writes down late": [
        *sent(1),
        *sent(2),
        *handled(1, 1, until=20, group="e", settled=True, asked=1.1, effect=True),
        *fault("stop", 1.2, 19),
        *handled(2, 10, process="p2", epoch=2, group="e", settled=True, effect=True),
        *drained("e"),
    ],
    "killed after its commit, which it never writes down": [
        *sent(1),
        *sent(2),
        *handled(1, 1, outcome=None, group="e", effect=True),
        *fault("kill", 1.2, 1.3),
        *handled(2, 5, process="p2", epoch=2, group="e", settled=True, effect=True),
        *drained("e"),
    ],
    "the server died before the outcomes were flushed": [
        *sent(1),
        *handled(1, 1),
        *fault("server", 1.6, 4, None),
        *handled(1, 6, attempt=2),
        *drained(),
    ],
    "a dead letter is an end, too": [
        *sent(1),
        *sent(2),
        *handled(1, 1, outcome="raised"),
        Buried(group="g", topic=TOPIC, key=KEY, offset=1),
        *handled(2, 2),
        *drained(),
    ],
    "a commit seen before it was durable: its offset is given again": [
        *sent(1, name="b", at=5),
        *sent(1, name="a", outcome="unknown"),
        *handled(1, 1, name="a"),
        *fault("server", 1.1, 4, None),
        *handled(1, 6, name="b"),
        *drained(),
    ],
    "rolled back and never seen": [
        *sent(1, outcome="rolled-back"),
        *sent(1, name="b"),
        *handled(1, 1, name="b"),
        *drained(),
    ],
    "not drained: the last is still to come": [*sent(1), *sent(2), *handled(1, 1)],
}


@pytest.mark.parametrize(("expected", "history"), BAD.values(), ids=list(BAD))
def test_a_bad_history_is_found(expected: set[str], history: list[Event]) -> None:
    """Each kind of anomaly is found in a history that was made for it, and nothing else is."""
    assert kinds(unexplained(check(history, effect_groups=["e"]))) == expected


@pytest.mark.parametrize("history", GOOD.values(), ids=list(GOOD))
def test_a_good_history_is_clean(history: list[Event]) -> None:
    """What at-least-once delivery permits after a fault breaks no promise."""
    groups = ["e"] if any(isinstance(event, Effect) for event in history) else []
    assert unexplained(check(history, effect_groups=groups)) == []


def test_a_permitted_duplicate_is_counted_with_its_cause() -> None:
    """Duplicates, steps back and overlaps that a fault explains are reported with the fault."""
    found = check(GOOD["killed before the flush: two are repeated in order"])
    assert [(a.kind, a.explained_by) for a in found] == [
        ("duplicate", "kill"),
        ("duplicate", "kill"),
        ("nonmonotonic-poll", "kill"),
    ]
    overlap = check(GOOD["stopped past its lease: the zombie is refused"])
    assert ("dual-ownership", "stop") in {(a.kind, a.explained_by) for a in overlap}


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A journal gives back its events; the last line of a killed process is left out."""
    events = [*sent(1), *handled(1, 1, settled=True, effect=True), *fault("kill", 1, 2), *fault("server", 1, 2, None)]
    events += [*logged(1), *logged(0, head=1), *drained()]
    path = tmp_path / "p1.jsonl"
    with Journal(path) as journal:
        journal.write(*events)
    with path.open("a") as file:
        file.write('{"event":"Beg')
    assert read([path]) == events


def walk(dice: random.Random, steps: int) -> list[Event]:
    """A correct history of one lane in two groups, with faults; one second between events at least."""
    events: list[Event] = []
    log, now = 0, 0.0
    for number in range(steps):
        outcome = dice.choice(["acknowledged", "acknowledged", "unknown", "rolled-back"])
        if outcome != "acknowledged":
            events += sent(0, name=f"x{number}", outcome=outcome)
        else:
            log += 1
            events += sent(log, at=now)
    for group in "ge":
        owner, acked, position, attempt, oldest = 1, 0, 0, 1, now
        while acked < log:
            now += 1
            if now - oldest > 3:
                acked = position  # a flush that nothing disturbs is not late
            oldest = now if acked == position else oldest
            place = {"group": group, "process": f"{group}{owner}", "epoch": owner}
            number = position + 1
            fate = dice.choice(["done", "done", "raised", "killed", "stopped", "flushed"])
            if fate == "flushed" or number > log:
                acked = position
            elif fate == "done":
                events += handled(
                    number, now, attempt=attempt, settled=True if group == "e" else None, effect=group == "e", **place
                )  # type: ignore[arg-type]
                position, attempt = number, 1
                acked = number if group == "e" else acked
            elif fate == "raised":
                events += handled(number, now, attempt=attempt, outcome="raised", **place)  # type: ignore[arg-type]
                attempt += 1
            else:
                kind, end = ("kill", now + 0.3) if fate == "killed" else ("stop", now + 9)
                events += fault(kind, now + 0.2, end, f"{group}{owner}")
                zombie = {"outcome": None} if kind == "kill" else {"outcome": "raised", "until": end, "settled": False}
                committed = dice.random() < 0.5 and group == "e"
                if committed:
                    zombie = (
                        {"outcome": None} if kind == "kill" else {"until": end, "settled": True, "asked": now + 0.1}
                    )
                events += handled(number, now, attempt=attempt, effect=committed, **zombie, **place)  # type: ignore[arg-type]
                attempt = 1 if committed else attempt + 1
                acked = number if committed else acked
                owner, position, now = owner + 1, acked, now + 4
        events += drained(group)
    return events


@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_a_correct_history_has_no_anomaly(dice: random.Random, steps: int) -> None:
    """However correct workers are killed, stopped and fail, in whatever order the files are read: nothing is named."""
    events = walk(dice, steps)
    dice.shuffle(events)
    assert unexplained(check(events, effect_groups=["e"])) == []
