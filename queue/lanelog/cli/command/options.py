"""Arguments, options and examples: what the declarations of several verbs have in common.

Owns their names, texts and forms. Knows no verb. A new option stands here as soon as a second verb has it.
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
    """Return the URL that was given last: before the verb, or behind it."""
    if value is not None:
        ctx.meta[_URL] = value
    found: str | None = ctx.meta.get(_URL)
    return found


ANY_URL: Final[dict[str, Any]] = {
    "metavar": "URL",
    "help": "mysql://user:password@host:3306/database; default: LANELOG_URL.",
    "callback": innermost,
}
url_option = click.option("--url", **ANY_URL)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
all_option = click.option("--all", "whole", is_flag=True, help="Show all rows, however low the terminal is.")
wide_option = click.option("--wide", is_flag=True, help="Show all columns and all rows, and crop nothing.")
why_option = click.option("--why", default="", metavar="TEXT", help="Why; `lanelog audit` shows it.")
key_option = click.option("--key", help="Only this lane.")
metadata_option = click.option(
    "--metadata", "pairs", multiple=True, metavar="NAME=VALUE", help="Of each message; may be repeated."
)
limit_option = click.option(
    "--limit", default=100, show_default=True, metavar="N", help="At most so many entries, up to 10000."
)


def examples(*lines: str) -> str:
    """Return the end of a verb's help, of lines as they are typed behind `lanelog`."""
    return "\b\nExamples:\n" + "\n".join(f"  lanelog {line}" for line in lines)


def arguments(*names: str) -> Callable[[F], F]:
    """Add arguments, in this order. One whose name stands in brackets may be left out."""

    def add(function: F) -> F:
        for name in reversed(names):
            function = click.argument(name.strip("[]"), required=not name.startswith("["))(function)
        return function

    return add


def time_option(name: str, help: str) -> Callable[[F], F]:  # noqa: A002 - as click calls it
    """Add an option that is a time."""
    return click.option(name, type=Time(), metavar="TIME", help=help)


def words(*, required: bool = False, help: str) -> Callable[[F], F]:  # noqa: A002 - as click calls it
    """Add --why to a verb that keeps the operator's words itself, as its `reason`. --reason selects dead letters."""
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
