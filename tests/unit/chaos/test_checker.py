"""The history checker of the chaos runs: every anomaly it names is found, and a correct history has none."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.checker import check, unexplained
from chaos.history import Event, Journal, read
from support.histories import drained, fault, handled, history, sent, told

# What must be found, what it is an example of, and the history, in the words of support/histories.py.
BAD = """
lost-write poll-skip: the second is never handled
  sent 1 2 3; 1@1; 3@2
unseen: the last is not handled after the drain
  sent 1 2 3; 1@1; 2@2; drained
unseen: the last was begun and never finished
  sent 1; 1@1 unfinished; kill@1.2-1.3; drained
unseen: a drained group without any handler
  sent 1; drained
duplicate: no fault at all
  sent 1; 1@1; 1@2
duplicate: the fault hit another process
  sent 1; 1@1; 1@4 p2; kill@1.2-1.3 p3
duplicate: the fault was long over
  sent 1; server@1-2 all; 1@50; 1@51
duplicate: the fault came long after the settlement
  sent 1; 1@1; kill@50-50.1; 1@52 p2
duplicate: a drain repeats nothing
  sent 1; 1@1; term@1.2-3; 1@4 p2
duplicate: the settlement was confirmed before
  sent 1; 1@1 settled; kill@1.6-1.7; 1@4 p2
poll-skip dual-ownership: the second began while the first still ran
  sent 1 2; 1@1; 2@1.2
poll-skip nonmonotonic-poll: the second began after the first had failed
  sent 1 2; 1@1 raised; 2@2; 1@3 attempt=2
poll-skip: a message of unknown outcome that another group has seen
  sent 1 unknown; sent 2; 1@1 group=h; 2@2 group=h; 2@1
nonmonotonic-poll duplicate: back to the first without a fault
  sent 1 2; 1@1; 2@2; 1@3; 2@4
inconsistent-offsets: two acknowledged ids at one offset
  sent 1 name=a; sent 1 name=b; 1@1 name=a
inconsistent-offsets: one id at two offsets
  sent 1 name=a; sent 2 name=a; 1@1 name=a
inconsistent-offsets: a server crash does not excuse an acknowledged one
  sent 1 name=a; sent 1 name=b; 1@1 name=a; server@0.5-2 all
dual-ownership duplicate: two processes at once
  sent 1; 1@1-3; 1@2 p2
dual-ownership duplicate: its owner was killed only later
  sent 1; 1@1 unfinished; kill@2-2.1; 1@1.5 p2
aborted-read: a message that was rolled back
  sent 1 rolled-back; 1@1
aborted-read: a message that nobody published
  1@1
effect-twice duplicate: two rows
  sent 1; 1@1 group=e settled effect; 1@2 group=e settled effect
effect-lost: confirmed, but no row
  sent 1; 1@1 group=e settled
effect-lost: confirmed, of unknown outcome, no row
  sent 1 unknown; 1@1 group=e settled
effect-lost: drained, but no row
  sent 1; 1@1 group=e unfinished; kill@1.2-1.3; drained group=e
duplicate: begun under the epoch before, some time after its process went on
  sent 1; stop@1.2-19; 1@10 p2 epoch=2 settled; 1@19.4 epoch=1 refused
ghost-ack: confirmed after a later epoch had begun the message
  sent 1; 1@1-20 settled; stop@1.2-12; 1@10 p2
ghost-ack poll-skip: asked for after a later epoch had begun another message
  sent 1 2; 1@1-20 settled; stop@1.2-12; 2@10 p2
ghost-ack: confirmed after a later attempt of the same epoch had begun
  sent 1; 1@1-9 settled; 1@5 attempt=2; stop@2-4
"""

# Kinds of faults that came too late or too short, or that met somebody else; and what the log itself tells at the end.
BAD_IN_SPITE_OF_FAULTS = """
unseen: in the log, and no publisher was told so
  sent 1 unknown; logged 1; drained
unseen: collected, so below the head, and no publisher was told so
  sent 1; sent 2 unknown; 1@1; head 2; drained
unseen: another message was handled at its offset
  sent 1 name=a unknown; sent 1 name=b unknown; 1@1 name=a; logged 1 name=b; drained
unseen: one group has seen it, the other has not
  sent 1 unknown; 1@1; logged 1; drained; drained group=h
effect-lost: no publisher was told of it, it was handled, and its row is not there
  sent 1 unknown; 1@1 group=e; logged 1; drained group=e
aborted-read: the library said that the publish had failed
  sent 1 rolled-back; logged 1; 1@1; drained
duplicate: a stall that is shorter than what is left of a lease
  sent 1; 1@1; stall@1.2-5.1; 1@6 p2
duplicate: a disk that was full for a moment
  sent 1; 1@1; disk@1.2-5.1 all; 1@6 p2
duplicate: a cut of another process's connections
  sent 1; 1@1; cut@1.2 p3; 1@4 p2
duplicate: half-closed only after its settlement was confirmed
  sent 1; 1@1 settled; half-close@1.6; 1@4 p2
dual-ownership duplicate: a short stall takes nobody's lanes
  sent 1; 1@1-9; stall@1.2-5.1; 1@6 p2
dual-ownership duplicate: a wrong clock is no excuse
  sent 1; 1@1-9; clock@0-50; 1@6 p2
dual-ownership duplicate: two who are not behind the proxy
  sent 1; 1@1-20; stall@1.2-12 p3; 1@10 p2
duplicate: a lease that ran out without a reason is a bug
  sent 1; 1@10; expiry@10.2-11; 1@12 p2
duplicate: a slow machine alone
  sent 1; 1@10; slow@8-11 all; 1@12 p2
duplicate: slow for a moment, with time for a renewal before
  sent 1; 1@10; slow@8-9 all; expiry@10.2-11; 1@12 p2
duplicate: slow twice, with time for a renewal between
  sent 1; 1@10; slow@5-6 all; slow@9-10 all; expiry@10.2-11; 1@12 p2
duplicate: slow long before the lease ran out
  sent 1; 1@10; slow@1-2 all; expiry@10.2-11; 1@12 p2
duplicate: another one's lease ran out
  sent 1; 1@10; slow@6-11 all; expiry@10.2-11 p3; 1@12 p2
"""

# What an operator's verb cannot have caused, or has promised: nothing is lost by a seek, a skip or a redrive.
BAD_IN_SPITE_OF_AN_OPERATOR = """
unseen: a seek brought two back, and one came again
  sent 1 2; 1@1 settled; 2@2 settled; seek@3 offset=0 before=2; 1@4 epoch=3; drained
unseen: what a seek brought back was begun and never finished
  sent 1 2; 1@1 settled; 2@2 settled; seek@3 offset=0 before=2; 1@4 epoch=3; 2@5 epoch=3 unfinished; drained
unseen: only who had lost the lane went on with it
  sent 1; 1@2.9-3.5; seek@3 offset=0 before=1; drained
duplicate nonmonotonic-poll: behind the place of the seek nothing comes again
  sent 1 2; 1@1 settled; 2@2 settled; seek@3 offset=1 before=2; 1@4 epoch=3; 2@5 epoch=3
duplicate nonmonotonic-poll: a seek brings a message back once
  sent 1 2; 1@1 settled; 2@2 settled; seek@3 offset=0 before=2; 1@4.5 epoch=3; 2@5 epoch=3; 1@8 epoch=5
duplicate: the seek of another group
  sent 1; 1@1 settled; seek@3 offset=0 group=h; 1@4 epoch=3
duplicate: the seek of another lane
  sent 1; 1@1 settled; seek@3 offset=0 key=l; 1@4 epoch=3
duplicate: under the same epoch no seek has come between
  sent 1; 1@1 settled; seek@3 offset=0; 1@4
duplicate: a release takes back nothing that was confirmed
  sent 1; 1@1 settled; release@1.2; 1@4 epoch=3
duplicate: the release came long after the handler
  sent 1; 1@1; release@50; 1@52 epoch=3
duplicate: a pause repeats nothing
  sent 1; 1@1; pause@1.2 until=3; 1@4 epoch=3
duplicate: a redrive repeats nothing
  sent 1; 1@1; redrive@1.2 whole; 1@4 epoch=3
dual-ownership duplicate: long after the release its owner has begun something
  sent 1; release@1; 1@3-9; 1@5 p2 epoch=3
lost-write poll-skip: the skip was of another message
  sent 1 2 3; 1@1; skip@1.8 offset=3; 3@2
unseen: it was skipped for another group
  sent 1; skip@1 offset=1 group=h; drained
poll-skip: the next one began before the skip
  sent 1 2; 2@1; skip@3 offset=1; drained
effect-twice: one seek, three rows
  sent 1; 1@1 group=e settled effect; seek@3 offset=0 before=1 group=e; 1@4 epoch=3 group=e settled effect;
  seek@5 offset=0 before=1; 1@6 epoch=5 raised group=e effect
effect-twice duplicate: a release allows no second row
  sent 1; 1@1 group=e settled effect; release@1.2 group=e; 1@4 epoch=3 group=e settled effect
ghost-ack: settled after a seek had taken its lane away
  sent 1; 1@1-5 settled asked=4; seek@3 offset=0 before=2
misdirected: another group gets what was redriven
  sent 1; 1@1 raised; 1@1 group=h; redriven 2 original=1; 2@3; 2@3 group=h
unseen: what was redriven is not handled
  sent 1; 1@1 raised; redriven 2 original=1; logged 2; drained
unseen: what was redriven failed again, and is not among the dead letters
  sent 1; 1@1 raised; redriven 2 original=1; 2@3 raised; logged 2; drained
lost-write poll-skip: what was redriven is passed over
  sent 1; 1@1 raised; redriven 2 original=1; sent 3; 3@4
inconsistent-offsets duplicate: a dead letter was redriven twice
  sent 1; 1@1 raised; redriven 2 original=1; 2@3 name=m2; 3@4 name=m2
begun-while-paused: longer than a keeper's turn after it
  sent 1; pause@1 until=4; 1@2.5
begun-while-paused: the whole group
  sent 1; pause@1 until=4 whole; 1@2.5
"""

# What at-least-once delivery permits, what a fault permits, and what an operator asked for.
GOOD = """
nothing happened
three in order
  sent 1 2 3; 1@1; 2@2; 3@3; drained
failed, repeated, and then the next
  sent 1 2; 1@1 raised; 1@2 attempt=2; 2@3; drained
killed at work, and redelivered elsewhere
  sent 1; 1@1 unfinished; kill@1.2-1.3; 1@4 p2 attempt=2; drained
killed before the flush: two are repeated in order
  sent 1 2; 1@1; 2@2; kill@2.6-2.7; 1@5 p2 raised; 1@6 p2 attempt=2; 2@7 p2; drained
a thread stands still between its question and the handler, for longer than a lease
  sent 1; stop@1.2-19; 1@10 p2 epoch=2 settled; 1@19.1 epoch=1 refused; drained
stopped past its lease: the zombie is refused
  sent 1; 1@1-20 refused; stop@1.2-19; 1@10 p2 attempt=2; drained
stopped after its commit, which it writes down late
  sent 1 2; 1@1-20 group=e settled asked=1.1 effect; stop@1.2-19; 2@10 p2 group=e settled effect; drained group=e
killed after its commit, which it never writes down
  sent 1 2; 1@1 unfinished group=e effect; kill@1.2-1.3; 2@5 p2 group=e settled effect; drained group=e
the server died before the outcomes were flushed
  sent 1; 1@1; server@1.6-4 all; 1@6 attempt=2; drained
a dead letter is an end, too
  sent 1 2; 1@1 raised; buried 1; 2@2; drained
a commit seen before it was durable: its offset is given again
  sent 1 name=b at=5; sent 1 name=a unknown; 1@1 name=a; server@1.1-4 all; 1@6 name=b; drained
rolled back and never seen
  sent 1 rolled-back; sent 1 name=b; 1@1 name=b; drained
not drained: the last is still to come
  sent 1 2; 1@1
cut before the flush: what was done is repeated
  sent 1; 1@1; cut@1.6; 1@4 p2; drained
stalled past its lease: others take over what it holds
  sent 1; 1@1-12 refused; stall@1.2-9; 1@8 p2 attempt=2; drained
its lease ran out because the machine was slow
  sent 1; 1@10-14 refused; slow@6-7 all; slow@8-9 all; expiry@10.2-14; 1@12 p2; drained
nobody was told of it, and it was handled and collected
  sent 1 unknown; sent 2; 1@1; 2@2; logged 2; head 2; drained
nobody was told of it, and it is a dead letter
  sent 1 unknown; 1@1 raised; buried 1; logged 1; drained
in the log, but the group has not drained: it is still to come
  sent 1 unknown; logged 1
a seek brings two back, confirmed or not
  sent 1 2; 1@1 settled; 2@2 settled; seek@3 offset=0 before=2; 1@4 epoch=3; 2@5 epoch=3; drained
a seek whose outcome is unknown asks for nothing
  sent 1 2; 1@1 settled; 2@2 settled; seek@3 uncertain; 2@5 epoch=3; drained
a seek back while a handler runs: its settlement is refused
  sent 1 2; 1@1 settled; 2@2.5-6 refused; seek@3 offset=0 before=1; 1@4 p2 epoch=3; 2@5 p2 epoch=3; drained
who has not heard of it begins one more
  sent 1 2; 1@2.5; release@2.6; 2@3.1-3.3; 1@3.4 p2 epoch=3; 2@4 p2 epoch=3; drained
each seek allows one effect more
  sent 1; 1@1 group=e settled effect; seek@3 offset=0 before=1 group=e; 1@4 epoch=3 group=e settled effect;
  drained group=e
skipped while its handler runs
  sent 1 2; 1@1-5 refused; skip@2 offset=1; 2@3 epoch=3; drained
skipped, and then brought back by a seek
  sent 1 2; 1@1 settled; 2@2 settled; sent 3; skip@2.7 offset=3; seek@3 offset=1 before=3; 2@4 epoch=4; 3@5 epoch=4;
  drained
redriven for one group, passed by the other
  sent 1; 1@1 raised; 1@1 group=h; redriven 2 original=1; sent 3; 2@4; 3@5; 3@5 group=h; head 3;
  drained; drained group=h
redriven, failed again, and redriven again
  sent 1 unknown; 1@1 raised; redriven 2 original=1; 2@3 raised; redriven 3 original=1; 3@5; head 3; drained
paused: what ran goes on, and one begins before the keeper's turn
  sent 1 2; 1@1-3; pause@1.2 until=4; 2@4.1; drained
paused: another lane and another group go on
  sent 1; pause@0.5 until=4 key=l; pause@0.5 until=4 group=h; 1@2.5
paused, and its process could not hear of it
  sent 1; pause@1 until=4; cut@0.9; 1@2.5
"""


FAULTY = told(BAD + BAD_IN_SPITE_OF_FAULTS + BAD_IN_SPITE_OF_AN_OPERATOR)
CORRECT = told(GOOD)


def causes(events: list[Event]) -> set[tuple[str, str | None]]:
    return {(anomaly.kind, anomaly.explained_by) for anomaly in check(events, effect_groups=["e"])}


@pytest.mark.parametrize(("title", "events"), FAULTY.items(), ids=list(FAULTY))
def test_a_bad_history_is_found(title: str, events: list[Event]) -> None:
    """Each kind of anomaly is found in a history that was made for it, and nothing else is."""
    found = {anomaly.kind for anomaly in unexplained(check(events, effect_groups=["e"]))}
    assert found == set(title.partition(":")[0].split())


@pytest.mark.parametrize("events", CORRECT.values(), ids=list(CORRECT))
def test_a_good_history_is_clean(events: list[Event]) -> None:
    """Events that at-least-once delivery permits, and those that an operator asked for, break no promise."""
    assert unexplained(check(events, effect_groups=["e"])) == []


@pytest.mark.parametrize("kind", ["exhaustion", "snapshot", "clock", "grow", "shrink"])
def test_what_repeats_nothing_explains_nothing(kind: str) -> None:
    """A kind of fault that takes nobody's lane is no excuse for a redelivery."""
    assert causes(history(f"sent 1; 1@1; {kind}@1.2-3 all; 1@4 p2")) == {("duplicate", None)}


@pytest.mark.parametrize("kind", ["cut", "half-close", "connections", "server", "stop"])
def test_the_cause_is_the_fault(kind: str) -> None:
    """Redelivery and overlap are counted under the fault that met the process."""
    found = causes(history(f"sent 1; 1@1-9; {kind}@1.2-1.3; 1@4 p2"))
    assert found == {("duplicate", kind), ("dual-ownership", kind)}


def test_each_permitted_anomaly_is_counted_with_its_cause() -> None:
    """Duplicates, steps back and overlaps are reported with the fault or the operator's verb that explains them."""
    twice = CORRECT["killed before the flush: two are repeated in order"]
    assert [(a.kind, a.explained_by) for a in check(twice)] == [
        ("duplicate", "kill"),
        ("duplicate", "kill"),
        ("nonmonotonic-poll", "kill"),
    ]
    sought = causes(CORRECT["a seek brings two back, confirmed or not"])
    assert sought == {("duplicate", "seek"), ("nonmonotonic-poll", "seek")}
    assert {cause for _, cause in causes(CORRECT["who has not heard of it begins one more"])} == {"release"}


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A journal gives back its events; the last line of a killed process is left out."""
    events = history("sent 1; 1@1 settled effect; kill@1-2; server@1-2 all; logged 1; head 1; drained")
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


@pytest.mark.thorough
@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_a_correct_history_has_no_anomaly(dice: random.Random, steps: int) -> None:
    """Workers are killed, stopped and fail at any point, and the files are read in any order: nothing is named."""
    events = walk(dice, steps)
    dice.shuffle(events)
    assert unexplained(check(events, effect_groups=["e"])) == []
