"""A headless Chromium that tests drive over its debugging pipe: pages, media, sizes and what was requested."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

# No sandbox: it needs user namespaces, or not to be root. The rest keeps the browser from talking to anybody by itself.
FLAGS = (
    *("--headless", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)


def chromium() -> str:
    """The browser; without it the test is skipped, in CI it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        reason = "Chromium is missing: apt-get install chromium (Debian), or run .ci/setup-browser as root"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found


_KEYS = {"Tab": 9}
"""The keys that tests press, with their codes."""


class Page:
    """One page; `requested` are the addresses that it asked for, `problems` what its console and its errors said."""

    def __init__(self, to: int, from_: int) -> None:
        self._to, self._from, self._left, self._number = to, from_, b"", 0
        self.requested: list[str] = []
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Load a file and wait until everything in it has loaded."""
        self.visit(path.absolute().as_uri())

    def visit(self, address: str) -> None:
        """Load an address and wait until everything in it has loaded."""
        self.requested.clear()
        self._call("Page.navigate", url=address)
        self._loaded()

    def follow(self, expression: str) -> None:
        """Evaluate what leads to another page, and wait until that has loaded."""
        self.requested.clear()
        self.ask(expression)
        self._loaded()

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key])

    def _loaded(self) -> None:
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show_as(self, *, width: int, height: int = 800, dark: bool = False, media: str = "screen") -> None:
        """A window of that size, with the reader's preference, on a screen or on paper."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            read = os.read(self._from, 1 << 20)
            assert read, "the browser has ended"
            self._left += read
        line, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])
        elif message.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
            self.problems.append(json.dumps(message["params"]))
        return message


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser that ends with the test."""
    program = chromium()
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser wants the pipe at descriptors 3 and 4.
        command = ["bash", "-c", f'exec "$@" 3<&{child_reads} 4>&{child_writes}', "bash", program, *FLAGS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        try:
            yield Page(we_write, we_read)
        finally:
            os.close(we_write)  # the browser ends when its pipe does
            os.close(we_read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
