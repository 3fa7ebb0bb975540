"""`delay`, `deliver_at` and `ttl`: what is refused before any SQL, and what is made of the rest."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lanelog._log.append.draft import SCHEDULED, Draft, make_draft
from lanelog._log.append.timing import AT_ONCE, TEN_YEARS, Timing, make_timing
from lanelog._log.append.writing import give_offsets
from lanelog.errors import ConfigurationError
from lanelog.message import Outgoing, Receipt

NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delay": 1, "deliver_at": NOW}, "not both"),
        ({"delay": -1}, "delay must be a finite number, at least 0"),
        ({"delay": math.nan}, "delay must be a finite number"),
        ({"delay": math.inf}, "delay must be a finite number"),
        ({"delay": TEN_YEARS + 1}, "delay must be a finite number, at least 0 and at most 316224000"),
        ({"delay": 10**400}, "delay must be a finite number"),
        ({"delay": "1"}, "delay must be a number"),
        ({"delay": True}, "delay must be a number"),
        ({"delay": timedelta(seconds=-1)}, "delay must be a finite number, at least 0"),
        ({"ttl": "1"}, "ttl must be a number of seconds or a timedelta, not str"),
        ({"deliver_at": NOW.replace(tzinfo=None)}, "deliver_at must be an aware datetime: add tzinfo"),
        ({"deliver_at": NOW + timedelta(days=10 * 366 + 1)}, "at most ten years"),
        ({"deliver_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-23)))}, "at most ten years"),
        ({"deliver_at": 1.0}, "deliver_at must be an aware datetime, not float"),
        ({"deliver_at": NOW.date()}, "deliver_at must be an aware datetime, not date"),
        ({"ttl": 0}, "ttl must be a finite number, more than 0"),
        ({"ttl": -1}, "ttl must be a finite number, more than 0"),
        ({"ttl": math.inf}, "ttl must be a finite number"),
        ({"ttl": TEN_YEARS + 1}, "ttl must be a finite number"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    """The error names the argument."""
    with pytest.raises(ConfigurationError, match=said):
        make_timing(**{"delay": None, "deliver_at": None, "ttl": None, **given})


@pytest.mark.parametrize(
    ("given", "timing"),
    [
        ({}, AT_ONCE),
        ({"delay": 0}, AT_ONCE),
        ({"delay": 1.5}, Timing(delay_ms=1500)),
        ({"delay": 1e-9}, Timing(delay_ms=1)),
        ({"ttl": 1e-9}, Timing(ttl_ms=1)),
        ({"delay": timedelta(minutes=1), "ttl": timedelta(microseconds=1)}, Timing(delay_ms=60_000, ttl_ms=1)),
        ({"delay": 2, "ttl": 3}, Timing(delay_ms=2000, ttl_ms=3000)),
        ({"deliver_at": datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)}, Timing(due_at_ms=1001)),
        ({"deliver_at": datetime(1970, 1, 1, 2, 0, 1, tzinfo=timezone(timedelta(hours=2)))}, Timing(due_at_ms=1000)),
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, Timing(due_at_ms=0)),
        ({"deliver_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=23)))}, Timing(due_at_ms=0)),
    ],
)
def test_times_become_milliseconds(given: dict[str, Any], timing: Timing) -> None:
    """Rounded up: nothing is delivered before its time, and nothing that waits waits for nothing."""
    made = make_timing(**{"delay": None, "deliver_at": None, "ttl": None, **given})
    assert made == timing
    assert made.scheduled == bool(timing.delay_ms or timing.due_at_ms is not None)


def draft(message_id: str | None, delay: float | None = None) -> Draft:
    return make_draft("t", Outgoing("k", b"x", message_id, delay=delay), None, 10)


def test_a_message_with_a_delay_takes_no_offset() -> None:
    """The message is scheduled, in the order of the call; an id that exists, here or in the log, is a duplicate."""
    later = 1.0
    drafts = [draft("a", later), draft("b"), draft("a"), draft("b", later)]
    drafts += [draft("c", later), draft("logged", later), draft("waiting")]
    stored = {("k", "logged"): 3, ("k", "waiting"): SCHEDULED}
    placed = give_offsets(drafts, {"k": 7}, stored)
    assert [(row.id, row.seq) for row in placed.scheduled] == [("a", 0), ("c", 1)]
    assert [(row.id, row.offset) for row in placed.rows] == [("b", 8)]
    assert placed.moves == {"k": 1}
    new, again = [(0, "a"), (8, "b")], [(0, "a"), (8, "b")]
    assert placed.receipts[:4] == [*(Receipt(*each, False) for each in new), *(Receipt(*each, True) for each in again)]
    assert placed.receipts[4:] == [Receipt(0, "c", False), Receipt(3, "logged", True), Receipt(0, "waiting", True)]


@pytest.mark.parametrize(("found", "duplicate"), [(0, False), (9, False)])
def test_what_an_unknown_commit_scheduled_is_no_duplicate(found: int, duplicate: bool) -> None:
    """Whether it still waits when the attempt is repeated, or has become due since."""
    own = draft("a", 0.01)
    own.tried = SCHEDULED
    assert give_offsets([own], {"k": 9}, {own.key_and_id: found}).receipts == [Receipt(found, "a", duplicate=duplicate)]
