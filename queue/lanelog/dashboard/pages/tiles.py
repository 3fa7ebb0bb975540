"""The tiles of the front page: the state of the log in six numbers, four of them with their last hour as a curve.

Owns which numbers these are. Curves come from `charts`, the other values from the status that all pages share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from lanelog._base.text import age
from lanelog.admin import Status
from lanelog.dashboard.charts import Chart, ChartLine
from lanelog.dashboard.views import link

UNKNOWN: Final = "-"


@frozen(kw_only=True)
class WebTile:
    """One tile."""

    title: str
    value: str
    href: str
    """Where more is seen."""
    tone: str = ""
    lines: tuple[ChartLine, ...] = ()
    """Its curve. Empty: it has none, or there are no two samples yet."""
    top: str = ""
    """The value at the upper edge of the curve."""


def tiles(status: Status, drawn: Sequence[Chart]) -> list[WebTile]:
    """Return the tiles. `drawn`: the charts of all groups, or none."""
    rate, lag, oldest, latency = drawn or (None,) * 4
    members = f"{sum(each.members for each in status.groups):,}" if status.members_known else "unknown"
    return [
        _curve("Messages a second", _rates(rate), rate),
        _curve("Messages behind", f"{status.lag:,}", lag),
        _curve("Oldest message", age(status.oldest_age, exact=status.oldest_age_exact), oldest),
        _curve("Latency", _last(latency), latency),
        WebTile(
            title="Dead letters",
            value=f"{status.dead_letters:,}",
            href="dead-letters",
            tone="warn" if status.dead_letters else "",
        ),
        WebTile(title="Members", value=members, href="members", tone="" if members != "0" else "warn"),
    ]


def _curve(title: str, value: str, chart: Chart | None) -> WebTile:
    lines, top = (chart.lines, chart.top) if chart else ((), "")
    return WebTile(title=title, value=value, href=link("charts"), lines=lines, top=top)


def _rates(chart: Chart | None) -> str:
    if chart is None:
        return UNKNOWN
    published, settled = chart.lines
    return f"{published.now} in, {settled.now} out"


def _last(chart: Chart | None) -> str:
    return UNKNOWN if chart is None else chart.lines[0].now
