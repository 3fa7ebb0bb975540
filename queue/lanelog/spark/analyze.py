"""The program that analyses archive and live log: tables as files, and an HTML report.

Owns the options, the files and their names. `analysis` reads, `analytics` computes, `report.page` makes the page.

Every file is written under another name and then renamed, the report last. A process that dies in between leaves whole
tables, and an earlier report beside newer tables. Tables of an earlier run in the other format are removed before the
report is renamed, so that all tables beside a report belong to it. Only files with the names of these tables are
removed. Two runs at once in one directory mix their tables; give each its own.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, field, frozen

from lanelog._base.checks import check_name, duration, seconds
from lanelog._base.connection_options import URL_VARIABLE
from lanelog.errors import ConfigurationError
from lanelog.spark.analysing.analysis import LONG, ORDER, Analysis, Wanted, analysed
from lanelog.spark.archiving.manifest import ManifestStore
from lanelog.spark.archiving.path import local_path
from lanelog.spark.report.columns import SHOWN
from lanelog.spark.report.page import render
from lanelog.spark.session import check_java, in_session, names, program
from lanelog.spark.source.options import database_options, parse_write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

REPORT: Final = "report.html"
FORMATS: Final = ("parquet", "csv")
STALLED_AFTER: Final = 300.0


@frozen(kw_only=True)
class AnalyzeOptions:
    """What `run` reads, and where its results go. Raises ConfigurationError."""

    output: str
    """Directory for the tables and `report.html`: empty, or with an earlier report."""
    path: str | None = None
    """Directory of the archive. None: only the live log is read."""
    url: str | None = None
    """The database. None: LANELOG_URL; if that is not set, only the archive is read."""
    password_env: str | None = None
    """Environment variable with the password of the URL's user."""
    live: bool = True
    """False: the live log is not read, even if a URL is known."""
    topics: tuple[str, ...] = ()
    """Empty: all. Topics that hold dead letters of these are read with them."""
    until: datetime | None = None
    """The cut-off, an aware datetime. None, or in the future: now."""
    stalled_after: float = field(default=STALLED_AFTER, converter=seconds, validator=duration())
    """Seconds without progress after which a lane with unsettled messages stalls."""
    format: str = "parquet"
    """Format of the tables: `parquet` or `csv`."""

    def __attrs_post_init__(self) -> None:
        for topic in self.topics:
            check_name("topic", topic)
        if self.format not in FORMATS:
            raise ConfigurationError(f"format must be one of {', '.join(FORMATS)}, not {self.format!r}")
        if self.until is not None and self.until.utcoffset() is None:
            raise ConfigurationError("until must be an aware datetime: add tzinfo=datetime.UTC")
        if self.path is None and not self.reads_live:
            raise ConfigurationError(f"nothing to read: give the path of an archive, or a URL, or set {URL_VARIABLE}")

    @property
    def reads_live(self) -> bool:
        """Whether the live log is read."""
        return self.live and bool(self.url or os.environ.get(URL_VARIABLE))

    def wanted(self) -> Wanted:
        """Return the same for the analysis."""
        return Wanted(
            path=self.path,
            address=parse_write(database_options(self.url, self.password_env)) if self.reads_live else None,
            topics=self.topics,
            until=self.until,
            stalled_after_ms=round(self.stalled_after * 1000),
            files=self.format,
        )


@frozen(kw_only=True)
class Analyzed:
    """What a run wrote."""

    report: str
    """Path of the report."""
    cutoff: datetime
    topics: Sequence[str]
    messages: int
    lanes: int
    dead_letters: int
    outstanding: int | None
    """Dead letters that are neither redriven nor deleted; None: the live log was not read."""
    stalled_lanes: int
    """Lanes that stall, without those whose oldest message was postponed by its handler."""
    busiest: Mapping[str, tuple[str, int]]
    """The key with most messages, and their number, by topic."""


def run(options: AnalyzeOptions, spark: SparkSession | None = None) -> Analyzed:
    """Read, compute and write.

    Args:
        options: What to read, and where the results go.
        spark: The session to use. None: a session of its own.

    Returns:
        The path of the report, and sums.

    Raises:
        ConfigurationError: Options or output directory are wrong, or there is no Java; nothing was written. Or the disk
            failed while the files were written.
        SchemaError: The tables are missing. Nothing was written.
        DatabaseError: The database does not answer. Nothing was written.
        LanelogError: Spark failed; with the first line of its message.
    """
    output = local_path(options.output)
    _refuse_foreign(output)
    wanted = options.wanted()
    if options.path is not None:
        ManifestStore(local_path(options.path)).required()
    if spark is None:
        check_java()
    analysis = in_session("lanelog analyze", "the analysis failed", spark, lambda session: analysed(session, wanted))
    write(analysis, output, options.format)
    return Analyzed(
        report=str(output / REPORT),
        cutoff=analysis.facts.cutoff,
        topics=analysis.facts.topics,
        messages=analysis.facts.messages,
        lanes=analysis.facts.lanes,
        dead_letters=analysis.facts.dead_letters,
        outstanding=analysis.facts.outstanding,
        stalled_lanes=analysis.facts.stalled,
        busiest={
            row["topic"]: (row["key"], row["messages"])
            for row in analysis.tables["hot_lanes"].to_pylist()
            if row["place"] == 1
        },
    )


def write(analysis: Analysis, output: Path, form: str) -> None:
    """Write `<table>.<form>` for every table, then the report, into a directory. Files of an earlier run are replaced.

    Removes `<table>.<other format>` of an earlier run.
    """
    page = render(analysis.facts, _shown(analysis))
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, table in analysis.tables.items():
            unfinished = _beside(output / f"{name}.{form}")
            _write_table(table, unfinished, form)
            unfinished.replace(output / f"{name}.{form}")
        for name, other in product(ORDER, FORMATS):
            if other != form:
                (output / f"{name}.{other}").unlink(missing_ok=True)
        unfinished = _beside(output / REPORT)
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(output / REPORT)
    except OSError as exc:
        raise ConfigurationError(f"{str(output)!r} cannot be written: {exc.strerror or exc}") from exc


def _shown(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that the page shows.

    The page shows no throughput by hour, and of long tables only the first rows.
    """
    from pyarrow import compute

    shown = {**analysis.tables, **analysis.page}
    for name in LONG:
        shown[name] = shown[name].slice(0, SHOWN)
    busiest = shown["topics"].column("topic").slice(0, SHOWN)
    for name in ("hot_lanes", "lane_sizes"):
        shown[name] = shown[name].filter(compute.is_in(shown[name].column("topic"), value_set=busiest))
    return {name: table.to_pylist() for name, table in shown.items() if name != "throughput"}


def _write_table(table: pa.Table, path: Path, form: str) -> None:
    if form == "csv":
        from pyarrow import csv

        csv.write_csv(table, path)
    else:
        from pyarrow import parquet

        parquet.write_table(table, path, compression="zstd")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _refuse_foreign(output: Path) -> None:
    """Refuse a directory that is not empty and holds no earlier report."""
    try:
        if output.exists() and not (output / REPORT).is_file() and any(output.iterdir()):
            raise ConfigurationError(
                f"{str(output)!r} is not empty and holds no earlier report: give the output a directory of its own"
            )
    except OSError as exc:
        raise ConfigurationError(f"{str(output)!r} cannot hold the output: {exc.strerror}") from exc


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m lanelog.spark.analyze`, for spark-submit. Return the exit status: 0 done, 1 failed, 2 refused."""
    parser = argparse.ArgumentParser(prog="python -m lanelog.spark.analyze", description="Analyse archive and log.")
    parser.add_argument("--output", required=True, help="directory for the tables and report.html")
    parser.add_argument("--path", help="directory of the archive")
    parser.add_argument("--url", help="the database; default: LANELOG_URL")
    parser.add_argument("--password-env", help="environment variable with the password of the URL's user")
    parser.add_argument("--no-live", dest="live", action="store_false", help="read the archive alone")
    topics = "names, separated by commas, read with their dead letters; default: all"
    parser.add_argument("--topics", type=names, default=(), help=topics)
    parser.add_argument("--until", type=datetime.fromisoformat, help="the cut-off, as 2026-06-01T10:00:00Z")
    parser.add_argument("--stalled-after", type=float, default=STALLED_AFTER, help="seconds without progress")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    given = vars(parser.parse_args(arguments))

    def analyzed() -> dict[str, object]:
        done = run(AnalyzeOptions(**given))
        return {**asdict(done), "cutoff": done.cutoff.isoformat()}

    return program(analyzed)


if __name__ == "__main__":
    sys.exit(main())
