"""What a cron expression means: its fields, its time zone, and the two nights on which clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog import ConfigurationError
from lanelog._base.cron import parse

BERLIN = "Europe/Berlin"
ZONES = ["UTC", BERLIN, "America/New_York", "Asia/Kolkata", "Australia/Adelaide", "Africa/Casablanca"]


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    found = islice(parse(expression, zone).times(datetime.fromisoformat(after)), count)
    return [each.isoformat() for each in found]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_a_daily_time_comes_once_on_each_day(expression: str) -> None:
    """Skipped in spring, it is the end of the gap; twice in autumn, the first of the two, asked from wherever."""
    assert times(expression, BERLIN, "2027-03-27T00:00:00+01:00", 3) == [
        "2027-03-27T02:30:00+01:00",
        "2027-03-28T03:00:00+02:00",
        "2027-03-29T02:30:00+02:00",
    ]
    assert times(expression, BERLIN, "2027-10-30T00:00:00+02:00", 3) == [
        "2027-10-30T02:30:00+02:00",
        "2027-10-31T02:30:00+02:00",
        "2027-11-01T02:30:00+01:00",
    ]
    for between in ("2027-10-31T02:30:00+02:00", "2027-10-31T02:10:00+01:00", "2027-10-31T02:30:00+01:00"):
        assert times(expression, BERLIN, between, 1) == ["2027-11-01T02:30:00+01:00"]


def test_a_job_with_a_star_follows_the_clock_on_the_wall() -> None:
    """Times skipped in spring are left out, and times that come twice in autumn fire twice."""
    assert times("*/30 * * * *", BERLIN, "2027-03-28T01:00:00+01:00", 3) == [
        "2027-03-28T01:30:00+01:00",
        "2027-03-28T03:00:00+02:00",
        "2027-03-28T03:30:00+02:00",
    ]
    assert times("*/30 * * * *", BERLIN, "2027-10-31T01:30:00+02:00", 5) == [
        "2027-10-31T02:00:00+02:00",
        "2027-10-31T02:30:00+02:00",
        "2027-10-31T02:00:00+01:00",
        "2027-10-31T02:30:00+01:00",
        "2027-10-31T03:00:00+01:00",
    ]


def test_every_second_is_every_second_in_both_nights() -> None:
    """Six fields have the second in front; no second of real time is left out where the clocks change."""
    for night in ("2027-03-28T00:59:50+00:00", "2027-10-31T00:59:50+00:00"):
        begin = datetime.fromisoformat(night)
        found = list(islice(parse("* * * * * *", BERLIN).times(begin), 20))
        assert [(each - begin).total_seconds() for each in found] == list(range(1, 21))


def test_fields_may_be_lists_ranges_steps_names_and_the_last() -> None:
    """An expression may be what people write in a crontab, and have seconds."""
    assert times("15,45 9-10 * * MON", "UTC", "2026-11-21T00:00:00+00:00", 4) == [
        f"2026-11-23T{time}:00+00:00" for time in ("09:15", "09:45", "10:15", "10:45")
    ]
    assert times("*/20 0 0 1 JAN *", "UTC", "2026-11-21T00:00:00+00:00", 4) == [
        *(f"2027-01-01T00:00:{second}+00:00" for second in ("00", "20", "40")),
        "2028-01-01T00:00:00+00:00",
    ]
    assert times("0 0 L * *", "UTC", "2027-02-01T00:00:00+00:00", 2) == [
        "2027-02-28T00:00:00+00:00",
        "2027-03-31T00:00:00+00:00",
    ]


def test_times_are_later_than_asked_also_by_less_than_a_second() -> None:
    """The moment itself is not among them, the next whole second is."""
    cron = parse("* * * * * *", "UTC")
    assert {cron.after(after) for after in (1_000, 1_001, 1_999)} == {2_000}
    assert list(cron.between(1_000, 3_000)) == [2_000, 3_000]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "1 to 255 characters"),
        ("* * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("60 * * * * *", "bad second"),
        ("0 24 * * *", "bad hour"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 * * MONDAY", "bad day-of-week"),
        ("@daily", "wrong number of fields"),
        ("0 0 * * ²L", "plain text"),
        ("* * * * *" + " " * 300, "1 to 255 characters"),
        ("0\n0 * * *", "plain text"),
    ],
)
def test_a_bad_expression_is_refused(expression: str, said: str) -> None:
    """The error says which field it is, and the form."""
    with pytest.raises(ConfigurationError, match=said):
        parse(expression, "UTC")


@pytest.mark.parametrize("wrong", [None, 5, b"* * * * *", ["*"]])
def test_an_expression_or_zone_of_another_type_is_refused(wrong: object) -> None:
    """Before anything looks into it."""
    for pair in ((wrong, "UTC"), ("* * * * *", wrong)):
        with pytest.raises(ConfigurationError, match="must be a str"):
            parse(*pair)  # type: ignore[arg-type]


def test_an_expression_that_never_fires_is_refused_in_time() -> None:
    """Thirtieth of February: at once. A first or twenty-first that is a last Monday: after a search of fifty years."""
    with pytest.raises(ConfigurationError, match="bad day-of-month"):
        parse("0 0 30 2 *", BERLIN)
    with pytest.raises(ConfigurationError, match="never fires"):
        parse("* * */20 * 1L", BERLIN).after(ms("2026-11-21T00:00:00+00:00"))
    assert list(parse("0 0 1 1 *", "UTC").times(datetime(9998, 6, 1, tzinfo=UTC)))[1:] == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("CEST+", "unknown time zone"),
        ("../etc/passwd", "unknown time zone"),
        ("/etc/localtime", "unknown time zone"),
        ("localtime", "unknown time zone"),
        ("Europe", "unknown time zone"),
        ("", "1 to 64 characters"),
        ("x" * 65, "1 to 64 characters"),
    ],
)
def test_an_unknown_zone_is_refused(name: str, hint: str) -> None:
    """A name that means something else on every machine, and a path, are refused, too."""
    with pytest.raises(ConfigurationError, match=hint):
        parse("* * * * *", name)


@given(text=st.text(st.sampled_from("0123456789*/,-#LWMONJAN ?\t"), max_size=30))
def test_any_text_is_an_expression_or_a_configuration_error(text: str) -> None:
    """No text raises another error."""
    try:
        cron = parse(text, BERLIN)
        cron.after(ms("2027-03-28T00:30:00+00:00"))
    except ConfigurationError:
        return
    assert parse(cron.expression, BERLIN) == cron


@pytest.mark.thorough
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", ["*/7 * * * *", "3 * * * *", "*/20 1-3 * * *", "0 */2 * * *", "*/15 * * * 0"])
def test_a_job_with_a_star_fires_at_every_minute_of_real_time_whose_clock_matches(zone: str, expression: str) -> None:
    """Compared with a look at every minute of the days around each change of a year."""
    known = ZoneInfo(zone)
    minute = timedelta(minutes=1)
    for month, day in ((3, 13), (3, 27), (10, 30)):
        begin = datetime(2027, month, day, tzinfo=UTC)
        cron = parse(expression, zone)
        days = parse(expression, "UTC").times(begin - timedelta(days=1))
        matching = set(takewhile(lambda at, until=begin + timedelta(days=4): at <= until, days))
        every = [begin + number * minute for number in range(1, 3 * 1440)]
        wall = [each.astimezone(known).replace(tzinfo=UTC, fold=0) for each in every]
        expected = [at for at, shown in zip(every, wall, strict=True) if shown in matching]
        found = (at.astimezone(UTC) for at in cron.times(begin))
        assert list(takewhile(lambda at, until=every[-1]: at <= until, found)) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("zone", [*ZONES, "Australia/Lord_Howe", "Antarctica/Troll"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "15 1 * * *", "59 30 2 * * *", "0 0 * * *"])
def test_a_job_at_a_time_fires_once_on_each_day_of_a_year(zone: str, expression: str) -> None:
    """In every zone, whatever its clocks do; the same ones are found from anywhere in between."""
    cron = parse(expression, zone)
    found = list(islice(cron.times(datetime(2027, 1, 1, tzinfo=UTC)), 360))
    days = [each.date() for each in found]
    assert [b - a for a, b in pairwise(days)] == [timedelta(days=1)] * 359
    for before, at in pairwise(each.astimezone(UTC) for each in found):
        for back in (timedelta(seconds=1), timedelta(hours=1), timedelta(hours=2)):
            assert next(cron.times(max(before, at - back))).astimezone(UTC) == at


@given(
    expression=st.sampled_from(
        ["* * * * *", "* * * * * *", "7,40 */3 * * *", "*/25 0 12 * * *", "0 0 * * 1", "10,50 59 23 31 12 *"]
    ),
    zone=st.sampled_from([BERLIN, "UTC"]),
    begin=st.integers(ms("2027-01-01T00:00:00+00:00") // 500, ms("2027-12-31T00:00:00+00:00") // 500),
    seconds=st.integers(0, 7200),
)
def test_the_last_one_of_an_interval_is_the_last_of_all_in_it(
    expression: str, zone: str, begin: int, seconds: int
) -> None:
    """Found without going through all of them."""
    cron, after = parse(expression, zone), begin * 500
    until = after + seconds * 1000
    assert cron.last(after, until) == max(cron.between(after, until), default=None)


def test_the_last_one_of_years_of_seconds_is_found_at_once() -> None:
    """The search does not go through a hundred million times."""
    since, until = ms("2023-01-01T00:00:00+00:00"), ms("2028-01-01T00:00:00+00:00")
    assert parse("* * * * * *", BERLIN).last(since, until) == until
    assert parse("30 30 2 28 3 *", BERLIN).last(since, until) == ms("2027-03-28T03:00:30+02:00")
