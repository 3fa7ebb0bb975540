"""The commands: what they are called, what they take and what they print.

They never hold logic of their own: each calls the room that has it, imported when the command runs. `main` calls
them.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from lanelog.errors import LanelogError


@contextmanager
def clean_errors() -> Iterator[None]:
    """An error of the library is a message and exit status 1, not a traceback."""
    try:
        yield
    except LanelogError as exc:
        raise click.ClickException(str(exc)) from exc


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanelog")
def cli() -> None:
    """A partitioned message log inside MySQL or MariaDB."""


@cli.command("dev-server")
@click.option(
    "--server",
    "kind",
    default="auto",
    show_default=True,
    metavar="KIND",
    help="auto, local, mysql-local, docker:IMAGE (such as docker:mysql:8.4) or a mysql:// URL.",
)
def dev_server(kind: str) -> None:
    """Start a private database with lanelog's tables, print its URL, and stop it at Ctrl-C."""
    import lanelog
    from lanelog import devserver

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: the server stops, its data goes
    try:
        with clean_errors(), devserver.start(kind) as server:
            with lanelog.connect(server.url) as client:
                client.migrate()
            click.echo(server.url)
            names = {"mariadb": "MariaDB", "mysql": "MySQL"}
            click.echo(
                f"\n{names[server.family]} {server.version} is ready and has lanelog's tables. Use it with\n\n"
                f"  export LANELOG_URL={server.url}\n\n"
                "Ctrl-C stops it; a server that was started here loses its data then.",
                err=True,
            )
            threading.Event().wait()
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


@cli.command()
@click.option("--url", metavar="URL", help="mysql://user:password@host:3306/database; default: LANELOG_URL.")
def migrate(url: str | None) -> None:
    """Create or upgrade lanelog's tables. May be repeated, and run by many processes at once."""
    import lanelog

    with clean_errors(), lanelog.connect(url) as client:
        client.migrate()
    click.echo("the tables are up to date")


@cli.command()
@click.option(
    "--repo",
    "repos",
    multiple=True,
    metavar="DIRECTORY",
    help="A git repository to rebuild; may be repeated. Default: the one around the working directory.",
)
@click.option("--url", metavar="URL", help="A database to use. Default: LANELOG_URL, else one started for the demo.")
def demo(repos: tuple[str, ...], url: str | None) -> None:
    """Rebuild a git history through the queue, kill a worker meanwhile, and compare the result with git's own."""
    from lanelog import demo

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: workers and server stop
    try:
        with clean_errors():
            status = demo.main(repos, url=url)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        status = 130
    raise SystemExit(status)
