"""Names of other packages that begin with one underscore and that lanelog overrides or reads.

A release may change them without a word, so the versions are bounded, and a release that has lost one fails here.
"""

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import structlog
from pymysql.connections import Connection, MySQLResult

import lanelog
from lanelog._database.connection import answers, rows

PACKAGE = Path(lanelog.__file__).parent
CONNECTION = (
    "execute_command force_close next_seq_id read_ok_packet read_packet read_query_result read_timeout "
    "request_authentication result rfile sock write_bytes write_timeout"
)
RESULT = (
    "check_packet_is_eof finish_unbuffered_query read_row_from_packet read_rowdata_packet "
    "read_rowdata_packet_unbuffered"
)
PYMYSQLS: list[tuple[type, str]] = [
    (kind, f"_{name}") for kind, names in ((Connection, CONNECTION), (MySQLResult, RESULT)) for name in names.split()
]
STRUCTLOGS = [(structlog.BoundLoggerBase, name) for name in ("_logger", "_process_event")]
"""These two are for classes like ours, its documentation says. So structlog needs no bound."""
OWN = {"_closed", "_config"}
"""PyMySQL has these names, too, and lanelog's are others."""


def private(source: str) -> set[str]:
    """The names with one underscore that a program defines, or reads from something."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Constant(value=str(name)):  # of getattr, or of a list of names
                found.add(name)
    return {name for name in found if re.fullmatch(r"_[a-z]\w+", name)}


@pytest.mark.parametrize(("owner", "name"), [*PYMYSQLS, *STRUCTLOGS])
def test_a_private_name_that_is_used_is_there(owner: type, name: str) -> None:
    """The name is a method, or a field that the class sets or declares."""
    assert name in private(inspect.getsource(owner))


def test_every_private_name_that_is_used_is_listed() -> None:
    """The list has those of PyMySQL in the room of the drivers, and those of structlog in the one of events."""
    for listed, sources, theirs in (
        (PYMYSQLS, (PACKAGE / "_database").rglob("*.py"), (Connection, MySQLResult)),
        (STRUCTLOGS, [PACKAGE / "_facts/log.py"], (structlog.BoundLoggerBase,)),
    ):
        ours = set[str]().union(*(private(path.read_text()) for path in sources))
        there = set[str]().union(*(private(inspect.getsource(each)) for each in theirs))
        assert {name for _, name in listed} == (ours & there) - OWN


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (answers.AnsweringConnection, Connection),
        (rows.Connection, Connection),
        (answers._Unbuffered, MySQLResult),
        (rows._Answer, MySQLResult),
    ],
)
def test_what_is_overridden_takes_the_same_arguments(ours: type, theirs: type) -> None:
    """By name, kind and default: PyMySQL calls them, too."""
    overridden = {name for name, made in vars(ours).items() if inspect.isfunction(made) and hasattr(theirs, name)}
    assert overridden
    for name in overridden - {"__init__"}:
        wanted, found = (inspect.signature(getattr(each, name)).parameters.values() for each in (theirs, ours))
        assert [(p.name, p.kind, p.default) for p in found] == [(p.name, p.kind, p.default) for p in wanted], name


def test_a_package_whose_private_names_are_used_has_an_upper_bound() -> None:
    """No installation gets a minor version that nobody has tried."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    (bounds,) = (each for each in project["dependencies"] if each.startswith("PyMySQL"))
    assert re.fullmatch(r"PyMySQL>=1\.\d+,<1\.\d+", bounds)
