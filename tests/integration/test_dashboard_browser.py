"""The dashboard in a real browser: every page, light and dark, wide and narrow, and what tries to script."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

import lanelog
from lanelog.dashboard import Access, dashboard
from lanelog.dashboard.views import link
from lanelog.devserver import DevServer
from support.browser import Page, browser
from support.shop import open_shop
from support.sql import connect, rows

HOSTILE = "</pre><script>document.title='scripted'</script>\"'><img src=x onerror=\"document.title='scripted'\">"
LONG = "customer-" + "0123456789" * 12
ADDRESSES = (
    "",
    "topics",
    "groups",
    "members?topic=merge&group=builders",
    "lanes?topic=merge&group=builders",
    "lane?topic=merge&group=builders&key=fails",
    "message?topic=merge&key=bad&offset=1&show=text",
    "dead-letters?topic=merge",
    "schedules",
    "delayed?topic=merge",
    "database",
    "act/skip?topic=merge&group=builders&key=fails&offset=1",
    "act/redrive?topic=merge&group=builders&letters=no+such+branch",
)
CONTRAST = """
(() => {
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  return Math.min(...[...document.querySelectorAll('main *, header *')].filter(e => e.innerText && e.offsetWidth)
    .map(e => [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a))
    .map(([a, b]) => (a + 0.05) / (b + 0.05)));
})()
"""
"""The least contrast of a text with what is behind it, as WCAG counts it."""


@contextmanager
def served(client: lanelog.Client) -> Iterator[str]:
    """The dashboard on a port of this machine; its address."""
    server = uvicorn.Server(uvicorn.Config(dashboard(client, Access(allow_actions=True)), log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def address(lanelog_server: DevServer) -> Iterator[str]:
    """Where the dashboard of a shop is, in which something is stuck since an hour."""
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client:
        client.publish("merge", LONG, b"x")
        client.publish("merge", HOSTILE, HOSTILE.encode())
        with connect(url) as connection:
            rows(connection, "UPDATE queue_messages SET created_at = created_at - 3600000")
            rows(connection, "UPDATE queue_groups SET created_at = created_at - 3600000")
        with served(client) as at:
            yield at


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_page_fits_and_can_be_read(page: Page, address: str, width: int, dark: bool) -> None:
    """Nothing is wider than the window, no text is too pale, nothing comes from elsewhere, nothing is complained of."""
    page.show_as(width=width, dark=dark)
    for each in ADDRESSES:
        page.visit(address + each)
        assert page.ask("document.documentElement.scrollWidth") <= width, each
        assert page.ask("document.querySelectorAll('h1').length") == 1, each
        assert page.ask(CONTRAST) >= 4.5, each
        assert all(asked.startswith((address, "data:")) for asked in page.requested), each
        if where := os.environ.get("LANELOG_PICTURES"):
            name = f"{each.partition('?')[0].replace('/', '-') or 'stuck'}-{width}-{'dark' if dark else 'light'}.png"
            Path(where, name).write_bytes(page.picture())
    assert [problem for problem in page.problems if "favicon" not in problem] == []


def test_what_tries_to_script_is_text(page: Page, address: str) -> None:
    """In a key, a payload and a reason; and the policy would stop it even if it were no text."""
    at = link("message", topic="merge", key=HOSTILE, offset=1, show="text")
    for each in ("lanes?topic=merge&group=builders&by=key", at):
        page.visit(address + each)
        assert "lanelog" in page.ask("document.title")
        assert page.ask("document.body.innerText.includes('onerror')")
        assert page.ask("document.querySelectorAll('img, script').length") == 0


def test_an_action_is_done_by_clicks_alone(page: Page, address: str) -> None:
    """From the lane to the preview, a reason, and what was done, with the browser's own headers."""
    page.visit(address + "act/pause?topic=merge&group=builders&key=good")
    page.ask("document.querySelector('[name=why]').value = 'incident 7'")
    page.follow("document.querySelector('form[method=post] button').click()")
    assert page.ask("document.querySelector('h1').innerText") == "Pause: done"
    page.visit(address + "lane?topic=merge&group=builders&key=good")
    assert "local: incident 7" in page.ask("document.body.innerText")


def test_the_keyboard_shows_where_it_is(page: Page, address: str) -> None:
    """The first link skips to the content, and has an outline."""
    page.visit(address)
    page.press("Tab")
    assert page.ask("document.activeElement.innerText") == "Skip to the content"
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
