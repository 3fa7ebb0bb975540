"""The fields of a lane are private to its folder: others use its methods, and read what `LaneView` has."""

import ast
from pathlib import Path

from attrs import fields

from lanelog._engine import lane as folder
from lanelog._engine.lane.dispatch import Dispatcher
from lanelog._engine.lane.lane import Lane
from lanelog._engine.lane.progress import Progress
from lanelog._engine.lane.state import LaneState, LaneView

FOLDER = Path(folder.__file__).parent
OUTSIDE = [path for path in FOLDER.parents[1].rglob("*.py") if FOLDER not in path.parents]
FIELDS = {
    "dispatch": {field.name for field in fields(Dispatcher)},
    "progress": {field.name for field in fields(Progress)},
}


def test_nothing_outside_touches_a_field_of_a_lane_or_of_its_parts() -> None:
    """Nobody writes an attribute of a lane or an item of it, and nobody reads a field of its dispatch or progress."""
    names = {field.name for field in fields(LaneState)} | {*Lane.__slots__, *LaneView.__slots__}
    found = []
    for path in OUTSIDE:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        items = [node.value for node in nodes if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)]
        for node in nodes:
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name)):
                continue
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
            of_lane = ast.unparse(node.value).removesuffix(".state") in ("lane", "old", "fresh")
            written = (node in items or not isinstance(node.ctx, ast.Load)) and of_lane and node.attr in names
            private = node.attr.startswith("_") and (of_lane or owner in FIELDS)
            if written or private or node.attr in FIELDS.get(owner, ()):
                found.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert found == []
