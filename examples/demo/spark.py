"""The steps of `--archive`: archive the demo's log with Spark, report on it, and replay one of its lanes.

Owns the order of these steps and their output. Each calls the function behind `lanelog archive`, `analyze` or `replay`.
What would make a step fail is refused before the demo begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from demo.cleanup import REPLAYED
from demo.view import plural
from lanelog.spark import analyze, archive
from lanelog.spark.archiving.options import ArchiveOptions
from lanelog.spark.replay import replay
from lanelog.spark.session import check_java, start


class Refused(click.ClickException):
    """The steps cannot be done, and nothing was begun."""

    exit_code = 2


def afterwards(directory: str) -> Callable[[str, str, int], bool]:
    """Return the steps for `demo.main`.

    They return whether the archive is complete and the replay published its lane.
    """
    check_java()
    output = Path(directory)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise Refused(f"{directory!r} is not empty: give a directory for this run alone")
    return lambda url, topic, messages: _steps(output, url, topic, messages)


def _steps(output: Path, url: str, topic: str, messages: int) -> bool:
    click.echo("starting Spark")  # no spinner: the JVM writes to the terminal by itself
    spark = start("lanelog demo")
    try:
        store = str(output / "archive")
        jobs = f"{plural(messages - 1, 'job')}, one more that is malformed on purpose, and its dead letter"
        began = time.monotonic()
        with _reported(f"archiving {jobs}"):
            kept = archive.run(ArchiveOptions(path=store, url=url, topics=(topic, f"{topic}_dlq")), spark)
        _say(f"archived {plural(kept.total, 'message')} and {plural(kept.outcomes, 'outcome')}", began)
        began = time.monotonic()
        with _reported("analysing archive and live log"):
            analyzed = analyze.run(
                analyze.AnalyzeOptions(output=str(output / "report"), path=store, url=url, topics=(topic,)), spark
            )
        lanes = f"{plural(analyzed.lanes, 'lane')}, one of them the dead letter's"
        _say(f"analysed {plural(analyzed.messages, 'message')} in {lanes},", began)
        key, length = analyzed.busiest[topic]
        began = time.monotonic()
        with _reported(f"replaying lane {key}, the busiest, into a topic of its own"):
            again = replay(store, topics=[topic], keys=[key], to=f"{topic}{REPLAYED}", url=url, spark=spark)
        _say(f"replayed {plural(again.published, 'message')} of lane {key}", began)
    finally:
        spark.stop()
    # + 1: the dead letter
    complete = (kept.total, analyzed.messages, again.published) == (messages + 1, messages + 1, length)
    click.echo(f"archive, report and replay are complete: {'yes' if complete else 'NO'}")
    click.echo(f"report: {Path(analyzed.report).absolute().as_uri()}")
    return complete


@contextmanager
def _reported(doing: str) -> Iterator[None]:
    """Say what is being done: with a spinner in a terminal, with a line elsewhere."""
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        with console.status(Text(f"{doing} …")):
            yield
    else:
        click.echo(f"{doing} …")
        yield


def _say(what: str, began: float) -> None:
    click.echo(f"{what} in {time.monotonic() - began:.1f} s")
