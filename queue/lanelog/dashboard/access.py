"""Who may use the dashboard, under which names, and whether they may change anything.

Owns these rules, the check of credentials, and the one door to every change: `Access.permit`. Never sees a database,
and answers no request: `guard` and `rendering` do.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import field, frozen

from lanelog._base.checks import check_callable
from lanelog.errors import ConfigurationError, LanelogError

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
"""The names under which a browser reaches a server of its own machine."""
TOKEN_MIN: Final = 16
"""The fewest characters of a token: shorter ones can be guessed."""
_LOCAL_USER: Final = "local"
_TOKEN_USER: Final = "token"  # noqa: S105 - the name of a user, no secret


class NotAllowed(LanelogError):
    """Users of this dashboard may read, and change nothing."""


@frozen(kw_only=True)
class Access:
    """Rules of access. Without a token, a proxy or `identify`, only this machine is served.

    Args:
        hosts: The host names that requests may name, without port. Others are refused: a name that somebody else
            points to this machine must not reach it.
        token: The password of HTTP Basic authentication, under any user name, or the token of `Authorization: Bearer`.
            At least 16 characters.
        proxy_header: The request header in which a proxy names the user that it authenticated.
        proxies: Addresses of these proxies. The header counts in requests from them only.
        identify: Returns the user of a request, given its ASGI scope, or None to refuse it. For an application that
            mounts the dashboard and has a log-in of its own. A plain function: no request is answered while it waits.
        allow_actions: Whether users may change anything. False: they only read.
    """

    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    token: str | None = field(default=None, repr=False)
    proxy_header: str | None = None
    proxies: tuple[str, ...] = ()
    identify: Callable[[Mapping[str, Any]], str | None] | None = None
    allow_actions: bool = False

    def __attrs_post_init__(self) -> None:
        if self.identify is not None:
            check_callable("identify", self.identify)
        if self.token is not None and (len(self.token) < TOKEN_MIN or not self.token.isascii()):
            raise ConfigurationError(f"the dashboard's token must have at least {TOKEN_MIN} ASCII characters")
        if bool(self.proxy_header) != bool(self.proxies):
            raise ConfigurationError("proxy_header and proxies belong together: name both or none")
        for each in self.proxies:
            try:
                ipaddress.ip_address(each)
            except ValueError:
                raise ConfigurationError(f"proxies must be IP addresses, not {each!r}") from None

    @property
    def authenticated(self) -> bool:
        """Whether a user must say who they are."""
        return self.token is not None or self.proxy_header is not None or self.identify is not None

    def permit(self) -> None:
        """Refuse a request that would change something, or show such a change, where users may only read."""
        if not self.allow_actions:
            raise NotAllowed("This dashboard was started without --allow-actions.")

    def user(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
        """Return the user of a request. None: it is refused."""
        address = scope["client"][0] if scope.get("client") else ""
        if not self.authenticated:
            return _LOCAL_USER if is_loopback(address) else None
        identified: object = None if self.identify is None else self.identify(scope)
        if identified:
            return identified if isinstance(identified, str) else None  # `True` names nobody
        if self.proxy_header is not None and address in self.proxies and (name := headers.get(self.proxy_header)):
            return name
        return None if self.token is None else _holder(headers.get("authorization", ""), self.token)


def is_loopback(address: str) -> bool:
    """Return whether an IP address is one of this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _holder(authorization: str, token: str) -> str | None:
    """Return the name under which a request presents the token. The comparison takes the same time for each guess."""
    scheme, _, given = authorization.partition(" ")
    name, secret = "", given.strip()
    if scheme.lower() == "basic":
        try:
            name, _, secret = base64.b64decode(secret, validate=True).decode().partition(":")
        except ValueError:  # not ASCII, no base64, or no UTF-8
            return None
    elif scheme.lower() != "bearer":
        return None
    return (name or _TOKEN_USER) if hmac.compare_digest(secret.encode(), token.encode()) else None
