"""The commands around the database itself: migrate, doctor, grants, maintain, dev-server.

Holds no logic: each command calls the module that has it, and imports it when it runs.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from rich.text import Text

from lanelog._base.text import plural, shown
from lanelog._views import message_columns
from lanelog._views.message_columns import status_tone
from lanelog.cli.command import options
from lanelog.cli.command.verbs import Refused, announce, finish, reading, refuse_typed, rest, until_ended
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table

if TYPE_CHECKING:
    from lanelog.admin import Admin, Finding, Maintained


@options.command("dev-server", "dev-server --server mysql-local", name="dev-server")
@click.option(
    "--server",
    "kind",
    default="auto",
    show_default=True,
    metavar="KIND",
    help="auto, local, mysql-local, docker:IMAGE (such as docker:mysql:8.4) or a mysql:// URL.",
)
def dev_server(kind: str) -> None:
    """Start a private database with lanelog's tables, print its URL, and stop it at Ctrl-C.

    LANELOG_URL is not read. auto: the server of LANELOG_TEST_URL, else a local program, else Docker.
    """
    import lanelog
    from lanelog import devserver

    with until_ended(), devserver.start(kind) as server:
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
    click.echo("stopped", err=True)


@options.command("migrate --url mysql://root:secret@db-1:3306/shop", "migrate --sql --from 5")
@options.url
@click.option("--sql", is_flag=True, help="Print the statements for another tool, and connect to nothing.")
@click.option(
    "--from", "applied", type=int, metavar="VERSION", help="With --sql: the version of the tables. Default: 0, none."
)
@click.option("--procedures", is_flag=True, help="Also create lanelog_publish, with which plain SQL publishes.")
def migrate(url: str | None, *, sql: bool, applied: int | None, procedures: bool) -> None:
    """Create or upgrade lanelog's tables. May be repeated, and run by many processes at once."""
    import lanelog

    if sql:
        from lanelog.migrations import script

        if procedures:
            raise click.UsageError("--procedures needs a database: leave out --sql")

        click.echo("".join(f"{statement};\n" for statement in script(applied or 0)), nl=False)
        return
    if applied is not None:
        raise click.UsageError("--from is the version that --sql begins with: without --sql the database has it")
    with lanelog.connect(url) as client:
        announce(client.config)
        for line in client.migrate(procedures=procedures):
            click.echo(line)
    click.echo("the tables are up to date")


@options.command("doctor", "doctor --json")
@click.option(
    "--repair", is_flag=True, help="Repair lanes whose tables contradict each other, as after a restore of one."
)
@reading
def doctor(admin: Admin, *, repair: bool) -> Answer:
    """Examine server, settings, privileges and tables; each finding with its remedy. Status 1 if there is an error."""
    found = admin.doctor(repair=repair)
    if found[0].status == "error":  # the server cannot be reached
        raise Refused(found[0].detail)
    errors = [each.check for each in found if each.status == "error"]
    return Answer(
        data=found,
        table=Table(message_columns.FINDINGS, found),
        prose=[line for each in found for line in _finding_lines(each)],
        alarms=[f"{plural(len(errors), 'error')}: {', '.join(errors)}"] if errors else (),
    )


def _finding_lines(finding: Finding) -> list[Text]:
    """Return the lines of a finding, uncropped: one line if it is ok, else also its remedy."""
    line = Text.assemble(
        (f"{finding.status:<8}", status_tone(finding) or ""), finding.check, ": ", shown(finding.detail, 1000)
    )
    if finding.status == "ok":
        return [line]
    return [line, Text(f"        {shown(finding.remedy, 1000)}")]


@options.command("grants --role consumer --user app --host '10.0.%'")
@click.option(
    "--role", required=True, metavar="ROLE", help="owner, reader, publisher, consumer, janitor, dashboard or admin."
)
@click.option("--user", metavar="NAME", help="Default: the role's name.")
@click.option("--host", default="%", show_default=True, metavar="HOST", help="From where the account may connect.")
@click.option("--database", metavar="NAME", help="Default: the one of the URL, else jobs.")
@click.option("--procedures", is_flag=True, help="Also for lanelog_publish, which plain SQL calls.")
@options.url
def grants(role: str, user: str | None, host: str, database: str | None, url: str | None, *, procedures: bool) -> None:
    """Print the statements that grant ROLE its privileges. Nothing is sent to a database."""
    from lanelog.admin.operate.grants import grants as statements
    from lanelog.config import ConnectConfig

    if database is None:
        given = url or os.environ.get("LANELOG_URL")
        database = ConnectConfig.from_url(given).database if given else "jobs"
    click.echo(statements(role, database=database, user=user, host=host, procedures=procedures), nl=False)


@options.command("maintain --once", "maintain orders invoices")
@click.argument("topics", nargs=-1)
@click.option("--once", is_flag=True, help="Do it once and exit, for cron.")
@options.seconds("--interval", "Seconds between runs, without --once.", default=60.0, within=(1, 86_400))
@options.as_json
@options.url
def maintain(*, topics: tuple[str, ...], once: bool, interval: float, as_json: bool, url: str | None) -> None:
    """Do for TOPICS, or for all, what running subscribers do for theirs.

    Repair, append what is due, collect, remove idle lanes.

    Meant for topics that no process consumes. Status 1 if a topic could not be done.
    """
    import lanelog

    if once:
        refuse_typed("--interval", "is for runs that go on: leave out --once")
    with lanelog.connect(url) as client:
        if once:
            done = client.admin.maintain(topics=topics or None)
            finish(_maintained(done), as_json=as_json, config=client.config)
            return
        if not as_json:
            announce(client.config)
        with until_ended():
            while True:
                with suppress(SystemExit):  # after a failed round the next one follows
                    finish(_maintained(client.admin.maintain(topics=topics or None)), as_json=as_json)
                rest(interval)


def _maintained(done: Maintained) -> Answer:
    gone = ", ".join(
        (
            plural(done.collected, "message"),
            plural(done.dead_letters, "settled dead letter"),
            plural(done.lanes_purged, "drained lane"),
            plural(done.history, "row") + " of history",
            plural(done.heartbeats, "old heartbeat"),
        )
    )
    return Answer(
        data=done,
        lines=[
            f"{plural(len(done.topics), 'topic')}: deleted {gone}",
            *([f"repaired {plural(done.mended, 'contradiction')} between tables"] if done.mended else []),
            *([f"appended {plural(done.appended, 'message')} that had become due"] if done.appended else []),
            *(
                [f"settled {plural(done.expired, 'message')} that had expired unread, as dead letters where kept"]
                if done.expired
                else []
            ),
        ],
        alarms=[f"{shown(topic)}: {shown(error, 1000)}" for topic, error in done.failed.items()],
    )
