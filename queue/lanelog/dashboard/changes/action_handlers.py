"""The handlers of actions: the preview, the action itself, and jobs that take long.

Owns the way from a form to a method of `Admin`. `actions` has the table. `guard` has refused requests without a user,
and those of other sites, before; `Access.permit` refuses them where nobody may act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from attrs import define, evolve, frozen
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lanelog._base.text import moment, shown
from lanelog._facts import dashboard as facts
from lanelog.admin import Admin
from lanelog.admin.lookup.arguments import BY_MAX
from lanelog.dashboard.access import Access
from lanelog.dashboard.changes import outcomes
from lanelog.dashboard.changes.actions import ACTIONS, Doer, WebAction
from lanelog.dashboard.changes.jobs import Job, Jobs, JobStopped, Progress
from lanelog.dashboard.guard import USER
from lanelog.dashboard.live import Fragment, Streams
from lanelog.dashboard.rendering import RESULT_MAX, Renderer
from lanelog.dashboard.views import WebPage, link
from lanelog.errors import ConfigurationError

FORM_MAX: Final = 65_536
"""Bytes of a form. Keys, reasons and ids are far shorter."""
SHORT: Final = 1.0
"""Seconds for which an answer waits for a job. One that takes longer has a page of its own."""
_JOB_PACE: Final = 0.5
"""Seconds between two reads of a job: they cost no statement."""

_HIDDEN: Final = frozenset({"token"})
"""Fields that mean nothing to a person."""
_WORDS: Final = {"letters": "failed with", "name": "schedule"}
"""What a page calls a field, if not by its name."""


@frozen
class TooMuch(Exception):
    """A form is larger than any that this dashboard writes."""


@define(eq=False)
class ActionHandlers:
    """The handlers, and what they share."""

    _admin: Admin
    _access: Access
    _renderer: Renderer
    _changed: Callable[[], None]
    """Called after each action, so that pages show what it has changed."""
    _jobs: Jobs
    _streams: Streams

    def preview(self, request: Request) -> Response:
        """Show what an action would change, and ask why. Where it destroys, ask for a name, too."""
        self._access.permit()
        action = ACTIONS.get(request.path_params["name"])
        if action is None:
            return self._no_such_action(request)
        given = dict(request.query_params)
        fields = {name: given[name] for name in (*action.needs, *action.may) if given.get(name)}
        planned: tuple[str, ...] = ()
        loses = action.red
        if set(action.needs) <= fields.keys() or not action.asks:
            doer = Doer(by=request.scope[USER], why="", dry_run=True)
            fields = dict(action.fixed(self._admin, action.chosen(given)))
            result = action.verb(self._admin, fields, doer)
            planned, loses = outcomes.sentences(result), action.loses(result)
        asked_last = {name: label for name, label in action.asks.items() if name not in action.needs}
        return self._renderer.page(
            request,
            "act.html.jinja",
            title=action.label,
            name=request.path_params["name"],
            action=action,
            fields=fields,
            choice=_named({name: value for name, value in fields.items() if name not in action.asks}),
            # What the preview depends on is asked for before it, the rest beside the reason.
            asked_first={name: label for name, label in action.asks.items() if name in action.needs},
            asked_last=asked_last,
            # In the address, and not in fields: a browser sends each end of a line in a field as CR and LF.
            chosen=urlencode({name: value for name, value in fields.items() if name not in asked_last}),
            planned=planned,
            typed=fields[action.typed] if loses and planned else None,
            loses=loses,
            back=outcomes.pages_of(fields)[0],
        )

    async def act(self, request: Request) -> Response:
        """Do what a form asks for."""
        self._access.permit()
        action = ACTIONS.get(request.path_params["name"])
        if action is None:
            return self._no_such_action(request)
        form = {**request.query_params, **await _form(request)}
        return await run_in_threadpool(self._act, request, action, form)

    def _act(self, request: Request, action: WebAction, form: Mapping[str, str]) -> Response:
        """Run the action. A form that is sent twice runs it twice. The second time, little or nothing is left to do."""
        fields = action.fixed(self._admin, action.chosen(form))
        why = form.get("why", "").strip()
        if not why:
            raise ConfigurationError("say why: the reason is kept in the audit and in the log")
        doer = Doer(by=request.scope[USER], why=why, dry_run=False)
        self._confirmed(action, fields, doer, form.get("typed", ""))
        name = request.path_params["name"]
        if not action.long:
            return self._done(request, action, doer, fields, self._run(name, action, fields, doer))
        job = Job(title=action.label, by=doer.by, why=why, choice=fields)

        def count() -> int:
            return int(action.verb(self._admin, fields, evolve(doer, dry_run=True)).messages)

        def verb(progress: Progress) -> Any:
            return self._run(name, action, fields, evolve(doer, progress=progress))

        self._jobs.start(job, count, verb)
        if job.wait(SHORT) and job.error is None:
            return self._done(request, action, doer, fields, job.result)
        if job.error is not None and not isinstance(job.error, JobStopped):
            raise job.error
        return _to_job(request, job)

    def _confirmed(self, action: WebAction, fields: Mapping[str, str], doer: Doer, typed: str) -> None:
        """Refuse what destroys, unless its name was typed.

        Whether it destroys is asked again: the log goes on between the preview and the click.
        """
        if not action.typed or typed.strip() == fields[action.typed].strip():
            return
        if action.red or action.loses(action.verb(self._admin, fields, evolve(doer, dry_run=True))):
            name = shown(fields[action.typed], RESULT_MAX)
            raise ConfigurationError(f"this destroys something: type {name} to confirm it; nothing was changed")

    def _run(self, name: str, action: WebAction, fields: Mapping[str, str], doer: Doer) -> Any:
        """Run an action, and log it.

        The event before it is logged for the process that dies in the middle: then no other record says who asked, and
        why.
        """
        admin = self._admin.acting(doer.by[:BY_MAX], doer.why)
        context = {"verb": name, "by": doer.by, "why": doer.why, **fields}
        facts.action_asked(**context)
        try:
            result = action.verb(admin, fields, doer)
        except Exception as exc:
            facts.action_failed(**context, error=str(exc))
            raise
        finally:
            self._changed()
        facts.action_done(**context)
        return result

    def _done(
        self, request: Request, action: WebAction, doer: Doer, fields: Mapping[str, str], result: Any
    ) -> Response:
        ended = "done" if getattr(result, "changed", True) else "nothing to do"
        page = WebPage(
            title=f"{action.label}: {ended}",
            lead=f"By {doer.by}: {doer.why}",
            sentences=outcomes.sentences(result),
            links=outcomes.pages_of(fields),
            buttons=outcomes.undo(result),
        )
        return self._renderer.sheets(request, page)

    def _no_such_action(self, request: Request) -> Response:
        return self._renderer.problem(request, 404, "No such action", "")

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def job(self, request: Request) -> Response:
        """Show a job, and report how it goes on."""
        job = self._jobs.find(request.query_params.get("id", ""))
        values = _shown(job)
        return self._renderer.page(
            request,
            "job.html.jinja",
            title=job.title,
            stream=link("live/job", id=job.id) if values["running"] else None,
            refresh=2 if values["running"] else 0,
            **values,
        )

    async def live_job(self, request: Request) -> Response:
        """Stream how a job goes on."""

        def make() -> Fragment:
            try:
                job = self._jobs.find(request.query_params.get("id", ""))
            except ConfigurationError as error:  # the dashboard was started again: a page that was left open says so
                return Fragment(self._renderer.text(request, "_gone.html.jinja", lead=str(error)), last=True)
            values = _shown(job)
            return Fragment(self._renderer.text(request, "_job.html.jinja", **values), last=not values["running"])

        return self._streams.answer(make, look=_JOB_PACE)

    async def stop_job(self, request: Request) -> Response:
        """Stop a job after its present batch."""
        self._access.permit()
        job = self._jobs.find((await _form(request)).get("id", ""))
        job.stop()
        facts.job_stopped(job=job.title, by=request.scope[USER])
        return _to_job(request, job)


def _to_job(request: Request, job: Job) -> Response:
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(f"{root}/{link('job', id=job.id)}", 303)


def _named(fields: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(_WORDS.get(name, name), shown(value, RESULT_MAX)) for name, value in fields.items() if name not in _HIDDEN]


def _shown(job: Job) -> dict[str, Any]:
    """Return what a page shows of a job. A page that says that it has ended shows its last state."""
    running = job.running  # read once, and before the rest: the job may end while this reads
    facts = [
        ("State", job.state),
        ("Messages", job.progress),
        ("By", job.by),
        ("Why", job.why),
        ("Since", moment(job.begun_at)),
        *_named(job.choice),
    ]
    return {
        "job": job,
        "running": running,
        "facts": facts,
        "result": outcomes.sentences(job.result) if job.result is not None else (),
    }


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. No form of this dashboard is large, or has files."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_MAX:
            raise TooMuch
    return dict(parse_qsl(body.decode(errors="replace")))
