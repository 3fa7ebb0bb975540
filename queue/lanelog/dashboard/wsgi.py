"""The dashboard for WSGI servers and applications: Flask, Django, gunicorn.

Owns the way from WSGI to the ASGI application, by a2wsgi. A WSGI server gives each stream of events a thread for as
long as the page is open, so pages reload themselves instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from a2wsgi import ASGIMiddleware
from attrs import define, field

from lanelog.client import Client
from lanelog.dashboard.access import Access
from lanelog.dashboard.app import assemble
from lanelog.dashboard.live import WebPace
from lanelog.dashboard.payload import Mask

Environ = dict[str, Any]
StartResponse = Callable[..., Any]


def dashboard(
    client: Client,
    access: Access | None = None,
    *,
    mask: Mask | None = None,
    pace: WebPace | None = None,
    environment: str | None = None,
) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    """Return the dashboard as a WSGI application, for a prefix of another one. Arguments as for `lanelog.dashboard`.

    Example:
        Below `/queue` of a Flask application::

            from werkzeug.middleware.dispatcher import DispatcherMiddleware

            app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/queue": dashboard(client)})
    """

    def made() -> Any:
        # Each names ASGI's types in its own way.
        site: Any = assemble(client, access, mask=mask, pace=pace, environment=environment, live=False)
        return ASGIMiddleware(site)

    return _WsgiDashboard(made)


@define(eq=False)
class _WsgiDashboard:
    """Makes its event loop in the process that serves: gunicorn forks after it has imported the application."""

    _make: Callable[[], Any]
    _made: tuple[int, Any] = field(init=False, default=(0, None))
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        with self._lock:
            if self._made[0] != os.getpid():
                self._made = (os.getpid(), self._make())
            application = self._made[1]
        # Without a port a2wsgi forgets the address, too, and users of this machine would be strangers.
        answer: Iterable[bytes] = application({"REMOTE_PORT": "0", **environ}, start_response)
        return answer
