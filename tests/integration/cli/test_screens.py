"""The screens of the documentation, at 80 and 140 columns in a real terminal.

`LANELOG_SCREENS=write pytest tests/integration/cli/test_screens.py` writes docs/operations/screens.md anew; look at
what changed.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.cells import cell_len

import lanelog
from support import scene

pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")  # the child only becomes the program

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "screens.md"
INTRODUCTION = """# The command line's screens

What `lanelog` shows in a terminal of 80 and of 140 columns, of the same database. No cell is folded: text is cropped in
its middle, times are distances from now, ids stand in `show` and in `--json`. Columns for which there is no room are
named below the table; `--wide` shows all, and crops nothing. Rows for which the terminal is too low are counted below
the table; `--all` shows them. The output begins with the name of the database, and its host.
A pipe gets all columns, uncropped, without that name, summary and total. What is wrong is red or yellow; with
`NO_COLOR`, and in a pipe, nothing is.

ACKED is the watermark everywhere: what a group has settled without a gap. HEAD is the last offset published.
"""
COMMANDS = (
    ("What is wrong", "status"),
    ("Only some topics", "status 'ord*'"),
    ("Topics", "topics"),
    ("Groups", "groups"),
    ("How far behind", "lag"),
    ("Members of a group", "members orders billing"),
    ("Lanes", "lanes orders billing"),
    ("Lanes with long keys", "lanes notifications mailer --limit 5"),
    ("Offsets", "offsets orders billing"),
    ("Leases in the name of somebody who is gone", "leases --stale"),
    ("Messages of a lane", "show orders ann"),
    ("One message", "show orders ann 1"),
    ("History", "history orders billing --limit 5"),
    ("A group that keeps no history", "history notifications mailer"),
    ("Dead letters", "dlq list orders"),
    ("Dead letters by reason", "dlq list orders --reasons"),
    ("Messages that are not due yet", "scheduled list orders"),
    ("Schedules", "schedule list"),
)
SENTENCES = re.compile(r"^(    |[A-Z ]+  \S|payload|message|\w+ topics?, )")
"""Lines that are no row of a table: `status` wraps nothing that is to be pasted, `show` shows all of a payload."""


PROGRAM = """
import shlex
import sys
from lanelog.cli._main import cli

for command in sys.argv[1:]:
    assert not cli(shlex.split(command), prog_name="lanelog", standalone_mode=False), command
    print(end="\\f")
"""
"""One process for all commands: starting one for each took half a minute."""


def screens(url: str, width: int) -> list[str]:
    """What a terminal of this width shows of each command."""
    child = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, *(command for _, command in COMMANDS)],
        env={**os.environ, "LANELOG_URL": url, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
        dimensions=(50, width),
        encoding="utf-8",
        timeout=60,
    )
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", child.before or "")
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-01-31T12:00:00Z", text)
    text = re.sub(r"\S+ at 127\.0\.0\.1:\d+", "shop at db.example.com:3306", text)
    *shown, rest = text.split("\f")
    assert not rest
    return ["\n".join(line.rstrip() for line in each.splitlines()) for each in shown]


@pytest.mark.thorough
def test_screens_are_those_of_the_documentation(lanelog_client: lanelog.Client, lanelog_url: str, raw: Any) -> None:
    """Every one of them, as it is in docs/operations/screens.md; no row of a table is wider than its terminal."""
    scene.build(lanelog_client, raw)
    parts = [INTRODUCTION]
    narrow, broad = screens(lanelog_url, 80), screens(lanelog_url, 140)
    for (title, command), *both in zip(COMMANDS, narrow, broad, strict=True):
        parts.append(f"## {title}\n")
        for width, shown in zip((80, 140), both, strict=True):
            wide = [line for line in shown.splitlines() if cell_len(line) > width and not SENTENCES.match(line)]
            assert not wide, (command, width)
            parts.append(f"```console\n$ lanelog {command}    # {width} columns\n{shown}\n```\n")
    page = "\n".join(parts)
    if os.environ.get("LANELOG_SCREENS") == "write":
        PAGE.write_text(page)
    assert PAGE.read_text() == page
