"""What came out: the best of each figure, its ratio to what it is compared with, as a table and as a JSON file.

It never measures. `__main__` adds values as they come and prints or writes the report at the end.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from lanelog.devserver import DevServer

PACKAGES = ("lanelog", "PyMySQL", "DBUtils", "attrs", "tenacity")
MANY = 100


@frozen
class Figure:
    """How a figure is called, in which unit, and with which other one it is compared; rates are better when high."""

    title: str
    unit: str = "msg/s"
    ceiling: str = ""
    sketch: str = ""  # the same protocol without the library, if it is measured
    least: int = 0  # what the project promises itself on a machine of two cores; 0: nothing
    most: int = 0  # the same, of what is better when low

    @property
    def rate(self) -> bool:
        """Whether more is better."""
        return self.unit == "msg/s"


def _figures() -> dict[str, Figure]:
    found = {
        "raw_insert_single": Figure("raw SQL: insert, 1 thread"),
        "sketch_publish_single": Figure("sketch: publish, 1 thread", ceiling="raw_insert_single"),
        "publish_single": Figure("publish, 1 thread", ceiling="raw_insert_single", sketch="sketch_publish_single"),
        "raw_insert_8_threads": Figure("raw SQL: insert, 8 threads"),
        "sketch_publish_8_threads": Figure("sketch: publish, 8 threads", ceiling="raw_insert_8_threads"),
        "publish_8_threads": Figure(
            "publish, 8 threads", ceiling="raw_insert_8_threads", sketch="sketch_publish_8_threads"
        ),
        "sketch_publish_64_threads": Figure("sketch: publish, 64 threads in groups"),
        "publish_64_threads": Figure("publish, 64 threads", sketch="sketch_publish_64_threads"),
        "raw_insert_many_100": Figure("raw SQL: insert, 100 rows"),
        "publish_many_100": Figure("publish_many of 100", ceiling="raw_insert_many_100"),
    }
    for lanes, least in ((100, 15_000), (1000, 12_000), (10_000, 0), (100_000, 20_000)):
        of = f"{lanes:,} lanes"
        found[f"raw_read_{lanes}_lanes"] = Figure(f"raw SQL: read, {of}")
        found[f"sketch_consume_{lanes}_lanes"] = Figure(f"sketch: consume, {of}", ceiling=f"raw_read_{lanes}_lanes")
        found[f"consume_{lanes}_lanes"] = Figure(
            f"consume, {of}",
            ceiling=f"raw_read_{lanes}_lanes",
            sketch=f"sketch_consume_{lanes}_lanes",
            least=least,
        )
        found[f"first_message_{lanes}_lanes"] = Figure(f"time to first, {of}", "ms")
        found[f"statements_per_message_{lanes}_lanes"] = Figure(f"statements a message, {of}", "")
    found["consume_open_lanes"] = Figure("consume, 64 open lanes")
    found["first_message_open_lanes"] = Figure("time to first, 64 open lanes", "ms")
    found["statements_per_message_open_lanes"] = Figure("statements a message, 64 open lanes", "")
    found["insert_singly"] = Figure("insert a row and ack, one by one")
    found["insert_batch_lane"] = Figure("the same in batches of 100 of a lane", ceiling="insert_singly")
    found["insert_batch_lanes"] = Figure("the same in batches of 100 across lanes", ceiling="insert_singly")
    between = [
        f"{name}{told}" for told in ("", "_1000_lanes", "_without_hints") for name in ("other_process", "new_key")
    ]
    for name in ("same_process", "bare", *between):
        for percentile in ("p50", "p99"):
            title = f"latency, {name.replace('_', ' ').replace('bare', 'the sketch between processes')}, {percentile}"
            found[f"latency_{name}_{percentile}"] = Figure(title, "ms")
    found.update(_idle())
    found["publish_crowd_without_hints"] = Figure("publish, 10 processes, 50 subscribers, no hints")
    found["publish_crowd"] = Figure(
        "publish, 10 processes, 50 subscribers, hints", ceiling="publish_crowd_without_hints"
    )
    found["handle_1_process"] = Figure("handle, 1 ms of Python each, 1 process")
    found["handle_2_processes"] = Figure("handle, 1 ms of Python each, 2 processes", ceiling="handle_1_process")
    found.update(_measured())
    for which in ("none", "elsewhere", "wrong_token", "right_token"):
        title = f"consume, flood: {which.replace('_', ' ')}"
        found[f"consume_flood_{which}"] = Figure(title, ceiling="" if which == "none" else "consume_flood_none")
    for which in ("wrong_token", "right_token"):
        for what in ("sent", "taken"):
            found[f"flood_{what}_{which}"] = Figure(f"datagrams {what}, {which.replace('_', ' ')}", "1/s")
    for name in ("first", "again"):
        found[f"admin_status_{name}"] = Figure(f"lanelog status, 1M behind, {name}", "ms", most=400)
    found["admin_status_20_groups"] = Figure("lanelog status, 1M behind, 20 groups", "ms", most=1000)
    found["scrape_20_groups"] = Figure("scrape, 1M behind, 20 groups", "ms", most=1000)
    found["front_page_20_groups"] = Figure("first page, 1M behind, 20 groups", "ms", most=1000)
    for name, title in (("admin_status", "lanelog status"), ("scrape", "a scrape"), ("front_page", "the first page")):
        found[f"{name}_statements"] = Figure(f"statements of {title}, 20 groups", "")
    found["watched_statements"] = Figure("statements of looks, of those of 20 idle workers", "%", most=5)
    for by in ("age", "lag", "key"):
        found[f"lanes_page_by_{by}"] = Figure(f"page of 10,000 lanes by {by}", "ms", most=1000)
    found["first_message_million"] = Figure("time to first, 10,000 lanes, 1M behind", "ms", most=1000)
    found["memory_million"] = Figure("memory of that process", "MiB", most=150)
    return found


def _idle() -> dict[str, Figure]:
    """What idle lanes cost."""
    found = {
        f"idle_statements_1000_lanes{told}": Figure(f"statements idle, 1,000 lanes{told.replace('_', ' ')}", "1/s")
        for told in ("", "_without_hints")
    }
    for which in ("worker", "server"):
        found[f"idle_20000_lanes_{which}"] = Figure(f"20,000 idle lanes: {which}", "% of a core", most=3)
    found["idle_20000_lanes_statements"] = Figure("20,000 idle lanes: statements", "1/s", most=25)
    return found


def _measured() -> dict[str, Figure]:
    """The cost of metrics and traces."""
    found: dict[str, Figure] = {}
    for what, sorts in (
        ("consume", ("nothing", "prometheus", "otel")),
        ("publish", ("nothing", "prometheus", "otel", "traces", "spans")),
    ):
        for which in sorts:
            title = f"{what}, measured by {which}" if which != "nothing" else f"{what}, not measured"
            found[f"{what}_measured_{which}"] = Figure(
                title, ceiling="" if which == "nothing" else f"{what}_measured_nothing"
            )
    for which, told in (
        ("nothing", "not measured"),
        ("bare_spans", "a bare span each"),
        ("everything", "metrics and traces"),
    ):
        found[f"handle_measured_{which}"] = Figure(
            f"handle, 1 ms each, {told}", ceiling="" if which == "nothing" else "handle_measured_nothing"
        )
    return found


FIGURES = _figures()


def about(server: DevServer) -> dict[str, Any]:
    """When and on what something was measured; the soak says it, too."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": {"family": server.family, "version": server.version},
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
    }


@define(eq=False, kw_only=True)
class Report:
    """The values of one run."""

    about: dict[str, Any]
    values: dict[str, list[float]] = field(factory=dict)

    @classmethod
    def begin(cls, server: DevServer, *, rounds: int, scale: float) -> Report:
        """Note what is measured, on what."""
        return cls(
            about={
                **about(server),
                "rounds": rounds,
                "scale": scale,
                "payload_bytes": 200,
                "load_average_before": round(os.getloadavg()[0], 2),
                "note": "best: of the rounds; ratio: median of the rounds; server, client and others share the cores",
            }
        )

    def add(self, name: str, value: float) -> None:
        """Take one round's value."""
        self.values.setdefault(name, []).append(value)

    def end(self) -> None:
        """Note the load that the run itself and everybody else made."""
        self.about["load_average_after"] = round(os.getloadavg()[0], 2)

    def best(self, name: str) -> float:
        """The best round of a figure."""
        return max(self.values[name]) if FIGURES[name].rate else min(self.values[name])

    def ratio(self, name: str) -> float | None:
        """How much of its ceiling a figure reaches: the median of the rounds, each against the ceiling beside it."""
        return self._median(name, FIGURES[name].ceiling)

    def sketch_ratio(self, name: str) -> float | None:
        """The same, of the protocol without the library."""
        return self._median(name, FIGURES[name].sketch)

    def _median(self, name: str, beside: str) -> float | None:
        ceilings = self.values.get(beside)
        if not ceilings:
            return None
        return statistics.median(value / ceiling for value, ceiling in zip(self.values[name], ceilings, strict=True))

    def table(self) -> Table:
        """For people."""
        server = self.about["server"]
        table = Table(
            title=f"{server['family']} {server['version']}, {self.about['cores']} cores", title_justify="left"
        )
        table.add_column("figure", no_wrap=True)
        table.add_column("best", justify="right")
        table.add_column("unit")
        table.add_column("ratio", justify="right")
        table.add_column("of sketch", justify="right")
        table.add_column("goal", justify="right")
        for name in self.values:
            figure, best, ratio = FIGURES[name], self.best(name), self.ratio(name)
            shown = f"{best:,.0f}" if best >= MANY else f"{best:.3g}"
            goal = f"≥ {figure.least:,}" if figure.least else f"≤ {figure.most:,}" if figure.most else ""
            table.add_row(figure.title, shown, figure.unit, *map(_percent, (ratio, self.sketch_ratio(name))), goal)
        return table

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        figures = {}
        for name, rounds in self.values.items():
            figure, ratio = FIGURES[name], self.ratio(name)
            figures[name] = {
                "title": figure.title,
                "unit": figure.unit,
                "best": round(self.best(name), 4),
                "rounds": [round(value, 4) for value in rounds],
            }
            if ratio is not None:
                figures[name] |= {"ratio": round(ratio, 3), "ratio_to": figure.ceiling}
            if (of_sketch := self.sketch_ratio(name)) is not None:
                figures[name] |= {"ratio_of_sketch": round(of_sketch, 3)}
        return {**self.about, "figures": figures}

    def write(self, directory: Path) -> Path:
        """Write the file of this server's family and version, replacing an older run's."""
        directory.mkdir(parents=True, exist_ok=True)
        server = self.about["server"]
        target = directory / f"{server['family']}-{server['version']}.json"
        target.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n")
        return target


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"
