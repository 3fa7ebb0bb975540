"""How the command line prints values: nothing that steers a terminal, nothing cut where it matters."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lanelog._base.text import age, ago, moment, payload, shown
from lanelog._views.column import count, name, text
from lanelog.admin import OwnerState, SoughtLane
from lanelog.cli._main import cli
from lanelog.cli.command.bounds import Measured, MonitorBounds
from lanelog.cli.command.times import instant, time_text
from lanelog.cli.command.verbs import INTERRUPTED, Verbs
from lanelog.cli.output.answer import block, to_json
from lanelog.cli.output.table import Table
from lanelog.errors import ConfigurationError


def test_ages_are_short() -> None:
    """Two units at most, the larger ones without a fraction."""
    ages = {None: "-", 0.04: "0.0s", 0.96: "1.0s", 1: "1s", 59.9: "59s", 60: "1m00s", 3599: "59m59s", 3600: "1h00m"}
    for seconds, read in {**ages, 90_000: "1d01h"}.items():
        assert age(seconds) == read
        assert age(seconds, exact=False) == (read if seconds is None else f"≥{read}")


def test_times_are_distances() -> None:
    """In their largest unit, behind or ahead; a time that there is not is a dash."""
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    distances = {0: "0s ago", 59.9: "59s ago", 300: "5m ago", 7300: "2h ago", 200_000: "2d ago", -7300: "in 2h"}
    assert {seconds: ago(now - timedelta(seconds=seconds), now) for seconds in distances} == distances
    assert ago(None, now) == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ("häßlich", "häßlich"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("two\nlines", r"two\nlines"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x9b2J", r"\x9b2J"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_text_of_others_steers_no_terminal(value: str | None, text: str) -> None:
    """Escape sequences, line breaks and bidirectional marks are shown, not obeyed; an error of a page is one cell."""
    assert shown(value) == text


def test_a_payload_is_text_if_it_can_be() -> None:
    """UTF-8 as it is, other bytes escaped."""
    assert (payload('{"a": "ä"}'.encode()), payload(b"\xff\x00'")) == ('{"a": "ä"}', r"\xff\x00" + "'")


def test_a_table_for_a_pipe_has_aligned_columns_and_cuts_nothing() -> None:
    """Numbers to the right, text to the left, two blanks between."""
    rows = [{"key": "a" * 30, "lag": 7, "error": "x" * 200}, {"key": "\u4e2d", "lag": 1234, "error": None}]
    columns = (
        name("KEY", itemgetter("key")),
        count("LAG", itemgetter("lag"), rank=1),
        text("ERROR", itemgetter("error")),
    )
    lines = Table(columns, rows).plain().splitlines()
    assert (lines[0], lines[1]) == ("KEY" + " " * 27 + "    LAG  ERROR", "a" * 30 + "      7  " + "x" * 200)
    assert lines[2] == "\u4e2d" + " " * 28 + "  1,234  -"


def test_json_has_all_fields_in_plain_types() -> None:
    """Values, times in UTC, enums, text and bytes."""
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    value = {"lanes": (SoughtLane(key="k", before=3, after=0),), "at": when, "state": OwnerState.DEAD, "b": b"\xff"}
    assert json.loads(to_json(value)) == {
        "lanes": [{"key": "k", "before": 3, "after": 0}],
        "at": "2026-01-31T12:00:00Z",
        "state": "dead",
        "b": {"base64": "/w=="},
    }
    assert moment(when) == "2026-01-31T12:00:00Z"


def test_json_is_ascii_that_steers_no_terminal() -> None:
    """Control characters of both ranges, DEL and bidirectional marks are escaped; a reader gets them back."""
    value = {"\x9b2J": "\x7f\x1b[31m\u202egnp.exe ä 🙂 \ud800", "b": b"\x7f\xc2\x9b2J"}
    text = to_json(value, indent=2)
    assert text.isascii()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert json.loads(text) == {**value, "b": "\x7f\x9b2J"}


def test_a_time_needs_its_offset_from_utc() -> None:
    """With one it is that instant; without one it is refused, because a guess may delete; other text is no time."""
    assert instant("2026-01-31T14:00:00+02:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert instant("2026-01-31T12:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert instant("2026-01-31 12:00:00-00:30").utcoffset() == -timedelta(minutes=30)  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="no time zone"):
        instant("2026-01-31T12:00:00")
    no_times = ["", "lately", "2026-01-31T12:00+99:00", "2026-02-30T12:00Z", "2026-02-30"]
    no_times += ["-", "-5", "-1h1d", "-9999999w"]
    assert [wrong for wrong in no_times if instant(wrong) is not None] == []


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal whose zone is not UTC."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_days_are_those_of_the_terminal_and_distances_are_from_now() -> None:
    """A day is the midnight that begins it, also on the day on which the clocks change; a preview shows both zones."""
    for day, begins in (("2026-01-31", (1, 30, 23)), ("2026-03-29", (3, 28, 23)), ("2026-03-30", (3, 29, 22))):
        assert instant(day) == datetime(2026, *begins, tzinfo=UTC)
    before = datetime.now(UTC).replace(microsecond=0)
    distances = {"-1h": -3600, "-1h30m": -5400, "+2d": 172_800, "-1w": -604_800, "-90s": -90, "-90m": -5400}
    found = {word: instant(word) for word in distances}
    after = datetime.now(UTC)
    for word, seconds in distances.items():
        assert before <= found[word] - timedelta(seconds=seconds) <= after  # type: ignore[operator]
    days = [day for word in ("yesterday", "today", "tomorrow") if (day := instant(word))]
    assert {(day.hour, day.minute) for day in days} == {(0, 0)}
    assert days[0] < days[1] <= after < days[2]
    assert after - days[1] < timedelta(hours=25)
    assert time_text(datetime(2026, 7, 1, tzinfo=UTC)) == "2026-07-01T00:00:00Z (2026-07-01 02:00:00 CEST)"


def test_alarms_are_one_line() -> None:
    """The worst is named, the others are counted; what is within its bound is silent."""
    measured = [Measured("merge a", 5, 1.0), Measured("merge b", 9, None), Measured("merge c", 7, 70.0)]
    assert MonitorBounds(4, None).alarms(measured) == ("lag 9 > 4 on merge b and 2 more",)
    assert MonitorBounds(9, 60.0).alarms(measured) == ("oldest 1m10s > 60s on merge c",)
    both = "lag 9 > 8 on merge b; oldest 1m10s > 0.5s on merge c and 1 more"
    assert MonitorBounds(8, 0.5).alarms(measured) == (both,)
    assert (MonitorBounds(9, 70.0).alarms(measured), MonitorBounds(None, None).alarms(measured)) == ((), ())
    older = "the oldest age of merge b is a lower bound: too many lanes lag to know it exactly"
    unsure = [each._replace(exact=each.name == "merge a") for each in measured]
    assert MonitorBounds(None, 60.0).alarms(unsure) == (f"oldest 1m10s > 60s on merge c; {older}",)
    assert MonitorBounds(9, None).alarms(unsure) == ()


def test_a_command_that_ctrl_c_breaks_off_ends_without_a_word() -> None:
    """The exit status is the shells' for Ctrl-C; click's own would be that of an alarm."""

    @click.group(cls=Verbs)
    def group() -> None:
        pass

    @group.command()
    def works() -> None:
        raise KeyboardInterrupt

    result = CliRunner().invoke(group, ["works"])
    assert (result.exit_code, result.output) == (INTERRUPTED, "")


def test_a_text_of_several_lines_is_a_block_that_steers_nothing() -> None:
    """A traceback, for example, has each line on its own, whole, and below its title."""
    text = "ValueError: \x1b[31m\nTraceback:\n  File\n\n" + "x" * 1000
    lines = ["error", r"  ValueError: \x1b[31m", "  Traceback:", "    File", "", "  " + "x" * 1000]
    assert block("error", text) == lines


def test_the_help_of_every_command_ends_with_examples_that_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command has some, each line is a call of that command, and the help shows it as it is typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").touch()
    for words, command in commands(cli):
        help_text = CliRunner().invoke(cli, [*words.split(), "--help"]).output
        lines = re.findall(r"^  lanelog (.+)$", command.epilog or "", re.MULTILINE)
        assert lines, words
        for line in lines:
            assert f"  lanelog {line}\n" in help_text
            assert line.startswith(words)
            with command.make_context(words, shlex.split(line.removeprefix(words))):
                pass  # it would be refused here


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if isinstance(command, click.Group):
            yield from commands(command, *before, word)
        elif command is not None:
            yield " ".join((*before, word)), command
