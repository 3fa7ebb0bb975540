"""The commands for recurring messages: schedule list, add, run, pause, resume, remove, preview.

Owns how schedules are shown. Administration changes them, and the client declares them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from lanelog._base.payloads.codec import utf8
from lanelog._base.text import moment, plural, shown
from lanelog._views import message_columns
from lanelog._views.sentences import would
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS
from lanelog.cli.command.verbs import Verbs, changing, finish, login, reading, steering
from lanelog.cli.output import totals
from lanelog.cli.output.answer import Answer
from lanelog.cli.output.table import Table

if TYPE_CHECKING:
    from datetime import datetime

    from lanelog.admin import Admin

_zone_option = click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="Of the expression.")


@click.group(cls=Verbs)
def schedule() -> None:
    """List recurring messages; declare, run, pause or remove them."""


@options.command("schedule list", name="list", of=schedule, short="List the schedules by name.")
@options.limit
@reading
def list_(admin: Admin, *, limit: int) -> Answer:
    """List the schedules by name."""
    found = admin.schedules(limit)
    paused = sum(each.paused_at is not None for each in found)
    return Answer(
        data=found,
        summary=plural(len(found), "schedule") + (f": {paused:,} paused" if paused else ""),
        table=Table(message_columns.SCHEDULES, found, admin.now()),
        total=f"{plural(sum(each.fired for each in found), 'message')} published by "
        f"{totals.listed(found, 'schedule', limit)}",
        nothing="no schedule: `lanelog schedule add` declares one, and so does client.schedule",
    )


@options.command(
    "schedule add nightly '30 2 * * *' reports daily sales", of=schedule, short="Declare a schedule, or change it."
)
@options.arguments("name", "expression", "topic", "key", "message")
@_zone_option
@click.option(
    "--catch-up",
    default="latest",
    show_default=True,
    metavar="WHAT",
    help="What to publish of what is missed: latest, all or none.",
)
@options.seconds("--ttl", "Deliver each within S seconds, or not at all.")
@options.metadata
@options.as_json
@options.url
def add(*, message: str, pairs: tuple[str, ...], as_json: bool, url: str | None, **settings: Any) -> None:
    """Publish MESSAGE under KEY at every time of EXPRESSION, or change the schedule NAME to that.

    EXPRESSION is one argument of five fields, minute hour day-of-month month day-of-week, or six with the second first:
    '*/5 * * * *'. Any process that subscribes publishes what is due, and so does `maintain`.
    """
    import lanelog

    # As bytes, as in `publish`: no content-type is added.
    metadata = options.metadata_of(pairs)
    given: dict[str, Any] = {"payload": utf8("the payload", message), "metadata": metadata, **settings}
    with lanelog.connect(url) as client:
        done = client.schedule(**given)
    text = f"declared {shown(done.name)}: {shown(done.expression)} in {shown(done.timezone)}, "
    text += "paused" if done.next_fire_at is None else f"next at {moment(done.next_fire_at)}"
    finish(Answer(data=done, lines=[text]), as_json=as_json, config=client.config)


@options.command("schedule pause nightly --why deploy", of=schedule, short="Let it publish nothing more, until resume.")
@click.argument("name")
@options.words(help="Why; shown wherever the pause is listed.")
@click.option("--by", default=None, metavar="NAME", help="Who pauses; default: your login name.")
@partial(steering, why=False)
def pause(admin: Admin, *, name: str, reason: str, by: str | None, dry_run: bool) -> Answer:
    """Stop the schedule NAME from publishing, until `schedule resume`."""
    done = admin.pause_schedule(name, by=login() if by is None else by, reason=reason, dry_run=dry_run)
    if not done.changed:
        text = f"{shown(name)} is paused already, since {moment(done.paused_at)} by {shown(done.by)}"
    else:
        text = f"{would('pause', 'paused', dry_run=dry_run)} {shown(name)}: next would be {moment(done.next_fire_at)}"
    return Answer(data=done, lines=[text])


@options.command("schedule resume nightly", of=schedule, short="Take a pause back; what was missed is skipped.")
@click.argument("name")
@steering
def resume(admin: Admin, *, name: str, dry_run: bool) -> Answer:
    """End the pause of the schedule NAME. Times during the pause are skipped."""
    done = admin.resume_schedule(name, dry_run=dry_run)
    resumed = f"{would('resume', 'resumed', dry_run=dry_run)} {shown(name)}"
    text = resumed if done.changed else f"{shown(name)} runs already"
    return Answer(data=done, lines=[f"{text}: next at {moment(done.next_fire_at)}"])


@options.command(
    "schedule run nightly --why 'the report was wrong'",
    "schedule run nightly --dry-run",
    of=schedule,
    short="Publish one message of it at once; its times stay.",
)
@click.argument("name")
@click.option("--token", metavar="TEXT", help="Publish one message only for all calls with this token.")
@steering
def run(admin: Admin, *, name: str, token: str | None, dry_run: bool) -> Answer:
    """Publish one message of the schedule NAME at once, besides those of its times. A paused one stays paused.

    Its id ends with the token, which is a new one for each call unless --token gives it.
    """
    done = admin.run_schedule(name, token=token, dry_run=dry_run)
    where = f"{shown(done.topic)}, lane {shown(done.key)}"
    if not done.changed:
        text = f"a message with this token was published already, at offset {done.offset} of {where}"
    elif dry_run:
        text = f"would publish one message of {shown(name)} to {where}"
    else:
        text = f"published one message of {shown(name)} to {where}: offset {done.offset}, id {shown(done.id)}"
    then = "it stays paused" if done.next_fire_at is None else f"next at {moment(done.next_fire_at)}, as before"
    return Answer(data=done, lines=[f"{text}; {then}"])


@options.command(
    "schedule remove nightly",
    "schedule remove nightly --execute",
    of=schedule,
    short="Remove a schedule; what it published stays.",
)
@click.argument("name")
@changing
def remove(admin: Admin, *, name: str, dry_run: bool) -> Answer:
    """Remove the schedule NAME. The messages it published stay."""
    done = admin.remove_schedule(name, dry_run=dry_run)
    text = f"{would('remove', 'removed', dry_run=dry_run)} {shown(name)}, which published "
    text += f"{plural(done.fired, 'message')} to {shown(done.topic)}, lane {shown(done.key)}"
    return Answer(data=done, lines=[text])


@options.command(
    "schedule preview '30 2 * * *' --timezone Europe/Berlin --count 3",
    of=schedule,
    short="Show when an expression would fire.",
)
@click.argument("expression")
@_zone_option
@click.option("--count", default=10, show_default=True, metavar="N", help="So many times, up to 1000.")
@options.time("--after", f"Later than a time such as {FORMS}; default: now.")
@reading
def preview(admin: Admin, *, expression: str, timezone: str, count: int, after: datetime | None) -> Answer:
    """Show when EXPRESSION would fire, in its zone and in UTC. Nothing is declared."""
    found = admin.preview_schedule(expression, timezone=timezone, count=count, after=after)
    return Answer(data=found, table=Table(message_columns.PREVIEW, found))
