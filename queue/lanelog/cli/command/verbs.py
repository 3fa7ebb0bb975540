"""What all commands have in common: options, connection, errors and exit status.

Owns the exit statuses. 0: done. 1: a bound is exceeded, an error was found, or a part is left to do. 2: refused,
nothing was changed. 130: Ctrl-C. Never knows what a command does.
"""

from __future__ import annotations

import difflib
import functools
import getpass
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click
from attrs import evolve

from lanelog._base.text import shown
from lanelog._process.extras import install
from lanelog.cli.command import options
from lanelog.cli.command.bounds import MonitorBounds
from lanelog.cli.command.names import give_types
from lanelog.cli.output.answer import Answer, print_answer
from lanelog.errors import LanelogError
from lanelog_command.early_signal import early

if TYPE_CHECKING:
    from lanelog.admin import Admin
    from lanelog.client import Client
    from lanelog.config import ConnectConfig

ALARM: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130

_PATIENCE: Final = 3.0
"""Seconds after which --watch says that the database does not answer."""


class Refused(click.ClickException):
    """One line on standard error, and exit status 2."""

    exit_code = REFUSED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Unfinished(Refused):
    """One line on standard error, and exit status 1: a part was done."""

    exit_code = ALARM


class Verbs(click.Group):
    """A group of commands that prints every refusal as one line, click's own refusals too."""

    sections: Mapping[str, Mapping[str, tuple[str, str]]] = {}
    """Commands by purpose: the module of each, below `lanelog.cli`, and one line. The module is imported when its
    command is asked for. Empty: the commands are those that were added."""
    draining: Collection[str] = ()
    """Commands that end in order at a SIGTERM of before they ran. It ends all others as it ends any program."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(click.Option(["--url"], expose_value=False, **options.ANY_URL))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in order."""
        return sorted({*super().list_commands(ctx), *(name for verbs in self.sections.values() for name in verbs)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, and import its module if it is not there yet."""
        for verbs in self.sections.values():
            if cmd_name in verbs and cmd_name not in self.commands:
                module, _ = verbs[cmd_name]
                verb: click.Command = getattr(import_module(f"lanelog.cli.{module}"), cmd_name.replace("-", "_"))
                give_types(verb)
                self.add_command(verb)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Do as click does. From here on SIGTERM ends the command, unless the command drains.

        A command that is not there is refused with the one that may be meant.
        """
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}{self._meant(ctx, args[0])}", ctx)
        name, verb, rest = super().resolve_command(ctx, args)
        if name not in self.draining:
            early.end()
        return name, verb, rest

    def _meant(self, ctx: click.Context, wrong: str) -> str:
        """Return the question whether another command is meant: one of this name elsewhere, or one with a name like it.

        Imports the modules of all commands, because subcommands stand there: only after a mistake.
        """
        last = {name: [name] for name in self.list_commands(ctx)}
        for name in list(last):
            verb = self.get_command(ctx, name)
            for below in verb.commands if isinstance(verb, click.Group) else ():
                last.setdefault(below, []).append(f"{name} {below}")
        close = [wrong] if wrong in last else difflib.get_close_matches(wrong, last, n=1)
        return "".join(f", did you mean {' or '.join(map(repr, last[name]))}" for name in close)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Do as click does, for the options before the command."""
        with _one_line():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Do as click does, for the command and its options."""
        with _one_line():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the commands section by section."""
        if not self.sections:
            super().format_commands(ctx, formatter)
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in verbs.items()])


@contextmanager
def _one_line() -> Iterator[None]:
    """Print errors of the library and of click as one line, and Ctrl-C as none.

    Click alone would print the usage first.
    """
    try:
        yield
    except LanelogError as exc:
        raise Refused(str(exc)) from exc
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except click.UsageError as exc:
        if type(exc).__name__ == "NoArgsIsHelpError":  # shows the help instead
            raise
        path = exc.ctx.command_path if exc.ctx else "lanelog"
        raise Refused(f"{exc.format_message().rstrip('.')}; see `{path} --help`") from exc


def refuse_typed(option: str, why: str) -> None:
    """Refuse an option that was typed: with the other options, nothing reads it."""
    ctx = click.get_current_context()
    name = next(each.name for each in ctx.command.params if option in each.opts)
    if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(f"{option} {why}", ctx)


# -- the kinds of commands ---------------------------------------------------------------------------------------------


def reading(function: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command that reads of `function(admin, …) -> Answer`: with --url, --json and --watch."""

    @functools.wraps(function)
    def verb(
        *, url: str | None, as_json: bool, watch: bool, interval: float, whole: bool, wide: bool, **params: Any
    ) -> None:
        import lanelog

        if not watch:
            refuse_typed("--interval", "is for --watch")
        bounds = MonitorBounds.taken(params)
        if bounds is not None:
            params["bounds"] = bounds
        if watch and bounds is not None and bounds.given:
            raise click.UsageError("--watch goes on for ever: a monitor calls again and leaves it out")
        connect = functools.partial(lanelog.connect, publish_timeout=_PATIENCE) if watch else lanelog.connect
        with connect(url) as client:
            ask = functools.partial(_of, client, function, client.admin, **params)
            if watch:
                from lanelog.cli.output.watch import watch as watch_it

                watch_it(ask, interval, as_json=as_json, wide=wide, rest=rest)
            else:
                finish(ask(), as_json=as_json, wide=wide, whole=whole)

    for option in (
        options.seconds(
            "--interval",
            "Seconds between polls of --watch, or ten times what a poll takes, if that is more.",
            default=2.0,
            within=(0.1, 3600),
        ),
        click.option("--watch", is_flag=True, help="Ask again and again until q or Ctrl-C; with --json, a line each."),
        options.wide,
        options.all_rows,
        options.as_json,
        options.url,
    ):
        verb = option(verb)
    return verb


def _of(client: Client, function: Callable[..., Answer], admin: Admin, **params: Any) -> Answer:
    """Return the answer of the command, with the name of its database."""
    return evolve(function(admin, **params), database=database_of(client.config))


def database_of(config: ConnectConfig) -> str:
    """Return the name of a database and its host, as the first line of an answer has them."""
    return f"{shown(config.database)} at {shown(config.address())}"


def announce(config: ConnectConfig) -> None:
    """Print that line on a terminal: for a command whose output is no answer."""
    if sys.stdout.isatty():
        click.secho(database_of(config), dim=True)


def changing(function: Callable[..., Answer], *, why: bool = True) -> Callable[..., None]:
    """Make a command of `function(admin, …, dry_run) -> Answer` that only shows what it would do without --execute.

    `why`: whether it has the option --why. A command with a reason of its own has not.
    """
    verb = _changing(function, "execute", why=why)
    return click.option("--execute", is_flag=True, help="Do it. Without it, only show what would be done.")(verb)


def steering(function: Callable[..., Answer], *, why: bool = True) -> Callable[..., None]:
    """Make a command that acts at once, unless --dry-run is given: for changes that can be taken back.

    `why` as above.
    """
    verb = _changing(function, "dry_run", why=why)
    return click.option("--dry-run", is_flag=True, help="Only show what would be done.")(verb)


def _changing(function: Callable[..., Answer], flag: str, *, why: bool) -> Callable[..., None]:
    @functools.wraps(function)
    def verb(*, url: str | None, as_json: bool, **params: Any) -> None:
        import lanelog

        dry_run = params.pop(flag) is (flag == "dry_run")
        reason = params.pop("why") if why else ""
        with lanelog.connect(url) as client:
            answer = _of(client, function, client.admin.acting(login(), reason), dry_run=dry_run, **params)
        how = "add --execute to do it" if flag == "execute" else "leave --dry-run out to do it"
        finish(answer, as_json=as_json, note=f"nothing was changed: {how}" if dry_run else None)

    return options.url(options.as_json(options.why(verb) if why else verb))


def login() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # this user id has no name, as in a container
        return ""


def finish(
    answer: Answer,
    *,
    as_json: bool,
    wide: bool = False,
    whole: bool = True,
    note: str | None = None,
    config: ConnectConfig | None = None,
) -> None:
    """Print an answer, with a note for people. Exit with status 1 if it has alarms.

    `config`: of the database that the answer is about, unless it says so itself.
    """
    if config is not None:
        answer = evolve(answer, database=database_of(config))
    print_answer(answer, as_json=as_json, wide=wide, whole=whole)
    if note and not as_json:
        click.echo(note, err=True)
    for alarm in answer.alarms:
        click.echo(alarm, err=True)
    if answer.alarms:
        raise SystemExit(ALARM)


def need(extra: str, *modules: str, also: str = "") -> None:
    """Refuse if a module is not installed, and say which extra brings it, and what it needs besides."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise Refused(f"this command needs {' and '.join(missing)}: {install(extra)}{also}")


@contextmanager
def until_ended() -> Iterator[None]:
    """Let Ctrl-C or SIGTERM end the block, and nothing more: for what goes on until then."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield


def rest(seconds: float) -> None:
    """Wait. Ctrl-C ends an Event's wait."""
    threading.Event().wait(seconds)
