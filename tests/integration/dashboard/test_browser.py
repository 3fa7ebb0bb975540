"""The dashboard in a real browser: every page, light and dark, wide and narrow, and what tries to script."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lanelog
from lanelog.admin.operate.hung import HUNG, state_of
from lanelog.dashboard import WebPace
from lanelog.dashboard.changes.actions import ACTIONS
from lanelog.dashboard.views import link
from lanelog.devserver import DevServer
from support.browser import Page, browser
from support.dashboards import served
from support.elapsed import let_pass
from support.shop import open_shop
from support.sql import connect, rows
from support.waiting import accept, eventually, raising

pytestmark = pytest.mark.one_family("mariadb")

HOSTILE = "</pre><script>document.title='scripted'</script>\"'><img src=x onerror=\"document.title='scripted'\">"
WIDE = "wide"
"""A topic with 10,000 lanes."""
LONG = "customer-" + "0123456789" * 12
GIVEN_UP = "given-up"
"""A topic with so many dead letters that a slow redrive outlasts these tests."""
ADDRESSES = (
    "?still=1",
    "",
    "topics",
    "groups",
    "members",
    "members?topic=merge&group=builders",
    "members?topic=orders&group=billing",
    "lanes?topic=merge&group=builders",
    f"lanes?topic={WIDE}&group=builders&by=key&after=k09900",
    "lane?topic=merge&group=builders&key=fails",
    "message?topic=merge&key=bad&offset=1&show=text",
    "dead-letters",
    "dead-letters?topic=merge",
    "schedules",
    "delayed",
    "delayed?topic=merge",
    "search?topic=merge&prefix=go&text=x",
    "search?topic=merge&id=later",
    "archives",
    "audit",
    "charts",
    "charts?topic=merge&group=builders",
    "jobs",
    "database",
    "act/skip?topic=merge&group=builders&key=fails&offset=1",
    "act/redrive?topic=merge&group=builders&letters=no+such+branch",
    *(f"act/{name}?topic=merge&group=builders&key=fails" for name in ("pause", "release", "retry", "seek")),
    "act/resume?topic=merge&group=builders&key=paused",
    "act/delete-letters?topic=merge&group=builders&letters=no+such+branch",
    "act/delete-group?topic=over&group=builders",
    "act/run-schedule?name=nightly",
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
RIGHTMOST = "Math.max(0, ...[...document.querySelectorAll('.button')].map(e => e.getBoundingClientRect().right))"
"""Where the buttons end: one that is beyond the window is not found."""
SHOP = """
import threading

seen, lock = [], threading.Lock()
lock.acquire()


def charge(message):
    seen.append(message.key)
    pay(message.payload)


def pay(order):
    # The lock of a pool from which nothing comes back. It is no frame of its own.
    lock.acquire(timeout=600)


"""
"""The handler of a shop: its stacks name a file of any machine."""
QUICK = WebPace(sample=0.2, look=0.2, stream=2)


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
        client.subscribe(WIDE, "builders", accept, start="earliest").stop()
        client.publish_many(WIDE, [(f"k{number:05}", b"x") for number in range(10_000)])
        client.publish_many(GIVEN_UP, [("k", b"x")] * 100)
        with client.subscribe(GIVEN_UP, "others", reject, start="earliest") as subscription:
            eventually(lambda: subscription.stats().dead_lettered == 100)
        with connect(url) as connection:
            rows(connection, "UPDATE queue_messages SET created_at = created_at - 3600000")
            rows(connection, "UPDATE queue_groups SET created_at = created_at - 3600000")
        with hung(client), served(client, QUICK) as at:
            yield at


@contextmanager
def hung(client: lanelog.Client) -> Iterator[None]:
    """Two members of one group: four workers of one wait for a lock since 47 s, and those of the other have no work."""
    shop: dict[str, Any] = {}
    exec(compile(SHOP, "/srv/shop/billing.py", "exec"), shop)  # noqa: S102 - a constant of this module
    beats: Any = {"lease_duration": 3.0, "lease_renewal": 0.1}
    client.publish_many("orders", [(f"customer-{number}", b"x") for number in range(4)])
    waiting = client.subscribe("orders", "billing", shop["charge"], workers=4, name="vm-23734", **beats)
    try:
        eventually(lambda: len(shop["seen"]) == 4)
        let_pass(waiting, 47)
        client.subscribe("orders", "billing", accept, workers=4, name="vm-23735", **beats)
        eventually(lambda: [each for each in client.admin.members("orders", "billing") if state_of(each) == HUNG])
        yield
    finally:
        for _ in shop["seen"]:
            eventually(shop["lock"].locked)
            shop["lock"].release()
        waiting.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_page_fits_and_can_be_read(page: Page, address: str, width: int, dark: bool) -> None:
    """Nothing is wider than the window, no button is beyond it, no text is too pale.

    Nothing comes from elsewhere, and nothing is complained of.
    """

    def check(each: str) -> None:
        assert page.ask("document.documentElement.scrollWidth") <= width, each
        assert page.ask(RIGHTMOST) <= width, each
        assert page.ask("document.querySelectorAll('h1').length") == 1, each
        assert page.ask(CONTRAST) >= 4.5, each
        assert all(asked.startswith((address, "data:")) for asked in page.requested), each
        if where := os.environ.get("LANELOG_PICTURES"):
            name = f"{each.partition('?')[0].replace('/', '-') or 'stuck'}-{width}-{'dark' if dark else 'light'}.png"
            Path(where, name).write_bytes(page.picture())

    page.show_as(width=width, dark=dark)
    for each in ADDRESSES:
        page.visit(address + each)
        page.ask("document.querySelectorAll('details').forEach((each, at) => { each.open = at === 0 })")
        check(each)
        if WIDE in each:  # 10,000 lanes are shown by fifty
            assert page.ask("document.querySelectorAll('tbody tr').length") == 50
            assert page.ask("document.body.innerText.includes('Next page')")
    page.visit(address + link("act/redrive", topic=GIVEN_UP, group="others", letters="not today"))
    page.ask("document.querySelector('[name=rate]').value = '1'")
    page.ask("document.querySelector('[name=why]').value = 'incident 7'")
    page.follow("document.querySelector('form[method=post] button').click()")
    eventually(lambda: page.ask("document.querySelectorAll('progress').length"))  # once it has counted
    check("job")
    page.follow("document.querySelector('form.stop button').click()")
    eventually(lambda: "It has ended." in page.ask("document.body.innerText"))
    assert page.ask("document.querySelector('dd').innerText") == "stopped"
    check("job?stopped")
    assert page.problems == []


@pytest.mark.thorough
def test_an_action_is_done_by_the_keyboard_alone(page: Page, lanelog_server: DevServer) -> None:
    """From the card of the front page to what was done, by Tab, Enter and letters; the focus is seen on the way."""
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client, served(client, QUICK) as address:
        page.visit(address)
        tab_to(page, "article a.button[href*='act/redrive?']")
        enter(page)
        assert page.ask("document.querySelector('h1').innerText") == "Redrive"
        tab_to(page, "[name=why]")
        for letter in "incident 7":
            page._call("Input.dispatchKeyEvent", type="keyDown", text=letter)
        tab_to(page, "form[method=post] button")
        enter(page)
        assert page.ask("document.querySelector('h1').innerText") == "Redrive: done"
        assert client.admin.dead_letters("merge") == []
        assert [each.verb for each in client.admin.audit() if each.reason == "incident 7"] == ["redrive"]


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is on such an element, which shows it."""
    for _ in range(100):
        page.press("Tab")
        if page.ask(f"document.activeElement.matches({json.dumps(selector)})"):
            assert page.ask("getComputedStyle(document.activeElement).outlineStyle") != "none", selector
            return
    pytest.fail(f"Tab does not lead to {selector}")


def enter(page: Page) -> None:
    """Press Enter, and wait until the page that it leads to has loaded."""
    key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    page._call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
    page._loaded()
    page._call("Input.dispatchKeyEvent", type="keyUp", **key)


@pytest.mark.thorough
def test_what_tries_to_script_is_text(page: Page, address: str) -> None:
    """In a key, a payload and a reason; and the policy would stop it even if it were no text."""
    at = link("message", topic="merge", key=HOSTILE, offset=1, show="text")
    for each in ("lanes?topic=merge&group=builders&by=key", at):
        page.visit(address + each)
        assert "lanelog" in page.ask("document.title")
        assert page.ask("document.body.innerText.includes('onerror')")
        assert page.ask("document.querySelectorAll('img, script:not([src])').length") == 0


def test_every_action_is_done_by_clicks_alone(page: Page, lanelog_server: DevServer) -> None:
    """From a page of the place to the preview, a reason, and what was done, with the browser's own headers."""
    clicked = set()
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client, served(client, QUICK) as address:
        client.publish("merge", "worse", b"x")
        with client.subscribe("merge", "others", reject):
            eventually(lambda: client.admin.dead_letters("merge", "others"))
        lane, letters = "lane?topic=merge&group=builders&key=", "dead-letters?topic=merge&group="
        for place, name in (
            (f"{lane}good", "pause"),
            (f"{lane}good", "resume"),
            (f"{lane}fails", "release"),
            (f"{lane}fails", "retry"),
            (f"{lane}fails", "skip"),
            (f"{lane}good", "seek"),
            (f"{letters}builders", "redrive"),
            (f"{letters}others", "delete-letters"),
            ("lanes?topic=over&group=builders", "delete-group"),
            ("schedules", "pause-schedule"),
            ("schedules", "resume-schedule"),
            ("schedules", "run-schedule"),
            ("schedules", "remove-schedule"),
        ):
            page.visit(address + place)
            page.follow(f"document.querySelector('a.button[href*=\"act/{name}?\"]').click()")
            if name == "redrive":  # it asks how fast
                page.ask("document.querySelector('[name=rate]').value = '1000'")
            if name == "seek":  # it asks where to
                page.ask("document.querySelector('[name=to]').value = 'earliest'")
                page.follow("document.querySelector('form[method=get] button').click()")
            page.ask("document.querySelector('[name=why]').value = 'incident 7'")
            named = "e => e.value = e.parentElement.querySelector('strong').innerText"
            page.ask(f"document.querySelectorAll('[name=typed]').forEach({named})")
            page.follow("document.querySelector('form[method=post] button').click()")
            assert page.ask("document.querySelector('h1').innerText") == f"{ACTIONS[name].label}: done", place
            assert page.ask("document.documentElement.scrollWidth <= window.innerWidth"), place
            assert page.ask(CONTRAST) >= 4.5, place
            clicked.add(name)
        assert {each.verb for each in client.admin.audit() if each.reason == "incident 7"} == {
            "pause", "resume", "retry", "release", "skip", "seek", "redrive", "delete_dead_letters", "delete_group",
            "pause_schedule", "resume_schedule", "run_schedule", "remove_schedule",
        }  # fmt: skip
    assert clicked == ACTIONS.keys()


@pytest.mark.thorough
def test_a_page_that_is_watched_changes_by_itself(page: Page, lanelog_server: DevServer) -> None:
    """Pauses appear, the charts move on, and the focus of the keyboard stays, beyond the end of a stream."""
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client, served(client, QUICK) as address:
        page.visit(address)
        page.ask("document.querySelector('[id$=-act1]').focus()")
        focused = page.ask("document.activeElement.id")
        client.admin.pause("merge", "builders", by="ann", reason="seen at once")
        eventually(lambda: "seen at once" in page.ask("document.body.innerText"))
        assert page.ask("document.activeElement.id") == focused
        page.visit(address + "charts")
        drawn = "[...document.querySelectorAll('polyline')].map(e => e.getAttribute('points')).join()"
        before = page.ask(drawn)
        eventually(lambda: page.ask(drawn) not in ("", before))
        told = "document.querySelector('.note').innerText"
        page.visit(address)
        first = page.ask(told)
        eventually(lambda: seconds(page.ask(told)) > seconds(first) + QUICK.stream + 1)
    assert page.ask("typeof htmx") == "object"


reject = raising(lanelog.Reject, "not today")


def seconds(note: str) -> int:
    """The time of day in a note."""
    hours, minutes, rest = map(int, re.findall(r"(\d\d):(\d\d):(\d\d)", note)[0])
    return (hours * 60 + minutes) * 60 + rest


@pytest.mark.thorough
def test_the_keyboard_shows_where_it_is(page: Page, address: str) -> None:
    """The first link skips to the content, and has an outline."""
    page.visit(address)
    page.press("Tab")
    assert page.ask("document.activeElement.innerText") == "Skip to the content"
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
