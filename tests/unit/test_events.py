"""The list of events against the source that logs them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

import lanelog
from lanelog._events import EVENTS, Event
from support.cli import Command

SOURCE = Path(lanelog.__file__).parent
ROOT = Path(__file__).parents[2]
LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}


@frozen
class Call:
    """One `log.warning("event.name", field=…)` of the source."""

    where: str
    name: str
    level: str
    room: str
    fields: frozenset[str]  # those that the call names; others come with `**context` and with `bind`


def rooms_of(tree: ast.Module) -> dict[str, str]:
    """The room of each logger in a module, by the name that it is given: `log`, `self._log`."""
    rooms = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        made = node.value
        if ast.unparse(made.func).split(".")[-1] == "get_logger":
            (room,) = made.args
            rooms[ast.unparse(node.targets[0])] = ast.literal_eval(room)
    return rooms


def calls_of(path: Path) -> Iterator[Call]:
    """Each event that a module logs."""
    tree = ast.parse(path.read_text())
    rooms = rooms_of(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        logger = ast.unparse(node.func.value).split(".bind(")[0]
        if logger in rooms:
            name = ast.literal_eval(node.args[0])
            fields = {word.arg for word in node.keywords if word.arg is not None}
            if node.func.attr == "exception":
                fields.add("exc_info")
            level = LEVELS[node.func.attr]
            yield Call(f"{path.name}:{node.lineno}", name, level, rooms[logger], frozenset(fields))


CALLS = [call for path in sorted(SOURCE.rglob("*.py")) for call in calls_of(path)]


def key(each: Call | Event) -> tuple[str, str, str]:
    """What makes an event one: its name, and how and through whom it is logged."""
    return each.name, each.level, each.room


def test_each_event_of_the_source_is_in_the_list_and_the_other_way_round() -> None:
    """Name, level and logger: nothing is logged that the list does not have, and nothing in it is never logged."""
    assert {key(call) for call in CALLS} == {key(event) for event in EVENTS}
    assert len({key(event) for event in EVENTS}) == len(EVENTS)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.where}-{call.name}")
def test_the_list_has_each_field_that_the_source_names(call: Call) -> None:
    """A field that an application can index is documented."""
    (event,) = (event for event in EVENTS if key(event) == key(call))
    assert call.fields <= set(event.fields)


def test_the_list_is_in_order() -> None:
    """Whoever looks for an event, or adds one, finds its place: by room, then by name."""
    rooms = [event.room for event in EVENTS]
    assert rooms == sorted(rooms)
    for room in set(rooms):
        names = [event.name for event in EVENTS if event.room == room]
        assert names == sorted(names)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.room}-{event.name}-{event.level}")
def test_each_event_says_one_sentence(event: Event) -> None:
    """What an operator reads who looks an event up is a sentence."""
    assert event.says[0].isupper()
    assert event.says.endswith(".")
    assert event.logger == f"lanelog.{event.room}"


@pytest.mark.thorough
def test_every_logger_is_made_with_a_room() -> None:
    """A room is a constant: whoever looks for `lanelog.worker` finds it in the source."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "get_logger":
                assert isinstance(node.args[0], ast.Constant), path


def test_the_documentation_is_made_from_the_list() -> None:
    """docs/reference/events.md is what `lanelog events --markdown` prints; after a change, redirect that there."""
    assert Command(None)("events", "--markdown").stdout == (ROOT / "docs/reference/events.md").read_text()


def test_the_command_lists_every_event_and_describes_one() -> None:
    """With its level, its logger and its fields; a name that no event has is refused. No database is asked."""
    command = Command(None)
    _, lines = command.table("events")
    assert [line[:3] for line in lines] == [[event.name, event.level, event.logger] for event in EVENTS]
    (found,) = command.json("events", "message.dead_lettered")
    assert (found["level"], found["logger"]) == ("ERROR", "lanelog.settler")
    assert {"topic", "key", "group", "offset", "attempt", "exc_info"} <= {*found["fields"]}
    text = command("events", "message.expired").stdout
    assert text.count("message.expired  ") == sum(event.name == "message.expired" for event in EVENTS) > 1
    assert "no event is named 'nope'" in command("events", "nope", status=2).stderr
