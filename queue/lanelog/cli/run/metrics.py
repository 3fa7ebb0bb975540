"""The command `metrics`: the metrics of the log, served to Prometheus.

Owns the address and the life of the server. `lanelog.metrics` has the metrics.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click

from lanelog._process.extras import install
from lanelog._process.probes import BoundedThreads, Punctual, host_and_port
from lanelog.cli.command import options
from lanelog.cli.command.verbs import Refused, announce, refuse_typed, until_ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.registry import Collector

_PATIENCE: Final = 3.0
"""Seconds after which a scrape says that the database cannot be reached."""
_ANSWER: Final = 8.0
"""The same for a database that does not answer a statement. Prometheus waits for 10 s by default."""


@options.command("metrics --listen 127.0.0.1:9464", "metrics --rules")
@click.option(
    "--listen",
    default="127.0.0.1:9464",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve them. They name topics and groups; everyone who reaches the address can read them.",
)
@click.option("--rules", is_flag=True, help="Print alert rules for Prometheus instead.")
@click.option(
    "--runbook", metavar="URL", help="With --rules: where your team reads this documentation's page operations/runbook."
)
@click.option("--dashboard", is_flag=True, help="Print a board for Grafana instead.")
@options.url
def metrics(*, listen: str, rules: bool, runbook: str | None, dashboard: bool, url: str | None) -> None:
    """Serve the metrics of the log to Prometheus, until Ctrl-C. A reader's account is enough.

    Lag and age by topic and group, stuck lanes, dead letters, delayed messages, the database.
    """
    _address("--listen", listen)
    check_installed()

    import lanelog
    from lanelog.metrics import LogCollector, alert_rules, board

    if rules and dashboard:
        raise click.UsageError("--rules or --dashboard, not both")
    if runbook is not None and not rules:
        raise click.UsageError("--runbook is for --rules")
    if rules or dashboard:
        refuse_typed("--listen", "is for serving: leave out --rules and --dashboard")
    if rules:
        click.echo(alert_rules() if runbook is None else alert_rules(runbook), nl=False)
        return
    if dashboard:
        click.echo(board(), nl=False)
        return

    with (
        lanelog.connect(url, publish_timeout=_PATIENCE, connect_timeout=_PATIENCE, read_timeout=_ANSWER) as client,
        serving_metrics("--listen", listen, LogCollector(client.admin)) as address,
        until_ended(),
    ):
        announce(client.config)
        click.echo(address)
        threading.Event().wait()


def check_installed() -> None:
    """Refuse where prometheus-client is missing."""
    if find_spec("prometheus_client") is None:
        raise Refused(f"metrics need prometheus-client: {install('metrics')}")


@contextmanager
def serving_metrics(option: str, listen: str, collector: Collector) -> Iterator[str]:
    """Serve a collector's metrics within the block. Gives their URL."""
    import prometheus_client

    host, port = _address(option, listen)
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    server_class = _Server6 if ":" in host else _Server
    try:
        server = make_server(host, port, prometheus_client.make_wsgi_app(registry), server_class, _Scrape)
    except OSError as exc:
        raise Refused(f"cannot listen at {listen}: {exc.strerror or exc}") from exc
    thread = threading.Thread(target=server.serve_forever, name="lanelog-metrics", daemon=True)
    thread.start()
    with server:
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


class _Server(BoundedThreads, WSGIServer):
    pass


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Scrape(Punctual, WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Log nothing: a scrape comes every few seconds."""


def _address(option: str, text: str) -> tuple[str, int]:
    """Return host and port. Port 0: any that is free."""
    found = host_and_port(text)
    if found is None:
        raise click.UsageError(f"{option} {text!r} is no HOST:PORT: write 127.0.0.1:9464")
    return found
