"""The one middleware in front of every route: names, origins, users, and the headers of every answer.

Owns the refusal of requests that another site caused, that name another host, or that have no user. Never asks whether
a request may change something: `Access.permit` does.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lanelog.dashboard.access import Access

USER: Final = "lanelog.dashboard.user"
"""The key of the ASGI scope under which handlers find the user."""
_SAFE_METHODS: Final = ("GET", "HEAD")
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="lanelog", charset="UTF-8"'}

# Referrer-Policy must not be `no-referrer`: browsers then send `Origin: null` with forms.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@frozen
class Guard:
    """Lets a request through to the application, with its user in the scope, or refuses it."""

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. A WebSocket is refused: nothing here has one."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(_HEADERS)
                answer.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        user = self.access.user(scope, headers)
        if user is None:
            challenge = _CHALLENGE if self.access.token is not None else None
            await PlainTextResponse("who are you?\n", 401, challenge)(scope, receive, with_headers)
            return
        await self.app({**scope, USER: user}, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        """Return the answer to a request that must not come in, from any user."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in {each.lower() for each in self.access.hosts}:
            return PlainTextResponse("this dashboard has another host name\n", 421)
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if scope["method"] in _SAFE_METHODS:
            followed_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if site in (None, "same-origin", "none") or followed_link:
                return None
        # Every browser names the origin of a form, or the relation of the sites. A request without both is no form.
        elif (
            (site is not None or origin is not None)
            and site in (None, "same-origin")
            and (origin is None or origin.lower() in _origins(hosts[0]))
        ):
            return None
        return PlainTextResponse("this request comes from another site\n", 403)


def _origins(host: str) -> tuple[str, ...]:
    """Return what a browser names as the origin of pages of a host. Whether a proxy adds TLS is not known here."""
    return tuple(f"{scheme}://{host.lower()}" for scheme in ("http", "https"))


def _name(host: str) -> str:
    """Return a host without its port, in lower case."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()
