"""The commands for dead letters: dlq list, show, redrive, delete.

Owns how dead letters are chosen and shown. Administration changes them.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from lanelog._base.text import age, moment, payload, plural, shown
from lanelog._views import message_columns
from lanelog._views.sentences import would
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS, time_text
from lanelog.cli.command.verbs import Verbs, changing, reading, refuse_typed
from lanelog.cli.output import totals
from lanelog.cli.output.answer import Answer, block, name
from lanelog.cli.output.table import Table
from lanelog.cli.steer.sentences import left
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from lanelog.admin import Admin, MessageInfo
    from lanelog.message import DeadLetter


@click.group(cls=Verbs)
def dlq() -> None:
    """List dead letters, put them back or delete them. TOPIC is the original topic, or a dead letter topic."""


@options.command(
    "dlq list orders --reasons",
    "dlq list orders billing --reason r-4f2a --limit 20",
    name="list",
    of=dlq,
    short="List them, or count them by reason.",
)
@options.arguments("topic", "[group]")
@click.option("--reasons", is_flag=True, help="Count them by reason, and name each reason: r-4f2a.")
@click.option("--reason", metavar="NAME|TEXT", help="Only those with this reason, as --reasons shows it.")
@options.limit
@reading
def list_(admin: Admin, *, topic: str, group: str | None, reasons: bool, reason: str | None, limit: int) -> Answer:
    """List the dead letters of TOPIC, or only those of GROUP.

    Errors that differ in numbers and ids only are one reason. --reasons reads the first 100000 dead letters,
    --reason at the first 20000, and says so if there are more.
    """
    if reasons:
        if reason is not None:
            raise ConfigurationError("--reasons counts all of them: leave out --reason")
        refuse_typed("--limit", "is for a list: --reasons counts all of them")
        return _by_reason(admin, topic, group)
    page = admin.dead_letter_page(topic, group, reason=reason, limit=limit)
    found, where = page.letters, totals.where(topic, group)
    chosen = "" if reason is None else f", with the reason {name(reason, 60)}"
    cut = page.after is not None and len(found) < limit
    none = f"no dead letter of {where}: there was none, or all are redriven or deleted"
    return Answer(
        data=found,
        summary=f"dead letters of {where}, by key{chosen}",
        table=Table(message_columns.DEAD_LETTERS, found, admin.now()),
        total=f"{totals.listed(found, 'dead letter', limit)}; `dlq show` with KEY and OFFSET shows one",
        nothing=none if reason is None else f"no dead letter of {where} has this reason: try --reasons",
        left_out=f"only the first {plural(page.looked, 'dead letter')} by key were read" if cut else "",
    )


def _by_reason(admin: Admin, topic: str, group: str | None) -> Answer:
    counted = admin.count_dead_letters(topic, group)
    found, where = counted.reasons, totals.where(topic, group)
    more = f"{plural(counted.looked, 'dead letter')} were counted, {len(found):,} reasons are shown: there are more"
    return Answer(
        data=found,
        summary=f"dead letters of {where}, by reason",
        table=Table(message_columns.REASONS, found, admin.now()),
        total=f"{plural(sum(each.count for each in found), 'dead letter')} for {plural(len(found), 'reason')}",
        nothing=f"no dead letter of {where}: there was none, or all are redriven or deleted",
        left_out="" if counted.complete else more,
    )


@options.command("dlq show orders ann 17", of=dlq, short="Show one with its payload and error.")
@options.arguments("topic", "key")
@click.argument("which", metavar="OFFSET|ID")
@reading
def show(admin: Admin, *, topic: str, key: str, which: str) -> Answer:
    """Show one dead letter of lane KEY by its OFFSET or id: payload, error, origin. `dlq list` shows KEY and OFFSET."""
    info = admin.topic(topic)
    for each in (topic,) if info.holds_dead_letters else info.dead_letter_topics:
        message = _found(admin, each, key, which)
        if message is not None and message.dead_letter is not None:
            return Answer(data=message, lines=_described(message, message.dead_letter))
    raise ConfigurationError(
        f"no dead letter {which!r} in lane {key!r} of topic {topic!r}: `lanelog dlq list` lists them"
    )


def _found(admin: Admin, topic: str, key: str, which: str) -> MessageInfo | None:
    """Find a message by its id, which may have the form of an offset, and else by its offset."""
    digits = which.replace(",", "")
    try:
        found = admin.message(topic, key, id=which)
        if found is None and re.fullmatch(r"[0-9]{1,19}", digits):
            found = admin.message(topic, key, offset=int(digits))
    except ConfigurationError:  # that topic has no such lane, or the offset is out of range
        return None
    return found


def _described(message: MessageInfo, letter: DeadLetter) -> list[str]:
    state = "redriven or deleted already" if message.settled else "there"
    where = f"offset {message.offset} of {shown(message.topic)}, lane {shown(message.key)}"
    attempts = plural(letter.failure_count, "attempt")
    return [
        f"dead letter  {shown(message.id)} at {where}: {state}",
        f"original     offset {letter.original_offset} of {shown(letter.original_topic)}",
        f"failed       in group {shown(letter.group)} at {moment(letter.failed_at)} after {attempts}",
        f"published    {moment(message.published_at)}",
        *(f"metadata     {shown(name)}={shown(value)}" for name, value in message.metadata.items()),
        f"payload      {payload(message.payload, 10_000)}",
        *(block("error", letter.last_error) if letter.last_error else ()),
    ]


def _choice(verb: Callable[..., None]) -> Callable[..., None]:
    """Add --id, --reason and --all, of which exactly one must be given, and what narrows them.

    The command gets them as `chosen`, by the names that administration has for them.
    """

    @wraps(verb)
    def choosing(
        *,
        ids: tuple[str, ...],
        reason: str | None,
        everything: bool,
        key: str | None,
        since: datetime | None,
        limit: int | None,
        **params: Any,
    ) -> None:
        # A key or a time alone means all of that key, or since then.
        everything |= not ids and reason is None and (key is not None or since is not None)
        if bool(ids) + (reason is not None) + everything != 1:
            raise ConfigurationError("choose the dead letters by exactly one of --id, --reason and --all")
        narrowed = {"key": key, "since": since, "limit": limit}
        verb(chosen={"ids": ids or None, "reason": reason, "all": everything, **narrowed}, **params)

    for option in (
        click.option(
            "--limit", type=click.IntRange(1), metavar="N", help="Of those at most N, the oldest of each key first."
        ),
        options.time("--since", f"Of those, or of all, only what was dead-lettered then or later: {FORMS}."),
        click.option("--key", metavar="KEY", help="Of those, or of all, only the dead letters of this key."),
        click.option("--all", "everything", is_flag=True, help="All of them."),
        click.option("--reason", metavar="NAME|TEXT", help="Those with this reason, as `dlq list --reasons` shows it."),
        click.option("--id", "ids", multiple=True, metavar="ID", help="This one; may be repeated."),
    ):
        choosing = option(choosing)
    return choosing


@options.command(
    "dlq redrive orders billing --reason r-4f2a",
    "dlq redrive orders billing --key ann --since -1h --limit 10",
    "dlq redrive orders billing --all --why 'fixed in 4.2' --execute",
    of=dlq,
    short="Put them back, for the group that gave them up.",
)
@options.arguments("topic", "group")
@_choice
@click.option("--rate", type=float, metavar="N", help="At most N messages a second.")
@click.option("--delay", type=float, default=0.0, metavar="S", help="Deliver them S seconds from now.")
@options.seconds("--ttl", "Let them expire S seconds after that. Default: never.")
@click.option("--max-deliveries", type=int, metavar="N", help="Deliver each at most N times.")
@click.option("--to-topic", metavar="TOPIC", help="Into another topic than the original.")
@changing
def redrive(admin: Admin, *, topic: str, group: str, chosen: dict[str, Any], dry_run: bool, **given: Any) -> Answer:
    """Put dead letters of GROUP back into TOPIC, for this group only and in the order of each key."""
    with _counting("dead letters put back") as progress:
        done = admin.redrive(topic, group, **chosen, **given, progress=progress, dry_run=dry_run)
    text = f"{would('put', 'put', dry_run=dry_run)} {plural(done.messages, 'dead letter')} of {shown(group)} "
    text += f"in {plural(done.keys, 'lane')} back into {shown(done.to_topic)}{_since(chosen)}"
    if done.delay:
        text += f", to be delivered in {age(done.delay)}"
    return Answer(
        data=done,
        lines=[text, *_missing(done.missing, group)],
        alarms=left(done.remaining, "dead letter", dry_run=dry_run),
    )


@options.command(
    "dlq delete orders billing --reason r-4f2a",
    "dlq delete orders billing --key ann --since -1h --limit 10",
    "dlq delete orders billing --all --why 'test data' --execute",
    of=dlq,
    short="Settle them for ever.",
)
@options.arguments("topic", "group")
@_choice
@changing
def delete(admin: Admin, *, topic: str, group: str, chosen: dict[str, Any], dry_run: bool) -> Answer:
    """Settle dead letters of GROUP for ever. Their rows stay until the next collection."""
    with _counting("dead letters deleted") as progress:
        done = admin.delete_dead_letters(topic, group, **chosen, progress=progress, dry_run=dry_run)
    text = f"{would('delete', 'deleted', dry_run=dry_run)} {plural(done.messages, 'dead letter')} of {shown(group)} "
    text += f"in {plural(done.keys, 'lane')}{_since(chosen)}"
    return Answer(data=done, lines=[text, *_missing(done.missing, group)])


@contextmanager
def _counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show on standard error how many are done, if that is a terminal. The line goes with the end."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.completed:,} {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown_so_far:
        task = shown_so_far.add_task(what, total=None)
        yield lambda count: shown_so_far.update(task, completed=count)


def _since(chosen: dict[str, Any]) -> str:
    return f", dead-lettered since {time_text(chosen['since'])}" if chosen["since"] else ""


def _missing(count: int, group: str) -> list[str]:
    return [f"{plural(count, 'id')} given: no dead letter of {shown(group)} (any more)"] if count else []
