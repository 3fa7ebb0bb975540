"""Tables at the width of a terminal: no line is longer, no cell is folded, and what leaves is said."""

import pkgutil
from datetime import UTC, datetime, timedelta
from importlib import import_module
from io import StringIO
from operator import attrgetter, itemgetter
from typing import Any

import attrs
import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import lanelog.admin
import lanelog.cli
from lanelog._views import columns, message_columns
from lanelog._views.column import Column, Tone, count, name, text, time, when, word
from lanelog.admin import MessageState, OwnerState
from lanelog.cli._main import SECTIONS, cli
from lanelog.cli.command.pattern import groups_of, topics_of
from lanelog.cli.output import totals
from lanelog.cli.output.answer import Answer, on_screen
from lanelog.cli.output.crop import crop
from lanelog.cli.output.table import Table
from lanelog.cli.output.watch import Watched, screen
from lanelog.errors import ConfigurationError
from support.cli import all_verbs

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TABLES = {
    "topics": (columns.TOPICS, lanelog.admin.TopicInfo),
    "groups": (columns.GROUPS, lanelog.admin.GroupInfo),
    "lag": (columns.LAG, lanelog.admin.GroupInfo),
    "status": (columns.STATUS, lanelog.admin.GroupInfo),
    "members": (columns.MEMBERS, lanelog.admin.MemberInfo),
    "lanes": (columns.LANES, lanelog.admin.LaneInfo),
    "offsets": (columns.OFFSETS, lanelog.admin.OffsetInfo),
    "leases": (columns.LEASES, lanelog.admin.LeaseInfo),
    "messages": (message_columns.MESSAGES, lanelog.admin.MessageInfo),
    "states": (message_columns.STATES, lanelog.admin.GroupState),
    "dead letters": (message_columns.DEAD_LETTERS, lanelog.admin.DeadLetterInfo),
    "reasons": (message_columns.REASONS, lanelog.admin.DeadLetterReason),
    "history": (message_columns.HISTORY, lanelog.admin.HistoryInfo),
    "scheduled": (message_columns.SCHEDULED, lanelog.admin.ScheduledInfo),
    "schedules": (message_columns.SCHEDULES, lanelog.admin.ScheduleInfo),
    "findings": (message_columns.FINDINGS, lanelog.admin.Finding),
}
FEW = ("groups", "messages")
"""Tables that stand for all: one of summaries, one of messages."""
WIDE = "中文鍵한글日本語🙂👩"
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=255),
    st.text(WIDE, min_size=1, max_size=255),
    st.text("ab-", min_size=1, max_size=255),
)
NUMBERS = st.integers(0, 2**63 - 1)
WORDS = st.sampled_from(["ok", "warning", "strict", "lock_expired", "lane_contradictions"])
TIMES = st.timedeltas(timedelta(days=-4000), timedelta(days=4000)).map(lambda distance: NOW - distance)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "str": NAMES,
    "str | None": st.none() | NAMES,
    "int": NUMBERS,
    "float": st.floats(0, 1e9),
    "float | None": st.none() | st.floats(0, 1e9),
    "bool": st.booleans(),
    "datetime": TIMES,
    "datetime | None": st.none() | TIMES,
    "bytes": st.binary(max_size=300),
    "tuple[str, ...]": st.lists(NAMES, max_size=5).map(tuple),
    "OwnerState": st.sampled_from(OwnerState),
    "OwnerState | None": st.none() | st.sampled_from(OwnerState),
    "MessageState": st.sampled_from(MessageState),
    "MessageState | None": st.none() | st.sampled_from(MessageState),
}


def rows_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any values in every field; what is of another type is shown by no column."""
    given = {field.name: KINDS.get(str(field.type), st.none()) for field in attrs.fields(kind)}
    return st.builds(
        kind, **given | {word: WORDS for word in given if word in {"check", "status", "outcome", "order", "catch_up"}}
    )


def lines_of(answer: Answer, width: int) -> list[str]:
    """What a terminal of this width gets to see, by the one that writes to it."""
    console = Console(file=StringIO(), width=width, highlight=False, force_terminal=True, color_system=None)
    for line in on_screen(answer, width):
        console.print(line, soft_wrap=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    "table", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in FEW)) for name in TABLES]
)
@given(data=st.data())
def test_no_line_is_longer_than_the_terminal_and_no_cell_is_folded(table: str, data: st.DataObject) -> None:
    """At 80 columns, of whatever names and numbers; a row is a line, and every column that is there has its head."""
    columns, kind = TABLES[table]
    rows = data.draw(st.lists(rows_of(kind), min_size=1, max_size=4))
    shown = Table(columns, rows, NOW)
    lines = lines_of(Answer(data=None, table=shown), 80)
    assert all(cell_len(line) <= 80 for line in lines)
    screen = shown.screen(80)
    assert lines[0].split() == list(screen.heads)
    below = lines.index("") if screen.hidden else len(lines)
    assert below == 1 + len(rows)
    assert {column.head for column in columns if not column.rank} <= set(screen.heads)


@given(value=NAMES, width=st.integers(0, 90))
def test_text_is_cropped_in_its_middle(value: str, width: int) -> None:
    """To no more cells than there are; both ends stay."""
    cropped = crop(value, width)
    assert cell_len(cropped) <= width
    if cropped != value and width:
        head, ellipsis, tail = cropped.partition("…")
        assert ellipsis
        assert value.startswith(head) or "…" in value
        assert value.endswith(tail) or "…" in value


def test_cropped_names_stay_different() -> None:
    """Names that begin alike and end otherwise stay different; a wide character counts as two cells."""
    assert crop("customer-00000000000001", 12) == "custom…00001"
    assert (crop("中文鍵中文鍵", 7), crop("short", 5)) == ("中…鍵", "short")
    assert [crop("abc", width) for width in (0, 1, 2)] == ["", "…", "a…"]


LANES = (
    name("KEY", itemgetter("key")),
    count("LAG", itemgetter("lag"), tone=when(itemgetter("lag"), Tone.BAD)),
    time("SEEN", itemgetter("seen"), rank=3),
    word("STATE", itemgetter("state"), rank=1),
    text("ERROR", itemgetter("error"), rank=2),
)


def lane(**given: Any) -> dict[str, Any]:
    return {"key": "k", "lag": 0, "seen": NOW, "state": None, "error": None} | given


def shown(width: int | None, *rows: dict[str, Any], columns: tuple[Column, ...] = LANES) -> list[str]:
    return [line.plain for line in Table(columns, rows, NOW).screen(width).lines]


def test_columns_leave_by_rank() -> None:
    """The highest rank first, those that say nothing before all others; rank 0 stays, also where nothing has room."""
    full = lane(key="k" * 30, lag=12345, state="alive", error="no branch")
    heads = {None: "KEY LAG SEEN STATE ERROR", 45: "KEY LAG STATE ERROR", 28: "KEY LAG STATE", 21: "KEY LAG"}
    assert {width: " ".join(shown(width, full)[0].split()) for width in heads} == heads
    assert shown(44, lane(key="k" * 30, lag=12345, error=None))[0].split() == ["KEY", "LAG", "SEEN"]
    assert all(cell_len(line) <= 6 for line in shown(6, full))


def test_room_that_is_left_goes_to_what_is_cropped() -> None:
    """In equal parts, and what one does not need is the other's."""
    two = (name("KEY", itemgetter("key")), text("ERROR", itemgetter("error")))
    assert shown(52, lane(key="k" * 100, error="e" * 100), columns=two)[1] == "k" * 11 + "…" + "k" * 10 + "  " + (
        "e" * 14 + "…" + "e" * 13
    )
    assert shown(52, lane(key="k" * 14, error="e" * 100), columns=two)[1] == "k" * 14 + "  " + "e" * 18 + "…" + "e" * 17


def test_a_terminal_says_what_it_has_no_room_for() -> None:
    """Summary above, total below, and how to see the rest; without rows one sentence."""
    row = lane(key="k" * 70, state="retryable, paused", error="no branch of this name in this repository")
    answer = Answer(data=None, summary="1 lane", table=Table(LANES, [row], NOW), total="lag 0", nothing="no lane")
    top, blank, heads, line, _, total, hidden = lines_of(answer, 45)
    assert (top, blank, total, heads.split()) == ("1 lane", "", "lag 0", ["KEY", "LAG", "STATE"])
    assert line.count("…") == 1
    assert hidden == "no room for SEEN, ERROR: --wide shows all"
    assert lines_of(attrs.evolve(answer, table=Table(LANES, [], NOW)), 60) == ["no lane"]
    assert [line.plain for line in on_screen(answer, None)][3].startswith("k" * 70)


def test_colour_says_what_is_wrong() -> None:
    """The cell, and nothing else in its line."""
    _, well, wrong = Table(LANES, [lane(), lane(lag=7)], NOW).screen(80).lines
    assert [span.style for span in well.spans] == []
    assert [(wrong.plain[span.start : span.end].strip(), span.style) for span in wrong.spans] == [("7", Tone.BAD)]


FIELDS = {
    "watermark": "ACKED", "head": "HEAD", "lag": "LAG", "floor": "FLOOR", "owner": "OWNER", "members": "MEMBERS",
    "waiting": "WAITING", "in_flight": "IN-FLIGHT", "last_error": "ERROR", "attempts": "ATTEMPTS",
    "lagging_lanes": "LAGGING", "lease_left": "LEASE", "published_at": "PUBLISHED",
}  # fmt: skip


def test_one_number_has_one_name() -> None:
    """A field has the same head in every table, and no other field of any table has it."""
    heads: dict[str, set[str]] = {}
    for listed, _ in TABLES.values():
        for column in listed:
            if isinstance(column.get, attrgetter):
                (field,) = column.get.__reduce__()[1]
                heads.setdefault(field, set()).add(column.head)
    assert {field: heads[field] for field in FIELDS if field in heads} == {
        field: {head} for field, head in FIELDS.items() if field in heads
    }


def test_ids_are_for_show_and_programs() -> None:
    """No list has one, but for messages that are not due yet, which have no other name."""
    assert [table for table, (columns, _) in TABLES.items() if "ID" in {column.head for column in columns}] == [
        "scheduled"
    ]


def verbs(command: Any = cli, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = all_verbs() if command is cli else getattr(command, "commands", {})
    return [path, *(found for part, each in below.items() for found in verbs(each, (*path, part)))]


def test_every_command_of_a_module_is_declared() -> None:
    """A verb in no section of the help could not be called."""
    rooms = pkgutil.walk_packages(lanelog.cli.__path__, "lanelog.cli.")
    written = {
        each
        for room in rooms
        for each in vars(import_module(room.name)).values()
        if isinstance(each, click.Command) and getattr(each.callback, "__module__", "") == room.name
    }
    verbs_there = written - {cli}
    below = {each for group in verbs_there if isinstance(group, click.Group) for each in group.commands.values()}
    assert verbs_there - below == {*all_verbs().values()}


@pytest.mark.parametrize("path", verbs(), ids=" ".join)
def test_help_fits_a_terminal(path: tuple[str, ...]) -> None:
    """At 80 columns: no line is longer, no verb's line is cut off or goes on in the next one."""
    result = CliRunner().invoke(cli, [*path, "--help"], prog_name="lanelog", terminal_width=80)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    assert not [line for line in lines[1:] if line.endswith("...")]  # behind the usage, which has arguments that repeat


def test_help_groups_every_verb() -> None:
    """Each is in one section, and none in a section that it does not exist for."""
    named = [verb for lines in SECTIONS.values() for verb in lines]
    assert sorted(named) == sorted(all_verbs())
    result = CliRunner().invoke(cli, ["--help"], terminal_width=80).stdout
    found = [line.removesuffix(":") for line in result.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert found == ["Options", *SECTIONS]


class Shop:
    """Three topics, one of whose names looks like a pattern."""

    def topic_names(self, beginning: str, *, limit: int) -> list[str]:
        return [each for each in ("orders", "orders-eu", "or*") if each.startswith(beginning)][:limit]

    def groups(self, topic: str | None = None, group: str | None = None, *, limit: int) -> list[Any]:
        topics = ["orders", "orders-eu", "or*"] if topic is None else [topic]
        there = [_Group(each, name) for each in topics for name in ("billing", "mail") if group in {None, name}]
        return there[:limit]


@attrs.frozen
class _Group:
    topic: str
    group: str


@pytest.mark.parametrize(
    ("topic", "group", "found"),
    [
        (None, None, 6),
        ("orders*", None, 4),
        ("orders-??", "billing", 1),
        ("[no]rders", None, 2),
        ("or*", None, 2),
        (None, "m*", 3),
        ("orders*", "[bm]*", 4),
    ],
)
def test_topics_and_groups_by_pattern(topic: str | None, group: str | None, found: int) -> None:
    """A pattern is a shell's; a name that exists is itself, whatever it looks like."""
    named = groups_of(Shop(), topic, group)  # type: ignore[arg-type]
    assert (len(named.found), named.left_out) == (found, "")


class Mall(Shop):
    """Ten thousand topics."""

    def topic_names(self, beginning: str, *, limit: int) -> list[str]:
        return [f"{beginning}{number:05}" for number in range(10_000)][:limit]


def test_a_pattern_that_matches_more_than_is_read_says_so() -> None:
    """More topics than can be listed, or more groups than are looked at."""
    topics = topics_of(Mall(), "shard-*")  # type: ignore[arg-type]
    assert (len(topics.topics or ()), topics.left_out) == (9_999, "only the first 9,999 topics were read")
    groups = groups_of(Mall(), "shard-*")  # type: ignore[arg-type]
    assert (len(groups.found), groups.left_out) == (1000, "only the first 1,000 groups were read")
    groups = groups_of(Mall(), "shard-*", "mail", bounded=True)  # type: ignore[arg-type]
    assert (len(groups.found), groups.left_out) == (9_999, "only the first 9,999 topics were read")
    with pytest.raises(ConfigurationError, match="but only the first 1,000 groups were read"):
        groups_of(Mall(), "shard-*", "x*")  # type: ignore[arg-type]


@pytest.mark.parametrize(("topic", "group"), [("x*", None), ("orders", "x*"), (None, "x")])
def test_a_pattern_that_fits_nothing_is_refused(topic: str | None, group: str | None) -> None:
    """A monitor with a slip in its pattern must not be silent."""
    with pytest.raises(ConfigurationError, match=r"no topic fits|no group"):
        groups_of(Shop(), topic, group)  # type: ignore[arg-type]


def test_places_in_sentences_are_short() -> None:
    """Names of 255 characters leave the line readable."""
    assert cell_len(totals.where("t" * 255, "g" * 255, "中" * 255)) < 120


ENTRIES = [[f"PROBLEM {n}  merge builders", "    its detail", "    $ lanelog " + "x" * 90] for n in range(16)]
"""Five rows of 80 columns each, with the empty one behind."""


def test_a_list_is_cut_to_the_height_of_the_terminal() -> None:
    """The worst stay, whole, and so does what was left out of the look; the rest is counted. `--all` shows all."""
    answer = Answer(data=None, before=["16 problems", ""], entries=ENTRIES, left_out="only the first 9 topics")
    lines = [line.plain for line in on_screen(answer, 80, 24)]
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= 23
    assert [line for line in lines if line.startswith("PROBLEM")] == [f"PROBLEM {n}  merge builders" for n in range(3)]
    assert lines[-3:] == ["… 13 more: --all, or --watch scrolls", "", "only the first 9 topics"]
    assert sum(line.plain.startswith("PROBLEM") for line in on_screen(answer, None)) == 16
    (worst,) = [line.plain for line in on_screen(answer, 80, 3) if line.plain.startswith("PROBLEM")]
    assert worst == "PROBLEM 0  merge builders"


def test_a_table_without_room_gives_way_to_the_problems() -> None:
    """If both have room, both are shown."""
    answer = Answer(data=None, before=["1 problem", ""], entries=ENTRIES[:1], table=Table(LANES, [lane()] * 20, NOW))
    assert len(on_screen(answer, 80, 40)) == 27
    assert [line.plain for line in on_screen(answer, 80, 24)][-1] == "… the table: --all shows it"


@pytest.mark.parametrize("width", [80, 30])
def test_a_table_is_cut_to_the_height_of_the_terminal(width: int) -> None:
    """The first rows stay; the others are counted, and every line below stays whole. A low terminal shows three."""
    total = "lag 240 in 120 of 120 lanes; the first 120 are listed, there may be more"
    answer = Answer(
        data=None, database="shop at db-1:3306", table=Table(LANES, [lane(key=f"k{n:03}") for n in range(120)], NOW),
        summary="120 lanes", total=total, left_out="only the first 9 topics were read",
    )  # fmt: skip

    def seen(height: int | None) -> list[str]:
        return [line.plain for line in on_screen(answer, width, height)]

    every = seen(None)
    rows = [line for line in every if line.startswith("k")]
    assert len(rows) == 120
    for height in (24, 50, len(every) + 1, len(every)):
        lines = seen(height)
        left = [line for line in lines if line.startswith("… ")]
        there = [line for line in lines if line.startswith("k")]
        assert len(lines) == min(height - 1, len(every))
        assert left == ([] if len(there) == 120 else [f"… {120 - len(there)} more: --all"])
        assert [line.split()[0] for line in there] == [line.split()[0] for line in rows[: len(there)]]
        assert " ".join(lines[-9:]).replace("  ", " ").endswith("only the first 9 topics were read")
        assert all(word in " ".join(lines) for word in total.split())
    assert len([line for line in seen(3) if line.startswith("k")]) == 3


def test_the_line_below_a_table_is_never_cropped() -> None:
    """The line is broken between its words."""
    total = " ".join(["word"] * 30)
    answer = Answer(data=None, table=Table(LANES, [lane()], NOW), total=total)
    below = lines_of(answer, 40)[3:]
    assert " ".join(line.strip() for line in below if line.startswith("word")) == total
    assert all(len(line) <= 40 for line in below)


def test_a_watch_scrolls() -> None:
    """The clock stays; the last line says where this is; no key leads beyond the first or the last line."""
    watched = Watched(lambda: Answer(data=None))
    watched.answer = Answer(data=None, lines=[f"line {n}" for n in range(70)])

    def seen(top: int, height: int = 24) -> tuple[list[str], int]:
        lines, stays = screen(watched, "lanelog status", NOW, width=80, height=height, wide=False, top=top)
        return [line.plain for line in lines], stays

    lines, top = seen(0)
    assert (len(lines), lines[2], lines[-1]) == (23, "line 0", "lines 1 to 20 of 70: ↓ ↑ or space scroll")
    lines, top = seen(5)
    assert (lines[2], top) == ("line 5", 5)
    lines, top = seen(99)
    assert (lines[-2], lines[-1], top) == ("line 69", "lines 51 to 70 of 70: ↓ ↑ or space scroll", 50)
    assert (seen(-3)[1], seen(9, height=80)[1]) == (0, 0)
