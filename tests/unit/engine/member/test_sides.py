"""Each loop calls its own side of a member, and changes the member by it alone."""

import ast
from pathlib import Path

import pytest

from lanelog import _engine as engine

FOLDER = Path(engine.__file__).parent
SIDES = {
    "cleanup": {"writing"},
    "fetching": {"fetching"},
    "leasing": {"leasing"},
    "scheduling": set[str](),
    "settling": {"caller_acks", "writing"},
    "working": {"attempts", "caller_acks", "handing_back"},
}
"""What each loop's folder may call. The janitor asks what is flushed."""


def test_every_loop_is_known_here() -> None:
    """A new folder of the engine says which side is its own."""
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders == {*SIDES, "lane", "member"}


@pytest.mark.parametrize("folder", SIDES)
def test_a_loop_uses_its_side_and_nothing_else(folder: str) -> None:
    """A loop reads the fields of a member, assigns none, and calls no other loop's side."""
    others = {"attempts", "caller_acks", "fetching", "handing_back", "leasing", "writing"} - SIDES[folder]
    found = []
    for path in (FOLDER / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in ("member", "each"):
                of_member = ast.unparse(node.value).endswith("member") or node.attr in others
                if node.attr in others or (of_member and not isinstance(node.ctx, ast.Load)):
                    found.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert found == []
