"""What arguments named TOPIC, GROUP, KEY and OFFSET accept, and how a shell completes them.

Owns the time limit of a completion, and its silence: an error never reaches the prompt.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from lanelog.cli.command.values import Offset, Type

if TYPE_CHECKING:
    from lanelog.admin import Admin

PATIENCE: Final = 1.5
"""Seconds after which a completion gives up, and is empty."""

Names = Callable[["Admin", dict[str, Any], str], list[str]]


class Name(Type):
    """A text whose possible values the database knows."""

    name = "text"

    def __init__(self, names: Names) -> None:
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click's string does."""
        return click.STRING.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so; none if the database refuses or does not answer in time."""
        del param
        return [CompletionItem(name) for name in _within(PATIENCE, lambda: _asked(self._names, ctx, incomplete))]


def _within(seconds: float, ask: Callable[[], list[str]]) -> list[str]:
    """Return the answer of `ask`, if it comes in time.

    A late thread ends with the process, which lives for one completion.
    """
    answers: queue.Queue[list[str]] = queue.Queue()

    def run() -> None:
        try:
            answers.put(ask())
        except Exception:  # noqa: BLE001 - an error must not reach the prompt
            answers.put([])

    threading.Thread(target=run, name="lanelog-completion", daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return []


def _asked(names: Names, ctx: click.Context, incomplete: str) -> list[str]:
    import lanelog

    logger = logging.getLogger("lanelog")
    was, logger.disabled = logger.disabled, True
    try:
        with lanelog.connect(ctx.params.get("url"), connect_timeout=PATIENCE, publish_timeout=PATIENCE) as client:
            found = names(client.admin, _given(ctx), incomplete)
    finally:
        logger.disabled = was
    return [name for name in found if name.isprintable()]  # the shell would take a line break for the next name


def _given(ctx: click.Context) -> dict[str, Any]:
    """Return the arguments so far.

    If an option's value is being completed, click has split them and not named them yet.
    """
    arguments = [param.name or "" for param in ctx.command.params if isinstance(param, click.Argument)]
    return ctx.params | dict(zip(arguments, ctx.args, strict=False))


_TOPIC: Final = Name(lambda admin, _given, beginning: admin.topic_names(beginning))
_GROUP: Final = Name(lambda admin, given, beginning: admin.group_names(given.get("topic"), beginning))

TYPES: Final[dict[str, Type]] = {
    "topic": _TOPIC,
    "topics": _TOPIC,
    "to_topic": _TOPIC,
    "group": _GROUP,
    "key": Name(lambda admin, given, beginning: admin.key_names(given["topic"], beginning)),
    "offset": Offset(),
    "from_offset": Offset(),
    "before_offset": Offset(),
}
"""The type of a parameter by its name. A name means the same in every command."""


def give_types(verb: click.Command) -> None:
    """Give a command's parameters, and those of its subcommands, their types."""
    for param in verb.params:
        if param.name in TYPES and param.type in {click.STRING, click.INT}:
            param.type = TYPES[param.name]
    if isinstance(verb, click.Group):
        for below in verb.commands.values():
            give_types(below)
