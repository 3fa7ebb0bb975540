"""Arguments, options and examples: what the declarations of several commands have in common.

Owns their names, texts and forms. Knows no command. A new option stands here as soon as a second command has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from lanelog.cli.command.values import Time
from lanelog.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])

_URL: Final = "lanelog.cli.url"


def innermost(ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return the URL that was given last: before the command, or after it."""
    if value is not None:
        ctx.meta[_URL] = value
    found: str | None = ctx.meta.get(_URL)
    return found


ANY_URL: Final[dict[str, Any]] = {
    "metavar": "URL",
    "help": "mysql://user:password@host:3306/database; default: LANELOG_URL.",
    "callback": innermost,
}
url = click.option("--url", **ANY_URL)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
all_rows = click.option("--all", "whole", is_flag=True, help="Show all rows, however low the terminal is.")
wide = click.option("--wide", is_flag=True, help="Show all columns and all rows, and crop nothing.")
why = click.option("--why", default="", metavar="TEXT", help="Why; `lanelog audit` shows it.")
key = click.option("--key", help="Only this lane.")
metadata = click.option(
    "--metadata", "pairs", multiple=True, metavar="NAME=VALUE", help="Of each message; may be repeated."
)
limit = click.option(
    "--limit", default=100, show_default=True, metavar="N", help="At most so many entries, up to 10000."
)


def command(
    *examples: str, name: str | None = None, of: click.Group | None = None, short: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function.

    Args:
        examples: The end of its help: lines as they are typed after `lanelog`.
        name: What is typed, if that is not the name of the function.
        of: The group below which it stands. None: it stands below `lanelog`, see `_main`.
        short: Its line in the help of that group.
    """
    epilog = "\b\nExamples:\n" + "\n".join(f"  lanelog {line}" for line in examples)
    make = click.command if of is None else of.command
    return make(name, short_help=short, epilog=epilog)


def seconds(
    name: str,
    help: str,  # noqa: A002 - as click calls it
    *,
    default: float | None = None,
    within: tuple[float, float | None] | None = None,
) -> Callable[[F], F]:
    """Add an option that is a number of seconds. `within`: the least and the most. None: the command checks it."""
    kind = click.FLOAT if within is None else click.FloatRange(*within)
    return click.option(name, type=kind, default=default, show_default=default is not None, metavar="S", help=help)


def arguments(*names: str) -> Callable[[F], F]:
    """Add arguments, in this order. One whose name stands in brackets may be left out."""

    def add(function: F) -> F:
        for name in reversed(names):
            function = click.argument(name.strip("[]"), required=not name.startswith("["))(function)
        return function

    return add


def time(name: str, help: str) -> Callable[[F], F]:  # noqa: A002 - as click calls it
    """Add an option that is a time."""
    return click.option(name, type=Time(), metavar="TIME", help=help)


def words(*, required: bool = False, help: str) -> Callable[[F], F]:  # noqa: A002 - as click calls it
    """Add --why to a command that keeps the operator's words itself, as its `reason`. --reason selects dead letters."""
    given: dict[str, Any] = {"required": True} if required else {"default": ""}

    def add(function: F) -> F:
        function = click.option(
            "--reason", "refused", hidden=True, is_eager=True, expose_value=False, callback=_not_reason
        )(function)
        return click.option("--why", "reason", metavar="TEXT", help=help, **given)(function)

    return add


def _not_reason(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    """Refuse the spelling of before: a script that has it must not pause or skip without its words."""
    if value is not None:
        raise click.UsageError("--reason selects dead letters: say why with --why", ctx)


def metadata_of(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Return the metadata that --metadata gave. Raises ConfigurationError."""
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or name in found:
            raise ConfigurationError(f"--metadata {pair!r}: write NAME=VALUE, each name once")
        found[name] = value
    return found or None
