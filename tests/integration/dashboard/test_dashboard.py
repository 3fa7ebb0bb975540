"""The dashboard against a real database: every page, every action, and whom it refuses."""

import asyncio
import base64
import hashlib
import io
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from attrs import evolve
from starlette.routing import Route

import lanelog
from lanelog._base.places import GroupTopic
from lanelog._log.register import register
from lanelog.config import SubscriptionConfig
from lanelog.dashboard import Access, WebPace, dashboard, wsgi
from lanelog.dashboard.changes.actions import ACTIONS
from lanelog.dashboard.guard import Guard
from lanelog.dashboard.handler_times import AWAY, BUCKETS, EVERY, HandlerHistory
from lanelog.devserver import DevServer
from lanelog.errors import ConfigurationError
from support.accounts import account
from support.cli import Command, everything
from support.commands import commands_sent
from support.dashboards import Visitor
from support.shop import open_shop
from support.sql import connect, rows
from support.waiting import Gate, accept, events, eventually, raising

TOKEN = "a-token-of-26-characters-x"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
NOWHERE = "mysql://nobody@127.0.0.1:1/none"
GOOD = {"topic": "merge", "group": "builders", "key": "good"}
SAID = {
    "skip": "Message 2 of lane good would be settled for group builders without being handled.",
    "retry": "1 message of lane fails would be due at once: offset 1.",
    "release": "would lose lane good. Another member takes it.",
    "pause": "Group builders would be paused.",
    "resume": "Lane paused of group builders would hand out messages again.",
    "seek": "of group builders would be set to earliest.",
    "redrive": "1 dead letter with 1 key would go back into topic merge, for group builders alone.",
    "delete-letters": "1 dead letter of group builders, with 1 key, would be deleted for good.",
    "delete-group": "Group builders of topic over would be deleted, with its offsets in 1 lane.",
    "pause-schedule": "Schedule nightly would be paused.",
    "resume-schedule": "Schedule weekly would publish again, next at",
    "run-schedule": "One message of schedule nightly would be published to lane good of topic merge.",
    "remove-schedule": "Schedule nightly of topic merge, key good, would be removed.",
}
"""What the preview of each action says in the shop."""
TYPED = {"skip": "2", "delete-letters": "builders", "delete-group": "builders", "remove-schedule": "nightly"}
"""What must be typed before an action that destroys."""
FORMS: dict[str, dict[str, Any]] = {
    "skip": {**GOOD, "offset": "2"},
    "retry": {**GOOD, "key": "fails"},
    "release": GOOD,
    "pause": {"topic": "merge", "group": "builders"},
    "resume": {"topic": "merge", "group": "builders", "key": "paused"},
    "seek": {"topic": "merge", "group": "builders", "to": "earliest"},
    "redrive": {"topic": "merge", "group": "builders", "letters": "no such branch"},
    "delete-letters": {"topic": "merge", "group": "builders", "letters": "no such branch"},
    "delete-group": {"topic": "over", "group": "builders"},
    "pause-schedule": {"name": "nightly"},
    "resume-schedule": {"name": "weekly"},
    "run-schedule": {"name": "nightly"},
    "remove-schedule": {"name": "nightly"},
}
"""A request for each action that has something to do in the shop."""
PAGES = {
    "/": "no such branch",
    "/?still=1": "Refresh it by itself",
    "/charts": "Not enough samples",
    "/charts?topic=merge&hours=6": "Charts of merge",
    "/topics": "merge",
    "/groups": "builders",
    "/groups?topic=halted": "paused",
    "/members": "builders</a>",
    "/members?topic=merge&group=builders": "alive",
    "/members?state=stopped": "All states",
    "/lanes?topic=merge&group=builders": "fails",
    "/lanes?topic=merge&group=builders&by=lag": "fails",
    "/lanes?topic=merge&group=builders&by=key&after=fails": "good",
    "/lanes?topic=merge&group=builders&state=retryable": "fails",
    "/lane?topic=merge&group=builders&key=good": "Before them",
    "/lane?topic=merge&group=builders&key=fails": "Other groups here",
    "/message?topic=merge&key=good&offset=2": "What each group did",
    "/message?topic=merge&key=good&offset=1": "success",
    "/dead-letters": "merge",
    "/dead-letters?topic=merge": "no such branch",
    "/schedules": "nightly",
    "/delayed": "merge",
    "/delayed?topic=merge": "later",
    "/search": "Choose a topic.",
    "/search?topic=merge&prefix=go": "1 key<",
    "/search?topic=merge&text=later": "0 messages",
    "/search?topic=merge&id=later": "Searched for this id in all",
    "/archives": "what they have not read",
    "/jobs": "since this dashboard was started",
    "/audit": "with the role admin",
    "/audit?topic=halted": "pause",
    "/database": "queue_messages",
}
"""Addresses, each with a text that only its answer has."""
STREAMS = {"/live/stuck": "no such branch", "/live/charts": "Not enough samples"}
"""Addresses of streams of events, likewise."""
STATIC = [f"/static/{name}" for name in ("icon.svg", "style.css", "htmx.min.js", "htmx-sse.min.js")]
JOB = ["/job", "/job/stop", "/live/job"]
"""What needs the id of a job."""
AT_ONCE = WebPace(sample=60, look=0.01, stream=0)
"""A stream ends behind its first event."""


@pytest.fixture(scope="module")
def shop(lanelog_server: DevServer) -> Iterator[lanelog.Client]:
    """A client of a database that nobody changes."""
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client:
        yield client


@pytest.fixture
def own_shop(lanelog_server: DevServer) -> Iterator[lanelog.Client]:
    """A client of a shop that this test may change."""
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client:
        yield client


def threads() -> list[threading.Thread]:
    """Those that take samples."""
    return [each for each in threading.enumerate() if each.name == "lanelog-dashboard"]


def url_of(client: lanelog.Client, server: DevServer) -> str:
    """Where the client's database is."""
    return f"{server.url.rpartition('/')[0]}/{client.admin._database.config.database}"


def routes(app: Any) -> list[Route]:
    """All routes behind the guard."""
    assert isinstance(app, Guard)
    return list(app.app.routes)  # type: ignore[attr-defined]


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", PAGES)
def test_every_page_answers_a_reader(shop: lanelog.Client, address: str) -> None:
    """A page says what it is for, without a button, a script or a foreign address, and under a strict policy."""
    answer = Visitor(dashboard(shop)).send("GET", address)
    assert answer.status_code == 200, answer.text
    assert PAGES[address] in answer.text
    assert "/act/" not in answer.text
    ours = re.sub(r'<script src="/static/htmx[-a-z]*\.min\.js\?[\w.]+" defer></script>', "", answer.text)
    assert not re.search(r"<script|\son\w+=|style=|https?://", ours)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"


def test_every_page_names_its_database_and_environment(shop: lanelog.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal and a preview name them, too; the environment is that of the caller, or of the process."""
    database, address = shop.config.database, f"127.0.0.1:{shop.config.port}"
    monkeypatch.setenv("LANELOG_ENVIRONMENT", "staging")
    for given, environment in ((None, "staging"), ("production", "production"), ("", "")):
        visitor = Visitor(dashboard(shop, Access(allow_actions=True), environment=given))
        for page in (*PAGES, "/lane?topic=none", "/act/skip?topic=merge&group=builders&key=good&offset=2"):
            text = unescape(visitor.send("GET", page).text)
            assert f"<strong>{database}</strong> on {address}" in text, page
            assert f" - {environment or database} - lanelog</title>" in text, page
            assert ('class="environment"' in text) == bool(environment), page


@pytest.mark.parametrize("address", STREAMS)
def test_a_page_that_is_watched_gets_what_has_changed(shop: lanelog.Client, address: str) -> None:
    """By a stream of events that ends by itself, and carries what the page itself shows."""
    answer = Visitor(dashboard(shop, pace=AT_ONCE)).send("GET", address)
    assert answer.headers["content-type"].startswith("text/event-stream")
    retry, event, end = answer.text.split("\n\n")
    assert (retry, end) == ("retry: 1000", "")
    told = "\n".join(line.removeprefix("data: ") for line in event.splitlines()[1:])
    assert STREAMS[address] in told
    page = Visitor(dashboard(shop, pace=AT_ONCE)).send("GET", address.removeprefix("/live").replace("stuck", "")).text
    assert f'sse-connect="{address}' in page


def test_the_pages_are_all_there_are(shop: lanelog.Client) -> None:
    """A new route needs its line above; all of them only look, but the one for actions."""
    paths = {route.path for route in routes(dashboard(shop))}
    pages = {address.partition("?")[0] for address in PAGES}
    assert paths == {*pages, *STREAMS, *JOB, "/static/{name}", "/act/{name}"}
    changing = {route.path for route in routes(dashboard(shop)) if not (route.methods or set()) <= {"GET", "HEAD"}}
    assert changing == {"/act/{name}", "/job/stop"}
    assert FORMS.keys() == ACTIONS.keys()


@pytest.mark.parametrize(("address", "status"), [("/lanes?topic=no&group=no", 404), ("/lane?topic=merge", 404)])
def test_a_page_of_what_is_not_there_says_so(shop: lanelog.Client, address: str, status: int) -> None:
    """In the words of administration, and not with a traceback."""
    answer = Visitor(dashboard(shop)).send("GET", address)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_a_database_that_is_away_is_said_on_the_page(empty_url: str) -> None:
    """Here: the tables are missing."""
    with lanelog.connect(empty_url) as client:
        visitor = Visitor(dashboard(client, pace=AT_ONCE))
        for address, status in (("/", 503), ("/groups", 503), ("/live/stuck", 200)):
            answer = visitor.get(address)
            assert answer.status_code == status
            assert "migrate" in answer.text


@pytest.mark.parametrize("state", ["", "&state=pending", "&state=paused"])
def test_ten_thousand_lanes_are_read_page_by_page(lanelog_client: lanelog.Client, state: str) -> None:
    """By key a page begins behind the last one; no lane is shown twice, and none is left out; here with 120 lanes."""
    keys = [f"k{number:03}" for number in range(120)]
    lanelog_client.subscribe("t", "g", lambda _: None).stop()
    lanelog_client.publish_many("t", [(key, b"x") for key in keys])
    if "paused" in state:
        lanelog_client.admin.pause("t", "g", dry_run=False)
    visitor, address, seen = Visitor(dashboard(lanelog_client)), f"/lanes?topic=t&group=g&by=key{state}", []
    while address:
        text = visitor.send("GET", address).text
        seen += re.findall(r"/lane\?[^\"]*key=(k\d+)", text)
        following = re.search(r'href="([^"]+)">Next page', text)
        address = unescape(following[1]) if following else ""
    assert seen == keys


@pytest.mark.thorough
@pytest.mark.parametrize("query", ["by=key", "by=key&state=pending", "by=age", "by=lag", "by=age&state=pending"])
def test_lanes_are_paged_both_ways(lanelog_client: lanelog.Client, query: str) -> None:
    """The way back shows the same pages as the way there, in every order, and the first page leads no further back."""
    lanelog_client.subscribe("t", "g", lambda _: None).stop()
    lanelog_client.publish_many("t", [(f"k{number:03}", b"x") for number in range(130) for _ in range(1 + number % 3)])
    visitor, pages = Visitor(dashboard(lanelog_client)), dict[str, list[list[str]]]()
    address = f"/lanes?topic=t&group=g&{query}"
    for way in ("Next page", "Previous page"):
        pages[way] = []
        while True:
            text = visitor.send("GET", address).text
            pages[way].append(re.findall(r"/lane\?[^\"]*key=(k\d+)", text))
            further = re.search(rf'href="([^"]+)">{way}', text)
            if not further:
                break
            address = unescape(further[1])
    assert sorted(key for page in pages["Next page"] for key in page) == [f"k{number:03}" for number in range(130)]
    assert pages["Previous page"] == pages["Next page"][::-1]


def test_the_front_page_begins_with_tiles(lanelog_client: lanelog.Client) -> None:
    """The numbers of the log, with curves once there are samples, and then the problems, whose times are relative."""
    lanelog_client.publish("t", "k", b"x")
    lanelog_client.subscribe("t", "g", accept, start="earliest").stop()
    lanelog_client.admin.pause("t", "g", by="ann", reason="looking")
    visitor = Visitor(dashboard(lanelog_client, pace=evolve(AT_ONCE, sample=0.01)))
    text = visitor.get("/").text
    tiles = dict(re.findall(r'<span class="name">(.*?)</span> <strong class="\w*">(.*?)</strong>', text))
    assert tiles.keys() == {
        "Messages a second", "Messages behind", "Oldest message", "Latency", "Dead letters", "Members"
    }  # fmt: skip
    assert (tiles["Messages behind"], tiles["Dead letters"], tiles["Members"]) == ("1", "0", "0")
    assert text.index('class="tiles"') < text.index("<article")
    assert re.search(r'<p title="\d{4}-\d\d-\d\dT[^"]*Z">for [\d.]+m?\d*s', text)
    eventually(lambda: visitor.get("/").text.count("<svg") == 4)


@pytest.mark.thorough
def test_the_first_page_does_not_wait_for_rates(
    lanelog_client: lanelog.Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page names the key of a backlog at once, and the next look has its rates."""
    monkeypatch.setattr("lanelog.admin.operate.backlog.APART", 30.0)
    lanelog_client.publish_many("t", [("big", b"x")] * 20)
    visitor, gate = Visitor(dashboard(lanelog_client)), Gate()
    with lanelog_client.subscribe("t", "g", gate, visibility_timeout=120), gate:
        gate.reached()
        rows(raw, "UPDATE queue_messages SET created_at = created_at - 90000")
        text = visitor.get("/").text
        assert "20 of 20 messages wait in this key; what can help" in text
        eventually(lambda: "0.0/s come in, 0.0/s go out" in visitor.get("/").text)


@pytest.mark.parametrize("root", ["", "/queue"])
def test_the_navigation_says_which_page_this_is(shop: lanelog.Client, root: str) -> None:
    """The mark is right also where the dashboard is mounted under a prefix."""
    visitor = Visitor(dashboard(shop), root=root)
    for address, name in (("/", "Is it stuck?"), ("/topics", "Topics"), ("/schedules", "Schedules")):
        found = re.findall(r'<a href="[^"]*" aria-current="page">([^<]*)</a>', visitor.get(root + address).text)
        assert found == [name]


def test_lanes_are_read_on_behind_a_key_alone(shop: lanelog.Client) -> None:
    """In the other orders lanes change their places: `after` is refused there."""
    with pytest.raises(ConfigurationError, match="order_by"):
        shop.admin.lanes("merge", "builders", order_by="age", after="bad")
    with pytest.raises(ConfigurationError, match="exclude"):
        shop.admin.lanes("merge", "builders", order_by="key", after="bad", before="good")
    keys = [lane.key for lane in shop.admin.lanes("merge", "builders", order_by="key", after="bad")]
    assert keys == ["fails", "good", "paused"]


def test_a_payload_is_hidden_until_asked_for(lanelog_client: lanelog.Client) -> None:
    """On request it is shown as text, JSON or hex; of a masked one, only what the mask lets through."""
    lanelog_client.publish("t", "k", b'{"card": "4111"}')
    here: dict[str, Any] = {"topic": "t", "key": "k", "offset": 1}
    visitor = Visitor(dashboard(lanelog_client))
    unasked = visitor.get("/message", **here)
    assert unasked.status_code == 200
    assert "4111" not in unasked.text
    assert "4111" in visitor.get("/message", **here, show="text").text
    assert "34 31 31 31" in visitor.get("/message", **here, show="hex").text
    assert '{\n  "card": "4111"\n}' in unescape(visitor.get("/message", **here, show="json").text)
    masked = Visitor(dashboard(lanelog_client, mask=lambda message: message.payload.replace(b"4111", b"****")))
    for form in ("text", "hex", "json"):
        answer = masked.get("/message", **here, show=form)
        assert answer.status_code == 200
        assert not {"4111", "34 31 31 31"} & set(re.findall(r"4111|34 31 31 31", answer.text))
    wrong: Any = lambda message: message.payload.decode()  # noqa: E731 - a mask of somebody who types nothing
    refused = Visitor(dashboard(lanelog_client, mask=wrong)).get("/message", **here, show="text")
    assert refused.status_code == 503
    assert "the mask returned a str instead of bytes" in unescape(refused.text)
    assert "4111" not in refused.text


def test_a_payload_that_no_text_can_hold_is_escaped(lanelog_client: lanelog.Client) -> None:
    """JSON may name half a character, and one that turns the direction of reading."""
    lanelog_client.publish("t", "k", b'["\\ud800", "\\u202e"]')
    shown = Visitor(dashboard(lanelog_client)).get("/message", topic="t", key="k", offset=1, show="json")
    assert shown.status_code == 200
    assert "\u202e" not in unescape(shown.text)


def test_archives_are_shown_as_the_groups_they_are(lanelog_client: lanelog.Client) -> None:
    """Archives are shown with their names, and what they have not read yet."""
    lanelog_client.publish_many("t", [("k", b"1"), ("k", b"2")])
    at = GroupTopic(topic="t", group="nightly")
    register(lanelog_client.admin._database, at, SubscriptionConfig(start="earliest"), order="archive")
    text = Visitor(dashboard(lanelog_client)).get("/archives").text
    assert re.search(
        r">nightly</a>.*<td [^>]*><span class=\"\">archive</span></td>.*<td [^>]*><span class=\"\">2</span></td>", text
    )


def test_a_lane_says_who_owns_it_for_each_group(lanelog_client: lanelog.Client) -> None:
    """For the group that is asked for, and for each other one; nobody, once its subscriber has gone."""
    lanelog_client.publish("t", "k", b"x")
    admin, visitor = lanelog_client.admin, Visitor(dashboard(lanelog_client))

    def others() -> str:
        return visitor.get("/lane", topic="t", group="g", key="k").text.partition("Other groups here")[2]

    with lanelog_client.subscribe("t", "g", accept), lanelog_client.subscribe("t", "h", accept):
        eventually(lambda: admin.lane("t", "g", "k").owner and admin.lane("t", "h", "k").owner)
        owner = admin.lane("t", "h", "k").owner
        assert f">{owner}<" in others()
    assert f">{owner}<" not in others()


def test_hostile_names_and_payloads_stay_text(lanelog_client: lanelog.Client) -> None:
    """On every page that shows them."""
    lanelog_client.publish("t", HOSTILE, HOSTILE.encode(), metadata={"x": HOSTILE})
    lanelog_client.subscribe("t", "g", lambda _: None).stop()
    lanelog_client.admin.pause("t", "g", by=HOSTILE, reason=HOSTILE)
    visitor, lane = Visitor(dashboard(lanelog_client)), {"topic": "t", "key": HOSTILE}
    for answer in (
        visitor.get("/"),
        visitor.get("/lanes", topic="t", group="g"),
        visitor.get("/lane", group="g", **lane),
        visitor.get("/message", offset=1, show="text", **lane),
        visitor.get("/groups", topic=HOSTILE),
    ):
        assert "alert(1)" in answer.text
        assert not re.search(r"<(script(?! src=./static/)|img)", answer.text)


def test_it_is_mounted_under_a_prefix(shop: lanelog.Client) -> None:
    """All its links go below the prefix."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    visitor = Visitor(Starlette(routes=[Mount("/queue", dashboard(shop, Access(allow_actions=True)))]))
    text = visitor.get("/queue/").text
    assert visitor.get("/queue/static/style.css").headers["content-type"].startswith("text/css")
    assert visitor.get("/queue/static/app.py").status_code == 404
    links = re.findall(r'(?:href|action|src|sse-connect)="([^"]*)"', text)
    assert all(link.startswith(("/queue/", "#")) for link in links)
    assert visitor.get("/queue/act/release", **GOOD).status_code == 200


def test_it_is_mounted_in_a_wsgi_application(shop: lanelog.Client) -> None:
    """Below a prefix, for this machine alone. Pages reload themselves there: a stream would keep a thread."""
    app = wsgi.dashboard(shop, Access(allow_actions=True))

    def get(path: str, *, method: str = "GET", query: str = "", body: bytes = b"", **other: str) -> tuple[str, str]:
        environ: dict[str, Any] = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "127.0.0.1", "QUERY_STRING": query}
        environ |= {"REQUEST_METHOD": method, "SCRIPT_NAME": "/queue", "PATH_INFO": path, "SERVER_NAME": "here"}
        environ |= {"SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "CONTENT_LENGTH": str(len(body))}
        said: list[str] = []
        answer = app({**environ, "wsgi.input": io.BytesIO(body), **other}, lambda status, *_: said.append(status))
        return b"".join(answer).decode(), said[0]

    text, status = get("/")
    assert status == "200 OK"
    assert 'href="/queue/topics"' in text
    assert 'http-equiv="refresh"' in text
    assert "<script" not in text
    assert get("/live/stuck")[1].startswith("404")
    assert get("/", REMOTE_ADDR="10.0.0.6")[1].startswith("401")
    assert "What it would change now" in get("/act/release", query="topic=merge&group=builders&key=good")[0]
    forged = get("/act/release", method="POST", body=b"why=x", HTTP_ORIGIN="http://evil.example")
    assert forged[1].startswith("403")
    said = get("/act/release", method="POST", body=b"topic=merge", HTTP_ORIGIN="http://127.0.0.1")
    assert "names no group, key" in said[0]


# -- actions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_shows_first_what_it_would_change(shop: lanelog.Client, name: str) -> None:
    """The preview says where the change is, and changes nothing; the form behind it asks for a reason."""
    visitor = Visitor(dashboard(shop, Access(allow_actions=True)))
    before = shop.admin.lanes("merge", "builders", order_by="key")
    answer = visitor.get(f"/act/{name}", **FORMS[name])
    assert answer.status_code == 200, answer.text
    assert "What it would change now" in answer.text
    where = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", answer.text.partition("What it would change now")[0]))
    given = {each: value for each, value in FORMS[name].items() if each not in ACTIONS[name].asks}
    said = {"letters": "failed with", "name": "schedule"}
    assert where == {said.get(each, each): str(value) for each, value in given.items()}
    assert SAID[name] in unescape(answer.text)
    assert not re.search(r"\(&#39;|&#39;,\)|True|False|None", answer.text)
    form = answer.text.partition('method="post"')[2]
    assert 'name="why" required' in form
    assert ('class="red"' in form, 'name="typed" required' in form) == (name in TYPED,) * 2
    assert "Change nothing" in form
    after = shop.admin.lanes("merge", "builders", order_by="key")
    assert [(lane.lag, lane.lease_epoch, lane.paused_at) for lane in after] == [
        (lane.lag, lane.lease_epoch, lane.paused_at) for lane in before
    ]
    assert visitor.post(f"/act/{name}", **FORMS[name]).status_code == 400  # no reason


def test_a_seek_is_red_only_where_it_leaves_messages_out(own_shop: lanelog.Client) -> None:
    """Whether it does is asked again at the click: by then a message may have come."""
    visitor, form = Visitor(dashboard(own_shop, Access(allow_actions=True))), {**GOOD, "to": "latest"}
    passing = visitor.get("/act/seek", **form).text
    assert "Group builders would never get 2 messages that it has not settled." in passing
    assert '<button class="red">' in passing
    refused = visitor.post("/act/seek", **form, why="x")
    assert (refused.status_code, "type builders to confirm" in refused.text) == (400, True)
    assert own_shop.admin.lane("merge", "builders", "good").lag == 2
    assert visitor.post("/act/seek", **form, why="x", typed="builders").status_code == 200
    assert own_shop.admin.lane("merge", "builders", "good").lag == 0
    own_shop.publish("merge", "good", b"x")
    assert visitor.post("/act/seek", **form, why="x").status_code == 400


def test_a_group_is_sought_to_a_time(own_shop: lanelog.Client) -> None:
    """An exact one, or one that is relative: the preview makes it exact, so that the click does what it said."""
    visitor, form = Visitor(dashboard(own_shop, Access(allow_actions=True))), dict(GOOD)
    for to in ("-2h", "2020-01-01", "2020-01-01T10:00+01:00"):
        preview = visitor.get("/act/seek", **form, to=to)
        assert preview.status_code == 200, preview.text
        action = unescape(re.findall(r'<form method="post" action="(.*?)"', preview.text)[0])
        assert re.search(r"to=20\d\d-\d\d-\d\d", action)
        assert visitor.post(action, why="x").status_code == 200
        assert own_shop.admin.lane("merge", "builders", "good").watermark == 0
    for wrong in ("yesterday-ish", "-2y", "2026-99-01"):
        assert "or -2h" in visitor.get("/act/seek", **form, to=wrong).text


@pytest.mark.thorough
def test_a_group_shows_rates_and_the_front_pages_state(lanelog_client: lanelog.Client) -> None:
    """A group shows the rates of its last two samples, and its worst problem in the words of the front page."""
    lanelog_client.publish("t", "k", b"x")
    lanelog_client.subscribe("t", "g", accept, start="earliest").stop()
    lanelog_client.admin.pause("t", "g", key="k", by="ann", reason="looking")
    visitor = Visitor(dashboard(lanelog_client, pace=evolve(AT_ONCE, sample=0.01)))
    (problem,) = [each for each in lanelog_client.admin.status().problems if each.key == "k"]
    assert f'<span class="warn">{problem.what}</span>' in visitor.get("/groups").text
    eventually(lambda: visitor.get("/groups").text.count('<span class="">0.0</span>') == 2)


def test_delayed_messages_are_counted(lanelog_client: lanelog.Client) -> None:
    """By topic; a topic without any is not listed."""
    lanelog_client.publish("other", "k", b"x")
    lanelog_client.publish_many("t", [lanelog.Outgoing("k", b"x", delay=3600) for _ in range(3)])
    visitor = Visitor(dashboard(lanelog_client))
    assert re.search(
        r'<a href="/delayed\?topic=t">t</a></span></td><td [^>]*><span class="">3<', visitor.get("/delayed").text
    )
    assert "topic=other" not in visitor.get("/delayed").text
    assert "3 messages. At most" in visitor.get("/delayed", topic="t").text


@pytest.mark.thorough
def test_messages_are_found_by_key_id_and_payload(lanelog_client: lanelog.Client) -> None:
    """A search keeps within bounds, which the page shows; text is text, and no pattern."""
    lanelog_client.subscribe("t", "g", accept, start="earliest").stop()
    for number in range(60):
        lanelog_client.publish("t", f"customer-{number:02}", f'{{"order": {number}}}'.encode(), id=f"id-{number}")
    lanelog_client.publish_many("t", [("other", b"old")] + [("other", b"new")] * 40)
    visitor = Visitor(dashboard(lanelog_client))

    def found(**chosen: str) -> tuple[list[str], str]:
        text = visitor.get("/search", topic="t", **chosen).text
        return re.findall(r'<td data-name="Key"><span class="">(customer-\d+|other)</span>', text), text

    assert found(prefix="customer-1")[0] == [f"customer-1{number}" for number in range(10)]
    keys, text = found(prefix="customer")
    assert (len(keys), "The first 50 keys" in text) == (50, True)
    assert found(prefix="customer-5", text="id-57")[0] == ["customer-57"]
    assert found(prefix="customer-4", text='"order": 42')[0] == ["customer-42"]
    assert found(prefix="customer", text="%")[0] == []
    keys, text = found(prefix="other", text="old")
    assert keys == []
    assert "Read 40 messages: the newest 40 at most of each of 1 lane." in text
    assert "There are more lanes" in found(text="nowhere")[1]
    assert "50 lanes" in found(text="nowhere")[1]
    assert visitor.get("/search", topic="tt").status_code == 404


def test_a_message_is_found_by_its_id_alone(lanelog_client: lanelog.Client) -> None:
    """In every lane, also behind newer messages than a search for text reads; an id is unique in its lane only."""
    lanelog_client.publish_many("t", [lanelog.Outgoing("a", b"x", id="pr-17"), *[("a", b"x")] * 60])
    lanelog_client.publish_many("t", [lanelog.Outgoing(key, b"x", id="pr-17") for key in ("b", "c1", "c2")])
    lanelog_client.publish_many("t", [(f"k{number}", b"x") for number in range(60)])
    visitor = Visitor(dashboard(lanelog_client))

    def found(**chosen: str) -> tuple[list[str], str]:
        text = visitor.get("/search", topic="t", **chosen).text
        keys = re.findall(
            r'<td [^>]*><span class="">(\w+)</span></td><td [^>]*><span class=""><a href="/message\?', text
        )
        return keys, " ".join(re.findall(r'<p class="note">(.*?)</p>', text))

    keys, note = found(id="pr-17")
    assert keys == ["a", "b", "c1", "c2"]
    assert note.startswith("Searched for this id in all 64 lanes. Messages that are not in the log yet")
    assert "There are more lanes" not in note
    keys, note = found(id="pr-17", prefix="c")
    assert (keys, note.startswith("Searched for this id in 2 lanes whose key begins so. Mess")) == (["c1", "c2"], True)
    keys, note = found(id="pr-17", prefix="k")
    assert (keys, "in 50 lanes whose key begins so. There are more lanes" in note) == ([], True)
    assert found(id="pr-1")[0] == []
    keys, note = found(id="pr-17", text="nowhere")
    assert (keys, "this id, and in its message for this text, in all 64 lanes." in note) == ([], True)
    assert found(id="pr-17", prefix="c", text="x")[0] == ["c1", "c2"]
    assert found(id="pr-17", prefix="c", text="y")[0] == []
    assert len(found(id=" pr-17 ")[0]) == 4
    assert visitor.get("/search", topic="t", id="x" * 256).status_code == 404


@pytest.mark.thorough
def test_an_id_is_searched_in_so_many_lanes(lanelog_client: lanelog.Client) -> None:
    """The page says in how many of them, and that the beginning of a key reaches the rest."""
    lanelog_client.publish_many("t", [(f"k{number:05}", b"x") for number in range(10_000)])
    lanelog_client.publish("t", "last", b"x", id="pr-17")
    lanelog_client.publish("t", "z", b"x", id="pr-17")
    visitor = Visitor(dashboard(lanelog_client))
    text = visitor.get("/search", topic="t", id="pr-17").text
    assert "Searched for this id in the first 10,000 of 10,002 lanes. There are more lanes: a longer" in text
    assert "0 messages<" in text
    assert "1 message<" in visitor.get("/search", topic="t", id="pr-17", prefix="z").text


def test_a_search_reads_no_further_than_it_says(lanelog_client: lanelog.Client) -> None:
    """Though somebody publishes to the lane for as long as it is searched: here, the function that masks."""
    lanelog_client.publish_many("t", [("k", b"x")] * 45)

    def mask(message: lanelog.admin.MessageInfo) -> bytes:
        lanelog_client.publish_many("t", [("k", b"y")] * 20)
        return message.payload

    text = Visitor(dashboard(lanelog_client, mask=mask)).get("/search", topic="t", text="x").text
    assert "Read 40 messages: the newest 40 at most of each of 1 lane." in text
    assert "40 messages<" in text


@pytest.mark.thorough
def test_a_search_ends_after_so_many_bytes(lanelog_client: lanelog.Client) -> None:
    """The page says so. The newest messages of a lane are read first, and every match is shown."""
    for key in ("a", "b", "c"):
        lanelog_client.publish_many("t", [(key, b"x" * 1_000_000)] * 9)
        lanelog_client.publish("t", key, b"newest" + b"x" * 1_000_000)
    visitor = Visitor(dashboard(lanelog_client))
    text = visitor.get("/search", topic="t", text="x").text
    assert "Read 20 messages: the newest 40 at most of each of 2 lanes." in text
    assert "It ended there, after 19 MiB of payloads." in text
    assert "20 messages<" in text
    assert "2 messages<" in visitor.get("/search", topic="t", text="newest").text


def test_a_search_finds_nothing_that_the_mask_hides(lanelog_client: lanelog.Client) -> None:
    """Otherwise the answers would show what is hidden, letter by letter."""
    lanelog_client.publish("t", "k", b"card 4111", id="an-id")
    visitor = Visitor(dashboard(lanelog_client, mask=lambda message: message.payload.replace(b"4111", b"****")))
    assert "1 message<" in visitor.get("/search", topic="t", text="card").text
    assert "0 messages<" in visitor.get("/search", topic="t", text="4").text


def test_a_result_leads_back(own_shop: lanelog.Client) -> None:
    """By the action that takes it back, if one does, and to the page of the place."""
    visitor = Visitor(dashboard(own_shop, Access(allow_actions=True)))

    def following(answer: Any) -> str:
        (button,) = re.findall(r'<a class="button" href="(.*?)"', answer.text)
        assert "/lane?" in answer.text
        preview = visitor.send("GET", unescape(button)).text
        return unescape(re.findall(r'<form method="post" action="(.*?)"', preview)[0])

    back = following(visitor.post("/act/pause", **GOOD, why="x"))
    assert own_shop.admin.lane("merge", "builders", "good").paused_at
    following(visitor.post(back, why="x"))
    assert own_shop.admin.lane("merge", "builders", "good").paused_at is None
    back = following(visitor.post("/act/skip", **GOOD, offset="2", why="x", typed="2"))
    assert own_shop.admin.lane("merge", "builders", "good").watermark == 2
    visitor.post(back, why="x")
    assert own_shop.admin.lane("merge", "builders", "good").watermark == 1
    again = visitor.post("/act/resume", **GOOD, why="x").text
    assert "<h1>Resume: nothing to do</h1>" in again
    assert "Lane good of group builders is not paused" in again


def test_buttons_of_what_destroys_are_red(shop: lanelog.Client) -> None:
    """Buttons that destroy are red on every page; those of harmless actions are not."""
    visitor = Visitor(dashboard(shop, Access(allow_actions=True)))
    seen = set()
    for page in (
        "/",
        "/lane?topic=merge&group=builders&key=good",
        "/lanes?topic=merge&group=builders",
        "/dead-letters?topic=merge",
        "/schedules",
    ):
        for tone, name in re.findall(
            r'<a class="button( red)?"[^>]*href="/act/([a-z-]+)', visitor.send("GET", page).text
        ):
            assert (tone == " red") == (name in TYPED), (page, name)
            seen.add(name)
    assert seen >= TYPED.keys()


@pytest.mark.thorough
def test_actions_do_what_they_say(own_shop: lanelog.Client, caplog: pytest.LogCaptureFixture) -> None:
    """All of them, one after another; the log has who, what and why."""
    caplog.set_level(logging.INFO, logger="lanelog")
    admin = own_shop.admin
    visitor = Visitor(dashboard(own_shop, Access(token=TOKEN, allow_actions=True)), basic("ann"))

    def act(name: str, **other: Any) -> None:
        form = {**FORMS[name], **other, "why": "incident 7", "typed": TYPED.get(name, "")}
        answer = visitor.post(f"/act/{name}", **form)
        assert answer.status_code == 200, answer.text
        assert not re.search(r"\(&#39;|&#39;,\)|True|False|None|would", answer.text)

    act("skip")
    assert admin.lane("merge", "builders", "good").watermark == 2
    act("release", key="fails")
    assert admin.lane("merge", "builders", "fails").owner is None
    assert (admin.lane("merge", "builders", "fails").next_attempt_in or 0) > 60
    act("retry")
    assert admin.lane("merge", "builders", "fails").next_attempt_in == 0
    act("pause")
    assert (admin.groups("merge")[0].paused_by, admin.groups("merge")[0].pause_reason) == ("ann", "incident 7")
    act("resume")
    assert admin.lane("merge", "builders", "paused").paused_at is None
    act("redrive")
    assert admin.topic("merge").dead_letters == 0
    act("seek")
    assert admin.lane("merge", "builders", "good").watermark == 0
    act("delete-letters", id="none of them")
    act("delete-group")
    assert admin.groups("over") == []
    act("pause-schedule")
    act("resume-schedule")
    (nightly, weekly) = admin.schedules()
    assert (nightly.paused_by, nightly.pause_reason, weekly.paused_at) == ("ann", "incident 7", None)
    act("run-schedule")
    assert admin.schedules()[0].fired == 1
    act("remove-schedule")
    assert [each.name for each in admin.schedules()] == ["weekly"]
    done = events(caplog, "action.done", logging.WARNING)
    assert len(done) == len(events(caplog, "action.asked")) == len(ACTIONS)
    assert all("by=ann" in line and "incident 7" in line for line in done)
    kept = {each.verb for each in admin.audit() if (each.by, each.reason) == ("ann", "incident 7")}
    assert kept == {name.replace("-", "_") for name in ACTIONS} - {"delete_letters"}  # a letter was not there
    assert "incident 7" in visitor.get("/audit", topic="merge").text
    assert TOKEN not in caplog.text


def test_a_double_click_runs_a_schedule_once(own_shop: lanelog.Client) -> None:
    """The form has a token. A form of another preview has another one."""
    visitor = Visitor(dashboard(own_shop, Access(token=TOKEN, allow_actions=True)), basic("ann"))

    def previewed() -> str:
        page = visitor.get("/act/run-schedule", name="nightly").text
        (form,) = re.findall(r'<form method="post" action="([^"]*)"', page)
        assert "token" not in page.replace(form, "")
        return unescape(form)

    first = previewed()
    answers = [visitor.post(form, why="it was wrong").text for form in (first, first, previewed())]
    assert ["Run the schedule now: done" in each for each in answers] == [True, False, True]
    assert "This run was published before, at offset" in answers[1]
    assert own_shop.admin.schedules()[0].fired == 2
    assert [each.reason for each in own_shop.admin.audit() if each.verb == "run_schedule"] == ["it was wrong"] * 2


@pytest.mark.thorough
def test_deleting_dead_letters_by_their_reason_settles_them(own_shop: lanelog.Client) -> None:
    """The dead letters are gone from every list."""
    visitor = Visitor(dashboard(own_shop, Access(allow_actions=True)))
    form = {**FORMS["delete-letters"], "why": "x"}
    assert visitor.post("/act/delete-letters", **form).status_code == 400  # nothing was typed
    assert len(own_shop.admin.dead_letters("merge")) == 1
    assert visitor.post("/act/delete-letters", **form, typed="builders").status_code == 200
    assert own_shop.admin.dead_letters("merge") == []


def test_dead_letters_are_chosen_by_whatever_their_error_says(lanelog_client: lanelog.Client) -> None:
    """A browser would turn a carriage return in a field of a form into an end of a line."""
    with lanelog_client.subscribe(
        "t", "g", raising(lanelog.Reject, "550 no such user\r\n550 try again\r\n")
    ) as subscription:
        lanelog_client.publish("t", "k", b"x")
        eventually(lambda: subscription.stats().dead_lettered == 1)
    visitor = Visitor(dashboard(lanelog_client, Access(allow_actions=True)))
    (reason,) = lanelog_client.admin.dead_letter_reasons("t")
    preview = visitor.get("/act/delete-letters", topic="t", group="g", letters=reason.reason).text
    address = re.search(r'<form method="post" action="([^"]+)"', preview)
    assert address
    assert visitor.post(unescape(address[1]), why="x", typed="g").status_code == 200
    assert lanelog_client.admin.dead_letters("t") == []


@pytest.mark.thorough
@pytest.mark.parametrize("stopped", [False, True])
def test_a_redrive_that_takes_long_shows_its_progress(own_shop: lanelog.Client, *, stopped: bool) -> None:
    """On a page of its own, and goes on without anybody. Stopped, it ends behind its batch; what is done stays."""
    own_shop.publish_many("merge", [("many", b"x")] * 4)

    with own_shop.subscribe("merge", "builders2", raising(lanelog.Reject, "again")):
        eventually(lambda: len(own_shop.admin.dead_letters("merge", "builders2")) >= 4)
    letters = len(own_shop.admin.dead_letters("merge", "builders2"))
    visitor = Visitor(dashboard(own_shop, Access(allow_actions=True), pace=AT_ONCE))
    form = {"topic": "merge", "group": "builders2", "letters": "again", "rate": "1", "why": "incident 7"}
    begun = visitor.post("/act/redrive", **form)
    assert begun.status_code == 303
    page = begun.headers["location"]
    shown = visitor.send("GET", page).text
    assert "incident 7" in shown
    assert f"of {letters}<" in shown
    assert f'sse-connect="/live{page}"' in shown
    assert f'max="{letters}"' in visitor.send("GET", f"/live{page}").text
    if stopped:
        assert visitor.post("/job/stop", id=page.partition("=")[2]).status_code == 303
    eventually(lambda: "http-equiv" not in visitor.send("GET", page).text, within=letters + 10)
    ended = visitor.send("GET", page).text
    left = len(own_shop.admin.dead_letters("merge", "builders2"))
    assert ("<dd>stopped</dd>" if stopped else "What it changed") in ended
    assert f"<dd>{letters - left} of {letters}</dd>" in ended
    assert bool(left) is stopped
    assert "event: end" in visitor.send("GET", f"/live{page}").text
    assert page[1:] in visitor.get("/jobs").text
    assert visitor.get("/job", id="none").status_code == 404
    gone = visitor.get("/live/job", id="none").text
    assert "knows no job" in gone
    assert "event: end" in gone


@pytest.mark.thorough
def test_charts_are_drawn_of_the_dashboards_own_samples(lanelog_client: lanelog.Client) -> None:
    """From its first page on, until the client is closed: then its thread ends."""
    lanelog_client.publish("t", "k", b"x")
    lanelog_client.subscribe("t", "g", accept).stop()
    before = threads()
    visitor = Visitor(dashboard(lanelog_client, pace=evolve(AT_ONCE, sample=0.01)))
    visitor.get("/")
    eventually(lambda: "<polyline" in visitor.get("/charts", topic="t", group="g").text)
    assert "<polyline" in visitor.get("/live/charts").text
    running = [each for each in threads() if each not in before]
    lanelog_client.close()
    (thread,) = running
    thread.join(10)
    assert not thread.is_alive()


def an_edge_ago(raw: Any, seconds: int) -> int:
    """A moment of ten minutes ago or more, soon after the beginning of a bucket of so many seconds."""
    width = seconds * 1000
    (now,) = rows(raw, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000")[0]
    return (int(now) - 600_000) // width * width + 1000


def test_the_times_of_handlers_survive_a_restart(lanelog_client: lanelog.Client, raw: Any) -> None:
    """The times come from the history of a group that keeps one. The pages of other groups, or of all, have none."""
    with lanelog_client.subscribe("t", "kept", accept, history=True), lanelog_client.subscribe("t", "none", accept):
        lanelog_client.publish_many("t", [(f"k{number}", b"x") for number in range(100)])
        eventually(lambda: len(lanelog_client.admin.history("t", "kept")) == 100)
        eventually(lambda: lanelog_client.admin.groups("t", "none")[0].lag == 0)
    ended = an_edge_ago(raw, 360)
    taken = "10 * (1 + SUBSTRING(partition_key, 2))"
    rows(raw, f"UPDATE queue_history SET finished_at = %s, first_delivered_at = %s - {taken}", ended, ended)
    visitor = Visitor(dashboard(lanelog_client, pace=evolve(AT_ONCE, sample=60)))
    for hours in ("1", "6"):
        page = visitor.get("/charts", topic="t", group="kept", hours=hours).text
        assert "Handlers, at the first attempt, up to 1s, from" in page
        assert len(re.findall("<polyline", page)) == 2  # p50 and p99; there are no samples yet
    live = visitor.get("/live/charts", topic="t", group="kept").text
    points = re.findall(r'<polyline class="line\d" points="[\d.]+,([\d.]+) [\d.]+,([\d.]+)"', live)
    assert points == [("60.0", "60.0"), ("1.2", "1.2")]  # 500 ms and 990 ms, in a box of 120
    for address in ({"topic": "t", "group": "none"}, {"topic": "t"}, {}, {"topic": "t", "group": "gone"}):
        assert "Handlers" not in visitor.get("/charts", **address).text


def test_the_times_of_handlers_are_read_within_bounds(lanelog_client: lanelog.Client, raw: Any) -> None:
    """A bucket that is over is read once. Nobody reads again within the seconds for which an answer is kept."""
    with lanelog_client.subscribe("t", "g", accept, history=True):
        lanelog_client.publish("t", "k", b"x")
        eventually(lambda: lanelog_client.admin.history("t", "g"))
    rows(raw, "UPDATE queue_history SET first_delivered_at = finished_at")  # it took no time, like most of the others
    ended = an_edge_ago(raw, 600)
    first = [ended + number - (5000 if number < 100 else 0) for number in range(300)]
    with raw.cursor() as cursor:  # in one bucket; the 100 that ended first took five seconds
        cursor.executemany(
            "INSERT INTO queue_history (consumer_group, topic, partition_key, message_offset, id, outcome, attempts,"
            " first_delivered_at, finished_at) VALUES ('g', 't', 'k', %s, 'x', 'success', 1, %s, %s)",
            [(number + 2, first[number], ended + number) for number in range(300)],
        )
    now = [1000.0]
    history = HandlerHistory(lanelog_client.admin, lambda: now[0])
    at = GroupTopic(topic="t", group="g")
    with commands_sent() as begun:
        found = history.latest(at, 36_000)
    reads = [each for each in begun if "FROM queue_history" in each]
    assert BUCKETS <= len(reads) <= BUCKETS + 1
    assert max(each.p99 for each in found.buckets if each is not None) == 0
    with commands_sent() as again:
        assert history.latest(at, 36_000) is found
    assert again == []
    now[0] += EVERY
    with commands_sent() as later:
        assert history.latest(at, 36_000) not in (None, found)
    assert len([each for each in later if "FROM queue_history" in each]) <= 3


def test_no_page_waits_for_times_of_handlers_while_the_database_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """A page is shown without them. After a failure nothing is read for a minute, whichever group a page is of."""
    caplog.set_level(logging.DEBUG, "lanelog.dashboard")
    first, second = GroupTopic(topic="t", group="g"), GroupTopic(topic="t", group="h")
    began = time.monotonic()
    with lanelog.connect(NOWHERE) as client:  # reads are repeated for half a minute
        assert HandlerHistory(client.admin, wait=0.1).latest(first, 3600) is None
    assert time.monotonic() - began < 10
    eventually(lambda: events(caplog, "sample.failed", logging.DEBUG))
    with lanelog.connect(NOWHERE, publish_timeout=0.2) as client:
        now = [1000.0]
        history = HandlerHistory(client.admin, lambda: now[0], wait=30)
        with commands_sent() as sent:
            assert history.latest(first, 3600) is None
            tried = len(sent)
            assert tried > 0
            now[0] += AWAY - 1
            assert history.latest(first, 3600) is history.latest(second, 3600) is None
            assert len(sent) == tried
            now[0] += 1
            assert history.latest(second, 3600) is None
            assert len(sent) > tried


@pytest.mark.parametrize("rights", [{}, dict.fromkeys(("queue_groups", "queue_offsets"), "INSERT, UPDATE")])
def test_an_action_without_the_privilege_is_refused_and_logged(
    shop: lanelog.Client, lanelog_server: DevServer, raw: Any, caplog: pytest.LogCaptureFixture, rights: dict[str, str]
) -> None:
    """A reader's, whatever the dashboard allows, or one that may not write the audit; nothing was changed."""
    url = url_of(shop, lanelog_server)
    with (
        connect(url) as connection,
        account(raw, url, {"*": "SELECT", **rights}) as limited,
        lanelog.connect(limited) as client,
    ):
        before = everything(connection)
        visitor = Visitor(dashboard(client, Access(allow_actions=True)))
        for name, form in FORMS.items():
            assert visitor.get(f"/act/{name}", **form).status_code in {200, 403}  # MySQL demands UPDATE for a lock, too
            answer = visitor.post(f"/act/{name}", **form, why="x", typed=TYPED.get(name, ""))
            assert answer.status_code == 403, (name, answer.text)
            assert "<h1>The database account lacks a privilege</h1>" in answer.text, name
            assert "lanelog grants --role" in answer.text, name
        assert everything(connection) == before
    assert len(events(caplog, "action.failed", logging.WARNING)) == len(ACTIONS)


def test_the_card_of_dead_letters_offers_what_its_command_does(
    lanelog_client: lanelog.Client, lanelog_url: str
) -> None:
    """A card offers those of its reason and group alone, whatever the names and reasons. No two cards have an id."""
    topic, reasons = "-t;", ["it's --reason $HOME & more", "--all"]
    lanelog_client.publish_many(topic, [(f"k{number}", reasons[number % 2].encode()) for number in range(5)])
    for group in ("g h", "other"):
        with lanelog_client.subscribe(topic, group, saying, start="earliest") as subscription:
            eventually(lambda subscription=subscription: subscription.stats().dead_lettered == 5)
    visitor = Visitor(dashboard(lanelog_client, Access(allow_actions=True)))
    text = visitor.get("/").text
    ids = re.findall(r' id="(.*?)"', text)
    assert len(ids) == len(set(ids))
    cards = [card for card in re.findall(r"<article.*?</article>", text, re.DOTALL) if "dlq redrive" in card]
    assert len(cards) == 3  # of four reasons, the most frequent ones
    for card in cards:
        words = shlex.split(unescape(re.findall(r'<pre class="command">\$ lanelog (.*)</pre>', card)[0]))
        told = json.loads(Command(lanelog_url)(*words[:2], "--json", *words[2:]).stdout)
        (button,) = re.findall(r'<a class="button" [^>]*href="(.*?)">Redrive…', card)
        preview = visitor.send("GET", unescape(button)).text
        assert re.findall(r"<p>(\d+) dead letters? with", preview) == [str(told["messages"])]
    left = {(each.group, each.name): each.count for each in lanelog_client.admin.dead_letter_reasons(topic)}
    (action,) = re.findall(r'<form method="post" action="(.*?)"', preview)
    assert visitor.post(unescape(action), why="it is mended").status_code == 200
    now = {(each.group, each.name): each.count for each in lanelog_client.admin.dead_letter_reasons(topic)}
    (gone,) = left.keys() - now.keys()
    assert left[gone] == told["messages"]
    assert set(gone) <= set(words)


def test_dead_letters_are_read_page_by_page(lanelog_client: lanelog.Client) -> None:
    """A page has 25 dead letters and 10 reasons, whatever their number, and none is missing between two pages."""
    words = [f"reason {'abcdef'[number // 10]}{'abcdefghij'[number % 10]}" for number in range(60)]
    lanelog_client.publish_many("t", [(f"k{number // 2:02}", word.encode()) for number, word in enumerate(words)])
    with lanelog_client.subscribe("t", "g", saying, start="earliest") as subscription:
        eventually(lambda: subscription.stats().dead_lettered == 60)
    visitor = Visitor(dashboard(lanelog_client))

    def read(address: str, following: str, row: str) -> list[list[str]]:
        pages = []
        while address:
            text = visitor.send("GET", address).text
            pages.append(re.findall(row, text))
            further = re.search(rf'href="([^"]+)">{following}', text)
            address = unescape(further[1]) if further else ""
        return pages

    pages = read("/dead-letters?topic=t", "Next page", r'href="/message\?[^"]*key=(k\d+)&amp;offset=(\d+)')
    assert [len(page) for page in pages] == [25, 25, 10]
    assert len({letter for page in pages for letter in page}) == 60
    reasons = read("/dead-letters?topic=t", r"\d+ more reasons?", r">(reason [a-j]+)</a>")
    assert [len(page) for page in reasons] == [10] * 6
    assert len({reason for page in reasons for reason in page}) == 60


def test_views_of_one_topic_share_the_count_of_its_dead_letters(
    lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some seconds, or until an action of this dashboard: a count reads thousands of rows."""
    monkeypatch.setattr("lanelog.dashboard.app.FRESH", 60.0)
    lanelog_client.publish_many("t", [(f"k{number}", b"no such branch") for number in range(3)])
    for group in ("g", "h"):
        with lanelog_client.subscribe("t", group, saying, start="earliest") as subscription:
            eventually(lambda subscription=subscription: subscription.stats().dead_lettered == 3)
    visitor = Visitor(dashboard(lanelog_client, Access(allow_actions=True)))

    def counts(letters: int, **chosen: str) -> int:
        with commands_sent() as sent:
            assert f"<h2>{letters} dead letters</h2>" in visitor.get("/dead-letters", topic="t", **chosen).text
        return sum("LEFT(m.last_error" in each for each in sent)

    visitor.get("/")  # the look at all groups counts some, too: that is shared from here on
    assert counts(6) == 1
    assert counts(6) == 0
    assert counts(3, group="g") == 1
    assert counts(3, group="g", reason="no such branch") == 0
    form = {"topic": "t", "group": "g", "letters": "no such branch"}
    assert visitor.post("/act/delete-letters", **form, why="x", typed="g").status_code in {200, 303}
    eventually(lambda: "<h2>3 dead letters</h2>" in visitor.get("/dead-letters", topic="t").text)


def test_dead_letters_are_chosen_by_key_group_and_reason(lanelog_client: lanelog.Client) -> None:
    """Each reason leads to its dead letters by its short name; no choice shows those of another one."""
    reasons = ["no such branch", "it's # % _full\\"]
    errors = [reasons[number % 2].replace("#", f"{number + 10}.5") for number in range(12)]
    lanelog_client.publish_many("t", [(f"k{number}", error.encode()) for number, error in enumerate(errors)])
    for group in ("g", "h"):
        with lanelog_client.subscribe("t", group, saying, start="earliest") as subscription:
            eventually(lambda subscription=subscription: subscription.stats().dead_lettered == 12)
    visitor, admin = Visitor(dashboard(lanelog_client)), lanelog_client.admin

    def keys(**chosen: str) -> list[str]:
        return re.findall(r'href="/message\?[^"]*key=(k\d+)', visitor.get("/dead-letters", topic="t", **chosen).text)

    assert sorted(keys(prefix="k1")) == sorted(["k1", "k10", "k11"] * 2)
    assert sorted(keys(prefix="k1", group="h", reason=reasons[1])) == ["k1", "k11"]
    assert keys(prefix="%") == keys(prefix="_") == []
    page = visitor.get("/dead-letters", topic="t").text
    name = next(each.name for each in admin.dead_letter_reasons("t", "g") if each.reason == reasons[1])
    (address, *_) = re.findall(rf'<a href="(/dead-letters\?[^"]*reason={name}[^"]*)"', page)
    assert sorted(keys(prefix="k1", group="h", reason=name)) == ["k1", "k11"]
    listed = visitor.send("GET", unescape(address)).text
    assert "<h2>6 dead letters</h2>" in listed
    assert "ago</span>" in listed
    assert "Next page" not in listed
    longer = f"r-{hashlib.sha256(reasons[1].encode()).hexdigest()}"
    assert "<h2>6 dead letters</h2>" in visitor.get("/dead-letters", topic="t", group="g", reason=longer).text
    last = admin.dead_letters("t", "g", reason=reasons[0], limit=3)[-1]
    following = admin.dead_letters("t", "g", reason=reasons[0], after=(last.dead_letter_topic, last.key, last.offset))
    behind = [each.key for each in following]
    assert behind == [each.key for each in admin.dead_letters("t", "g", reason=reasons[0])][3:]
    for wrong in ({"key_prefix": 1}, {"after": ("t", "k", 0)}, {"reason": 7}):
        with pytest.raises(ConfigurationError):
            admin.dead_letters("t", **wrong)  # type: ignore[arg-type]
    assert visitor.get("/dead-letters", topic="t", page="0").status_code == 404


def saying(message: lanelog.Message) -> None:
    """A handler that gives every message up, for the reason that its payload says."""
    raise lanelog.Reject(message.payload.decode())


# -- whom it refuses ---------------------------------------------------------------------------------------------------


def basic(name: str, token: str = TOKEN) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()}


def answered(app: Any, method: str, path: str, headers: list[tuple[str, str]]) -> int:
    """The status of the answer to these headers exactly, which no client would send."""
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
    }
    asyncio.run(app(scope, receive, send))
    status: int = said[0]["status"]
    return status


ACTING = Access(token=TOKEN, allow_actions=True)
REFUSED: dict[str, tuple[Access, dict[str, str], int]] = {
    "reader": (Access(token=TOKEN), {}, 403),
    "no token": (ACTING, {"authorization": ""}, 401),
    "wrong token": (ACTING, basic("ann", "another-token-of-this-length"), 401),
    "token in no known form": (ACTING, {"authorization": TOKEN}, 401),
    "cross-site": (ACTING, {"sec-fetch-site": "cross-site"}, 403),
    "same-site": (ACTING, {"sec-fetch-site": "same-site"}, 403),
    "foreign origin": (ACTING, {"sec-fetch-site": "", "origin": "http://evil.example"}, 403),
    "other port": (ACTING, {"sec-fetch-site": "", "origin": "http://127.0.0.1:1"}, 403),
    "origin that is no address": (ACTING, {"sec-fetch-site": "", "origin": "http://["}, 403),
    "origin whose port is none": (ACTING, {"sec-fetch-site": "", "origin": "http://[x]:y"}, 403),
    "origin of another scheme": (ACTING, {"sec-fetch-site": "", "origin": "app://127.0.0.1"}, 403),
    "null origin": (ACTING, {"sec-fetch-site": "", "origin": "null"}, 403),
    "neither origin nor site": (ACTING, {"sec-fetch-site": "", "origin": ""}, 403),
    "forged host": (ACTING, {"host": "evil.example", "origin": "http://evil.example"}, 421),
    "host that begins alike": (ACTING, {"host": "127.0.0.1.evil.example"}, 421),
}


@pytest.mark.parametrize("why", REFUSED)
def test_every_action_is_refused(shop: lanelog.Client, why: str) -> None:
    """By every route that accepts more than looks, for every action, and its preview without the right to act."""
    access, headers, status = REFUSED[why]
    app = dashboard(shop, access)
    visitor = Visitor(app, {**basic("ann"), **headers})
    for route in routes(app):
        methods = (route.methods or set()) - {"GET", "HEAD"}
        for name in ACTIONS:
            for method in methods:
                path = route.path.replace("{name}", name)
                sent = visitor.send(method, path, data={**FORMS[name], "why": "x"})
                assert sent.status_code == status, (method, path)
                assert "default-src 'none'" in sent.headers["content-security-policy"], (method, path)
    if status == 403 and why == "reader":
        assert all(visitor.get(f"/act/{name}", **FORMS[name]).status_code == 403 for name in ACTIONS)
    assert shop.admin.topic("merge").dead_letters == 1
    assert shop.admin.groups("merge")[0].paused_at is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "malformed", ["", "[", "[x]:y", "http://[", "127.0.0.1:\u00b2", "127.0.0.1:-1", "\u00ff", "%5B", ","]
)
def test_malformed_headers_are_no_error(shop: lanelog.Client, malformed: str) -> None:
    """Of a look, nor of an action, whichever header says where the request goes, or comes from."""
    app = dashboard(shop, ACTING)
    for name in ("host", "origin", "referer", "x-forwarded-host", "forwarded", "sec-fetch-site", "cookie"):
        headers = [("host", "127.0.0.1"), *basic("ann").items(), ("sec-fetch-site", "same-origin")]
        given = [each for each in headers if each[0] != name] + [(name, malformed)]
        for method, path in (("GET", "/topics"), ("GET", "/topics/"), ("POST", "/act/skip"), ("POST", "/act/skip/")):
            assert answered(app, method, path, given) in {200, 307, 400, 403, 421}, (name, method, path)


@pytest.mark.parametrize("path", [*PAGES, *STREAMS, *STATIC, *JOB, "/act/skip"])
def test_no_page_is_shown_without_the_token_or_to_a_forged_host(shop: lanelog.Client, path: str) -> None:
    """The style sheet and the stream are refused as well."""
    app = dashboard(shop, ACTING)
    assert Visitor(app).send("GET", path).status_code == 401
    assert Visitor(app, {**basic("ann"), "host": "evil.example"}).send("GET", path).status_code == 421
    assert Visitor(app, {**basic("ann"), "sec-fetch-site": "cross-site"}).send("GET", path).status_code == 403


def test_a_link_from_elsewhere_may_be_followed(shop: lanelog.Client) -> None:
    """A link from a chat or an alert works, because it only reads."""
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert Visitor(dashboard(shop), headers).get("/topics").status_code == 200


def test_a_proxys_header_counts_from_the_proxy_alone(shop: lanelog.Client) -> None:
    """From any other address it is no authentication."""
    app = dashboard(shop, Access(proxy_header="X-User", proxies=("10.0.0.5",)))
    named = Visitor(app, {"x-user": "ann"}, address="10.0.0.5")
    assert "ann, read-only" in named.get("/topics").text
    assert evolve(named, address="10.0.0.6").get("/topics").status_code == 401
    assert evolve(named, headers={}).get("/topics").status_code == 401


def test_without_authentication_only_this_machine_is_served(shop: lanelog.Client) -> None:
    """Other machines are refused also where an application mounts it and listens to the world."""
    assert Visitor(dashboard(shop), address="10.0.0.6").get("/topics").status_code == 401
    known = Access(identify=lambda scope: "ann" if scope["client"][0] == "10.0.0.6" else None)
    assert Visitor(dashboard(shop, known), address="10.0.0.6").get("/topics").status_code == 200
    assert Visitor(dashboard(shop, known), address="10.0.0.7").get("/topics").status_code == 401
    nobody = Access(identify=lambda _scope: True)  # type: ignore[arg-type,return-value]
    assert Visitor(dashboard(shop, nobody), address="10.0.0.7").get("/topics").status_code == 401


@pytest.mark.parametrize("given", ["Basic \u00e9", "Basic =", "Basic /w==", "Bearer \u00e9", "Basic", ""])
def test_what_is_no_token_is_refused_without_an_error(given: str) -> None:
    """A token that is not ASCII, base64 or UTF-8, or empty, is refused."""
    assert ACTING.user({"client": ("127.0.0.1", 1)}, {"authorization": given}) is None


async def forgetful(_scope: object) -> str | None:
    """A log-in that nobody awaits: what it returns is true of everybody."""


@pytest.mark.parametrize(
    "rules",
    [
        {"token": "short"},
        {"token": "é" * 20},
        {"proxy_header": "X-User"},
        {"proxy_header": "X", "proxies": ("here",)},
        {"identify": forgetful},
    ],
)
def test_rules_that_protect_nothing_are_refused(rules: dict[str, Any]) -> None:
    """When they are made, not at the first request."""
    with pytest.raises(ConfigurationError):
        Access(**rules)
    assert TOKEN not in repr(ACTING)


# -- the verb ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("rights", ["read-only", "users may act"])
def test_the_verb_serves_it_on_this_machine(
    shop: lanelog.Client, lanelog_server: DevServer, tmp_path: Path, rights: str
) -> None:
    """Until SIGTERM, which ends it in order; it says who may come, and whether they may act."""
    command = [sys.executable, "-m", "lanelog", "web", "--listen", "127.0.0.1:0"]
    who, lane = "for this machine, without authentication", "lane?topic=merge&group=builders&key=good"
    acting, headers = rights == "users may act", dict[str, str]()
    if acting:
        who, secret, headers = "users must authenticate", tmp_path / "token", basic("ann") | {"host": "lanelog.example"}
        secret.write_text(f"{TOKEN}\n")
        command += ["--token-file", str(secret), "--allow-actions", "--host", "lanelog.example"]
    environment = {**os.environ, "LANELOG_URL": url_of(shop, lanelog_server)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            address = child.stdout.readline().strip()
            if acting:
                with pytest.raises(HTTPError, match="401"):
                    urlopen(address, timeout=20)  # noqa: S310 - the address that our own process printed
            asked = Request(address + lane, headers=headers)  # noqa: S310 - as above
            with urlopen(asked, timeout=20) as answer:  # noqa: S310 - as above
                assert ("act/pause" in answer.read().decode()) == acting
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
        assert child.stderr.read() == f"{rights}; {who}\n"


def test_the_verb_refuses_other_addresses_without_authentication(tmp_path: Path) -> None:
    """A token that is none is refused, too."""
    command = Command("mysql://nobody@127.0.0.1:1/none")
    refused = command("web", "--listen", "0.0.0.0:0", status=2)
    assert "LANELOG_WEB_TOKEN" in refused.stderr
    empty = tmp_path / "token"
    empty.write_text("\n")
    assert "no token" in command("web", "--token-file", str(empty), status=2).stderr
    for wrong in ("8080", "user@localhost:8080"):
        assert "HOST:PORT" in command("web", "--listen", wrong, status=2).stderr
