"""The end of a process because handlers hang, without a database."""

import subprocess
import sys

from support.scripts import ran

PROGRAM = """
import logging
from lanelog._process import own_end

class Part:
    def __init__(self, name, broken=()):
        self.name, self.broken = name, broken
    def __hash__(self):
        return hash(self.name)
    def __getattr__(self, step):
        def take():
            if step in self.broken:
                raise RuntimeError(f"{self.name} has no {step}")
            print(self.name, step, flush=True)
            return True
        return take

logging.basicConfig(format="%(message)s")
parts = [Part(str(each), broken) for each, broken in enumerate(BROKEN)]
own_end.WRITES = 0.2
for each in parts:
    own_end.join(each)
own_end.end_if_hung()
"""


def end(*broken: str) -> subprocess.CompletedProcess[str]:
    """End a process in which one subscription cannot take these steps, among others that can."""
    program = PROGRAM.replace("BROKEN", repr([(), broken, ()]))
    return ran(sys.executable, "-c", program)


def test_each_subscription_gives_back_whatever_another_one_raises() -> None:
    """An error in one is logged, and what it has counts as crashed: not all is written."""
    ended = end("give_back", "report")
    assert ended.returncode == 3
    for step in ("give_back", "report"):
        assert {f"{each} {step}" for each in (0, 2)} <= set(ended.stdout.splitlines())
        assert f"RuntimeError: 1 has no {step}" in ended.stderr
    assert "process.ends status=3 written=false" in ended.stderr
    assert "written=true" in end().stderr
