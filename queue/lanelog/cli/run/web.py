"""The command `web`: the dashboard, served to browsers.

Owns the address, the token, the function that masks payloads, and the life of the server. `lanelog.dashboard` has the
pages.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from lanelog._base.checks import check_arguments, check_callable
from lanelog._process.probes import host_and_port
from lanelog._process.target import find
from lanelog.cli.command import options
from lanelog.cli.command.verbs import Refused, announce, need, until_ended
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from lanelog.dashboard.payload import Mask

_PATIENCE: Final = 3.0
"""Seconds after which a page says that the database cannot be reached."""
_ANSWER: Final = 10.0
"""The same for a database that does not answer a statement."""
_TOKEN: Final = "LANELOG_WEB_TOKEN"  # noqa: S105 - the name of a variable, no secret


@options.command("web --listen 127.0.0.1:8080", "web --allow-actions")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Where to serve it.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A host name under which browsers reach it.")
@click.option("--token-file", metavar="FILE", help=f"The token that users must give; default: {_TOKEN}.")
@click.option("--proxy-header", metavar="NAME", help="The header in which a proxy names the user.")
@click.option("--trusted-proxy", "proxies", multiple=True, metavar="IP", help="The address of such a proxy.")
@click.option("--mask", metavar="MODULE:FUNCTION", help="What returns the bytes to show of a message's payload.")
@click.option("--allow-actions", is_flag=True, help="Let users change things, not only read.")
@options.url
def web(
    *, listen: str, hosts: tuple[str, ...], token_file: str | None, mask: str | None, url: str | None, **rules: Any
) -> None:
    """Serve the dashboard to browsers, until Ctrl-C. A reader's account is enough to read.

    An address beyond this machine needs a token, or a proxy that names the user.
    """
    address = host_and_port(listen)
    if address is None:
        raise click.UsageError(f"--listen {listen!r} is no HOST:PORT: write 127.0.0.1:8080")
    at, port = address
    need("web", "starlette", "jinja2", "uvicorn")
    import uvicorn

    import lanelog
    from lanelog.dashboard import Access, dashboard
    from lanelog.dashboard.access import LOOPBACK_HOSTS, is_loopback

    name = f"[{at}]" if ":" in at else at
    access = Access(hosts=(*LOOPBACK_HOSTS, name, *hosts), token=_token(token_file), **rules)
    if not (at == "localhost" or is_loopback(at)) and not access.authenticated:
        raise Refused(f"{listen} is reached from other machines: set {_TOKEN} or --token-file, or name a trusted proxy")
    masking = None if mask is None else _mask(mask)
    with lanelog.connect(url, publish_timeout=_PATIENCE, connect_timeout=_PATIENCE, read_timeout=_ANSWER) as client:
        # uvicorn must not log addresses, which hold keys, and must not believe a proxy about who asks.
        # At its end it waits no longer for streams of events: browsers would keep it for half a minute.
        config = uvicorn.Config(
            dashboard(client, access, mask=masking),
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        try:
            family = socket.AF_INET6 if ":" in at else socket.AF_INET
            listener = socket.create_server((at, port), family=family)
        except OSError as exc:
            raise Refused(f"cannot listen at {listen}: {exc.strerror or exc}") from exc
        with listener, until_ended():
            announce(client.config)
            click.echo(f"http://{name}:{listener.getsockname()[1]}/")
            rights = "users may act" if access.allow_actions else "read-only"
            who = "users must authenticate" if access.authenticated else "for this machine, without authentication"
            click.echo(f"{rights}; {who}", err=True)
            uvicorn.Server(config).run(sockets=[listener])


def _token(file: str | None) -> str | None:
    """Return the token. An empty file is refused: it would mean that no token is needed."""
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise Refused(f"cannot read {file}: {exc.strerror or exc}") from exc
    if not token:
        raise Refused(f"{file} holds no token")
    return token


def _mask(target: str) -> Mask:
    """Import the function that hides payloads. An error of its module itself is shown as it is."""
    sys.path.insert(0, str(Path.cwd()))  # `lanelog` alone would not search there; `python -m lanelog` does
    try:
        function = find(target, kind="function")
    except ConfigurationError as error:
        raise Refused(f"--mask: {error}") from error
    check_arguments(f"--mask {target}", check_callable(f"--mask {target}", function), "message")
    return cast("Mask", function)
