"""From values to HTML: the templates, what all of them are given, and answers that say what went wrong.

Owns the environment of the templates. Asks no database.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from attrs import define, field
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from lanelog._database import codes
from lanelog.dashboard.access import Access, NotAllowed
from lanelog.dashboard.guard import USER
from lanelog.dashboard.views import WebButton, WebDatabase, WebPage, cell
from lanelog.errors import ConfigurationError, DatabaseError

RESULT_MAX: Final = 1000
"""Characters of one field of an action. A reason may be long."""
_NAV: Final = (
    ("Is it stuck?", ""),
    ("Charts", "charts"),
    ("Topics", "topics"),
    ("Groups", "groups"),
    ("Members", "members"),
    ("Search", "search"),
    ("Dead letters", "dead-letters"),
    ("Schedules", "schedules"),
    ("Delayed", "delayed"),
    ("Archives", "archives"),
    ("Audit", "audit"),
    ("Database", "database"),
)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lanelog.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made.filters["cell"] = cell
    made.tests["button"] = lambda value: isinstance(value, WebButton)
    return made


@define(eq=False)
class Renderer:
    """Makes answers of templates."""

    _access: Access
    _live: bool
    """Whether pages may ask for streams of events."""
    _database: WebDatabase
    _templates: Environment = field(init=False, factory=_environment)
    _version: str = field(init=False, factory=lambda: version("lanelog"))

    def page(self, request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
        """Return a whole page, or another template that is an answer by itself."""
        return HTMLResponse(self.text(request, template, **values), status_code)

    def text(self, request: Request, template: str, **values: Any) -> str:
        """Return what a template makes of its values, and of those that all templates have."""
        root = request.scope.get("root_path", "").rstrip("/")
        known = {
            "root": root,
            "here": request.scope["path"].removeprefix(root).strip("/"),
            "pages": _NAV,
            "user": request.scope[USER],
            "may_act": self._access.allow_actions,
            "version": self._version,
            "live": self._live,
            "database": self._database,
            "stream": None,
            "refresh": 0,
        }
        return self._templates.get_template(template).render(**{**known, **values})

    def sheets(self, request: Request, page: WebPage, *, status_code: int = 200) -> HTMLResponse:
        """Return a page of facts and tables."""
        return self.page(request, "page.html.jinja", status_code=status_code, **page.template_values())

    def problem(self, request: Request, status_code: int, title: str, lead: str) -> HTMLResponse:
        """Return a page that says what is wrong."""
        return self.sheets(request, WebPage(title=title, lead=lead), status_code=status_code)

    def failed(self, request: Request, error: Exception) -> HTMLResponse:
        """Return the page for an error of this library."""
        if isinstance(error, NotAllowed):
            return self.problem(request, 403, "Read-only", str(error))
        if isinstance(error, ConfigurationError):
            status, title = (404, "Not found") if request.method == "GET" else (400, "Refused")
            return self.problem(request, status, title, str(error))
        return self.problem(request, 403 if _denied(error) else 503, trouble(error), str(error))


def trouble(error: Exception) -> str:
    """Return the title for an error that the user has not caused."""
    if _denied(error):
        return "The database account lacks a privilege"
    away = isinstance(error, DatabaseError) and error.retriable
    return "The database does not answer" if away else "It failed"


def _denied(error: Exception) -> bool:
    return isinstance(error, DatabaseError) and error.code in codes.DENIED_ANYWHERE
