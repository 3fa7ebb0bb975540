"""The one client of a process, made at its first use from Django's settings."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from django.db import connections

import lanelog
from lanelog._database import register_shared
from lanelog.client import Client
from lanelog.contrib.django.configuration import configuration, url
from lanelog.contrib.django.connections import close_old_connections


def _made() -> Client:
    found = configuration()
    options = dict(found.connect)
    if password := connections[found.database].settings_dict["PASSWORD"]:
        options.setdefault("password", password)
    return lanelog.connect(url(found.database), **options)


class ProcessClient:
    """A `lanelog.Client` that is made when something of it is used first.

    Handlers that are subscribed or decorated with it have `close_old_connections` as their outermost middleware.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        register_shared(self)

    def abandon(self) -> None:
        """Forget, in a forked child, what the parent's threads hold. Its copy of the client serves there, too."""
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made(), name)

    def subscriber(self, topic: str | Sequence[str], group: str, **options: Any) -> Any:
        """See `Client.subscriber`."""
        return self._made().subscriber(topic, group, **_with_connections_closed(options))

    def subscribe(self, topic: str | Sequence[str], group: str, handler: Any, **options: Any) -> Any:
        """See `Client.subscribe`."""
        return self._made().subscribe(topic, group, handler, **_with_connections_closed(options))

    def _made(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = _made()
            return self._client


def _with_connections_closed(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "middleware": (close_old_connections, *options.get("middleware", ()))}


client: Any = ProcessClient()
