"""What the workers do, as values: when they are hung, and how it fits into a row."""

import re
import sys
from types import FrameType
from typing import Any

import pytest
from attrs import evolve

from lanelog._engine.working.stacks import STACK_CHARACTERS, text_of
from lanelog._process.workload import COLUMN_BYTES, RunningHandler, Workload, parsed, patience


def of(*, busy: int = 4, quiet: float = 30.0, longest: float = 0.0, timeout: float = 60.0, **other: Any) -> Workload:
    known = {"host": "vm", "pid": 23734, "workers": 4, **other}
    return Workload(busy=busy, quiet=quiet, longest=longest, patience=patience(timeout, longest), **known)


@pytest.mark.parametrize(
    ("found", "hung"),
    [
        (of(), True),
        (of(quiet=29.9), False),
        (of(busy=3), False),
        (of(workers=0, busy=0), False),
        (of(timeout=1200.0, quiet=599.9), False),
        (of(timeout=1200.0, quiet=600.0), True),
        (of(longest=20.0, quiet=59.9), False),
        (of(longest=20.0, quiet=60.0), True),
    ],
)
def test_hung_is_all_busy_and_none_ended_for_longer_than_is_normal(found: Workload, *, hung: bool) -> None:
    """30 s, half of the visibility time-out, and three times the longest run: whichever is most."""
    assert found.hung is hung


def handler(key: str, stack: str) -> RunningHandler:
    return RunningHandler(topic="t", key=key, offset=1, seconds=12.0, stack=stack)


@pytest.mark.parametrize("filling", ["x", "é", "株", "🙂", "\0", "\udc80"])
def test_what_is_written_fits_and_is_read_again(filling: str) -> None:
    """Any characters of paths and keys fit: the handlers that began last are left out, if need be."""
    handlers = tuple(handler(f"{number}{filling * 254}", filling * STACK_CHARACTERS) for number in range(8))
    whole = of(workers=8, busy=8, handlers=handlers)
    text = whole.dumped()
    assert len(text.encode()) <= COLUMN_BYTES
    again = parsed(text)
    assert again.handlers
    for one, was in zip(again.handlers, whole.handlers, strict=False):
        assert one == handler(*(each.encode("utf-8", "backslashreplace").decode() for each in (was.key, was.stack)))
    assert (len(again.handlers) == 8) is (filling == "x")


def test_the_beginning_of_a_row_says_all_but_where_handlers_stand() -> None:
    """A statement cuts a row there, whatever its texts say: in a text, a quotation mark has a backslash before it."""
    found = evolve(of(), host=',"handlers":[', handlers=(handler(',"handlers":[', "x"),) * 3)
    short, mark, _ = found.dumped().partition(',"handlers":[')
    assert mark
    assert parsed(short + ',"handlers":[]}') == evolve(found, handlers=())


def test_fields_of_a_newer_version_are_ignored() -> None:
    """A row of a later version is read as far as it is known."""
    text = of().dumped()
    assert parsed(text.replace("{", '{"later":1,', 1)) == of()
    without = text.replace('"pool_waits":0,', "")
    assert without != text
    assert parsed(without) == of()


@pytest.mark.parametrize("name", ["pid", "workers", "busy", "quiet", "longest", "patience", "pool_waits", "seconds"])
@pytest.mark.parametrize("number", ["-1", "9007199254740992", "1e999", "NaN", "9" * 5000, '"7"', "null"])
def test_a_row_with_an_absurd_number_says_nothing(name: str, number: str) -> None:
    """No time without an end reaches status, and no number of a process that `kill` would take for many."""
    text = evolve(of(), handlers=(handler("k", "f"),)).dumped()
    assert parsed(text) is not None
    absurd, count = re.subn(rf'"{name}":[0-9.]+', f'"{name}":{number}', text)
    assert count == 1
    assert parsed(absurd) is None


def test_no_process_has_the_number_zero() -> None:
    """`kill` would take it for the whole group of the shell."""
    assert parsed(of().dumped().replace('"pid":23734', '"pid":0')) is None


def deep(depth: int) -> FrameType:
    return sys._getframe() if depth == 0 else deep(depth - 1)


def test_a_stack_has_no_lone_surrogate() -> None:
    """The file of a handler may have a name that is no UTF-8."""
    found: dict[str, str] = {}
    exec(compile("found['stack'] = take()", "a\udc80.py", "exec"), {"found": found, "take": taken_here})  # noqa: S102
    assert r'File "a\udc80.py", line 1, in <module>' in found["stack"]
    assert found["stack"].encode()


def taken_here() -> str:
    return text_of(sys._getframe(), test_a_stack_has_no_lone_surrogate.__code__)


def test_a_stack_is_cut_at_its_outer_end() -> None:
    """The inner end, where the thread stands, is kept within 4 KiB; the engine's frames are none of the handler's."""
    here = test_a_stack_is_cut_at_its_outer_end.__code__
    shallow = text_of(deep(2), here).splitlines()
    assert len(shallow) == 3
    assert all(line.endswith("in deep") for line in shallow)
    cut = text_of(deep(500), here)
    assert len(cut) <= STACK_CHARACTERS
    first, *_, last = cut.splitlines()
    assert (first, last) == ("…", shallow[-1])
