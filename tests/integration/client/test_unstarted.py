"""Handlers that nobody starts: a program that only registers them ends with a warning, all others in silence."""

import os
import sys
from pathlib import Path

import pytest

from support.scripts import ran

HANDLERS = """
import lanelog
client = lanelog.connect({url!r})

@client.subscriber("orders", "bill")
def bill(message): ...
"""
SILENT = {
    "publishes": "from handlers import client\nclient.publish('orders', 'k', b'')",
    "asks": "from handlers import client\nclient.ping()",
    "cannot_reach_it": "import lanelog\nfrom handlers import client\nother = lanelog.connect(NOWHERE)\n"
    "@other.subscriber('t', 'g')\ndef f(m): ...\n"
    "client.ping()\ntry: other.run()\nexcept lanelog.DatabaseError: pass",
    "starts": "from handlers import client\nclient.start()\nclient.close()",
    "never_sees_it": "from handlers import bill",
    "fails": "from handlers import client\nraise SystemError('mine')",
    "forked": "import os, sys\nfrom handlers import client\nif os.fork():\n    os.wait()\n    os._exit(0)\nsys.exit(0)",
    "collected": "import pytest\npytest.main(['--collect-only', '-q', 'handlers.py'])",
}
LOUD = {
    "registers": "import lanelog\nclient = lanelog.connect('mysql://u@h/d')\n"
    "@client.subscriber('orders', 'bill')\ndef bill(message): ...",
    "in_a_function": "import lanelog\ndef main():\n    client = lanelog.connect('mysql://u@h/d')\n"
    "    @client.subscriber('orders', 'bill')\n    def bill(message): ...\nmain()",
    "closes": "import lanelog\nwith lanelog.connect('mysql://u@h/d') as client:\n"
    "    client.subscriber('orders', 'bill')(print)",
    "imports_the_module": "import handlers",
    "imports_the_client": "from handlers import client",
}


def errors_of(directory: Path, url: str, *command: str) -> str:
    """What a program that knows the handlers writes to standard error."""
    (directory / "handlers.py").write_text(HANDLERS.format(url=url))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    path = os.pathsep.join([str(directory), *sys.path])
    return ran(sys.executable, *command, cwd=directory, env={**environment, "PYTHONPATH": path}).stderr


@pytest.mark.parametrize("name", LOUD)
def test_a_program_that_forgets_to_run_its_client_is_warned(tmp_path: Path, name: str) -> None:
    """With nothing configured, one line at the program's end shows where the client is, and what to call."""
    (tmp_path / "program.py").write_text(LOUD[name])
    said = errors_of(tmp_path, "mysql://u:geheim@h/d", "program.py")
    assert said.count("RuntimeWarning") == 1
    assert "a handler of group 'bill'" in said
    assert "client.run()" in said
    assert ("handlers.py:5" if "handlers" in LOUD[name] else "program.py:") in said
    assert "geheim" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("name", SILENT)
def test_who_does_anything_or_only_imports_is_not_meant(tmp_path: Path, lanelog_url: str, name: str) -> None:
    """A web process that publishes, a test runner, a forked child, a program that fails by itself."""
    (tmp_path / "program.py").write_text(SILENT[name].replace("NOWHERE", "'mysql://u@127.0.0.1:1/d'"))
    assert "RuntimeWarning" not in errors_of(tmp_path, lanelog_url, "program.py")


def test_importing_a_module_to_check_it_warns_nobody(tmp_path: Path) -> None:
    """A check with `python -c` that the module can be imported prints no warning."""
    assert errors_of(tmp_path, "mysql://u@h/d", "-c", "import handlers") == ""
