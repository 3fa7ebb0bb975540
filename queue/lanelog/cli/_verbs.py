"""What all verbs have in common: their options, their connection, their errors and their exit status.

Owns the exit statuses (0: done; 1: what a monitor asked about is too much, or a part is left to do; 2: refused, nothing
changed); never knows what a verb does. Called by the rooms that define verbs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.live import Live

from lanelog.cli._output import Answer, age, print_answer, rendered, to_json
from lanelog.errors import ConfigurationError, LanelogError

F = TypeVar("F", bound=Callable[..., Any])

ALARM: Final = 1
REFUSED: Final = 2

url_option = click.option(
    "--url", metavar="URL", help="mysql://user:password@host:3306/database; default: LANELOG_URL."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit", default=100, show_default=True, metavar="N", help="At most so many entries, up to 10000."
)


class Refused(click.ClickException):
    """One line on standard error, and exit status 2."""

    exit_code = REFUSED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Unfinished(Refused):
    """One line, and exit status 1: a part was done."""

    exit_code = ALARM


class Verbs(click.Group):
    """A group of commands in which everything that is refused is one line, also what click itself refuses."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click's, for the options before the verb."""
        with _one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, for the verb and its options."""
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn the library's errors, and click's, which show the usage first, into one line."""
    try:
        yield
    except LanelogError as exc:
        raise Refused(str(exc)) from exc
    except click.UsageError as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":  # shows the help instead
            raise
        path = exc.ctx.command_path if exc.ctx else "lanelog"
        raise Refused(f"{exc.format_message().rstrip('.')}; see `{path} --help`") from exc


# -- the kinds of verbs ------------------------------------------------------------------------------------------------


def reading(function: Callable[..., Answer]) -> Callable[..., None]:
    """Make a verb of `function(admin, …) -> Answer` that looks: with --url, --json and --watch."""

    @functools.wraps(function)
    def verb(*, url: str | None, as_json: bool, watch: bool, interval: float, **params: Any) -> None:
        import lanelog

        if watch and (params.get("max_lag") is not None or params.get("max_age") is not None):
            raise click.UsageError("--watch goes on for ever: a monitor calls again and leaves it out")
        with lanelog.connect(url) as client:
            look = functools.partial(function, client.admin, **params)
            if watch:
                _watch(look, interval, as_json=as_json)
            else:
                finish(look(), as_json=as_json)

    for option in (
        click.option(
            "--interval",
            type=click.FloatRange(0.1, 3600),
            default=2.0,
            show_default=True,
            metavar="S",
            help="Seconds between looks of --watch.",
        ),
        click.option("--watch", is_flag=True, help="Look again and again until Ctrl-C; with --json, a line each time."),
        json_option,
        url_option,
    ):
        verb = option(verb)
    return verb


def changing(function: Callable[..., Answer]) -> Callable[..., None]:
    """Make a verb of `function(admin, …, dry_run) -> Answer` that only shows what it would do without --execute."""
    verb = _changing(function, "execute")
    return click.option("--execute", is_flag=True, help="Do it. Without it, only show what would be done.")(verb)


def steering(function: Callable[..., Answer]) -> Callable[..., None]:
    """The same for what can be taken back: it acts at once, unless --dry-run is given."""
    verb = _changing(function, "dry_run")
    return click.option("--dry-run", is_flag=True, help="Only show what would be done.")(verb)


def _changing(function: Callable[..., Answer], flag: str) -> Callable[..., None]:
    @functools.wraps(function)
    def verb(*, url: str | None, as_json: bool, **params: Any) -> None:
        import lanelog

        dry_run = params.pop(flag) is (flag == "dry_run")
        with lanelog.connect(url) as client:
            answer = function(client.admin, dry_run=dry_run, **params)
        how = "add --execute to do it" if flag == "execute" else "leave --dry-run out to do it"
        finish(answer, as_json=as_json, note=f"nothing was changed: {how}" if dry_run else None)

    return url_option(json_option(verb))


def monitored(function: F) -> F:
    """Add --max-lag and --max-age."""
    function = click.option(
        "--max-age",
        type=click.FloatRange(0),
        metavar="S",
        help="Exit with status 1 if the oldest unsettled message is older than S seconds.",
    )(function)
    return click.option(
        "--max-lag",
        type=click.IntRange(0),
        metavar="N",
        help="Exit with status 1 if more than N messages are unsettled.",
    )(function)


def alarms(
    what: Sequence[tuple[str, int, float | None]], max_lag: int | None, max_age: float | None
) -> tuple[str, ...]:
    """One line at most: what exceeds a bound and by how much, the worst first. `what`: name, lag, age of the oldest."""
    late = [(name, lag) for name, lag, _ in what if max_lag is not None and lag > max_lag]
    old = [
        (name, oldest) for name, _, oldest in what if max_age is not None and oldest is not None and oldest > max_age
    ]
    parts = []
    if late:
        name, lag = max(late, key=lambda each: each[1])
        parts.append(f"lag {lag} > {max_lag} on {name}{_more(late)}")
    if old:
        name, oldest = max(old, key=lambda each: each[1])
        parts.append(f"oldest {age(oldest)} > {max_age:g}s on {name}{_more(old)}")
    return ("; ".join(parts),) if parts else ()


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""


def finish(answer: Answer, *, as_json: bool, note: str | None = None) -> None:
    """Print an answer, with a note for people; exit with status 1 if it is alarming."""
    print_answer(answer, as_json=as_json)
    if note and not as_json:
        click.echo(note, err=True)
    for alarm in answer.alarms:
        click.echo(alarm, err=True)
    if answer.alarms:
        raise SystemExit(ALARM)


def _watch(look: Callable[[], Answer], interval: float, *, as_json: bool) -> None:
    """Look until Ctrl-C."""
    console = Console(highlight=False)
    try:
        if as_json or not console.is_terminal:
            while True:
                answer = look()
                if as_json:
                    click.echo(to_json(answer.data))
                else:
                    print_answer(answer, as_json=False)
                    click.echo()
                rest(interval)
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(rendered(look()), refresh=True)
                rest(interval)
    except KeyboardInterrupt:
        pass  # how it is meant to end


def rest(seconds: float) -> None:
    """Wait, where Ctrl-C is heard."""
    threading.Event().wait(seconds)


# -- arguments ---------------------------------------------------------------------------------------------------------


def instant(text: str) -> datetime | None:
    """An ISO 8601 time with its offset from UTC; None if the text is no time. Raises ConfigurationError without one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        raise ConfigurationError(
            f"the time {text!r} has no time zone: write {found.isoformat()}Z for UTC, or {found.isoformat()}+02:00"
        )
    return found


def moment_of(option: str, text: str | None) -> datetime | None:
    """The time that an option names, if it was given. Raises ConfigurationError for a text that is no time."""
    if text is None:
        return None
    found = instant(text)
    if found is None:
        raise ConfigurationError(f"{option} {text!r} is no time: write 2026-01-31T12:00:00Z")
    return found
