"""What `import lanelog` costs everybody who imports it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lanelog

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lanelog.__file__).parents[1])}


# structlog imports rich for itself wherever it is installed. lanelog is looked at where it is not.
NO_RICH = "sys.modules['rich'] = None"


def answer(code: str) -> object:
    """What a new interpreter prints, as JSON."""
    command = [sys.executable, "-c", f"import json, sys; {code}"]
    return json.loads(subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout)


def modules(code: str) -> list[str]:
    """What a new interpreter has imported when it has done that."""
    found = answer(f"{code}; print(json.dumps(sorted(sys.modules)))")
    assert isinstance(found, list)
    return found


def test_only_what_a_publisher_needs_is_imported() -> None:
    """Administration, the engine, the command line and rich are not imported."""
    rooms = modules(f"{NO_RICH}; import lanelog; lanelog.connect('mysql://a@b/c')")
    unwanted = ("rich.", "click", "lanelog.admin", "lanelog.cli.", "lanelog._engine", "lanelog.migrations")
    assert [name for name in rooms if name.startswith(unwanted)] == []


def test_an_import_sets_no_signal_handler() -> None:
    """The module that sets the command's handlers sets none by its import: an application's signals are its own."""
    code = "import signal; old = [*map(signal.getsignal, signal.valid_signals())]; import lanelog, lanelog_command"
    assert answer(f"{code}; print(json.dumps(old == [*map(signal.getsignal, signal.valid_signals())]))") is True


@pytest.mark.thorough
def test_a_command_imports_no_other() -> None:
    """A command does not import what only `--watch` and the progress of a long one need either."""
    rooms = modules("from lanelog.cli._main import cli; cli.get_command(None, 'status')")
    others = ("lanelog.cli.steer.", "lanelog.cli.data.", "lanelog.cli.run.", "lanelog.cli.output.watch")
    unwanted = (*others, "rich.live", "rich.progress")
    assert "lanelog.cli.read.status" in rooms
    assert [name for name in rooms if name.startswith(unwanted)] == []


@pytest.mark.thorough
def test_help_imports_no_verb() -> None:
    """The list of verbs has a line for each of them, so their modules stay away."""
    code = "from click.testing import CliRunner; from lanelog.cli._main import cli; CliRunner().invoke(cli, ['--help'])"
    rooms = modules(code)
    assert "lanelog.cli._main" in rooms
    verbs = ("lanelog.cli.read.", "lanelog.cli.steer.", "lanelog.cli.data.", "lanelog.cli.run.", "lanelog.admin.")
    assert [name for name in rooms if name.startswith(verbs)] == []


def test_names_that_come_later_are_found() -> None:
    """Everything public is an attribute, in `dir()` and in a star import; a name that does not exist says so."""
    assert set(lanelog.__all__) <= set(dir(lanelog))
    assert answer("from lanelog import *; print(json.dumps(Subscription.__module__))") == "lanelog.subscriber"
    with pytest.raises(AttributeError, match="module 'lanelog' has no attribute 'subscribe'"):
        getattr(lanelog, "subscribe")  # noqa: B009 - a checker would find it


WINDOWS = """
sys.platform = "win32"
try:
    import lanelog
except ImportError as error:
    print(json.dumps(str(error)))
"""


def test_windows_is_refused_in_a_sentence() -> None:
    """The import says what lanelog needs, and does not fail on a name that Windows lacks."""
    assert str(answer(WINDOWS)).startswith("lanelog does not run on Windows:")
