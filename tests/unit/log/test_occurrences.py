"""An occurrence is its wall-clock time: processes with different time zone data fire each of them once."""

import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tzdata as tzdata_package
from attrs import define, evolve, field
from hypothesis import example, given
from hypothesis import strategies as st

from lanelog._base.cron import Cron, parse
from lanelog._log.fire import zone_data
from lanelog._log.fire.catch_up import dues
from lanelog._log.fire.occurrences import Fired, Occurrence, from_row, is_exact, occurrence, reached
from lanelog._log.fire.planned import correction, plan_due, wall
from lanelog._log.fire.recurring import message_ids
from lanelog._stores.later.schedules import ScheduleRow
from support.zones import tzdata, zone

HOUR = 3600
EVERY_MS = 20 * 60_000
ZONE = "Test/Zone"
START = int(datetime(2026, 10, 20, tzinfo=UTC).timestamp())
DAYS = 3
END = START + DAYS * 24 * HOUR


def cron_in(expression: str, offset: int, *changes: tuple[int, int]) -> Cron:
    """An expression in a zone of the test's own."""
    return evolve(parse(expression, "UTC"), timezone=ZONE, zone=zone(offset, changes))


def at(text: str, fold: int = 0) -> Occurrence:
    return Occurrence(0, datetime.fromisoformat(text), fold)


# -- forms -------------------------------------------------------------------------------------------------------------


def test_an_occurrence_in_an_id_and_in_a_row() -> None:
    """An id has wall-clock time and zone; a row has the moment's offset, too. The second of two equal times says so."""
    berlin = parse("* * * * *", "Europe/Berlin")
    for hour, in_id, in_row in (
        (0, "2026-10-25T02:30:00[Europe/Berlin]", "2026-10-25T02:30:00+02:00[Europe/Berlin]"),
        (1, "2026-10-25T02:30:00[Europe/Berlin][fold=1]", "2026-10-25T02:30:00+01:00[Europe/Berlin][fold=1]"),
    ):
        one = occurrence(berlin, int(datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp() * 1000))
        assert (one.id_form("Europe/Berlin"), one.row_form("Europe/Berlin")) == (in_id, in_row)
        assert from_row(in_row, "Europe/Berlin") == one
        assert from_row(in_row, "Europe/Paris") is None


def test_an_id_without_room_for_its_wall_clock_time_has_the_moment() -> None:
    """The longest name in a zone with a long name, at the second of two equal times: no id is refused."""
    long = "America/North_Dakota/New_Salem"
    second = occurrence(parse("* * * * *", long), int(datetime(2026, 11, 1, 7, 30, tzinfo=UTC).timestamp() * 1000))
    assert message_ids("s", long, second)[0] == f"s@2026-11-01T01:30:00[{long}][fold=1]"
    name = "s" * 200
    assert message_ids(name, long, second) == (f"{name}@2026-11-01T07:30:00Z",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[Europe/Berlin]",
        "2026-10-25T02:30:00[Europe/Berlin]",
        "2026-13-25T02:30:00+01:00[Europe/Berlin]",
        "0001-01-01T00:00:00+01:00[Europe/Berlin]",
        "9999-12-31T23:30:00-01:00[Europe/Berlin]",
    ],
)
def test_a_row_that_somebody_spoilt_has_no_occurrence(text: str) -> None:
    """The row is read as one without a note."""
    assert from_row(text, "Europe/Berlin") is None


def test_a_time_that_the_clock_skips_is_reached_before_the_gap() -> None:
    """A time at the end of the gap therefore comes after it."""
    cron = parse("30 2 * * *", "Europe/Berlin")
    skipped = at("2027-03-28T02:30:00")
    assert reached(cron, skipped) == int(datetime(2027, 3, 28, 0, 59, 59, tzinfo=UTC).timestamp() * 1000)
    assert [is_exact(cron, one) for one in (skipped, at("2027-03-28T03:00:00"))] == [False, True]


# -- what was fired ----------------------------------------------------------------------------------------------------


def test_the_end_of_a_gap_is_not_fired_after_a_time_within_it() -> None:
    """A process without the gap fired 02:30: no 03:00 instead of it. A 03:00 of its own is fired."""
    fired = Fired().with_one(at("2027-03-28T02:30:00"))
    end = int(datetime(2027, 3, 28, 1, tzinfo=UTC).timestamp() * 1000)
    for expression, has in (("30 2 * * *", True), ("0,30 2,3 * * *", False), ("*/30 * * * *", False)):
        cron = parse(expression, "Europe/Berlin")
        assert fired.has(cron, occurrence(cron, end)) is has
    assert not Fired().has(cron, occurrence(cron, end))


def test_the_second_of_two_equal_times_is_another_occurrence() -> None:
    """In the order of the clock; the first ones are not fired again where there is no second one."""
    berlin = parse("*/30 * * * *", "Europe/Berlin")
    first, second = at("2026-10-25T02:30:00"), at("2026-10-25T02:00:00", fold=1)
    fired = Fired().with_one(first)
    assert not fired.has(berlin, second)
    fired = fired.with_one(second)
    later = (at("2026-10-25T02:30:00", fold=1), at("2026-10-25T03:00:00"))
    assert [fired.has(berlin, one) for one in (first, second, *later)] == [True, True, False, False]


# -- the next time in a row --------------------------------------------------------------------------------------------

NOON = "0 12 * * *"
NEXT_DAY = START + 24 * HOUR


def row_of(cron: Cron, one: Occurrence, *, since: int, catch_up: str) -> ScheduleRow:
    """A row that waits for this one, whose expression holds since then."""
    times = {"next_fire_at": one.at, "next_local": one.row_form(ZONE), "expression_at": since}
    message: dict[str, Any] = {"topic": "t", "key": "k", "payload": b"", "metadata": None, "ttl_ms": 0}
    return ScheduleRow(name="s", expression=cron.expression, timezone=ZONE, catch_up=catch_up, **message, **times)


def planned(
    cron: Cron, seconds: int, *, hours: int, noted: bool = True, tzdata: str = "", last: int = 0
) -> ScheduleRow:
    """A row whose next time is a noon, planned by a process for which that is at `seconds`, `hours` from UTC."""
    one = Occurrence(seconds * 1000, datetime.fromtimestamp(seconds + hours * HOUR, UTC).replace(tzinfo=None))
    row = row_of(cron, one, since=(START - HOUR) * 1000, catch_up="latest")
    local = row.next_local if noted else ""
    return evolve(row, next_local=local, last_fire_at=last * 1000, tzdata=tzdata, now=START * 1000)


@pytest.mark.parametrize("there", [1, 3])
def test_a_next_time_is_planned_anew_unless_this_data_is_known_to_be_older(there: int) -> None:
    """The same noon at another moment, earlier or later; no clock went back."""
    cron = cron_in(NOON, 2 * HOUR)
    for version in ("", "2000a"):
        found = correction(planned(cron, START + (12 - there) * HOUR, hours=there, tzdata=version), cron)
        assert found.next == Occurrence((START + 10 * HOUR) * 1000, datetime(2026, 10, 20, 12))  # noqa: DTZ001 - on the wall
        assert not found.clock
    assert correction(planned(cron, START + (12 - there) * HOUR, hours=there, tzdata="2999a"), cron) is None
    assert correction(planned(cron, START + 10 * HOUR, hours=2), cron) is None


def test_what_was_fired_today_at_another_moment_is_not_awaited_today() -> None:
    """Another process has fired this noon, which is still to come here: the row rightly waits for tomorrow's."""
    cron = cron_in(NOON, HOUR)
    tomorrow = planned(cron, NEXT_DAY + 11 * HOUR, hours=1, last=START - HOUR)
    fired = Occurrence((START - HOUR) * 1000, datetime(2026, 10, 20, 12))  # noqa: DTZ001 - on the wall
    assert correction(evolve(tomorrow, fired_local=fired.row_form(ZONE)), cron) is None


def test_a_clock_that_went_back_is_distinguished_from_other_data() -> None:
    """The row waits for another occurrence than the next one here, at a moment that both agree on."""
    cron = cron_in(NOON, HOUR)
    for noted in (True, False):
        found = correction(planned(cron, NEXT_DAY + 11 * HOUR, hours=1, noted=noted), cron)
        assert (found.next.at, found.clock) == ((START + 11 * HOUR) * 1000, True)


@pytest.mark.parametrize("zone_name", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("absurd", [253_370_764_800_000, 253_402_300_799_000, 10**15, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_next_time_at_the_end_of_the_calendar_or_beyond_is_set_back(zone_name: str, absurd: int) -> None:
    """No time zone data says such a time, noted or not: it comes from a clock that was ahead."""
    cron = parse("0 * * * *", zone_name)
    row = planned(cron, START, hours=0)
    for noted in ("", f"9999-12-31T23:59:59+00:00[{zone_name}]"):
        found = correction(evolve(row, timezone=zone_name, next_fire_at=absurd, next_local=noted), cron)
        assert (found.next.at, found.clock) == ((START + HOUR) * 1000, True)


def test_a_moment_of_an_older_version_with_older_data_is_planned_anew() -> None:
    """The moment is no time of the expression here, so no clock went back. A moment before the own one stays."""
    cron = cron_in(NOON, 2 * HOUR)
    found = correction(planned(cron, START + 11 * HOUR, hours=1, noted=False), cron)
    assert (found.next.at, found.clock) == ((START + 10 * HOUR) * 1000, False)
    assert correction(planned(cron, START + 9 * HOUR, hours=3, noted=False), cron) is None


def due(row: ScheduleRow, cron: Cron) -> tuple[list[str], int]:
    """What is fired for a row that is due now: the wall-clock times, and the next moment in hours."""
    read = plan_due(row, cron)
    found = dues(
        cron, row.catch_up, first=read.next, since_ms=row.expression_at, fired=read.fired, now_ms=row.now, most=500
    )
    return [f"{one.local:%dT%H:%M}" for one in found.times], found.next.at // (HOUR * 1000) - START // HOUR


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
@pytest.mark.parametrize(("there", "next_day"), [(1, 0), (3, 24)], ids=["to the east", "to the west"])
def test_a_due_moment_of_an_older_version_with_older_data_is_no_occurrence_of_its_own(
    catch_up: str, there: int, next_day: int
) -> None:
    """If the older version fired this noon, nothing more comes before the next noon. Otherwise this noon comes."""
    cron = cron_in(NOON, 2 * HOUR)
    hours = next_day + 12 - there
    moment = START + hours * HOUR
    row = evolve(planned(cron, moment, hours=there, noted=False), now=moment * 1000, catch_up=catch_up)
    assert due(evolve(row, last_fire_at=(START + 10 * HOUR) * 1000), cron) == ([], 34)
    assert due(row, cron) == (["20T12:00"], 34)


def test_a_moment_that_was_due_before_the_zone_was_declared_stands_for_itself() -> None:
    """The moment is a time of the zone before: it is fired once, and the next one is of this zone."""
    cron = cron_in(NOON, 2 * HOUR)
    row = planned(cron, START + 11 * HOUR, hours=1, noted=False)
    row = evolve(row, now=row.next_fire_at + 1000, expression_at=row.next_fire_at)
    assert due(row, cron) == (["20T13:00"], 34)


def test_the_version_of_the_data_is_found_where_zoneinfo_finds_the_zone(tmp_path: Path) -> None:
    """In the directory that has the zone, as systems name it there; in the package; or nowhere."""
    named, silent, bsd = tmp_path / "named", tmp_path / "silent", tmp_path / "bsd"
    tzdata(named, "2024b", "Test/Named", HOUR)
    tzdata(silent, "x", "Test/Silent", HOUR)
    tzdata(bsd, "x", "Test/BSD", HOUR)
    (bsd / "+VERSION").write_text("2023c\n")
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(silent), str(named), str(bsd)])
    try:
        found = [zone_data.version(name) for name in ("Test/Named", "Test/Silent", "Test/BSD", "Asia/Tokyo")]
    finally:
        zoneinfo.reset_tzpath(before)
        zone_data.version.cache_clear()
    assert found == ["2024b", "", "2023c", tzdata_package.IANA_VERSION]


# -- several processes -------------------------------------------------------------------------------------------------


@define
class Processes:
    """Processes that share one row, each with its own time zone data."""

    crons: Sequence[Cron]
    row: ScheduleRow
    fired: list[Occurrence] = field(factory=list)

    @classmethod
    def declared(cls, crons: Sequence[Cron]) -> "Processes":
        first = occurrence(crons[0], crons[0].after(START * 1000))
        return cls(crons, row_of(crons[0], first, since=START * 1000, catch_up="all"))

    def look(self, process: int, now: int, *, starts: bool, older: bool) -> bool:
        """One turn of a process that perhaps has just started, or has an older version. True: the clock went back."""
        cron = self.crons[process]
        self.row = evolve(self.row, now=now)
        found = correction(self.row, cron) if starts else None
        if found is not None:
            self.row = evolve(self.row, next_fire_at=found.next.at, next_local=found.next.row_form(ZONE))
        if self.row.next_fire_at <= now:
            self._fire(cron, older=older)
        return found is not None and found.clock

    def _fire(self, cron: Cron, *, older: bool) -> None:
        row, read = self.row, plan_due(self.row, cron)
        found = dues(
            cron, "all", first=read.next, since_ms=row.expression_at, fired=read.fired, now_ms=row.now, most=500
        )
        noted = wall(cron, found.next, found.fired)
        self.row = evolve(
            row,
            next_fire_at=found.next.at,
            last_fire_at=found.times[-1].at if found.times else row.last_fire_at,
            next_local=row.next_local if older else noted.next_local,
            fired_local=row.fired_local if older else noted.fired_local,
            fired_again=row.fired_again if older else noted.fired_again,
        )
        self.fired += found.times


Data = tuple[int, list[tuple[int, int]]]
"""An offset from UTC, and changes of it: a moment and the offset from then on. All in seconds."""
EXPRESSIONS = ["30 2 * * *", "0,30 2,3 * * *", "15 */2 * * *", "*/30 * * * *", "0 12,13 * * *", "15 30 1 * * *"]
OFFSETS = st.sampled_from([0, HOUR, 2 * HOUR, 11 * HOUR // 2])


@st.composite
def zones(draw: st.DrawFn) -> Data:
    """An offset, and perhaps one or two changes of it."""
    offset = draw(OFFSETS)
    changes = []
    moments = draw(st.lists(st.integers(1, 2 * 24 * DAYS - 1), max_size=2, unique=True))
    if len(moments) == 2 and abs(moments[0] - moments[1]) < 2 * 24:  # half hours: no zone changes twice in a day
        moments.pop()
    later = offset
    for moment in sorted(moments):
        later += draw(st.sampled_from([-2 * HOUR, -HOUR, HOUR, 2 * HOUR]))  # by half hours: see `cron`
        changes.append((START + moment * HOUR // 2, later))
    return offset, changes


LOOKS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=10, max_size=40)


@pytest.mark.thorough
@given(st.sampled_from(EXPRESSIONS), st.lists(zones(), min_size=1, max_size=3), LOOKS)
@example("30 2 * * *", [(HOUR, []), (2 * HOUR, [])], [(0, True), (1, True)])
@example("*/30 * * * *", [(2 * HOUR, [(START + 48 * HOUR, HOUR)]), (HOUR, [])], [(0, True), (1, False)])
def test_whatever_their_data_is_no_occurrence_is_fired_twice_and_no_common_one_is_lost(
    expression: str, data: list[Data], looks: list[tuple[int, bool]]
) -> None:
    """In the order of the clock for each fold. Common is what every process knows, at one moment."""
    found = Processes.declared([cron_in(expression, offset, *changes) for offset, changes in data])
    for number, now in enumerate(range(START * 1000, (END + 24 * HOUR) * 1000, EVERY_MS)):
        process, starts = looks[number % len(looks)]
        found.look(process % len(data), now, starts=starts, older=False)
    names = [(one.local, one.fold) for one in found.fired]
    assert len(names) == len(set(names))
    for fold in (0, 1):
        for before, after in pairwise(one.local for one in found.fired if one.fold == fold):
            assert before < after
    if expression.count(",") + expression.count("/") == 0:
        assert len({one.local.date() for one in found.fired}) == len(found.fired)
    fired = {one.local for one in found.fired}
    for local in common(found.crons):
        assert local in fired


@pytest.mark.thorough
@given(st.sampled_from(EXPRESSIONS), zones(), LOOKS, st.sets(st.integers(0, 39)))
def test_processes_with_the_same_data_fire_what_the_expression_says(
    expression: str, data: Data, looks: list[tuple[int, bool]], older: set[int]
) -> None:
    """Each time at its moment and once, also if some have an older version, which knows no wall-clock times."""
    cron = cron_in(expression, data[0], *data[1])
    found = Processes.declared([cron, cron, cron])
    end = END * 1000
    for number, now in enumerate(range(START * 1000, end + 1, EVERY_MS)):
        process, starts = looks[number % len(looks)]
        assert not found.look(process, now, starts=starts, older=number % len(looks) in older)
    assert [one.at for one in found.fired] == list(cron.between(START * 1000, end))


def common(crons: Sequence[Cron]) -> set[datetime]:
    """The times that each process finds, at one moment of its own, in the days that are looked at."""
    return set.intersection(
        *(
            {
                one.local
                for one in (occurrence(cron, each) for each in cron.between((START + 24 * HOUR) * 1000, END * 1000))
                if cron.names(one.local) and is_single(cron, one)
            }
            for cron in crons
        )
    )


def is_single(cron: Cron, one: Occurrence) -> bool:
    return reached(cron, evolve(one, fold=0)) == reached(cron, evolve(one, fold=1))
