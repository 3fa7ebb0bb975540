"""The README's page of operations, against the command line."""

import re
import shlex
from pathlib import Path

import click
import pytest

from lanelog.cli import _problems
from lanelog.cli._main import cli
from support.readme import blocks, table

LINES = [
    line
    for block in blocks("shell")
    for line in block.text.splitlines()
    if line.startswith("lanelog ") and "dev-server" not in line
]


def parsed(line: str) -> click.Context:
    """What click makes of a command line, without running it."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="lanelog")
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    return command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("line", [line for line in LINES if "--file" not in line])
def test_every_command_line_of_the_readme_is_well_formed(line: str) -> None:
    """Its arguments and options exist and are of the right kind."""
    assert parsed(line).command is not cli


def test_every_verb_is_in_the_readme() -> None:
    """As an example, or by name."""
    named = {words[1] for words in map(str.split, LINES)} | {"resume", "dev-server", "migrate", "demo"}
    assert named == {*cli.commands}


def test_the_runbook_has_everything_that_status_says() -> None:
    """Each kind of problem once, with verbs that exist."""
    rows = table("`status` says", "It means", "What mends it")
    source = Path(_problems.__file__).read_text()
    said = re.findall(r'(?:what=|Rank\.[A-Z]+,\s*)"([a-z ]+)"', source)
    assert {row[0].strip("`").lower() for row in rows} == {*said}
    assert len(rows) == len({*said}) > 1
    for row in rows:
        for verb in re.findall(r"`lanelog ([a-z-]+)", row[2]):
            assert verb in cli.commands
