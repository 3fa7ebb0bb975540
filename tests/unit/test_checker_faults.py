"""What the checker of the chaos runs lets a fault explain, and what the log itself tells it at the end."""

from __future__ import annotations

import pytest

from chaos.checker import check, unexplained
from chaos.history import Buried, Event
from support.histories import KEY, TOPIC, drained, fault, handled, kinds, logged, sent

BAD = {
    "unseen: in the log, and no publisher was told so": (
        {"unseen"},
        [*sent(1, outcome="unknown"), *logged(1), *drained()],
    ),
    "unseen: collected, so below the head, and no publisher was told so": (
        {"unseen"},
        [*sent(1), *sent(2, outcome="unknown"), *handled(1, 1), *logged(0, head=2), *drained()],
    ),
    "unseen: another message was handled at its offset": (
        {"unseen"},
        [
            *sent(1, name="a", outcome="unknown"),
            *sent(1, name="b", outcome="unknown"),
            *handled(1, 1, name="a"),
            *logged(1, name="b"),
            *drained(),
        ],
    ),
    "unseen: one group has seen it, the other has not": (
        {"unseen"},
        [*sent(1, outcome="unknown"), *handled(1, 1), *logged(1), *drained("g"), *drained("h")],
    ),
    "effect-lost: no publisher was told of it, it was handled, and its row is not there": (
        {"effect-lost"},
        [*sent(1, outcome="unknown"), *handled(1, 1, group="e"), *logged(1), *drained("e")],
    ),
    "duplicate: exhaustion explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("exhaustion", 1.2, 3, None), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: snapshot explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("snapshot", 1.2, 3, None), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: clock explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("clock", 1.2, 3, "p1"), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: grow explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("grow", 1.2, 3, "p1"), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: shrink explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("shrink", 1.2, 3, "p1"), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: a stall that is shorter than what is left of a lease explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("stall", 1.2, 5.1), *handled(1, 6, process="p2", epoch=2)],
    ),
    "duplicate: a disk that was full for a moment explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("disk", 1.2, 5.1, None), *handled(1, 6, process="p2", epoch=2)],
    ),
    "duplicate: a cut of another process's connections": (
        {"duplicate"},
        [*sent(1), *handled(1, 1), *fault("cut", 1.2, 1.2, "p3"), *handled(1, 4, process="p2", epoch=2)],
    ),
    "duplicate: half-closed only after its settlement was confirmed": (
        {"duplicate"},
        [*sent(1), *handled(1, 1, settled=True), *fault("half-close", 1.6, 1.6), *handled(1, 4, process="p2", epoch=2)],
    ),
    "dual-ownership: a short stall takes nobody's lanes": (
        {"dual-ownership", "duplicate"},
        [*sent(1), *handled(1, 1, until=9), *fault("stall", 1.2, 5.1), *handled(1, 6, process="p2", epoch=2)],
    ),
    "dual-ownership: a wrong clock is no excuse": (
        {"dual-ownership", "duplicate"},
        [*sent(1), *handled(1, 1, until=9), *fault("clock", 0, 50), *handled(1, 6, process="p2", epoch=2)],
    ),
    "dual-ownership: two who are not behind the proxy": (
        {"dual-ownership", "duplicate"},
        [*sent(1), *handled(1, 1, until=20), *fault("stall", 1.2, 12, "p3"), *handled(1, 10, process="p2", epoch=2)],
    ),
    "duplicate: a lease that ran out without a reason is a bug": (
        {"duplicate"},
        [*sent(1), *handled(1, 10), *fault("expiry", 10.2, 11), *handled(1, 12, process="p2", epoch=2)],
    ),
    "duplicate: a slow machine alone explains nothing": (
        {"duplicate"},
        [*sent(1), *handled(1, 10), *fault("slow", 8, 11, None), *handled(1, 12, process="p2", epoch=2)],
    ),
    "duplicate: slow for a moment, with time for a renewal before": (
        {"duplicate"},
        [
            *sent(1),
            *handled(1, 10),
            *fault("slow", 8, 9, None),
            *fault("expiry", 10.2, 11),
            *handled(1, 12, process="p2", epoch=2),
        ],
    ),
    "duplicate: slow twice, with time for a renewal between": (
        {"duplicate"},
        [
            *sent(1),
            *handled(1, 10),
            *fault("slow", 5, 6, None),
            *fault("slow", 9, 10, None),
            *fault("expiry", 10.2, 11),
            *handled(1, 12, process="p2", epoch=2),
        ],
    ),
    "duplicate: slow long before the lease ran out": (
        {"duplicate"},
        [
            *sent(1),
            *handled(1, 10),
            *fault("slow", 1, 2, None),
            *fault("expiry", 10.2, 11),
            *handled(1, 12, process="p2", epoch=2),
        ],
    ),
    "duplicate: another one's lease ran out": (
        {"duplicate"},
        [
            *sent(1),
            *handled(1, 10),
            *fault("slow", 6, 11, None),
            *fault("expiry", 10.2, 11, "p3"),
            *handled(1, 12, process="p2", epoch=2),
        ],
    ),
    "aborted-read: the library said that the publish had failed": (
        {"aborted-read"},
        [*sent(1, outcome="rolled-back"), *logged(1), *handled(1, 1), *drained()],
    ),
}

GOOD = {
    "cut before the flush: what was done is repeated": [
        *sent(1),
        *handled(1, 1),
        *fault("cut", 1.6, 1.6),
        *handled(1, 4, process="p2", epoch=2),
        *drained(),
    ],
    "stalled past its lease: others take over what it holds": [
        *sent(1),
        *handled(1, 1, until=12, settled=False, outcome="raised"),
        *fault("stall", 1.2, 9),
        *handled(1, 8, process="p2", epoch=2, attempt=2),
        *drained(),
    ],
    "its lease ran out because the machine was slow": [
        *sent(1),
        *handled(1, 10, until=14, settled=False, outcome="raised"),
        *fault("slow", 6, 7, None),
        *fault("slow", 8, 9, None),
        *fault("expiry", 10.2, 14),
        *handled(1, 12, process="p2", epoch=2),
        *drained(),
    ],
    "nobody was told of it, and it was handled and collected": [
        *sent(1, outcome="unknown"),
        *sent(2),
        *handled(1, 1),
        *handled(2, 2),
        *logged(2),
        *logged(0, head=2),
        *drained(),
    ],
    "nobody was told of it, and it is a dead letter": [
        *sent(1, outcome="unknown"),
        *handled(1, 1, outcome="raised"),
        Buried(group="g", topic=TOPIC, key=KEY, offset=1),
        *logged(1),
        *drained(),
    ],
    "in the log, but the group has not drained: it is still to come": [*sent(1, outcome="unknown"), *logged(1)],
}


@pytest.mark.parametrize(("expected", "history"), BAD.values(), ids=list(BAD))
def test_a_fault_explains_only_what_it_can_have_caused(expected: set[str], history: list[Event]) -> None:
    """Kinds that repeat nothing, that came too late or too short, or that met somebody else, explain nothing."""
    assert kinds(unexplained(check(history, effect_groups=["e"]))) == expected


@pytest.mark.parametrize("history", GOOD.values(), ids=list(GOOD))
def test_what_a_fault_permits_breaks_no_promise(history: list[Event]) -> None:
    """Redelivery after a lost session or a lease that ran out, and messages whose publisher never heard of them."""
    assert unexplained(check(history)) == []


@pytest.mark.parametrize("kind", ["cut", "half-close", "connections", "server", "stop"])
def test_the_cause_is_the_fault(kind: str) -> None:
    """Redelivery and overlap are counted under the fault that met the process."""
    history = [*sent(1), *handled(1, 1, until=9), *fault(kind, 1.2, 1.3), *handled(1, 4, process="p2", epoch=2)]
    assert {(a.kind, a.explained_by) for a in check(history)} == {("duplicate", kind), ("dual-ownership", kind)}
