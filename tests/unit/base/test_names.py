"""Topics, keys, groups and ids."""

import enum
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog.config import NAME_MAX, check_name
from support.refusing import refused


@pytest.mark.parametrize(
    "name", ["a", "repo-42", "größe", "日本語", "a b", "a\u00a0b", "a/b:c%d", "👩‍🚀", "x" * 255, "日" * 255]
)
def test_usual_names_pass_unchanged(name: str) -> None:
    """1 to 255 characters of any script, with blanks inside."""
    assert check_name("key", name) is name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "must have 1 to 255 characters, not 0"),
        ("x" * 256, "not 256"),
        (" a", "begin or end with white space"),
        ("a ", "begin or end with white space"),
        ("a\n", "begin or end with white space"),
        ("\u3000a", "begin or end with white space"),
        ("a\u2028", "begin or end with white space"),
        ("a\x00b", "control characters"),
        ("a\x7fb", "control characters"),
        ("a\x85b", "control characters"),
        ("a\tb", "control characters"),
        ("a\ud800b", "lone surrogates"),
        (b"a", "must be a str, not bytes"),
        (None, "must be a str, not NoneType"),
        (7, "must be a str, not int"),
    ],
)
def test_names_that_could_be_confused_are_refused(name: object, reason: str) -> None:
    """Names that the servers would pad, fold or reject never reach them; the error says which argument it was."""
    text = refused(check_name, "topic", name)
    assert text.startswith("topic ")
    assert reason in text


def test_subclasses_of_str_become_plain() -> None:
    """An enum's value is the name, and drivers get a plain str."""

    class Old(str, enum.Enum):  # noqa: UP042 - the kind whose str() is not its value
        A = "merge"

    class New(enum.StrEnum):
        A = "merge"

    for member in (Old.A, New.A):
        name = check_name("topic", member)
        assert type(name) is str
        assert name == "merge"


@given(st.text(max_size=NAME_MAX + 2))
def test_exactly_the_rule_decides(text: str) -> None:
    """Any text is accepted if and only if it satisfies the documented rule."""
    controls = [character for character in text if re.match(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", character)]
    valid = 1 <= len(text) <= NAME_MAX and text == text.strip() and not controls
    if valid:
        assert check_name("id", text) == text
    else:
        refused(check_name, "id", text)
