"""The demo's command line: `PYTHONPATH=examples python -m demo`, or `make demo`."""

from __future__ import annotations

import signal

import click

from demo import main
from lanelog.errors import LanelogError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--repo",
    "repos",
    multiple=True,
    metavar="DIRECTORY",
    help="A git repository to rebuild; may be repeated. Default: the one around the working directory.",
)
@click.option("--url", metavar="URL", help="A database to use. Default: LANELOG_URL, else one started for the demo.")
@click.option(
    "--archive",
    metavar="DIRECTORY",
    help="Afterwards archive the log there with Spark, write a report of it, and replay its busiest lane.",
)
def demo(repos: tuple[str, ...], url: str | None, archive: str | None) -> None:
    """Rebuild a git history through the queue, kill a worker meanwhile, and compare the result with git's own."""
    afterwards = None
    if archive is not None:
        from demo import spark

        afterwards = spark.afterwards(archive)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: workers and server are stopped
    try:
        status = main(repos, url=url, afterwards=afterwards)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        status = 130
    except LanelogError as exc:
        click.echo(f"Error: {exc}", err=True)
        status = 2
    raise SystemExit(status)


if __name__ == "__main__":
    demo()
