"""What `lanelog demo --archive` does behind the demo: archive its log, report on it, and replay a lane of it.

Owns the order of these steps and what is told of them; each is the verb's own function, as `lanelog archive`, `analyze`
and `replay` call it. It refuses before the demo begins what would fail behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from lanelog.cli._archive import need_spark
from lanelog.cli._output import plural, shown
from lanelog.cli._verbs import Refused


def afterwards(directory: str) -> Callable[[str, str, int], bool]:
    """The steps, for `lanelog.demo.main`; they say whether the archive holds all and the replay changed nothing."""
    need_spark("matplotlib", "jinja2")
    from lanelog.spark._session import check_java

    check_java()
    place = Path(directory)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise Refused(f"{directory!r} is not empty: give a directory for this run alone")
    return lambda url, topic, messages: _steps(place, url, topic, messages)


def _steps(place: Path, url: str, topic: str, messages: int) -> bool:
    from lanelog.demo.cleanup import REPLAYED
    from lanelog.spark import analyze, archive
    from lanelog.spark._archive_options import ArchiveOptions
    from lanelog.spark._session import start
    from lanelog.spark.replay import replay

    spark = start("lanelog demo", **{"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"})
    try:
        store = str(place / "archive")
        began = time.monotonic()
        kept = archive.run(ArchiveOptions(path=store, url=url, topics=(topic, f"{topic}_dlq")), spark)
        _say(f"archived {plural(kept.total, 'message')} and {plural(kept.outcomes, 'outcome')}", began)
        began = time.monotonic()
        told = analyze.run(
            analyze.AnalyzeOptions(output=str(place / "report"), path=store, url=url, topics=(topic,)), spark
        )
        _say(f"analysed {plural(told.messages, 'message')} in {plural(told.lanes, 'lane')}", began)
        key, length = told.busiest[topic]
        began = time.monotonic()
        again = replay(store, topics=[topic], keys=[key], to=f"{topic}{REPLAYED}", url=url, spark=spark)
        _say(f"replayed {plural(again.published, 'message')} of lane {shown(key)}", began)
    finally:
        spark.stop()
    complete = (kept.total, told.messages, again.published) == (messages + 1, messages + 1, length)  # and a dead letter
    click.echo(f"archive, report and replay are complete: {'yes' if complete else 'NO'}")
    click.echo(f"report: {shown(told.report, 1000)}")
    return complete


def _say(what: str, began: float) -> None:
    click.echo(f"{what} in {time.monotonic() - began:.1f} s")
