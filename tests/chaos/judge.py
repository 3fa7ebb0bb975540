"""A chaos run judged anew: `PYTHONPATH=tests python -m chaos.judge DIRECTORY`, after the checker has learnt something.

Owns the reading of what a run has left: its journals, and what its result says of the run itself; never runs anything.
"""

import json
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from chaos.history import read
from chaos.run import judge

OF_THE_RUN: Final = (
    "measured_at", "command", "lanelog", "server", "python", "cores", "load_average", "lease", "seed", "seconds",
    "keys", "hints",
)  # fmt: skip


def main() -> int:
    """Judge; the exit status."""
    directory = Path(sys.argv[1])
    before = json.loads(next(iter(directory.glob("chaos-*.json"))).read_text())
    known = {name: before[name] for name in OF_THE_RUN}
    events = read(sorted(directory.glob("*.jsonl")))
    return judge(events, known, before["failures"], before["left_out"], directory, Console(width=120))


if __name__ == "__main__":
    sys.exit(main())
