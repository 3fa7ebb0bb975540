"""The entry point of the command `lanelog`. It works without click and rich, too: then it says that they are missing.

Imports the commands only once their libraries are found.
"""

import io
import sys
from importlib.util import find_spec

from lanelog._process.extras import install

NEEDED = ("click", "rich")
USAGE_ERROR = 2


def main() -> None:
    """Run the command line, and exit."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not fail a command that has already changed something.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(  # noqa: T201  # a command line prints
            f"lanelog: the command line needs {' and '.join(missing)}: {install('cli')}", file=sys.stderr
        )
        sys.exit(USAGE_ERROR)
    from lanelog.cli._main import cli

    cli(prog_name="lanelog")
