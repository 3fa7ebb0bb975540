"""`lanelog web --mask`: the function that says what a page may show of a payload, from a terminal."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

import lanelog
from support.cli import Command

NOWHERE = "mysql://nobody@127.0.0.1:1/none"
MASKS = """
import lanelog

WIDTH = 4


class Shop:
    @staticmethod
    def hide(message: lanelog.admin.MessageInfo) -> bytes:
        return message.payload.replace(b"4111", b"*" * WIDTH)


async def later(message): return b""
def greedy(message, form): return b""
"""


@pytest.fixture
def masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current directory, which is another one at each test: modules stay imported."""
    name = f"masks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MASKS)
    (tmp_path / f"{name}_broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    return name


@pytest.mark.thorough
def test_a_function_of_the_current_directory_masks_payloads(
    lanelog_client: lanelog.Client, lanelog_url: str, masks: str
) -> None:
    """In every form, and for the program `lanelog`, which does not look there by itself."""
    lanelog_client.publish("t", "k", b'{"card": "4111"}')
    program = Path(sys.executable).parent / "lanelog"
    command = [program, "web", "--listen", "127.0.0.1:0", "--mask", f"{masks}:Shop.hide"]
    with subprocess.Popen(
        command, env={**os.environ, "LANELOG_URL": lanelog_url}, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            address = child.stdout.readline().strip()
            shown = {}
            for form in ("text", "json", "hex"):
                asked = f"{address}message?topic=t&key=k&offset=1&show={form}"
                with urlopen(asked, timeout=20) as answer:  # noqa: S310 - the address that our own process printed
                    shown[form] = answer.read().decode()
        finally:
            child.send_signal(signal.SIGTERM)
    for form, masked in {"text": "****", "json": "****", "hex": "2a 2a 2a 2a"}.items():
        assert masked in shown[form]
        assert "4111" not in shown[form]
        assert "34 31 31 31" not in shown[form]


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("{}", "--mask: '{}' names no function: write package.module:function"),
        ("{}:", "--mask: '{}:' names no function: write package.module:function"),
        ("/srv/{}.py:hide", "--mask: '/srv/{}.py:hide' names no function: write package.module:function"),
        ("nothing.{}:hide", "--mask: there is no module 'nothing' in the current directory or the path of modules"),
        ("{}:hidden", "--mask: module '{}' has no 'hidden'"),
        ("{}:WIDTH", "--mask {}:WIDTH must be callable, not int"),
        ("{}:later", "--mask {}:later must be a plain function"),
        ("{}:greedy", "--mask {}:greedy must take one positional argument, message"),
    ],
)
def test_what_names_no_function_is_refused(masks: str, named: str, says: str) -> None:
    """In one line that says what to write, before anything is served: no page shows a payload without its mask."""
    refused = Command(NOWHERE).refused("web", "--listen", "127.0.0.1:0", "--mask", named.format(masks))
    assert says.format(masks) in refused


def test_an_error_of_the_module_itself_is_shown_as_it_is(masks: str) -> None:
    """The error has its traceback: the module's author must see where it is."""
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        Command(NOWHERE).any("web", "--listen", "127.0.0.1:0", "--mask", f"{masks}_broken:hide")
