"""The sections of the report: their text, their order, their tables and plots.

Owns words, order and cuts. Computes nothing but sums and shares of the values it shows. Text of the log goes into cells
and legends, which the template escapes. Plots are made of numbers alone; the template does not escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from markupsafe import Markup

from lanelog._base.text import plural
from lanelog.spark.report import plots
from lanelog.spark.report.columns import ReportColumn, number, table, text
from lanelog.spark.report.parts import Cell, Facts, Plot, Row, Section, total
from lanelog.spark.report.text import count, duration, hour, moment, plain, share, size, span

TOPICS_DRAWN: Final = 3
"""Topics whose timeline the report draws, the largest first."""
_LANES_SHOWN: Final = 5
_TONES: Final = {"retrying": "warn", "postponed": "muted"}


def sections(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> list[Section]:
    """Return all sections."""
    return [make(facts, tables) for make in _SECTIONS]


def _throughput(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    topics = tables["topics"]
    most = max((row["messages"] for row in topics), default=0)
    columns = (
        text("Topic", "topic"),
        number("Messages", "messages", of=most),
        number("Payload", "bytes", size),
        number("In its busiest hour", "peak_messages"),
        ReportColumn("which was", lambda row: Cell(hour(row["peak_start"]))),
    )
    drawn: list[Plot] = []
    timeline = _by(tables["timeline"], "topic")
    within = (_ms(facts.first), _ms(facts.last)) if facts.first and facts.last else (0, 0)
    for colour, topic in enumerate(row["topic"] for row in topics[:TOPICS_DRAWN]):
        if len(timeline[topic]) == 1:
            continue  # one bar shows less than its row in the table says
        for column, what, sizes in (("messages", "messages", False), ("bytes", "payload", True)):
            points = [(_ms(row["start"]), row[column] or 0) for row in timeline[topic]]
            bars = partial(plots.over_time, step_ms=facts.step_ms, within=within, colour=colour, sizes=sizes)
            drawn += _plot(bars, points, title=plain(topic), note=f"{what} per {span(facts.step_ms)}, UTC")
    return Section(
        name="throughput",
        title="Throughput",
        text="What was written to each topic, by the time at which the database wrote it.",
        plots=drawn,
        tables=table(columns, topics),
        nothing="No message is in what was read.",
    )


def _latency(_: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    ranks = _ranks(tables)
    order = sorted(tables["latency"], key=lambda row: (ranks.get(_pair(row), len(ranks)), _pair(row)))
    columns = (
        text("Group", "consumer_group"),
        text("Topic", "topic"),
        ReportColumn("Samples", _samples, number=True),
        number("p50", "p50_ms", duration),
        number("p95", "p95_ms", duration),
        number("p99", "p99_ms", duration),
        number("Longest", "max_ms", duration),
    )
    curves = _by(tables["latency_spread"], "consumer_group", "topic")
    chosen = [(ranks[_pair(row)], row) for row in order if row["samples"]]
    chosen = [(colour, row) for colour, row in chosen if colour < plots.COLOURS]
    drawn = _plot(
        plots.cumulative_shares,
        [(colour, [(each["upto_ms"], each["messages"]) for each in curves[_pair(row)]]) for colour, row in chosen],
        title="How many had succeeded within …",
        note="share of the messages that succeeded; logarithmic time",
        legend=[(colour + 1, f"{_name(row)}: half within {duration(row['p50_ms'])}") for colour, row in chosen],
    )
    return Section(
        name="latency",
        title="Latency",
        text="From a message's writing to its first success; neither a delay counts nor how long it was a dead letter, "
        "as long as log or archive holds it (else from its first publish). "
        "p95 is the time that 95\u00a0% of the messages did not exceed.",
        plots=drawn,
        tables=table(columns, order),
        nothing="No group is registered, and no outcome is archived.",
    )


def _samples(row: Row) -> Cell:
    if row["samples"]:
        return Cell(count(row["samples"]))
    return Cell("no success yet" if row["keeps_history"] else "keeps no history", tone="muted")


def _attempts(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    pairs = _by(tables["attempts"], "consumer_group", "topic")
    rows: list[Row] = []
    series: list[tuple[int, dict[int, int]]] = []
    legend: list[tuple[int, str]] = []
    for pair, colour in _ranks(tables).items():
        if pair not in pairs:
            continue
        of = total(pairs[pair], "messages")
        by_number = _by(pairs[pair], "attempts")
        if colour < plots.COLOURS:
            series.append((colour, {attempts: total(each, "messages") for attempts, each in by_number.items()}))
            legend.append((colour + 1, _name(pairs[pair][0])))
        for attempts in sorted(by_number):
            messages = total(by_number[attempts], "messages")
            ended = ", ".join(f"{count(each['messages'])} {plain(each['outcome'])}" for each in by_number[attempts])
            rows.append(
                {
                    "consumer_group": pair[0],
                    "topic": pair[1],
                    "attempts": attempts,
                    "messages": messages,
                    "share": messages / of,
                    "ended": ended,
                }
            )
    columns = (
        text("Group", "consumer_group"),
        text("Topic", "topic"),
        number("Attempts", "attempts"),
        ReportColumn("Messages", lambda row: Cell(count(row["messages"]), row["share"]), number=True),
        number("Share", "share", share),
        ReportColumn("How they ended", lambda row: Cell(row["ended"])),
    )
    logarithmic = series and plots.is_logarithmic([each for _, each in series])
    drawn = _plot(
        plots.tries,
        series,
        title="Attempts that a message needed",
        note="messages by number of attempts" + ("; logarithmic axis" if logarithmic else ""),
        legend=legend,
    )
    none = "No group that was read keeps history." if facts.live else "No outcome is in the archive."
    return Section(
        name="attempts",
        title="Attempts",
        text="How often a message was started before it was done with, of the groups that keep history.",
        plots=drawn,
        tables=table(columns, rows),
        nothing="No outcome yet." if facts.keeps_history else none,
    )


def _dead_letters(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    order = tables["dead_letters"]
    most = max((row["dead_letters"] for row in order), default=0)
    live = facts.outstanding is not None
    columns = (
        ReportColumn("Reason", _reason),
        number("Dead letters", "dead_letters", of=most),
        *([ReportColumn("Outstanding", _outstanding, number=True)] if live else []),
        text("Topic", "original_topic"),
        text("Group", "failed_group"),
        ReportColumn("Last, UTC", lambda row: Cell(moment(row["last_failed_at"]).removesuffix(" UTC"))),
        ReportColumn(
            "Last one's key", lambda row: Cell(f"{plain(row['example_key'], 60)}, offset {row['example_offset']}")
        ),
    )
    return Section(
        name="dead-letters",
        title="Dead letters",
        text="What groups gave up, by the first line of the error, where every number is #; also those redriven or "
        "deleted since, as long as log or archive holds them."
        + (" Outstanding are those in the log that are neither." if live else ""),
        tables=table(columns, order, of=facts.counted["dead_letters"]),
        nothing="No dead letter is in what was read.",
    )


def _reason(row: Row) -> Cell:
    return Cell(plain(row["reason"]) or "no error was recorded", tone="" if row["reason"] else "muted")


def _outstanding(row: Row) -> Cell:
    return Cell(count(row["outstanding"]), tone="warn" if row["outstanding"] else "")


def _lanes(_: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    skews = sorted(tables["skew"], key=lambda row: (-row["messages"], row["topic"]))
    uneven = (
        text("Topic", "topic"),
        number("Lanes", "lanes"),
        number("Gini", "gini", "{:.3f}".format, of=1),
        number("Share of the top 1\u00a0%", "top_share", share, of=1),
        ReportColumn("which are", lambda row: Cell(plural(row["top_lanes"], "lane")), number=True),
    )
    lanes = _by(tables["hot_lanes"], "topic")
    hot = [row for skewed in skews[:TOPICS_DRAWN] for row in lanes[skewed["topic"]][:_LANES_SHOWN]]
    busiest = (
        text("Topic", "topic"),
        number("Place", "place"),
        text("Lane", "key"),
        number("Messages", "messages"),
        number("Share", "share", share, of=1),
        number("Payload", "bytes", size),
    )
    sizes = _by(tables["lane_sizes"], "topic")
    drawn = _plot(
        plots.unevenness,
        [[(each["messages"], each["lanes"]) for each in sizes[row["topic"]]] for row in skews[: plots.COLOURS]],
        title="Lanes, the smallest first, and their share of the messages",
        note="along the dashed line all lanes are equal",
        legend=[
            (colour, f"{plain(row['topic'])}: Gini {row['gini']:.3f}")
            for colour, row in enumerate(skews[: plots.COLOURS], 1)
        ],
    )
    return Section(
        name="lanes",
        title="Lanes",
        text="How evenly messages are spread: Gini is 0 when all lanes are equal, and near 1 when one has everything.",
        plots=drawn,
        tables=[*table(uneven, skews), *table(busiest, hot, most=len(hot))],
        nothing="No lane is in what was read.",
    )


def _lag(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    order = sorted(tables["lag"], key=lambda row: (-row["lag"], row["topic"], row["consumer_group"]))
    most = max((row["lag"] for row in order), default=0)
    columns = (
        text("Group", "consumer_group"),
        ReportColumn("Role", lambda row: Cell(row["role"])),
        text("Topic", "topic"),
        number("Lag, messages", "lag", of=most),
        number("Lanes behind", "lanes"),
        number("Age of the oldest", "oldest_ms", duration),
        ReportColumn(
            "State", lambda row: Cell("paused", tone="warn") if row["paused"] else Cell("not paused", tone="muted")
        ),
    )
    return Section(
        name="lag",
        title="Lag",
        text="Messages written up to the cut-off that a group had not settled when its progress was read, just after.",
        tables=table(columns, order),
        nothing="No group is registered." if facts.live else "Only the archive was read: lag is in the live log.",
    )


def _stalled(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> Section:
    columns = (
        text("Group", "consumer_group"),
        text("Topic", "topic"),
        text("Lane", "key"),
        number("Still for", "still_ms", duration),
        number("Lag, messages", "lag"),
        ReportColumn("State", lambda row: Cell(row["state"], tone=_TONES.get(row["state"], ""))),
        number("Attempts", "attempts"),
        text("Last error", "last_error"),
    )
    return Section(
        name="stalled",
        title="Stalled lanes",
        text=f"Lanes with something to do in which a group has settled nothing for {duration(facts.stalled_after_ms)}, "
        "or whose oldest message has been failing for as long."
        + (
            " A postponed one waits as its handler wants it to."
            if facts.counted["stalled_lanes"] > facts.stalled
            else ""
        ),
        tables=table(columns, tables["stalled_lanes"], of=facts.counted["stalled_lanes"]),
        nothing="No lane stalls." if facts.live else "Only the archive was read: progress is in the live log.",
    )


_SECTIONS: Final[tuple[Callable[[Facts, Mapping[str, Sequence[Row]]], Section], ...]] = (
    _throughput,
    _latency,
    _attempts,
    _dead_letters,
    _lanes,
    _lag,
    _stalled,
)


# -- helpers -----------------------------------------------------------------------------------------------------------


def _plot(
    draw: Callable[[Any], str], series: Sequence[Any], *, title: str, note: str, legend: Sequence[tuple[int, str]] = ()
) -> list[Plot]:
    """Draw a plot; none if there is nothing to draw."""
    if not series:
        return []
    svg = Markup(draw(series))  # noqa: S704 - a plot is made of numbers alone
    return [Plot(svg=svg, title=title, note=note, legend=legend)]


def _ranks(tables: Mapping[str, Sequence[Row]]) -> dict[tuple[str, str], int]:
    """Return the ranks of groups and topics with known outcomes, those with most first.

    The rank is the colour in all plots.
    """
    known = {_pair(row): row["samples"] for row in tables["latency"] if row["samples"]}
    for pair, rows in _by(tables["attempts"], "consumer_group", "topic").items():
        known[pair] = total(rows, "messages")
    return {pair: rank for rank, pair in enumerate(sorted(known, key=lambda pair: (-known[pair], pair)))}


def _by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Return rows by one column, or by a tuple of several, in their order."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        name = tuple(row[column] for column in columns) if len(columns) > 1 else row[columns[0]]
        found.setdefault(name, []).append(row)
    return found


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _pair(row: Row) -> tuple[str, str]:
    return row["consumer_group"], row["topic"]


def _name(row: Row) -> str:
    return f"{plain(row['consumer_group'], 40)} on {plain(row['topic'], 40)}"
