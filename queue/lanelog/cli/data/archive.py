"""The commands `archive` and `replay`: the log to Parquet, and from there back into the log.

Owns their options and their answers. `lanelog.spark` does the work, and is imported when they run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from lanelog._base.text import plural, shown
from lanelog._views import message_columns
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS
from lanelog.cli.command.verbs import Unfinished, finish, need
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError, LanelogError, SchemaError

if TYPE_CHECKING:
    from lanelog.spark.replay import Replayed

_NEEDED = ("pyspark", "pyarrow")

path_option = click.option("--path", required=True, metavar="DIRECTORY", help="The archive.")
password_option = click.option(
    "--password-env", metavar="NAME", help="Environment variable with the password of the URL's user."
)


def need_spark(*others: str) -> None:
    """Refuse if Spark, or another module that the command needs, is not installed."""
    java = ", and Java 17 or newer (on Debian and Ubuntu: apt-get install openjdk-17-jre-headless)"
    need("spark", *_NEEDED, *others, also=java)


@options.command("archive --path /srv/archive --topics orders --once")
@path_option
@click.option("--topics", metavar="NAMES", help="Topics, separated by commas. Default: all.")
@click.option("--pattern", metavar="REGEX", help="Topics whose whole name matches, also those that appear later.")
@click.option("--once/--continuous", default=True, help="End when all is archived that is there now; or go on.")
@click.option(
    "--group", default=None, metavar="NAME", help="The consumer group that the archive is; default: _archive."
)
@click.option("--checkpoint", metavar="DIRECTORY", help="Of Spark. Default: in the archive.")
@options.seconds("--interval", "Between micro-batches.", default=10.0)
@click.option("--max-messages", type=int, default=100_000, show_default=True, metavar="N", help="Of one micro-batch.")
@options.seconds("--grace", "How long merged files stay for readers.", default=3600.0)
@password_option
@options.as_json
@options.url
def archive(*, topics: str | None, pattern: str | None, group: str | None, as_json: bool, **given: Any) -> None:
    """Archive the log to Parquet, with Spark, as a consumer group that collection waits for.

    May be stopped or killed at any time: each message is archived once. Status 1 if it could not go on.
    """
    need_spark()
    from lanelog.spark.archive import log_events, run, stopped_by_signals
    from lanelog.spark.archiving.options import GROUP, ArchiveOptions

    if topics is not None and pattern is not None:
        raise ConfigurationError("give --topics or --pattern, not both")
    chosen = ArchiveOptions(
        topics=() if topics is None else tuple(topics.split(",")),
        pattern=".*" if pattern is None else pattern,
        group=GROUP if group is None else group,
        **given,
    )
    log_events(logging.WARNING if chosen.once else logging.INFO)
    try:
        with stopped_by_signals() as stopping:
            done = run(chosen, stopping=stopping)
    except (ConfigurationError, SchemaError):
        raise
    except LanelogError as exc:
        raise Unfinished(f"{exc}; run it again to go on") from exc
    text = (
        f"archived {plural(done.messages, 'message')} and {plural(done.outcomes, 'outcome')}; "
        f"{shown(done.path)} holds {plural(done.total, 'message')}"
    )
    finish(Answer(data=done, lines=[text]), as_json=as_json, config=ConnectConfig.from_url(chosen.url))


@options.command("replay --path /srv/archive --topic orders --to again --dry-run")
@path_option
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Published there; may be repeated.")
@click.option("--to", metavar="TOPIC", help="Where they go. Default: back to where they were.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only of this key; may be repeated.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only of this id; may be repeated.")
@options.time("--since", f"Written then or later, such as {FORMS}.")
@options.time("--until", "Written before.")
@click.option("--dead-letters-of", metavar="GROUP", help="This group's dead letters, for it alone.")
@click.option("--target-group", metavar="GROUP", help="For this group alone; the others skip them.")
@click.option("--all-groups", is_flag=True, help="Dead letters for every group.")
@click.option("--rate", type=float, metavar="N", help="At most so many messages a second.")
@click.option(
    "--name", metavar="NAME", help="The same name goes on, and adds nothing twice. Default: from the filters."
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@password_option
@options.as_json
@options.url
def replay(*, path: str, as_json: bool, **given: Any) -> None:
    """Publish messages of an archive again, those of each key in their order.

    May be stopped or killed at any time. The same command goes on where it was; once it is done, it does nothing.
    """
    need_spark()
    from lanelog.spark.replay import replay as run

    done = run(path, **given)
    note = "nothing was published: leave --dry-run out" if done.dry_run else None
    finish(_replayed(done), as_json=as_json, note=note, config=ConnectConfig.from_url(given["url"]))


def _replayed(done: Replayed) -> Answer:
    if done.done_before:
        text = (
            f"replay {shown(done.name)} is done already ({plural(done.chosen, 'message')}); --name begins another one"
        )
    elif done.dry_run:
        text = f"replay {shown(done.name)} would publish {plural(done.chosen, 'message')}"
    else:
        text = f"replay {shown(done.name)}: published {plural(done.published, 'message')}"
        text += f", {done.duplicates} were there already" if done.duplicates else ""
    return Answer(data=done, before=[text], table=Table(message_columns.REPLAYED, done.topics) if done.topics else None)
