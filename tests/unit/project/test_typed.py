"""What mypy and pyright say about calls as users write them. What editors show of the options is in `test_papers`."""

import json
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import attrs
import pytest

import lanelog
from lanelog._base import connection_options

ROOT = Path(__file__).parents[3]
CALLS = ROOT / "tests/typed/calls.py"


def by_mypy(directory: Path) -> set[int]:
    """The lines in which `mypy --strict` finds an error."""
    configuration = directory / "mypy.ini"  # a user's project has not our settings
    configuration.write_text(
        f"[mypy]\nstrict = true\nmypy_path = {ROOT / 'queue'}\ncache_dir = {directory / 'cache'}\n"
    )
    command = [sys.executable, "-m", "mypy", f"--config-file={configuration}", "--output=json", str(CALLS)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert not done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    # Of lanelog itself, installed or not, `make lint` judges.
    return {each["line"] for each in found if each["severity"] == "error" and Path(each["file"]).name == CALLS.name}


def by_pyright(directory: Path) -> set[int]:
    """The lines in which pyright finds an error, with the settings that it has of itself."""
    settings = {"extraPaths": [str(ROOT / "queue")], "include": [CALLS.name], "pythonVersion": "3.11"}
    shutil.copy(CALLS, directory)  # only relative paths are taken
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, done.stderr
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1 for each in errors}


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_checkers_refuse_wrong_calls_and_no_others(checker: Callable[[Path], set[int]], tmp_path: Path) -> None:
    """Misspelt options, wrong types and words, async handlers and wrong arity: at the very line that is wrong."""
    lines = CALLS.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("  # wrong")}
    found = checker(tmp_path)
    assert {n: lines[n - 1] for n in marked - found} == {}
    assert {n: lines[n - 1] for n in found - marked} == {}


def test_the_types_of_options_are_those_of_the_configurations() -> None:
    """Options that a type checker accepts are known at run time, and the other way round, in the same order."""
    assert list(lanelog.SubscriptionOptions.__annotations__) == [
        field.name for field in attrs.fields(lanelog.SubscriptionConfig)
    ]
    assert tuple(lanelog.ConnectOptions.__annotations__) == connection_options._OPTIONS
    for each in (lanelog.SubscriptionOptions, lanelog.ConnectOptions):
        assert not each.__required_keys__
        assert set(typing.get_type_hints(each)) == set(each.__annotations__)  # they can be resolved


def test_the_version_is_that_of_the_package() -> None:
    """`lanelog.__version__` is what the installer knows."""
    assert lanelog.__version__ == version("lanelog")
    assert "__version__" in dir(lanelog)
