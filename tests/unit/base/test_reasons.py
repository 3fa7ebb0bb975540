"""The reason of an error, and the short name of a reason."""

import sys

from hypothesis import example, given
from hypothesis import strategies as st

from lanelog._base.reasons import REASON_MAX, is_name, is_named, names_of, reason_of
from support.scripts import ran

PIECES = st.sampled_from(
    ["order", " ", "#", "0x7f3a", "0XBEEF", "12", "3.5", ",", "-", "_", "feedfacebeef", "3f786850e387", "\n", "\t", "é",
     "6f1c2a9e-11d2-4c3b-9a55-0123456789ab", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "x" * 60, "٣", "\x1b"]
)  # fmt: skip
ERRORS = st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=30).map("".join))
REASONS = st.lists(ERRORS.map(reason_of), min_size=1, max_size=30, unique=True)


def test_errors_that_differ_in_an_address_have_one_reason() -> None:
    """Addresses in memory, of a network and of people with numbers in them."""
    for made in ("<Cart object at 0x7f{:010x}> is closed", "10.0.{}.7:3306 refused", "no mailbox user{}@example.com"):
        assert len({reason_of(made.format(number)) for number in range(800)}) == 1, made


@given(ERRORS)
@example("5aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
@example("x" * 199 + " 7")
def test_a_reason_is_one_line_without_digits_and_its_own_reason(error: str) -> None:
    """A reason that is shown can therefore be given back, whatever the error was."""
    reason = reason_of(error)
    assert reason_of(reason) == reason
    assert len(reason) <= REASON_MAX
    assert not set(reason) & set("0123456789\r\n")


@given(ERRORS, st.integers(0), st.integers(0))
def test_numbers_in_an_error_make_no_difference(error: str, one: int, other: int) -> None:
    """Wherever they stand."""
    assert reason_of(f"{error} {one} s") == reason_of(f"{error} {other} s")


@given(REASONS)
def test_every_reason_has_a_name_of_its_own(reasons: list[str]) -> None:
    """The name means this reason and no other of them; a longer or shorter name means it, too."""
    names = names_of(reasons)
    assert set(names) == set(reasons)
    for reason, name in names.items():
        assert is_name(name)
        assert [each for each in reasons if is_named(each, name)] == [reason]
        assert is_named(reason, name[:6])
        assert names_of([reason])[reason] == name[:6]


def test_names_that_would_be_equal_are_longer() -> None:
    """Among many reasons some share four digits: all of their names differ."""
    reasons = ["a" * number for number in range(1, 1001)]
    names = names_of(reasons)
    assert len(set(names.values())) == 1000
    assert {len(name) for name in names.values()} == {6, 7, 8}


def test_a_name_is_the_same_in_another_process() -> None:
    """The name is made from the text alone, under any hash seed. Its value is pinned: it is in people's notes."""
    program = "from lanelog._base.reasons import names_of; print(names_of(['no such address #'])['no such address #'])"
    environs = [{"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)} for seed in ("1", "2")]
    names = [ran(sys.executable, "-c", program, env=environ, check=True).stdout for environ in environs]
    assert names == ["r-8b17\n", "r-8b17\n"]


def test_only_names_look_like_names() -> None:
    """A name has four hexadecimal digits at least."""
    texts = ("r-4f2a", "r-4f2a9c", "r-4f2", "R-4F2A", "r-4f2a ", "r-word")
    assert [text for text in texts if is_name(text)] == ["r-4f2a", "r-4f2a9c"]
