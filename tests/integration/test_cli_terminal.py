"""The command line in a real terminal: colours, width, Ctrl-C, the progress bar, completion."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

import lanelog
from support.cli import Command

pytestmark = pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")  # the child only becomes the program

Terminal = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def terminal(lanelog_url: str) -> Iterator[Terminal]:
    """Starts `lanelog` in a terminal of its own, which ends with the test."""
    started: list[Any] = []

    def start(*arguments: str, width: int = 200, height: int = 40) -> "pexpect.spawn[str]":
        child = pexpect.spawn(
            sys.executable,
            ["-m", "lanelog", *arguments],
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


def bare(text: str | None) -> str:
    """Without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text or "")


def test_watch_redraws_until_ctrl_c(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """What changes shows without a new call; Ctrl-C ends it with status 0, and the cursor is back."""
    lanelog_client.publish("merge", "k", b"1")
    child = terminal("status", "--watch", "--interval", "0.2")
    child.expect("1 topic, 0 groups")
    child.expect("nothing is stuck")
    lanelog_client.publish("orders", "k", b"1")
    child.expect("2 topics, 0 groups")
    child.sendintr()
    assert ended(child) == 0
    assert "\x1b[?25h" in (child.before or "")
    assert "Traceback" not in (child.before or "")


@pytest.mark.thorough
def test_a_narrow_terminal_hides_nothing(terminal: Terminal, lanelog_client: lanelog.Client) -> None:
    """Long keys are folded; numbers stay whole on their line."""
    key = "k" * 70 + "-end"
    lanelog_client.publish_many("merge", [(key, b"x")] * 12)
    child = terminal("show", "merge", key, "--limit", "12", width=60)
    assert ended(child) == 0
    text = bare(child.before)
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "".join(re.findall(r"^k+", text, re.MULTILINE)).count("k") == 70 * 12
    assert re.search(r"\b12\b", text)


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
    """What the help says prints the shell's own script."""
    monkeypatch.setenv("_LANELOG_COMPLETE", f"{shell}_source")
    child = terminal()
    assert ended(child) == 0
    assert "lanelog" in (child.before or "")
    assert "Error" not in (child.before or "")


@pytest.mark.thorough
def test_completion_knows_the_verbs(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bash asks for them."""
    for name, value in {
        "_LANELOG_COMPLETE": "bash_complete",
        "COMP_WORDS": "lanelog delete-",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    child = terminal()
    assert ended(child) == 0
    assert (child.before or "").split() == ["plain,delete-group", "plain,delete-topic"]
