"""The command `lanelog`: its entry point, which also works where click and rich are not installed.

It never imports the commands before it knows that their libraries are there. The script `lanelog` and
`python -m lanelog` call `main`.
"""

import sys
from importlib.util import find_spec

NEEDED = ("click", "rich")
USAGE_ERROR = 2


def main() -> None:
    """Run the command line, and exit."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(  # noqa: T201  # a command line prints
            f"lanelog: the command line needs {' and '.join(missing)}: pip install 'lanelog[cli]'", file=sys.stderr
        )
        sys.exit(USAGE_ERROR)
    from lanelog.cli._main import cli

    cli(prog_name="lanelog")
