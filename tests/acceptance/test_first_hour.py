"""A new user's first hour, acted out: the README's commands in their order, its programs, a terminal.

Nothing here imports the library: what is tested is what a user has installed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from lanelog.devserver import DevServer
from support.readme import ROOT, Example, example, shell_blocks
from support.scripts import Script
from support.sql import connect, rows
from support.waiting import eventually

pytestmark = pytest.mark.one_family("mariadb")

WORKER = """
import lanelog

client = lanelog.connect()


@client.subscriber("orders", "billing", retry=2)
def bill(message):
    order = message.json()
    print("billed", order["customer"], flush=True)


client.publish("orders", "order-7", {"client": "ann"})
client.run()
"""

TESTS = """
import os
from urllib.parse import urlsplit

def test_publish(lanelog_client, lanelog_url):
    assert urlsplit(lanelog_url).port != urlsplit(os.environ["LANELOG_URL"]).port
    assert lanelog_client.publish("orders", "order-7", b"paid").offset == 1
"""


# `make demo` and `make test`; then the wheel and a server; then a worker, in other terminals.
_, INSTALL, WORK = shell_blocks("README.md")


@define
class Machine:
    """A new user's machine: a copy of the repository, an environment made there, and LANELOG_URL once it is known."""

    home: Path
    environment: dict[str, str]

    def start(self, *commands: str) -> Script:
        """Start the commands in a terminal of their own; the last one takes the place of the shell."""
        *before, last = commands
        lines = ["set -e", *before, f"exec {last}"]
        return Script.start(["bash", "-c", "\n".join(lines)], self.environment, self.home)

    def run(self, *commands: str) -> str:
        """What commands print, in a terminal in which the environment is active."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def write(self, name: str, text: str) -> str:
        (self.home / name).write_text(text)
        return name


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The wheel of this tree is installed, by the README's own commands; no variable of this process shows."""
    home = tmp_path_factory.mktemp("user") / "lanelog"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, home / name, follow_symlinks=False)
    unwanted = ("LANELOG", "PYTHON", "PYTEST", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    # The Python that these tests run with, where the machine has an older one, too.
    kept["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{kept['PATH']}"
    found = Machine(home, kept)
    found.run(*INSTALL[:-1])
    found.environment["PATH"] = f"{home / 'env/bin'}:{kept['PATH']}"
    return found


@pytest.fixture(scope="module")
def server(machine: Machine, request: pytest.FixtureRequest) -> Iterator[str]:
    """The database that the README's last command starts, in another terminal; the URL that it prints."""
    assert INSTALL[-1] == "lanelog dev-server"
    kind = "mysql-local" if request.config.getoption("--server") == "mysql-local" else "local"
    with machine.start(f"{INSTALL[-1]} --server {kind}") as terminal:
        (url,) = terminal.lines.until(lambda lines: lines, within=60, what="the URL")[:1]
        terminal.lines.until(lambda lines: f"  export LANELOG_URL={url}" in lines, within=60, what="what to do next")
        machine.environment["LANELOG_URL"] = url
        yield url
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(30) == 0


@pytest.fixture(autouse=True)
def _needs(server: str) -> None:
    """Every part of the hour has a server."""


def test_the_first_lines_and_the_quick_start(machine: Machine, server: str) -> None:
    """A message is read back; of two workers one is killed, and the other one handles all keys."""
    first = machine.write("first.py", example(Example.FIRST).text)
    assert machine.run(f"python {first}") == "world {'it': 'works'}\n"
    machine.write("quickstart.py", example(Example.QUICK_START).text)
    del machine.environment["LANELOG_URL"]
    try:
        work = [line.replace("…", server) for line in WORK]
        with machine.start(*work) as one, machine.start(*work) as two:
            eventually(lambda: keys(one) and keys(two), within=60)
            one.process.kill()
            one.process.wait()
            since = len(two.lines)
            eventually(lambda: len(keys(two, since)) == 4, within=60)
            two.process.send_signal(signal.SIGINT)
            assert two.process.wait(30) == 0
            assert "Traceback" not in two.text
    finally:
        machine.environment["LANELOG_URL"] = server


def keys(script: Script, since: int = 0) -> set[str]:
    """Which lanes a quick start has handled since a line."""
    found = (re.match(rf"process {script.pid} handles (repo-\d): ", line) for line in script.lines.items[since:])
    return {match[1] for match in found if match}


def test_a_handler_that_raises(machine: Machine) -> None:
    """The traceback is on the terminal, with nothing configured, and in the dead letter; repaired, it is redriven."""
    worker = machine.write("worker.py", WORKER)
    with machine.start(f"python {worker}") as terminal:
        eventually(lambda: "message.dead_lettered" in terminal.text, within=30)
        for part in ("Traceback (most recent call last)", 'order["customer"]', "KeyError: 'customer'", "order-7"):
            assert part in terminal.text
        letters = machine.run("lanelog dlq list orders --json")
        (identity,) = set(re.findall(r'"id": "([^"]+)"', letters))
        shown = machine.run(f"lanelog dlq show orders order-7 {identity}")
        assert "KeyError: 'customer'" in shown
        assert "worker.py" in shown
        assert "in bill" in shown
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(30) == 0
    machine.write("worker.py", WORKER.replace('order["customer"]', 'order["client"]').replace("client.publish", "# "))
    assert "--execute" in machine.run("lanelog dlq redrive orders billing --all")  # a preview
    machine.run("lanelog dlq redrive orders billing --all --execute")
    with machine.start(f"python {worker}") as terminal:
        eventually(lambda: "billed ann" in terminal.text, within=30)
    assert "Traceback" not in terminal.text


def test_a_test_of_ones_own(machine: Machine, server: str, lanelog_server: DevServer) -> None:
    """The plugin leaves the database of LANELOG_URL alone, and its server too: it has a server of its own."""
    machine.run(INSTALL[-2].replace("[cli]", "[testing]"))
    tests = machine.write("test_orders.py", TESTS)
    before = holdings(lanelog_server)
    lanelog_server.create_database("precious")
    try:
        precious = server_url(lanelog_server, "precious")
        machine.environment["LANELOG_URL"] = precious
        said = machine.run(f"pytest -p no:cacheprovider --noconftest -c /dev/null --rootdir . {tests}")
    finally:
        machine.environment["LANELOG_URL"] = server
        after = holdings(lanelog_server)
        lanelog_server.drop_database("precious")
    assert "1 passed" in said
    assert after == {**before, "precious": 0}


def server_url(server: DevServer, database: str) -> str:
    return re.sub(r"/[^/?]*(\?|$)", rf"/{database}\1", server.url)


def holdings(server: DevServer) -> dict[Any, Any]:
    """How many tables each database of a server has."""
    statement = (
        "SELECT s.schema_name, COUNT(t.table_name) FROM information_schema.schemata s"
        " LEFT JOIN information_schema.tables t ON t.table_schema = s.schema_name GROUP BY s.schema_name"
    )
    with connect(server.url) as root:
        return {name: count for name, count in rows(root, statement) if name.startswith(("precious", "lanelog"))}
