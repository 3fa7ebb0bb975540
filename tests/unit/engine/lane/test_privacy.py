"""The fields of a lane are private to its folder: others use its methods, and read what `LaneView` has."""

import ast
from pathlib import Path

import pytest
from attrs import fields

from lanelog._engine import lane as folder
from lanelog._engine.lane.dispatch import Dispatcher
from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.progress import Progress
from lanelog._engine.lane.state import LaneState, LaneView

FOLDER = Path(folder.__file__).parent
OUTSIDE = [path for path in FOLDER.parents[1].rglob("*.py") if FOLDER not in path.parents]
NAMES = {field.name for field in fields(LaneState)} | {*Lane.__slots__, *LaneView.__slots__}
FIELDS = {
    "dispatch": {field.name for field in fields(Dispatcher)},
    "progress": {field.name for field in fields(Progress)},
}


def touched(source: str) -> list[str]:
    """Where it writes an attribute of a lane or an item of it, or reads a field of its dispatch or progress."""
    nodes = list(ast.walk(ast.parse(source)))
    items = [node.value for node in nodes if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)]
    found = []
    for node in nodes:
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name)):
            continue
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
        lane = ast.unparse(node.value).removesuffix(".state")
        of_lane = lane in ("lane", "old", "fresh") or lane.endswith(".lane")
        written = (node in items or not isinstance(node.ctx, ast.Load)) and of_lane and node.attr in NAMES
        private = node.attr.startswith("_") and (of_lane or owner in FIELDS)
        if written or private or node.attr in FIELDS.get(owner, ()):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("lane.state.closing = True", ["lane.state.closing"]),
        ("self.lane.state.cursor += 1", ["self.lane.state.cursor"]),
        ("attempt.lane.state.waiting[1] = wait", ["attempt.lane.state.waiting"]),
        ("del old.state.running[1]", ["old.state.running"]),
        ("attempt.lane.epoch = 2", ["attempt.lane.epoch"]),
        ("print(self.lane._state)", ["self.lane._state"]),
        ("print(lane.progress.marked)", ["lane.progress.marked"]),
        ("print(self.lane.state.closing, lane.key, lane.progress.flushing)", []),
    ],
)
def test_the_search_sees_a_write(source: str, found: list[str]) -> None:
    """The search sees a write by any path to the lane; it does not see reads of public state."""
    assert touched(source) == found


def test_nothing_outside_touches_a_field_of_a_lane_or_of_its_parts() -> None:
    """Inside the folder that happens, so the search finds something there."""
    inside = {each for path in FOLDER.rglob("*.py") for each in touched(path.read_text())}
    assert {"lane._state", "lane.progress.runs", "lane.progress.dirty"} <= inside
    assert [f"{path.name} {each}" for path in OUTSIDE for each in touched(path.read_text())] == []
