"""The command line as real processes."""

import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

import lanelog
from lanelog.migrations import VERSION
from support.scripts import ran

COMMAND = [sys.executable, "-m", "lanelog"]
WITHOUT_CLICK = "import sys; sys.modules['click'] = None; from lanelog.cli import main; main()"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if name != "LANELOG_URL"}
    return ran(*COMMAND, *arguments, env=base | environ)


@pytest.mark.thorough
@pytest.mark.local_server
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_dev_server_runs_until_it_is_stopped(local_kind: str, how: signal.Signals) -> None:
    """The first line is the URL of a database that can be used at once; Ctrl-C or SIGTERM end it with status 0."""
    command = [*COMMAND, "dev-server", "--server", local_kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            with lanelog.connect(url) as client:
                assert client.publish("builds", "repo-1", b"a").offset == 1
            process.send_signal(how)
            rest, notes = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert rest == ""
    assert f"export LANELOG_URL={url}" in notes
    assert notes.endswith("stopped\n")
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", urlsplit(url).port))


@pytest.mark.thorough
def test_migrate_makes_a_database_usable(empty_url: str) -> None:
    """`migrate --url` makes the tables and says so, and may be repeated; without `--url`, LANELOG_URL is meant.

    `--sql` needs no database.
    """
    first, again = run("migrate", "--url", empty_url), run("migrate", LANELOG_URL=empty_url)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout.startswith("created table queue_audit\n")
    assert first.stdout.endswith(f"\nrecorded version {VERSION}\nthe tables are up to date\n")
    assert again.stdout == "the tables are up to date\n"
    assert "\nCREATE TABLE IF NOT EXISTS queue_audit (" in run("migrate", "--sql").stdout
    assert run("migrate", "--sql", "--from", str(VERSION)).stdout == ""
    with lanelog.connect(empty_url) as client:
        assert client.publish("builds", "repo-1", b"a").offset == 1


@pytest.mark.thorough
def test_an_error_is_one_message() -> None:
    """Exit status 2, and no traceback."""
    done = run("migrate")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["latin-1", pytest.param("cp1252", marks=pytest.mark.thorough)])
def test_what_the_terminal_cannot_show_is_escaped(lanelog_url: str, encoding: str) -> None:
    """A command that has published does not fail for the sake of its output: a failure would invite a repetition."""
    done = run("publish", "orders", "☃", "x", LANELOG_URL=lanelog_url, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u2603" in done.stdout
    shown = run("show", "orders", "☃", "1", LANELOG_URL=lanelog_url, PYTHONIOENCODING=encoding)
    assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)
    assert r"\u2603" in shown.stdout
    refused = run("show", "orders", "☂", "1", LANELOG_URL=lanelog_url, PYTHONIOENCODING=encoding)
    assert refused.returncode == 2
    assert r"\u2602" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_click_the_command_says_what_to_install() -> None:
    """The extra is named in one line, and the status is that of a usage error."""
    done = ran(sys.executable, "-c", WITHOUT_CLICK)
    assert done.returncode == 2
    assert done.stderr == "lanelog: the command line needs click: pip install 'click>=8.1' 'rich>=13.7'\n"
