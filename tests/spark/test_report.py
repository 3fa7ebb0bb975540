"""The report: complete, self-contained, and safe whatever the log holds."""

import re
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from lanelog.spark.analysing.analysis import step_for
from lanelog.spark.report.page import render
from lanelog.spark.report.plots import axis_of, byte_ticks, days_of, over_time, ticks_within, unevenness
from lanelog.spark.report.text import short_size
from support.reports import HOSTILE, ODD, facts, full, nothing

SECTIONS = ["Throughput", "Latency", "Attempts", "Dead letters", "Lanes", "Lag", "Stalled lanes"]
TILES = {"Messages", "Lanes", "Busiest hour", "Dead letters", "Largest lag", "Stalled lanes"}
ACTIVE = {
    *["script", "iframe", "object", "embed", "link", "base", "form", "img", "image", "audio", "video", "foreignobject"]
}
pytestmark = pytest.mark.thorough


@cache
def page_of(text: str = ODD) -> str:
    """The report in which that text stands wherever the log's own words do."""
    return render(*full(text))


class Elements(HTMLParser):
    """What is in a page: elements with their attributes, and text by the element that it stands in."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip() and self.elements:
            self.text.append((self.elements[-1][0], data.strip()))

    def within(self, tag: str) -> list[str]:
        return [text for where, text in self.text if where == tag]


def tile(page: Elements, label: str) -> list[str]:
    """The figure and the note of a tile."""
    values = page.within("span")
    at = values.index(label)
    return values[at + 1 : at + 3]


def tone_of(page: Elements, label: str) -> str:
    """In which colour the figure of a tile is written."""
    labels = [text for text in page.within("span") if text in TILES]
    tones = [
        attrs["class"] or "" for tag, attrs in page.elements if tag == "span" and "value" in (attrs.get("class") or "")
    ]
    return tones[labels.index(label)].removeprefix("value").strip()


def test_the_report_has_every_section_and_says_what_was_read() -> None:
    """Headings in order; archive, live log and cut-off in the first line and in the window's title."""
    page = Elements(page_of())
    assert page.within("h2") == SECTIONS
    read = next(text for tag, text in page.text if text.startswith("Read:") and tag == "p")
    assert "the archive /data/archive and the live log mysql://reports@db.example.net:3306/jobs" in read
    assert read.endswith("up to 2026-06-04 05:17:00 UTC.")
    assert page.within("title") == [f"lanelog: {read}"]
    assert len([tag for tag, _ in page.elements if tag == "svg"]) == 6 + 3
    assert sum(ODD in text for _, text in page.text) >= 10


def test_numbers_have_units() -> None:
    """A latency in ms, a size in MiB, a share in per cent; what a group does not record is said.

    Dead letters are counted as what they are, too: messages, each in a lane of its own.
    """
    page = Elements(page_of())
    assert tile(page, "Messages") == ["265,584", "217 MiB of payload, with 380 dead letters"]
    assert tile(page, "Lanes") == ["980", "in 3 topics, with those of dead letters"]
    texts = [text for _, text in page.text]
    for expected in ("42 ms", "1 min 04 s", "138 MiB", "37.2 %", "keeps no history", "1 h 31 min", "9 lanes", "2 KiB"):
        assert expected in texts


@pytest.mark.parametrize(
    "hostile", [HOSTILE, '"><svg onload=alert(1)>', "' onmouseover='alert(1)", "{{ 7 * 7 }}</style>"]
)
def test_text_of_the_log_is_text(hostile: str) -> None:
    """Whatever a key, a group, a reason or an error holds, the page has the same elements and shows it as it is."""
    plain, attacked = Elements(page_of()), Elements(page_of(hostile))
    assert [tag for tag, _ in attacked.elements] == [tag for tag, _ in plain.elements]
    assert [sorted(attrs) for _, attrs in attacked.elements] == [sorted(attrs) for _, attrs in plain.elements]
    assert sum(hostile in text for _, text in attacked.text) >= 5


def test_hostile_topics_and_paths_are_text_everywhere() -> None:
    """Also in the title, in the first line, and in what plots are called for those who cannot see them."""
    _, tables = full()
    for rows in tables.values():
        for row in rows:
            row.update({name: HOSTILE for name in ("topic", "original_topic") if name in row})
    known = facts(topics=[HOSTILE], archive=f"/{HOSTILE}", live=HOSTILE)
    page = Elements(render(known, {**tables, "skew": tables["skew"][:1]}))
    assert not ACTIVE & {tag for tag, _ in page.elements}
    assert any(HOSTILE in (attrs.get("aria-label") or "") for _, attrs in page.elements)


def test_nothing_is_loaded_and_nothing_runs() -> None:
    """No element that fetches or runs, no address outside the page, and a policy that forbids the rest."""
    html = page_of(HOSTILE)
    page = Elements(html)
    assert not ACTIVE & {tag for tag, _ in page.elements}
    for _, attrs in page.elements:
        for name, value in attrs.items():
            assert not name.startswith("on"), (name, value)
            if name in {"src", "href", "xlink:href", "data", "action", "poster", "srcset"}:
                assert (value or "").startswith("#"), (name, value)
    styles = " ".join([*page.within("style"), *(attrs.get("style") or "" for _, attrs in page.elements)])
    assert re.findall(r"@import|url\((?!#)[^)]*\)", styles) == []
    (policy,) = [attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert (policy or "").startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_a_report_of_nothing_says_so() -> None:
    """Every section stands there and says what is missing; there is no empty table and no empty plot."""
    page = Elements(render(facts(topics=[], first=None, last=None), nothing()))
    assert page.within("h2") == SECTIONS
    assert not {"table", "svg"} & {tag for tag, _ in page.elements}
    assert "No message is in what was read." in page.within("p")
    assert "No lane stalls." in page.within("p")


def test_what_is_not_known_is_not_nought() -> None:
    """Without the live log, lag and stalled lanes are unknown; no outcome yet differs from no history."""
    page = Elements(render(facts(live=None, topics=[]), nothing()))
    assert "Only the archive was read: lag is in the live log." in page.within("p")
    assert "Stalled lanes" not in page.within("span")
    assert "No group that was read keeps history." in Elements(render(facts(), nothing())).within("p")
    assert "No outcome yet." in Elements(render(facts(keeps_history=True), nothing())).within("p")


def test_long_tables_are_cut_and_say_so() -> None:
    """Fifteen rows, how many there are, also where no more than those are handed over, and how many the file has."""
    known, tables = full()
    tables["stalled_lanes"] = [{**tables["stalled_lanes"][0], "key": f"k{n}"} for n in range(15)]
    known = evolve(known, counted={"dead_letters": 23_456, "stalled_lanes": 1234})
    tables["dead_letters"] *= 4
    page = Elements(render(known, tables))
    assert "The first 15 of 1,234; the file has all of them." in page.within("p")
    assert "The first 15 of 23,456; the file has the first 10,000." in page.within("p")
    assert {"k14", "k15"} & {*page.within("span")} == {"k14"}


def test_the_largest_lag_is_a_consumers() -> None:
    """An archive that is further behind is in the table, as what it is, and not among the figures at the top.

    Whether anybody runs a group is not known; whether an operator has paused it is.
    """
    page = Elements(page_of())
    assert tile(page, "Largest lag") == ["1,204", "group billing on orders"]
    states = set(page.within("span"))
    assert {"archive", "consumer", "paused", "not paused"} <= states
    assert "running" not in states


def test_dead_letters_alarm_while_they_are_outstanding() -> None:
    """Letters that were redriven or deleted are counted and alarm nobody; without the live log, all of them do."""
    known, tables = full()
    for outstanding, note, tone in (
        (44, "of 4 reasons, 44 outstanding", "warn"),
        (380, "of 4 reasons, all outstanding", "warn"),
        (0, "of 4 reasons, none outstanding", "good"),
        (None, "of 4 reasons", "warn"),
    ):
        page = Elements(render(evolve(known, outstanding=outstanding), tables))
        assert (tile(page, "Dead letters"), tone_of(page, "Dead letters")) == (["380", note], tone)
        assert ("Outstanding" in page.within("th")) == (outstanding is not None)
    page = Elements(render(facts(), nothing()))
    assert tile(page, "Dead letters") == ["0", "none in what was read"]


def test_postponed_lanes_alarm_nobody() -> None:
    """Postponed lanes are in the table, and distinguished from those that stall."""
    known, tables = full()
    assert tile(Elements(page_of()), "Stalled lanes") == ["3", "still for 5 min or longer; 1 more postponed"]
    tables["stalled_lanes"] = [row for row in tables["stalled_lanes"] if row["state"] == "postponed"]
    page = Elements(render(evolve(known, stalled=0, counted={**known.counted, "stalled_lanes": 1}), tables))
    assert (tile(page, "Stalled lanes")[0], tone_of(page, "Stalled lanes")) == ("0", "good")
    assert "postponed" in page.within("span")


def test_a_group_has_one_colour() -> None:
    """In the plots of latency and of attempts, also where one has more messages and the other more successes."""
    known, tables = full()
    tables["attempts"].append({**tables["attempts"][-1], "attempts": 5, "outcome": "failed", "messages": 900_000})
    html = render(known, tables)
    for group in ("billing", ODD):
        colours = re.findall(rf'<li style="--colour: var\(--c(\d)\)">{group} on orders(?:: half|</li>)', html)
        assert colours == [("2" if group == "billing" else "1")] * 2


def test_a_logarithmic_axis_is_named() -> None:
    """Of attempts too, where the bars need one, and only there."""
    known, tables = full()
    assert "messages by number of attempts; logarithmic axis" in Elements(page_of()).within("span")
    tables["attempts"] = tables["attempts"][-1:]
    assert "messages by number of attempts" in Elements(render(known, tables)).within("span")


def test_a_single_bar_is_no_plot() -> None:
    """A topic that was written to in one step of the time line stands in the table alone."""
    known, tables = full()
    first = next(row for row in tables["timeline"] if row["topic"] == "orders_dlq")
    tables["timeline"] = [row for row in tables["timeline"] if row["topic"] != "orders_dlq"] + [first]
    html = render(known, tables)
    assert html.count('aria-label="orders: ') == 2
    assert 'aria-label="orders_dlq: ' not in html
    assert "orders_dlq" in Elements(html).within("span")


def test_equal_lanes_leave_the_line_of_equality_in_sight() -> None:
    """The line is drawn above the curves, of which that of an even topic lies on it."""
    plot = unevenness([[(7, 100)]])
    assert plot.index("stroke-dasharray") > plot.rindex("var(--c1)")


def test_the_same_results_give_the_same_page() -> None:
    """Byte for byte, plots included."""
    assert render(*full()) == page_of()


def test_plots_take_their_colours_from_the_page() -> None:
    """No colour of its own: what is dark in light must be light in dark."""
    html = page_of()
    body = html[html.index("<body>") :]
    assert re.findall(r"#[0-9a-f]{6}\b", body) == []
    assert {"var(--c1)", "var(--ink)"} <= {*re.findall(r"var\(--\w+\)", body)}


SECOND, DAY = 1000, 86_400_000
NOW = 1_780_308_000_000


@given(begin=st.integers(0, 2 * NOW), span=st.integers(SECOND, 9000 * DAY))
def test_any_time_has_round_ticks(begin: int, span: int) -> None:
    """From a second to decades: one to five, within the axis, in order, no two neighbours written alike."""
    ticks = ticks_within(begin, begin + span)
    moments, labels = [ms for ms, _ in ticks], [label for _, label in ticks]
    assert 1 <= len(moments) <= 5
    assert moments == sorted(set(moments))
    assert all(begin <= ms <= begin + span and ms % 100 == 0 for ms in moments)
    assert span < 2 * SECOND or all(ms % SECOND == 0 for ms in moments)
    assert all(label != following for label, following in pairwise(labels))


@pytest.mark.parametrize(
    ("begin", "span", "labels"),
    [
        (NOW + 240, 1300, ["10:00:00.5", "10:00:01.0", "10:00:01.5"]),
        (NOW, 4 * SECOND, ["10:00:00", "10:00:01", "10:00:02", "10:00:03", "10:00:04"]),
        (NOW, 174 * SECOND, ["10:00", "10:01", "10:02"]),
        (NOW, DAY, ["12:00", "18:00", "02 Jun", "06:00"]),
        (NOW, 4 * DAY, ["02 Jun", "03 Jun", "04 Jun", "05 Jun"]),
    ],
)
def test_ticks_are_at_round_times(begin: int, span: int, labels: list[str]) -> None:
    """At full tenths of a second, seconds, minutes, hours and days, UTC."""
    assert [label for _, label in ticks_within(begin, begin + span)] == labels


@given(first=st.integers(0, 2 * NOW), span=st.integers(0, 9000 * DAY))
def test_the_axis_holds_every_bar(first: int, span: int) -> None:
    """From the beginning of the first message's step to the end of the last one's."""
    step = step_for(*(datetime.fromtimestamp(ms / 1000, UTC) for ms in (first, first + span)))
    begin, end = axis_of((first, first + span), step)
    assert begin <= first - first % step
    assert end >= first + span - (first + span) % step + step


def test_the_room_at_the_sides_is_no_day_of_the_log() -> None:
    """A message of ten minutes after midnight is one of that day, though the axis begins before it."""
    hour, began = 3600 * SECOND, NOW - NOW % DAY
    plot = over_time([(began, 1)], hour, (began + 600 * SECOND, began + 20 * hour))
    assert ">2026-06-01<" in plot


@given(st.integers(0, 1 << 60))
def test_bytes_have_binary_ticks(highest: int) -> None:
    """Nought and one to four more, evenly, up to the highest bar, in the units of the tables."""
    ticks = byte_ticks(highest)
    assert ticks[0] == 0
    assert 1 <= len(ticks) - 1 <= 4 or highest == 0
    assert ticks[-1] <= highest
    assert len({later - earlier for earlier, later in pairwise(ticks)}) <= 1
    assert all(len(short_size(each)) <= len("1.875 MiB") for each in ticks)


def test_sizes_at_an_axis() -> None:
    """Short, and in the units of the tables."""
    sizes = [0, 3, 512, 1024, 96 * 1024, 3 << 19, 1 << 40]
    assert [short_size(each) for each in sizes] == [
        *("0", "3 bytes", "512 bytes", "1 KiB", "96 KiB", "1.5 MiB", "1 TiB")
    ]


@pytest.mark.parametrize("span", [0, 1, 999, 2 * SECOND, 174 * SECOND, 3600 * SECOND, 40 * DAY, 4000 * DAY])
def test_every_span_of_time_can_be_drawn(span: int) -> None:
    """Also a single moment, whose one bar does not fill the plot; the day, or the days, stand below."""
    step = step_for(*(datetime.fromtimestamp(ms / 1000, UTC) for ms in (NOW, NOW + span)))
    plot = over_time([(NOW - NOW % step, 3)], step, (NOW, NOW + span))
    assert plot.startswith("<svg")
    last = datetime.fromtimestamp((NOW + span) / 1000, UTC).date()
    assert days_of(NOW, NOW + span) == ("2026-06-01" if span < DAY else f"2026-06-01 to {last}")
