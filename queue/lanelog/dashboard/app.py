"""The dashboard as an ASGI application: routes, templates, and the two handlers of actions.

Owns the way from a request to an answer. `guard` has refused by then what must not come in; pages stand in `pages`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs
from attrs import define, field, frozen
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lanelog._telemetry import get_logger
from lanelog._text import moment, shown
from lanelog.admin import Admin, Status
from lanelog.admin.lookup.arguments import BY_MAX
from lanelog.client import Client
from lanelog.dashboard import pages, stuck
from lanelog.dashboard.access import Access
from lanelog.dashboard.actions import ACTIONS, Doer, WebAction
from lanelog.dashboard.asked import Asked, Maker
from lanelog.dashboard.guard import USER, Guard
from lanelog.dashboard.looks import SharedLook
from lanelog.dashboard.payload import Mask
from lanelog.dashboard.views import WebButton, WebPage, cell
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError

FRESH: Final = 2.0
"""Seconds for which all who watch get the same answer."""
REFRESH: Final = 10
"""Seconds after which the front page refreshes itself."""
FORM_MAX: Final = 65_536
"""Bytes of a form. Keys, reasons and ids are far shorter."""
RESULT_MAX: Final = 1000
"""Characters of one field of a result. A verb may name thousands of lanes."""
_NAV: Final = (
    ("Is it stuck?", ""),
    ("Topics", "topics"),
    ("Groups", "groups"),
    ("Dead letters", "dead-letters"),
    ("Schedules", "schedules"),
    ("Delayed", "delayed"),
    ("Audit", "audit"),
    ("Database", "database"),
)

log = get_logger("dashboard")


def dashboard(client: Client, access: Access | None = None, *, mask: Mask | None = None) -> ASGIApp:
    """Return the dashboard of a client's database as an ASGI application, to be served or mounted under a prefix.

    The application uses the client and does not close it.

    Args:
        client: The client. The account of a `reader` is enough to look.
        access: Who may use it. None: whoever is on this machine, without actions.
        mask: Called with a message whose payload somebody wants to see; returns the bytes to show instead.

    Example:
        Below `/queue` of a FastAPI application, whose host name is `shop.example.com`::

            access = Access(hosts=("shop.example.com",), token=os.environ["LANELOG_WEB_TOKEN"])
            app.mount("/queue", dashboard(client, access))
    """
    rules = access or Access()
    return Guard(_Site(client.admin, rules, mask).application(), rules)


@frozen
class _TooMuch(Exception):
    """A form is larger than any that this dashboard writes."""


@define(eq=False)
class _Site:
    """The handlers, and what they share."""

    _admin: Admin
    _access: Access
    _mask: Mask | None
    _status: SharedLook[Status] = field(init=False)
    _templates: Environment = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._status = SharedLook(lambda before: self._admin.status(since=before), FRESH)
        self._templates = Environment(
            loader=PackageLoader("lanelog.dashboard"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        self._templates.filters["cell"] = cell
        self._templates.tests["button"] = lambda value: isinstance(value, WebButton)

    def application(self) -> ASGIApp:
        """Return the routes."""
        return Starlette(
            routes=[
                Route("/", self._front, methods=["GET"]),
                Route("/style.css", _style, methods=["GET"]),
                *(Route(f"/{name}", self._page(make), methods=["GET"]) for name, make in pages.PAGES.items()),
                Route("/act/{name}", self._preview, methods=["GET"]),
                Route("/act/{name}", self._act, methods=["POST"]),
            ],
            exception_handlers={LanelogError: self._failed, _TooMuch: _too_much},
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    def _front(self, request: Request) -> Response:
        status = self._status()
        line, tone = stuck.headline(status)
        return self._render(
            request,
            "stuck.html.jinja",
            title="Is it stuck?",
            headline=line,
            tone=tone,
            cards=stuck.cards(status),
            more=max(0, len(status.problems) - stuck.SHOWN),
            at=moment(status.at),
            refresh=None if "still" in request.query_params else REFRESH,
        )

    def _page(self, make: Maker) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            asked = Asked(admin=self._admin, fields=dict(request.query_params), mask=self._mask, status=self._status)
            return self._render(request, "page.html.jinja", **make(asked).template_values())

        return answer

    # -- acting --------------------------------------------------------------------------------------------------------

    def _preview(self, request: Request) -> Response:
        action = self._permitted(request)
        if isinstance(action, Response):
            return action
        given = dict(request.query_params)
        fields = {name: given[name] for name in (*action.needs, *action.may) if given.get(name)}
        planned = None
        if set(action.needs) <= fields.keys() or not action.asks:
            doer = Doer(by=request.scope[USER], why="", dry_run=True)
            planned = _told(action.verb(self._admin, action.chosen(given), doer))
        return self._render(
            request,
            "act.html.jinja",
            title=action.label,
            name=request.path_params["name"],
            action=action,
            fields=fields,
            asked=bool(action.asks),
            planned=planned,
        )

    async def _act(self, request: Request) -> Response:
        action = self._permitted(request)
        if isinstance(action, Response):
            return action
        form = await _form(request)
        return await run_in_threadpool(self._done, request, action, form)

    def _done(self, request: Request, action: WebAction, form: Mapping[str, str]) -> Response:
        """Run the verb.

        The event before it is logged for the process that dies in the middle: then nobody else knows who asked, and
        why. A form that is sent twice runs twice; every verb says the second time what little is left.
        """
        fields = action.chosen(form)
        why = form.get("why", "").strip()
        if not why:
            raise ConfigurationError("say why: the reason is kept in the audit and in the log")
        doer = Doer(by=request.scope[USER], why=why, dry_run=False)
        admin = self._admin.acting(doer.by[:BY_MAX], why)
        context = {"verb": request.path_params["name"], "by": doer.by, "why": doer.why, **fields}
        log.bind(**context).info("action.asked")
        try:
            done = _told(action.verb(admin, fields, doer))
        except LanelogError as exc:
            log.bind(**context).warning("action.failed", error=str(exc))
            raise
        finally:
            self._status.forget()
        log.bind(**context).warning("action.done")
        page = WebPage(title=f"{action.label}: done", lead=f"By {doer.by}: {doer.why}", facts=tuple(done))
        return self._render(request, "page.html.jinja", **page.template_values())

    def _permitted(self, request: Request) -> WebAction | Response:
        """Return the action of a request, or the refusal of who may not act."""
        if not self._access.allow_actions:
            return self._problem(request, 403, "Read-only", "This dashboard was started without --allow-actions.")
        action = ACTIONS.get(request.path_params["name"])
        return action or self._problem(request, 404, "No such action", "")

    # -- answering -----------------------------------------------------------------------------------------------------

    def _failed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, ConfigurationError):
            return self._problem(request, 404 if request.method == "GET" else 400, "Not found", str(error))
        title = "The database does not answer" if isinstance(error, DatabaseError) and error.retriable else "It failed"
        return self._problem(request, 503, title, str(error))

    def _problem(self, request: Request, status: int, title: str, lead: str) -> Response:
        page = WebPage(title=title, lead=lead)
        return self._render(request, "page.html.jinja", status_code=status, **page.template_values())

    def _render(self, request: Request, template: str, *, status_code: int = 200, **values: Any) -> Response:
        known = {
            "root": request.scope.get("root_path", "").rstrip("/"),
            "pages": _NAV,
            "user": request.scope[USER],
            "may_act": self._access.allow_actions,
            "refresh": None,
        }
        return HTMLResponse(self._templates.get_template(template).render(**{**known, **values}), status_code)


def _told(result: Any) -> list[tuple[str, str]]:
    """Return the fields of a verb's result, as names and texts."""
    return [
        (name.replace("_", " "), moment(value) if isinstance(value, datetime) else shown(str(value), RESULT_MAX))
        for name, value in attrs.asdict(result, recurse=False).items()
        if name not in ("dry_run", "moved") and value is not None
    ]


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. No form of this dashboard is large, or has files."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_MAX:
            raise _TooMuch
    return dict(parse_qsl(body.decode(errors="replace")))


def _too_much(_: Request, __: Exception) -> Response:
    return PlainTextResponse("the form is too large\n", 413)


def _style(_: Request) -> Response:
    text = resources.files("lanelog.dashboard").joinpath("static/style.css").read_text()
    return Response(text, media_type="text/css")
