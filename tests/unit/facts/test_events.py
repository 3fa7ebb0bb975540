"""The declared events: what they say, and that something logs them."""

import ast
from pathlib import Path

import pytest

import lanelog
from lanelog._facts.engine import janitor, keeper, settler, subscription, worker
from lanelog._facts.fact import Fact, Noticed
from lanelog._facts.listing import EVENTS
from lanelog.notices import NAMES
from support.cli import Command

SOURCE = Path(lanelog.__file__).parent
ROOT = Path(__file__).parents[3]


def function(fact: Fact[...] | Noticed[...]) -> tuple[str, str]:
    """The module and the name of a declaration."""
    return fact.declaration.__module__, fact.declaration.__name__


def used(path: Path) -> set[tuple[str, str]]:
    """What a module names as `module.function`, and of its own names those that it uses."""
    tree = ast.parse(path.read_text())
    own = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add((own, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add((modules.get(node.value.id, ""), node.attr))
    return found


USED = set[tuple[str, str]]().union(*(used(path) for path in SOURCE.rglob("*.py")))


def test_each_event_is_logged_by_somebody() -> None:
    """A declaration that nothing calls would be in the documentation for ever."""
    assert {function(event) for event in EVENTS} - USED == set()


def test_each_notice_is_put_by_somebody() -> None:
    """A program can wait for each name, and each comes from a declared fact that something calls."""
    facts = [each for module in (janitor, keeper, settler, subscription, worker) for each in vars(module).values()]
    notices = [each for each in facts if isinstance(each, Noticed)]
    assert {each.notice for each in notices} == NAMES
    assert {function(each) for each in notices} - USED == set()


def test_each_module_of_declarations_is_in_the_listing() -> None:
    """The documentation would otherwise lack the module's events."""
    names = {path.stem for path in (SOURCE / "_facts").rglob("*.py") if "= Room(" in path.read_text()}
    assert names == {event.room.name for event in EVENTS}
    assert len({(event.name, event.level, event.room.name) for event in EVENTS}) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.room.name}-{event.name}-{event.level}")
def test_an_event_is_found_by_its_name_and_says_a_sentence(event: Fact[...]) -> None:
    """In the module of its logger, as a function of its name; an operator who looks it up reads a sentence."""
    module, name = function(event)
    assert event.logger == f"lanelog.{module.rpartition('.')[2]}"
    assert name.startswith(event.name.replace(".", "_"))
    assert event.says[0].isupper()
    assert event.says.endswith(".")


def test_declarations_are_in_order() -> None:
    """A reader finds an event, or the line for a new one, by its name."""
    for room in {event.room for event in EVENTS}:
        names = [each.name for each in room.facts]
        assert names == sorted(names)


def test_the_documentation_is_made_from_the_list() -> None:
    """docs/reference/events.md is what `lanelog events --markdown` prints; after a change, redirect that there."""
    assert Command(None)("events", "--markdown").stdout == (ROOT / "docs/reference/events.md").read_text()


def test_the_command_lists_every_event_and_describes_one() -> None:
    """The answer has level, logger and fields; a name that no event has is refused. No database is asked."""
    command = Command(None)
    _, lines = command.table("events")
    assert [line[:3] for line in lines] == [[event.name, event.level, event.logger] for event in EVENTS]
    (found,) = command.json("events", "message.dead_lettered")
    assert (found["level"], found["logger"]) == ("ERROR", "lanelog.settler")
    assert {"topic", "key", "group", "offset", "attempt", "exc_info"} <= {*found["fields"]}
    text = command("events", "message.expired").stdout
    assert text.count("message.expired  ") == sum(event.name == "message.expired" for event in EVENTS) > 1
    assert "no event is named 'nope'" in command("events", "nope", status=2).stderr
