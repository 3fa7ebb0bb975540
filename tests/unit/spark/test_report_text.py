"""How the report writes numbers, sizes, times, and what others have written."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="lanelog[spark] is not installed")

from lanelog.spark.report import text
from lanelog.spark.report.plots import lorenz

SHOWN = {
    text.count: {0: "0", 7: "7", 999: "999", 1000: "1,000", 1234567: "1,234,567", None: "—"},
    text.short_count: {
        0: "0", 0.5: "0.5", 999: "999", 1000: "1k", 1500: "1.5k", 20_000: "20k", 3e6: "3M", 2e9: "2G",
    },
    text.size: {
        0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1.0 KiB", 10 * 1024: "10 KiB",
        1024 * 1024 - 1: "1.0 MiB", 5 * 1024**3: "5.0 GiB", 10**21: "867 EiB", None: "—",
    },
    text.duration: {
        0: "0 ms", 999: "999 ms", 1000: "1.00 s", 1259: "1.25 s", 59_999: "59.9 s", 60_999: "1 min",
        185_000: "3 min 05 s", 7_620_000: "2 h 07 min", 86_400_000 * 4 + 7_200_000: "4 d 02 h", None: "—",
    },
    text.span: {1000: "second", 5000: "5 seconds", 60_000: "minute", 3_600_000: "hour", 86_400_000 * 7: "7 days"},
    text.share: {
        0.0: "0 %", 1.0: "100 %", 0.125: "12.5 %", 0.5: "50 %", 0.0005: "0.05 %", 0.00001: "< 0.01 %", 0.1: "10 %",
        None: "—",
    },
}  # fmt: skip


@pytest.mark.parametrize("function", SHOWN, ids=lambda function: function.__name__)
def test_numbers_have_units(function: Callable[..., str]) -> None:
    """Never 1024 of one unit; durations are rounded down; what is not nought is not shown as nought."""
    assert {value: function(value) for value in SHOWN[function]} == SHOWN[function]


def test_times_are_in_utc() -> None:
    """Times of any zone are shown in UTC."""
    there = datetime(2026, 6, 1, 12, 30, 15, tzinfo=timezone(timedelta(hours=2)))
    assert text.moment(there) == "2026-06-01 10:30:15 UTC"
    assert (text.hour(there.astimezone(UTC)), text.moment(None)) == ("2026-06-01 10:30 UTC", "—")


def test_text_of_others_is_one_visible_line() -> None:
    """Line breaks, control characters and marks that turn the writing direction are shown as what they are."""
    assert text.plain("a\nb\x1b[31m\u202egnp.exe\x00") == "a\\nb\\x1b[31m\\u202egnp.exe\\x00"
    assert text.plain("ключ 🦊 鍵") == "ключ 🦊 鍵"
    assert (text.plain("x" * 500), text.plain(None)) == ("x" * 119 + "…", "—")


@given(st.text())
def test_any_text_can_be_shown(value: str) -> None:
    """Halves of surrogate pairs print, too."""
    assert text.plain(value, 10**6).isprintable()


def test_a_lorenz_curve_goes_from_nothing_to_everything() -> None:
    """Half of four lanes hold a quarter; of many sizes only so many points are drawn, and it never falls."""
    assert lorenz([(1, 2), (3, 2)]) == [(0.0, 0.0), (50.0, 25.0), (100.0, 100.0)]
    many = lorenz([(size, 1) for size in range(1, 10_000)], most=50)
    assert (many[0], many[-1]) == ((0.0, 0.0), (100.0, 100.0))
    assert len(many) <= 2 * 50 + 2
    assert many == sorted(many)
    assert all(held <= lanes + 1e-9 for lanes, held in many)
