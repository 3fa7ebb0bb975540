"""The layout of the repository that everything else relies on."""

import ast
import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

import pytest

import lanelog
from support.scripts import ran

ROOT = Path(__file__).parents[3]
PACKAGE = Path(lanelog.__file__).parent
Node = TypeVar("Node", bound=ast.stmt)
TABLES = {path.name for path in (ROOT / "schema").glob("*.sql")}


def nodes(kind: type[Node]) -> Iterator[tuple[Node, Path]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield node, path


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, modules: Container[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in modules else node.module for name in named)


def test_queue_is_the_standard_library_from_the_root() -> None:
    """`queue/__init__.py` would shadow it for everything that is run there."""
    assert not (ROOT / "queue/__init__.py").exists()
    code = "import queue, sys; print(sys.path[0] or '.', queue.SimpleQueue, queue.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(". ")
    assert os.path.dirname(os.__file__) in done.stdout  # noqa: PTH120  # as the standard library says it


def test_the_tables_are_reachable_from_the_package() -> None:
    """An editable install finds `schema/` through the package's symbolic link, which is relative."""
    link = ROOT / "queue/lanelog/_schema"
    assert link.readlink() == Path("../../schema")
    assert TABLES
    assert {path.name for path in link.glob("*.sql")} == TABLES


def test_the_wheel_contains_the_tables_and_the_types(tmp_path: Path) -> None:
    """An installed wheel has `schema/` as files of the package, and says that it is typed."""
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("lanelog-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"lanelog/_schema/{name}" for name in TABLES} <= names
    assert "lanelog/py.typed" in names
    ours = ("lanelog/", "lanelog-", "lanelog_command/", "pyspark_lanelog/")
    assert [name for name in names if not name.startswith(ours)] == []


def test_the_plugin_is_light() -> None:
    """Every pytest run of an environment loads the plugin: beyond the library itself it brings nothing."""
    code = "import lanelog, pytest, sys; old = {*sys.modules}"
    code += "; import lanelog.testing.plugin; print({*sys.modules} - old)"
    brought = ast.literal_eval(ran(sys.executable, "-c", code, check=True).stdout) - sys.stdlib_module_names
    assert brought == {"lanelog.testing", "lanelog.testing.plugin"}


@pytest.mark.thorough
def test_one_name_for_one_class() -> None:
    """The whole package has one class of each name. Django finds a command by the name of its class."""
    found: dict[str, list[Path]] = {}
    for node, path in nodes(ast.ClassDef):
        if path.parent.name == "commands" and node.name == "Command":
            continue
        found.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_module_has_four_hundred_lines_at_most() -> None:
    """Past that, it owns a second duty. The two facades are lists of what users may call."""
    facades = {PACKAGE / "client.py", PACKAGE / "admin/admin.py"}
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py") if path not in facades}
    assert {path: lines for path, lines in lengths.items() if lines > 400} == {}


def test_a_folder_has_twelve_modules_at_most() -> None:
    """Past that, nobody sees at a glance what is in it. The top of the package has what users import."""
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}:
        assert len({path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}) <= 12, folder


@pytest.mark.thorough
def test_a_store_outside_of_a_folder_is_named_by_the_contract_of_independence() -> None:
    """The contract's pattern reaches the stores in folders alone."""
    contracts = (ROOT / "pyproject.toml").read_text()
    alone = [path.stem for path in (PACKAGE / "_stores").glob("[!_]*.py")]
    assert alone
    assert [name for name in alone if f'"lanelog._stores.{name}"' not in contracts] == []


def test_a_class_has_twenty_five_methods_at_most() -> None:
    """Past that, it is two things. The two facades have one method for each thing that users may call."""
    for node, path in nodes(ast.ClassDef):
        methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        assert methods <= 25 or node.name in {"Client", "Admin"}, f"{path}: {node.name}"


@pytest.mark.thorough
def test_a_function_has_sixty_lines_at_most() -> None:
    """A function is read without scrolling, its docstring aside."""
    for node, path in (*nodes(ast.FunctionDef), *nodes(ast.AsyncFunctionDef)):
        lines = lines_of(node) - (lines_of(node.body[0]) if ast.get_docstring(node) else 0)
        assert lines <= 60, f"{path}: {node.name}"


def test_a_face_has_forty_lines_at_most() -> None:
    """An `__init__` says in a few lines what its folder owns. Only the package's own one lists names for users."""
    faces = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*/__init__.py")}
    assert {path: lines for path, lines in faces.items() if lines > 40} == {}


def test_imports_make_no_circle() -> None:
    """Imports for the type checker count, too: what a module needs to be understood lies below it."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    graph = {name: {each for each in imported(path, modules) if each in modules} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_loop_sees_its_side_of_a_member_alone() -> None:
    """No line outside of the member's wing reaches through a side to the state that all of them share."""
    reached = re.compile(r"\b(leasing|fetching|writing|attempts)\.state\b|\bMemberState\(")
    for path in PACKAGE.rglob("*.py"):
        if path.parent != PACKAGE / "_engine/member":
            assert not reached.search(path.read_text()), path


def test_code_lines_are_counted_without_what_only_people_read() -> None:
    """Blank lines, comments, docstrings and strings that stand alone count nothing; a string that is used counts."""
    size = runpy.run_path(str(ROOT / ".ci/size"))
    source = '"""Two\nlines."""\n\n# why\nA = """of\ntwo"""  # why\n"""What."""\n\n\ndef f() -> None:\n    """Do."""\n'
    assert size["code_lines"](source) == 3


@pytest.mark.parametrize("wing", ["lookup", "read", "totals"])
def test_a_wing_that_says_it_changes_nothing_begins_no_transaction(wing: str) -> None:
    """Looking up and reading lock no row, and write none: not even what an operator did."""
    changing = re.compile(r"\.transaction\(|\bFOR UPDATE\b|\b(INSERT|UPDATE|DELETE) |\bAct\b")
    assert (PACKAGE / f"admin/{wing}/__init__.py").read_text().endswith('Never changes or locks a row.\n"""\n')
    assert [path for path in (PACKAGE / "admin" / wing).glob("*.py") if changing.search(path.read_text())] == []


def test_every_case_of_the_originals_suite_has_its_test() -> None:
    """A function of that name, with a docstring, in the file that the row of the table in tests/README.md names."""
    _, _, rows = (ROOT / "tests/README.md").read_text().partition("| original test | what it asserts | where |\n")
    named = re.findall(r"^\| (\w+) \| .+ \| `(.+)` \|$", rows, re.MULTILINE)
    assert len(named) == len(set(named)) == 41
    for name, where in named:
        body = ast.parse((ROOT / "tests" / where).read_text()).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        assert ast.get_docstring(functions[f"test_{name}"]), name


@pytest.mark.parametrize(
    "script",
    [".ci/apt-install", ".ci/run", ".ci/setup-python", ".ci/setup-database", ".ci/setup-clocks", "tests/servers/mysql"],
)
def test_the_scripts_are_executable_and_parse(script: str) -> None:
    """A script that lost its mode or its syntax breaks a fresh clone first."""
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
