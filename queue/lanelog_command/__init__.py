"""The command `lanelog`, from before its package is imported.

Stands beside the package, because the import of anything within it imports the package first, for some tenths of a
second. The import of this module sets no handler: `main` does.
"""

from __future__ import annotations

from lanelog_command.early_signal import early


def main() -> None:
    """Run the command line, and exit."""
    early.remember()
    from lanelog.cli import main as run

    run()
