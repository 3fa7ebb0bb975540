"""The command `lanelog` with all its verbs, and what its help says of them as a whole.

It holds no verb itself and imports no room that a verb needs only when it runs. `main` calls it.
"""

from __future__ import annotations

import click

from lanelog.cli import (
    _analyze,
    _archive,
    _change,
    _events,
    _letters,
    _messages,
    _publish,
    _read,
    _schedule,
    _scheduled,
    _setup,
    _status,
)
from lanelog.cli._verbs import Verbs

EPILOG = """
Exit status: 0 done; 1 a bound (--max-lag, --max-age, --max-dead-letters) is exceeded, doctor found an error, or a part
is left to do; 2 refused (bad input, missing privilege, unreachable database), nothing was changed; 130 ended by Ctrl-C.

Completion of verbs and options: eval "$(_LANELOG_COMPLETE=bash_source lanelog)" in ~/.bashrc; zsh_source in ~/.zshrc;
_LANELOG_COMPLETE=fish_source lanelog | source for fish.
"""


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanelog")
def cli() -> None:
    """A partitioned message log inside MySQL or MariaDB.

    The database is that of --url or LANELOG_URL. Every verb that looks takes --json and --watch; every verb that
    destroys only shows what it would do, unless --execute is given.
    """


for _room in (
    _status,
    _read,
    _messages,
    _publish,
    _scheduled,
    _schedule,
    _letters,
    _change,
    _archive,
    _analyze,
    _events,
    _setup,
):
    for _verb in _room.VERBS:
        cli.add_command(_verb)
