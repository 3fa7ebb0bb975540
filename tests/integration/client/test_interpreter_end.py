"""What runs at the end of the interpreter: `close()` in `atexit`, and objects that are collected after the modules."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.scripts import ran

pytestmark = pytest.mark.usefixtures("lanelog_client")  # the tables

# As Python 3.12 does once the main thread has ended.
NO_NEW_THREAD = """
import threading
start = threading.Thread.start
def refuse(thread):
    if not threading.main_thread().is_alive():
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)
threading.Thread.start = refuse
"""
CLOSES = """
import atexit, threading, lanelog
client = lanelog.connect({url!r})
inside = threading.Event()
@client.subscriber("t", "g")
def hang(message):
    inside.set()
    threading.Event().wait()
client.start()
client.publish("t", "k", b"x")
assert inside.wait(30)
atexit.register(lambda: print("drained:", client.close(0.2)))
"""
# The modules lose their names one after the other, the youngest first, if anything keeps them: a server that embeds
# Python does. A module that is older than lanelog lets go of the client then.
KEEPS = """
import sys, types
old = sys.modules["old"] = types.ModuleType("old")
import lanelog
old.client = client = lanelog.connect({url!r})
client.subscriber("t", "h")(print)
old.subscription = client.subscribe("t", "g", print)
old.core, old.doorbell = old.subscription._core, client._engine._doorbell
sys.kept = [old, *(module for name, module in sys.modules.items() if name.startswith("lanelog"))]
"""


def ended(tmp_path: Path, program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end."""
    file = tmp_path / "program.py"
    file.write_text(program)
    return ran(sys.executable, "-W", "ignore", file, env={"PYTHONPATH": ":".join(sys.path)})


def test_close_at_exit_starts_no_thread(tmp_path: Path, lanelog_url: str) -> None:
    """A handler that hangs: `close(…)` in `atexit` returns False and says why, and the process ends at once."""
    program = ended(tmp_path, NO_NEW_THREAD + CLOSES.format(url=lanelog_url))
    assert (program.stdout, program.returncode) == ("drained: False\n", 0)
    assert program.stderr == "subscription.still_draining group=g running=1\n"


def test_what_is_collected_after_the_modules_prints_nothing(tmp_path: Path, lanelog_url: str) -> None:
    """A client, a subscription and a doorbell that outlive the names of their modules."""
    program = ended(tmp_path, KEEPS.format(url=lanelog_url))
    assert (program.stdout, program.stderr, program.returncode) == ("", "", 0)
