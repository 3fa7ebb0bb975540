"""The command line inside the test's process, through click's own runner, and what it may have changed."""

import json
import os
import re
from typing import Any

import click
from attrs import frozen
from click.testing import CliRunner, Result

from lanelog.cli._main import cli
from lanelog.migrations.declared import declared_tables
from support.sql import rows

TABLES = tuple(declared_tables())


def all_verbs() -> dict[str, click.Command]:
    """Every verb of the command line, by name; their modules are imported now."""
    context = click.Context(cli)
    return {name: verb for name in cli.list_commands(context) if (verb := cli.get_command(context, name))}


@frozen
class Command:
    """`lanelog` on one database."""

    url: str | None

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
        """Run it, and expect this exit status."""
        result = self.any(*arguments, stdin=stdin)
        assert result.exit_code == status, result.output
        return result

    def any(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """Run it, whatever its exit status is."""
        environ = {name: None for name in os.environ if name.startswith(("LANELOG_", "_LANELOG"))}
        result = CliRunner(env=environ | {"LANELOG_URL": self.url}).invoke(
            cli, arguments, input=stdin, prog_name="lanelog"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def table(self, *arguments: str) -> tuple[list[str], list[list[str]]]:
        """The heads and the cells of what it prints; for cells without two blanks in a row."""
        heads, *lines = (re.split(r"  +", line.strip()) for line in self(*arguments).stdout.splitlines())
        return heads, lines

    def json(self, *arguments: str) -> Any:
        """What it prints with --json."""
        return json.loads(self(*arguments, "--json").stdout)

    def refused(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        """The one line with which it refuses."""
        result = self(*arguments, stdin=stdin, status=2)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ")
        return line.removeprefix("Error: ")


def everything(raw: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    return {table: sorted(rows(raw, f"SELECT * FROM {table}"), key=repr) for table in TABLES}
