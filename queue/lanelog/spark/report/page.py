"""The HTML report of an analysis: one file with everything in it, which loads nothing and runs no script.

Owns the page and the figures at its top. Computes nothing but sums of the values it shows, and reads no log. Text of
the log reaches the page through the template alone, which escapes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from lanelog._base.text import plural
from lanelog.spark.report.parts import Facts, Row, Tile
from lanelog.spark.report.sections import sections
from lanelog.spark.report.text import count, duration, hour, moment, plain, size

_TEMPLATE: Final = "report.html.jinja"
_TOPICS_NAMED: Final = 12


def render(facts: Facts, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the page. `tables` are those of `analyze`, by name, as lists of rows; of long ones the first rows."""
    environment = Environment(
        loader=PackageLoader("lanelog.spark.report", "."),
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
    letters = facts.dead_letters
    copies = f", with {plural(letters, 'dead letter')}" if letters else ""
    tiles = [
        Tile("Messages", count(facts.messages), f"{size(facts.size)} of payload{copies}"),
        Tile(
            "Lanes",
            count(facts.lanes),
            f"in {plural(len(facts.topics), 'topic')}{', with those of dead letters' if letters else ''}",
        ),
    ]
    peak = max(tables["topics"], key=lambda row: row["peak_messages"], default=None)
    if peak:
        tiles.append(
            Tile(
                "Busiest hour",
                count(peak["peak_messages"]),
                f"messages of {plain(peak['topic'], 24)}, {hour(peak['peak_start'])}",
            )
        )
    alarming = letters if facts.outstanding is None else facts.outstanding
    tiles.append(Tile("Dead letters", count(letters), _reasons(facts), "warn" if alarming else "good"))
    if facts.live:
        consumers = [row for row in tables["lag"] if row["role"] == "consumer"]
        behind = max(consumers, key=lambda row: row["lag"], default=None)
        tiles += [
            Tile("Largest lag", count(behind["lag"] if behind else 0), _who(behind)),
            Tile(
                "Stalled lanes",
                count(facts.stalled),
                f"still for {duration(facts.stalled_after_ms)} or longer{_postponed(facts)}",
                "warn" if facts.stalled else "good",
            ),
        ]
    return tiles


def _reasons(facts: Facts) -> str:
    if not facts.dead_letters:
        return "none in what was read"
    reasons = f"of {plural(facts.reasons, 'reason')}"
    if facts.outstanding is None:
        return reasons
    number = {0: "none", facts.dead_letters: "all"}.get(facts.outstanding, count(facts.outstanding))
    return f"{reasons}, {number} outstanding"


def _postponed(facts: Facts) -> str:
    postponed = facts.counted["stalled_lanes"] - facts.stalled
    return f"; {count(postponed)} more postponed" if postponed else ""


def _who(row: Row | None) -> str:
    if row is None:
        return "no group is registered"
    if not row["lag"]:
        return "every group is at the end"
    return f"group {plain(row['consumer_group'], 40)} on {plain(row['topic'], 40)}"
