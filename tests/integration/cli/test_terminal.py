"""The command line in a real terminal: colours, width, Ctrl-C, the progress bar, completion."""

import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pexpect
import pytest

import lanelog
from lanelog.config import ConnectConfig
from support.cli import Command
from support.proxy import Proxy
from support.scripts import ran
from support.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")  # the child only becomes the program

Terminal = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def terminal(lanelog_url: str) -> Iterator[Terminal]:
    """Starts `lanelog` in a terminal of its own, which ends with the test."""
    started: list[Any] = []

    def start(*arguments: str, width: int = 200, height: int = 40, then: str = "") -> "pexpect.spawn[str]":
        """`then`: what a shell runs in the same terminal afterwards."""
        command = [sys.executable, "-m", "lanelog", *arguments]
        if then:
            command = ["/bin/bash", "-c", f"{shlex.join(command)}; {then}"]
        child = pexpect.spawn(
            command[0],
            command[1:],
            env={**os.environ, "LANELOG_URL": lanelog_url, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
            dimensions=(height, width),
            encoding="utf-8",
            timeout=60,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.close(force=True)


def ended(child: "pexpect.spawn[str]") -> int | None:
    """Wait for its end; its exit status."""
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def answer(child: "pexpect.spawn[str]") -> str:
    """Wait for its end, with status 0; what it has shown since the last thing that was expected of it."""
    assert ended(child) == 0
    return str(child.before or "")


def bare(text: str | None) -> str:
    """Without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text or "")


def test_watch_redraws_until_ctrl_c(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """Changes show without a new call; Ctrl-C ends the watch with status 0, and the cursor is back."""
    lanelog_client.publish("merge", "k", b"1")
    child = terminal("status", "--watch", "--interval", "0.2")
    child.expect("1 topic, 0 groups")
    child.expect("nothing is stuck")
    lanelog_client.publish("orders", "k", b"1")
    child.expect("2 topics, 0 groups")
    child.sendintr()
    last = answer(child)
    assert "\x1b[?25h" in last
    assert "Traceback" not in last


@pytest.mark.thorough
def test_q_ends_a_watch_and_the_terminal_is_as_before(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """There is a clock; keys are read without echo meanwhile, and with it afterwards; other keys do nothing."""
    lanelog_client.publish("merge", "k", b"1")
    child = terminal("topics", "--watch", "--interval", "60", then="stty -a")
    child.expect(r"lanelog topics, every 60s  \d\d:\d\d:\d\d  q ends it  \w+ at 127.0.0.1:\d+")
    child.expect("1 topic")
    child.send("x")
    child.send("q")
    after = bare(answer(child))
    assert re.search(r"[^-]icanon\b", after)
    assert re.search(r"[^-]echo\b", after)
    assert "xq" not in after


@pytest.mark.thorough
def test_keys_scroll_a_watch(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """Without a new look at the database; `j` as the arrows, `q` ends it behind other keys, too."""
    for n in range(30):
        lanelog_client.publish(f"topic-{n:02}", "k", b"1")
    child = terminal("topics", "--watch", "--interval", "60", width=80, height=24)
    child.expect("lines 1 to ")
    child.send("\x1b[B")
    child.expect("lines 2 to ")
    child.send("jj")
    child.expect("lines 4 to ")
    child.send("\x1b[5~")
    child.expect("lines 1 to ")
    child.send("xq")
    assert ended(child) == 0


@pytest.mark.thorough
def test_sigterm_gives_the_terminal_back(terminal: Terminal) -> None:
    """SIGTERM restores the terminal as Ctrl-C does."""
    child = terminal("topics", "--watch", "--interval", "60", then="stty -a")
    child.expect("q ends it")
    (program,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(int(program), signal.SIGTERM)
    assert re.search(r"[^-]icanon\b", bare(answer(child)))


@pytest.mark.thorough
def test_a_watch_outlives_the_database(terminal: Terminal, lanelog_client: lanelog.Client, lanelog_url: str) -> None:
    """The last answer stays, with a line that says since when there is no newer one; then the watch goes on."""
    lanelog_client.publish("merge", "k", b"1")
    target = ConnectConfig.from_url(lanelog_url)
    proxy = Proxy(target)
    with closing(proxy), socket.create_server(("127.0.0.1", 0)) as unused:
        child = terminal("topics", "--watch", "--interval", "0.2", "--url", proxy.url)
        child.expect("1 topic")
        port = unused.getsockname()[1]
        unused.close()
        proxy.target = attrs.evolve(target, port=port)
        proxy.cut_all()
        child.expect(r"no answer since \d\d:\d\d:\d\d, trying again: ")
        child.expect("1 topic")
        lanelog_client.publish("orders", "k", b"1")
        proxy.target = target
        child.expect("2 topics")
        child.send("q")
        assert "Traceback" not in answer(child)


@pytest.mark.thorough
def test_a_watch_of_a_database_that_is_not_there_is_refused(terminal: Terminal) -> None:
    """A wrong URL ends the command at once, with one line and status 2."""
    child = terminal("topics", "--watch", "--url", "mysql://nobody@127.0.0.1:1/none")
    assert ended(child) == 2
    (line,) = bare(child.before).strip().splitlines()
    assert line.startswith("Error: ")


@pytest.mark.thorough
def test_a_narrow_terminal_crops_and_says_what_it_hides(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """Long keys are cropped in their middle; numbers stay whole; --wide shows all."""
    key = "k" * 70 + "-end"
    lanelog_client.publish_many("merge", [(key, b"x")] * 1234)
    with lanelog_client.subscribe("merge", "builders", lambda message: message.postpone(3600)):
        eventually(lambda: lanelog_client.admin.groups("merge") != [])
    text = bare(answer(terminal("lanes", "merge", "builders", width=46)))
    assert all(len(line) <= 46 for line in text.splitlines())
    assert re.search(r"^k+…k+-end .*1,234\b", text, re.MULTILINE)
    assert "--wide shows all" in text
    assert key in bare(answer(terminal("lanes", "merge", "builders", "--wide", width=46)))


@pytest.mark.thorough
def test_the_database_stands_above_each_answer(
    terminal: Terminal, lanelog_client: lanelog.Client, lanelog_url: str
) -> None:
    """Name and host stand above reads and previews; a pipe gets columns only."""
    target = ConnectConfig.from_url(lanelog_url)
    lanelog_client.publish("merge", "k", b"1")
    for arguments in (["topics"], ["status"], ["purge", "merge", "--before-offset", "1"]):
        shown = bare(answer(terminal(*arguments)))
        assert shown.splitlines()[0] == f"{target.database} at {target.host}:{target.port}"
        assert target.database not in Command(lanelog_url)(*arguments).output


@pytest.mark.thorough
def test_colour_is_for_terminals_that_want_it(
    terminal: Terminal, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Problems are coloured; with NO_COLOR nothing is."""
    lanelog_client.publish("merge", "k", b"1")
    lanelog_client.subscribe("merge", "builders", lambda _message: None).stop()
    lanelog_client.publish("merge", "k", b"2")
    assert "\x1b[31m" in answer(terminal("lag"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[3\d", answer(terminal("lag")))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "line",
    [
        "topics",
        "tail merge",
        "publish merge k again",
        "pause merge builders",
        "schedule add nightly '30 2 * * *' reports k sales",
        "maintain --once",
        "migrate",
        "metrics --listen 127.0.0.1:0",
        "web --listen 127.0.0.1:0",
    ],
)
def test_the_first_line_names_the_database(
    terminal: Terminal, lanelog_client: lanelog.Client, lanelog_url: str, line: str
) -> None:
    """Of every verb that asks one, for people alone: a pipe and --json have no such line."""
    lanelog_client.publish("merge", "k", b"1")
    lanelog_client.subscribe("merge", "builders", lambda _message: None).stop()
    config = ConnectConfig.from_url(lanelog_url)
    child = terminal(*shlex.split(line))
    child.expect_exact("\r\n")
    assert bare(child.before) == f"{config.database} at {config.host}:{config.port}"
    if "--listen" in line:
        child.expect("http://")
        child.sendintr()
    assert ended(child) == 0
    if "--listen" not in line:
        assert " at 127.0.0.1:" not in Command(lanelog_url)(*shlex.split(line)).stdout


@pytest.mark.thorough
def test_a_follower_shows_messages_as_they_come(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """Line by line, without what would steer the terminal; Ctrl-C ends it with status 0."""
    lanelog_client.publish("merge", "k", b"first")
    child = terminal("tail", "merge", "k", "-f")
    child.expect("first")
    lanelog_client.publish("merge", "k", b"\x1b]0;second\x07")
    child.expect_exact(r"\x1b]0;second\x07")
    child.sendintr()
    assert ended(child) == 0


@pytest.mark.thorough
def test_publishing_a_file_shows_its_progress(terminal: Terminal, lanelog_url: str, tmp_path: Path) -> None:
    """A bar for people; what was published is the last line."""
    (tmp_path / "lines").write_text("".join(f"line {n}\n" for n in range(5000)))
    child = terminal("publish", "merge", "k", "--file", str(tmp_path / "lines"))
    child.expect("publish")
    child.expect("━")
    child.expect("published 5,000 messages to merge, lane k")
    assert ended(child) == 0
    assert Command(lanelog_url).json("topics")[0]["messages"] == 5000


@pytest.mark.thorough
def test_nothing_to_publish_does_not_wait_for_the_keyboard(terminal: Terminal) -> None:
    """A forgotten message is one line, status 2."""
    child = terminal("publish", "merge", "k")
    child.expect("Error: nothing to publish")
    assert ended(child) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(terminal: Terminal, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that the help names prints the shell's own script."""
    monkeypatch.setenv("_LANELOG_COMPLETE", f"{shell}_source")
    script = answer(terminal())
    assert "lanelog" in script
    assert "Error" not in script


@pytest.mark.thorough
def test_completion_knows_the_verbs(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash gets the commands when it asks for them."""
    for name, value in (("_LANELOG_COMPLETE", "bash_complete"), ("COMP_WORDS", "lanelog delete-"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert answer(terminal()).split() == ["plain,delete-group", "plain,delete-topic"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["lag", "or"], ["orders", "orders-eu"]),
        (["lanes", "orders", "b"], ["billing"]),
        (["show", "orders", "ann"], ["ann", "anna"]),
        (["seek", "orders", "billing", "--key", "b"], ["bob"]),
        (["show", "nowhere", ""], []),
    ],
)
def test_completion_knows_topics_groups_and_keys(
    lanelog_client: lanelog.Client, lanelog_url: str, words: list[str], found: list[str]
) -> None:
    """Bash gets the names that begin with what was typed."""
    lanelog_client.publish_many("orders", [(key, b"1") for key in ("anna", "ann", "bob")])
    lanelog_client.publish("orders-eu", "k", b"1")
    lanelog_client.subscribe("orders", "billing", lambda _message: None).stop()
    assert completed(lanelog_url, words) == (found, "")


@pytest.mark.thorough
def test_completion_is_silent_and_soon_over() -> None:
    """Without a database that answers, a prompt gets nothing within seconds, not even an error."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # accepts, and never says a word
        url = f"mysql://root@127.0.0.1:{deaf.getsockname()[1]}/none"
        assert completed(url, ["lag", "or"]) == ([], "")
    assert completed("mysql://root@127.0.0.1:1/none", ["lag", "or"]) == ([], "")
    assert completed("no url", ["lag", "or"]) == ([], "")


def completed(url: str, words: list[str]) -> tuple[list[str], str]:
    """What bash would offer for the last word, and what the prompt would see of errors."""
    completing = {
        "LANELOG_URL": url,
        "_LANELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(["lanelog", *words[:-1]]) + " " + words[-1],
        "COMP_CWORD": str(len(words)),
    }
    done = ran(sys.executable, "-m", "lanelog", env=os.environ | completing)
    assert done.returncode == 0
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line], done.stderr
