"""The command `analyze`: tables and a report over archive and live log.

Owns its options and its answer. `lanelog.spark` does the work, and is imported when the command runs.
"""

from __future__ import annotations

from typing import Any

import click

from lanelog._base.text import moment, plural, shown
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS
from lanelog.cli.command.verbs import finish
from lanelog.cli.data.archive import need_spark, password_option
from lanelog.cli.output.answer import Answer
from lanelog.config import ConnectConfig


@options.command("analyze --path /srv/archive --output report --format csv")
@click.option("--path", metavar="ARCHIVE", help="Directory of an archive. Default: only the live log is read.")
@click.option(
    "--url",
    metavar="URL",
    help="mysql://user:password@host:3306/database; default: LANELOG_URL, else only the archive.",
    callback=options.innermost,
)
@password_option
@click.option("--no-live", is_flag=True, help="Read the archive alone, also where LANELOG_URL is set.")
@click.option("--topics", default="", metavar="A,B", help="Only these, and where their dead letters lie. Default: all.")
@click.option("--output", required=True, metavar="DIR", help="Where the tables and report.html go.")
@click.option(
    "--format",
    type=click.Choice(["parquet", "csv"]),
    default="parquet",
    show_default=True,
    help="Of the tables.",
)
@options.time("--until", f"Leave out what is newer than {FORMS}.")
@click.option(
    "--stalled-after",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds without progress after which a lane stalls.",
)
@options.as_json
def analyze(*, url: str | None, no_live: bool, topics: str, as_json: bool, **given: Any) -> None:
    """Analyse archive and live log on Spark: tables, and an HTML report. No message is counted twice."""
    if no_live and url is not None:
        raise click.UsageError("--no-live reads the archive alone: leave out --url")
    need_spark("matplotlib", "jinja2")
    from lanelog.spark.analyze import AnalyzeOptions, run

    chosen = AnalyzeOptions(url=url, live=not no_live, topics=tuple(filter(None, topics.split(","))), **given)
    done = run(chosen)
    counted = (
        f"{plural(done.messages, 'message')} in {plural(done.lanes, 'lane')} of {plural(len(done.topics), 'topic')}"
    )
    finish(
        Answer(data=done, lines=[f"{counted}, up to {moment(done.cutoff)}", f"report: {shown(done.report, 1000)}"]),
        as_json=as_json,
        config=ConnectConfig.from_url(url) if chosen.reads_live else None,
    )
