"""The verb `analyze`: tables and a report over archive and live log.

Owns its options and its answer. `lanelog.spark` does the work, and is imported when the verb runs.
"""

from __future__ import annotations

import click

from lanelog._text import moment, plural, shown
from lanelog.cli.command.options import innermost, json_option
from lanelog.cli.command.times import FORMS, moment_of
from lanelog.cli.command.verbs import finish
from lanelog.cli.data.archive import need_spark, password_option
from lanelog.cli.output.answer import Answer
from lanelog.config import ConnectConfig


@click.command()
@click.option("--path", metavar="ARCHIVE", help="Directory of an archive. Default: only the live log is read.")
@click.option(
    "--url",
    metavar="URL",
    help="mysql://user:password@host:3306/database; default: LANELOG_URL, else only the archive.",
    callback=innermost,
)
@password_option
@click.option("--no-live", is_flag=True, help="Read the archive alone, also where LANELOG_URL is set.")
@click.option("--topics", default="", metavar="A,B", help="Only these, and where their dead letters lie. Default: all.")
@click.option("--output", required=True, metavar="DIR", help="Where the tables and report.html go.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv"]),
    default="parquet",
    show_default=True,
    help="Of the tables.",
)
@click.option("--until", metavar="TIME", help=f"Leave out what is newer than {FORMS}.")
@click.option(
    "--stalled-after",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds without progress after which a lane stalls.",
)
@json_option
def analyze(
    *,
    path: str | None,
    url: str | None,
    password_env: str | None,
    no_live: bool,
    topics: str,
    output: str,
    form: str,
    until: str | None,
    stalled_after: float,
    as_json: bool,
) -> None:
    """Analyse archive and live log on Spark: tables, and an HTML report. No message is counted twice."""
    need_spark("matplotlib", "jinja2")
    from lanelog.spark.analyze import AnalyzeOptions, run

    cutoff = moment_of("--until", until)
    options = AnalyzeOptions(
        output=output,
        path=path,
        url=url,
        password_env=password_env,
        live=not no_live,
        topics=tuple(filter(None, topics.split(","))),
        until=cutoff,
        stalled_after=stalled_after,
        format=form,
    )
    done = run(options)
    counted = (
        f"{plural(done.messages, 'message')} in {plural(done.lanes, 'lane')} of {plural(len(done.topics), 'topic')}"
    )
    finish(
        Answer(data=done, lines=[f"{counted}, up to {moment(done.cutoff)}", f"report: {shown(done.report, 1000)}"]),
        as_json=as_json,
        config=ConnectConfig.from_url(url) if options.reads_live else None,
    )
