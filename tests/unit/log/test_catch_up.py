"""What is published when a schedule is due: what counts as missed, and what becomes of it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lanelog._base.cron import parse
from lanelog._log.fire.catch_up import DueTimes, dues
from lanelog._log.fire.occurrences import Fired, occurrence

MINUTE = 60_000
START = int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000)


def planned(
    expression: str, catch_up: str, late: int, *, since: int = 0, last: int = 0, most: int = 500, first: int = START
) -> DueTimes:
    cron = parse(expression, "UTC")
    return dues(
        cron,
        catch_up,
        first=occurrence(cron, first),
        since_ms=since,
        fired=Fired().with_one(occurrence(cron, last)) if last else Fired(),
        now_ms=START + late,
        most=most,
    )


def moments(found: DueTimes) -> list[int]:
    return [each.at - START for each in found.times]


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
@pytest.mark.parametrize(
    ("expression", "late", "times"),
    [
        ("* * * * *", 0, [0]),
        ("* * * * *", 59_999, [0]),
        ("* * * * *", 60_000, [0, 60_000]),
        ("0 * * * *", 60_000, [0]),
        ("* * * * * *", 5_000, [0, 1000, 2000, 3000, 4000, 5000]),
        ("*/20 * * * * *", 20_000, [0, 20_000]),
    ],
)
def test_being_late_by_no_more_than_the_grace_misses_nothing(
    catch_up: str, expression: str, late: int, times: list[int]
) -> None:
    """The schedule's period, at least 5 s and at most 60: all that is due is published, in order."""
    found = planned(expression, catch_up, late)
    assert not found.missed
    assert (moments(found), found.next.at) == (times, parse(expression, "UTC").after(START + late))


@pytest.mark.parametrize(
    ("catch_up", "times"), [("latest", [60]), ("all", list(range(61))), ("none", [])], ids=["latest", "all", "none"]
)
def test_after_an_hour_without_anybody(catch_up: str, times: list[int]) -> None:
    """Once a minute: the most recent one, each of them, or none; then the next minute."""
    found = planned("* * * * *", catch_up, 60 * MINUTE + 7)
    assert found.missed
    assert [at // MINUTE for at in moments(found)] == times
    assert found.next.at == START + 61 * MINUTE


def test_what_is_just_beyond_the_grace_was_missed() -> None:
    """A millisecond makes the difference."""
    found = planned("* * * * *", "none", 60_001)
    assert (found.times, found.next.at, found.missed) == ([], START + 2 * MINUTE, True)
    assert planned("* * * * * *", "none", 5_001).times == []
    assert planned("0 0 * * *", "none", 60_001, first=START).times == []


def test_all_is_cut_and_goes_on_where_it_was_cut() -> None:
    """At most so many at once; the next time is due already."""
    first = planned("* * * * *", "all", 60 * MINUTE, most=50)
    assert (len(first.times), first.next.at) == (50, START + 50 * MINUTE)
    rest = planned("* * * * *", "all", 60 * MINUTE, most=50, first=first.next.at)
    assert [at // MINUTE for at in moments(rest)] == list(range(50, 61))


def test_a_changed_expression_counts_from_its_declaration() -> None:
    """The time that was due before is published, those of the new expression only from then on."""
    found = planned("* * * * *", "all", 10 * MINUTE, since=START + 8 * MINUTE - 1)
    assert [at // MINUTE for at in moments(found)] == [0, 8, 9, 10]
    assert found.next.at == START + 11 * MINUTE
    alone = planned("0 * * * *", "latest", 10 * MINUTE, since=START + 5 * MINUTE)
    assert (moments(alone), alone.next.at) == ([0], START + 60 * MINUTE)


@pytest.mark.parametrize("options", [{"late": 0}, {"late": 60 * MINUTE}])
def test_nothing_is_published_for_a_time_up_to_the_last_one(options: dict[str, Any]) -> None:
    """Each plan begins after the last one, for any next time in the row, as after a clock that went back."""
    for catch_up in ("latest", "all", "none"):
        assert planned("* * * * *", catch_up, last=START + 60 * MINUTE, **options).times == []
