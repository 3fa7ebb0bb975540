"""The command `health`: a probe's question, for orchestrators that run a command, and for people.

Owns the exit status of the answer. Needs no database.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import click

from lanelog._base.text import shown
from lanelog.cli.command import options
from lanelog.cli.command.verbs import ALARM

_PATIENCE: Final = 5.0
"""Seconds until an answer must be there."""
_BOTH: Final = ("/livez", "/readyz")
_LONGEST: Final = 100_000
"""Bytes of an answer that are read."""


@options.command("health 127.0.0.1:8081/livez")
@click.argument("address", metavar="URL")
def health(*, address: str) -> None:
    """Ask a worker whether it lives and is ready: URL is what `--health` or `run(health=…)` said.

    http://127.0.0.1:8081/livez asks whether its loops run, …/readyz whether it can work; without a path, both are
    asked. Exit status: 0 yes; 1 no, with the reasons, or no answer.
    """
    parts = urlsplit(address if "//" in address else f"//{address}", scheme="http")
    if parts.scheme != "http" or not parts.netloc:
        raise click.UsageError(f"{address!r} is no URL: write http://127.0.0.1:8081/livez")
    reasons = [
        f"{path}: {reason}"
        for path in ((parts.path,) if parts.path.strip("/") else _BOTH)
        for reason in _asked(f"http://{parts.netloc}{path}")
    ]
    for reason in reasons:
        click.echo(reason, err=True)
    if reasons:
        raise SystemExit(ALARM)
    click.echo("ok")


def _asked(url: str) -> list[str]:
    """Return why the answer is no. Empty: it is yes."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))  # a probe goes to its worker, without any proxy of the environment
    try:
        with opener.open(url, timeout=_PATIENCE):
            return []
    except HTTPError as error:
        with error:
            text = error.read(_LONGEST).decode(errors="replace")
        return [shown(line, len(line)) for line in text.splitlines()] or [str(error)]
    except (OSError, HTTPException, ValueError) as error:
        return [f"no answer: {shown(str(getattr(error, 'reason', error)), _LONGEST)}"]
