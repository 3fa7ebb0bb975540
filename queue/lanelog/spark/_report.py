"""The HTML report of an analysis: one file with everything in it, which loads nothing and runs nothing.

Owns the page and the figures at its top; computes nothing but sums of what it shows, and reads no log. Text of the log
reaches the page through the template alone, which escapes all of it. Called by `analyze`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from lanelog.spark._report_parts import Facts, Row, Tile
from lanelog.spark._report_sections import sections
from lanelog.spark._report_text import count, duration, hour, moment, plain, plural, size

_TEMPLATE: Final = "_report.html.jinja"
_TOPICS_NAMED: Final = 12


def render(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> str:
    """The page. `tables` are those of `analyze`, by name, as lists of rows; of those in `FOREMOST` the first ones."""
    environment = Environment(
        loader=PackageLoader("lanelog.spark", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        facts=facts, read=_read(facts), tiles=_tiles(facts, tables), sections=sections(facts, tables), moment=moment
    )


def _read(facts: Facts) -> str:
    sources = [
        text
        for text, there in (
            (f"the archive {plain(facts.archive)}", facts.archive),
            (f"the live log {plain(facts.live)}", facts.live),
        )
        if there
    ]
    topics = plural(len(facts.topics), "topic")
    named = (
        f" ({', '.join(plain(topic, 40) for topic in facts.topics)})" if 0 < len(facts.topics) <= _TOPICS_NAMED else ""
    )
    return f"Read: {topics}{named} from {' and '.join(sources)}, up to {moment(facts.cutoff)}."


# -- the figures at the top --------------------------------------------------------------------------------------------


def _tiles(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> list[Tile]:
    letters, stalled = facts.dead_letters, facts.counted["stalled_lanes"]
    tiles = [
        Tile("Messages", count(facts.messages), f"{size(facts.size)} of payload"),
        Tile("Lanes", count(facts.lanes), f"in {plural(len(facts.topics), 'topic')}"),
    ]
    peak = max(tables["throughput"], key=lambda row: row["messages"], default=None)
    if peak:
        tiles.append(
            Tile(
                "Busiest hour",
                count(peak["messages"]),
                f"messages of {plain(peak['topic'], 24)}, {hour(peak['start'])}",
            )
        )
    tiles.append(Tile("Dead letters", count(letters), _reasons(facts), "warn" if letters else "good"))
    if facts.live:
        consumers = [row for row in tables["lag"] if row["role"] == "consumer"]
        behind = max(consumers, key=lambda row: row["lag"], default=None)
        tiles += [
            Tile("Largest lag", count(behind["lag"] if behind else 0), _who(behind)),
            Tile(
                "Stalled lanes",
                count(stalled),
                f"still for {duration(facts.stalled_after_ms)} or longer",
                "warn" if stalled else "good",
            ),
        ]
    return tiles


def _reasons(facts: Facts) -> str:
    return f"of {plural(facts.reasons, 'reason')}" if facts.dead_letters else "none were written"


def _who(row: Row | None) -> str:
    if row is None:
        return "no group is registered"
    return f"group {plain(row['consumer_group'], 40)}" if row["lag"] else "every group is at the end"
