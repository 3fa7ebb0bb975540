"""The dashboard as an ASGI application: its routes, and the handlers of pages.

Owns the way from a request to a page. `guard` has refused unwanted requests before. Pages stand in `pages`,
actions in `action_handlers`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lanelog._base.places import GroupTopic
from lanelog._base.text import moment
from lanelog.admin import Admin, DeadLetterCounts, Status
from lanelog.client import Client
from lanelog.dashboard import charts
from lanelog.dashboard.access import Access
from lanelog.dashboard.changes.action_handlers import ActionHandlers, TooMuch
from lanelog.dashboard.changes.jobs import Jobs
from lanelog.dashboard.guard import Guard
from lanelog.dashboard.handler_times import HandlerHistory
from lanelog.dashboard.live import Fragment, Streams, WebPace
from lanelog.dashboard.pages import stuck, tables, tiles
from lanelog.dashboard.pages.asked import Asked, Maker
from lanelog.dashboard.payload import Mask
from lanelog.dashboard.rendering import Renderer, trouble
from lanelog.dashboard.samples import SPAN, Samples
from lanelog.dashboard.shared_reads import SharedRead, SharedReads
from lanelog.dashboard.views import WebDatabase, link
from lanelog.errors import LanelogError

ENVIRONMENT: Final = "LANELOG_ENVIRONMENT"
"""The variable that says what the database is for."""
FRESH: Final = 2.0
"""Seconds for which all open pages get the same answer."""
REFRESH: Final = 10
"""Seconds after which a page that changes reloads itself, where it can have no stream of events."""
COUNTED: Final = 20_000
"""Dead letters that are counted by their reasons, for a page."""
TILES: Final = 3600
"""Seconds that the curves of the front page show."""
_SPANS: Final = {"1": 3600, "6": SPAN}
"""Seconds that charts show, by what the address says."""
_NOTHING_SEEN: Final = Status(
    at=datetime.fromtimestamp(0, UTC),
    topics=0,
    groups=(),
    lag=0,
    oldest_age=None,
    oldest_age_exact=True,
    dead_letters=0,
    problems=(),
)
"""What the first status is compared with. With nothing to compare, `Admin.status` would wait for two seconds to measure
the rates of a key, and the answer would be kept for forty: the next status has them."""
_STATIC: Final = {
    "icon.svg": "image/svg+xml",
    "style.css": "text/css",
    "htmx.min.js": "text/javascript",
    "htmx-sse.min.js": "text/javascript",
}


def dashboard(
    client: Client,
    access: Access | None = None,
    *,
    mask: Mask | None = None,
    pace: WebPace | None = None,
    environment: str | None = None,
) -> ASGIApp:
    """Return the dashboard of a client's database as an ASGI application, to be served or mounted under a prefix.

    The application uses the client and does not close it. From its first page on, a thread takes samples for the
    charts, until the client is closed.

    Args:
        client: The client. The account of a `reader` is enough.
        access: Who may use it. None: every user of this machine, without actions.
        mask: Called with a message whose payload is to be shown. Returns the bytes to show instead.
        pace: How often it polls. None: as `WebPace()` says.
        environment: What the database is for, such as `production`: every page shows it beside the database's name.
            None: the variable `LANELOG_ENVIRONMENT`, or nothing.

    Example:
        Below `/queue` of a FastAPI application, whose host name is `shop.example.com`::

            access = Access(hosts=("shop.example.com",), token=os.environ["LANELOG_WEB_TOKEN"])
            app.mount("/queue", dashboard(client, access))
    """
    return assemble(client, access, mask=mask, pace=pace, environment=environment, live=True)


def assemble(
    client: Client,
    access: Access | None,
    *,
    mask: Mask | None,
    pace: WebPace | None,
    environment: str | None,
    live: bool,
) -> ASGIApp:
    """Return the application. Without `live`, pages reload themselves instead of asking for streams of events."""
    rules = access or Access()
    database = WebDatabase(
        database=client.config.database,
        address=client.config.address(),
        environment=os.environ.get(ENVIRONMENT, "") if environment is None else environment,
    )
    return Guard(_Site(client.admin, rules, mask, pace or WebPace(), database, live).application(), rules)


@define(eq=False)
class _Site:
    """The handlers, and what they share."""

    _admin: Admin
    _access: Access
    _mask: Mask | None
    _pace: WebPace
    _database: WebDatabase
    _live: bool
    _streams: Streams = field(init=False)
    _status: SharedRead[Status] = field(init=False)
    _letters: SharedReads[tuple[str, str | None], DeadLetterCounts] = field(init=False)
    _samples: Samples = field(init=False)
    _history: HandlerHistory = field(init=False)
    _jobs: Jobs = field(init=False, factory=Jobs)
    _renderer: Renderer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._status = SharedRead(lambda before: self._admin.status(since=before or _NOTHING_SEEN), FRESH)
        self._letters = SharedReads(lambda at: self._admin.count_dead_letters(*at, most=COUNTED), FRESH)
        self._samples = Samples(self._status, self._pace.sample)
        self._history = HandlerHistory(self._admin)
        self._streams = Streams(self._pace)
        self._renderer = Renderer(self._access, self._live, self._database)

    def application(self) -> ASGIApp:
        """Return the routes."""
        acting = ActionHandlers(self._admin, self._access, self._renderer, self._changed, self._jobs, self._streams)
        routes = [
            Route("/", self._front, methods=["GET"]),
            Route("/charts", self._charts, methods=["GET"]),
            Route("/job", acting.job, methods=["GET"]),
            Route("/job/stop", acting.stop_job, methods=["POST"]),
            Route("/static/{name}", _static, methods=["GET"]),
            *(Route(f"/{name}", self._page(make), methods=["GET"]) for name, make in tables.PAGES.items()),
            Route("/act/{name}", acting.preview, methods=["GET"]),
            Route("/act/{name}", acting.act, methods=["POST"]),
        ]
        if self._live:
            routes += [
                Route("/live/stuck", self._streamed("_stuck.html.jinja", self._stuck), methods=["GET"]),
                Route("/live/charts", self._streamed("_charts.html.jinja", self._drawn), methods=["GET"]),
                Route("/live/job", acting.live_job, methods=["GET"]),
            ]
        return Starlette(
            routes=routes,
            exception_handlers={LanelogError: self._renderer.failed, TooMuch: _too_much},
            lifespan=self._lifespan,
        )

    def _changed(self) -> None:
        self._status.forget()
        self._letters.forget()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Take samples from the start where a server reports it, as for `lanelog web`, else from the first request."""
        self._samples.start()
        yield
        self._samples.stop()

    # -- the front page ------------------------------------------------------------------------------------------------

    def _front(self, request: Request) -> Response:
        self._samples.start()
        values = self._stuck(request)
        still = "still" in request.query_params
        return self._renderer.page(
            request,
            "stuck.html.jinja",
            status_code=200 if values["at"] else 503,
            title="Is it stuck?",
            still=still,
            stream=None if still else "live/stuck",
            refresh=0 if still else REFRESH,
            **values,
        )

    def _stuck(self, _: Request) -> dict[str, Any]:
        """Return what is stuck, or that the log cannot be asked: an open page says so, and recovers."""
        try:
            status = self._status()
        except LanelogError as error:
            return {
                "headline": f"{trouble(error)}: {error}",
                "tone": "bad",
                "tiles": [],
                "cards": [],
                "more": 0,
                "at": "",
            }
        line, tone = stuck.headline(status)
        more = max(0, len(status.problems) - stuck.SHOWN)
        return {
            "headline": line,
            "tone": tone,
            "tiles": tiles.tiles(status, charts.draw(self._samples.latest(TILES), lambda _: True)),
            "box": (charts.WIDTH, charts.HEIGHT),
            "cards": stuck.cards(status),
            "more": more,
            "at": moment(status.at),
        }

    # -- charts --------------------------------------------------------------------------------------------------------

    def _charts(self, request: Request) -> Response:
        self._samples.start()
        topic, group, hours = _chosen(request)
        parameters = {"topic": topic, "group": group}
        return self._renderer.page(
            request,
            "charts.html.jinja",
            title=" ".join(filter(None, ("Charts", topic and f"of {topic}", group))),
            spans=[(each, link("charts", **parameters, hours=each), each == hours) for each in _SPANS],
            stream=link("live/charts", **parameters, hours=hours),
            refresh=REFRESH,
            **self._drawn(request),
        )

    def _drawn(self, request: Request) -> dict[str, Any]:
        topic, group, hours = _chosen(request)

        def chosen(at: GroupTopic) -> bool:
            return topic in (None, at.topic) and group in (None, at.group)

        samples = self._samples.latest(_SPANS[hours])
        places = sorted(samples[-1].groups, key=lambda at: at.columns) if samples else []
        return {
            "charts": [*charts.draw(samples, chosen), *self._handlers(topic, group, _SPANS[hours])],
            "box": (charts.WIDTH, charts.HEIGHT),
            "groups": [
                (f"{each.topic} {each.group}", link("charts", topic=each.topic, group=each.group, hours=hours))
                for each in places
            ],
        }

    def _handlers(self, topic: str | None, group: str | None, seconds: float) -> list[charts.Chart]:
        """Return the chart of handlers' times, if it is one group's page and the group keeps history."""
        found = self._history.latest(GroupTopic(topic=topic, group=group), seconds) if topic and group else None
        return [] if found is None else [charts.draw_times(found)]

    # -- other pages, and streams --------------------------------------------------------------------------------------

    def _page(self, make: Maker) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            self._samples.start()
            asked = Asked(
                admin=self._admin,
                fields=dict(request.query_params),
                mask=self._mask,
                status=self._status,
                counted=self._letters,
                rates=self._samples.rates,
                jobs=self._jobs,
            )
            return self._renderer.sheets(request, make(asked))

        return answer

    def _streamed(
        self, template: str, values: Callable[[Request], dict[str, Any]]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def answer(request: Request) -> Response:
            self._samples.start()
            return self._streams.answer(lambda: Fragment(self._renderer.text(request, template, **values(request))))

        return answer


def _chosen(request: Request) -> tuple[str | None, str | None, str]:
    """Return topic, group and hours of the charts that are asked for."""
    asked = request.query_params
    hours = asked.get("hours", "1")
    return asked.get("topic") or None, asked.get("group") or None, hours if hours in _SPANS else "1"


def _too_much(_: Request, __: Exception) -> Response:
    return PlainTextResponse("the form is too large\n", 413)


def _static(request: Request) -> Response:
    """Return a file that comes with the package. Its address has the version: a browser may keep it."""
    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("there is no such file\n", 404)
    content = resources.files("lanelog.dashboard").joinpath("static", name).read_bytes()
    return Response(content, media_type=_STATIC[name], headers={"Cache-Control": "private, max-age=86400"})
