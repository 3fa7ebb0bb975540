"""The one client of a process, made at its first use from Django's settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from django.db import connections

import lanelog
from lanelog._database import register_shared
from lanelog.client import Client
from lanelog.contrib.django.configuration import Configuration, configuration, url
from lanelog.contrib.django.connections import close_old_connections
from lanelog.errors import ConfigurationError


@frozen
class _Decorated:
    """A handler that waits for the client."""

    topic: str | Sequence[str]
    group: str
    options: dict[str, Any]
    handler: Any


class ProcessClient:
    """A `lanelog.Client` that is made when something of it is used first, which a decorated handler is not.

    So a module with handlers may be imported before a test has its database. Handlers that are subscribed or decorated
    with it have `close_old_connections` as their outermost middleware.
    """

    def __init__(self) -> None:
        self._decorated: list[_Decorated] = []
        self._client: Client | None = None
        self._url = ""
        self.abandon()
        register_shared(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made(), name)

    def abandon(self) -> None:
        """Forget, in a forked child, what the parent's threads hold. Its copy of the client serves there, too."""
        self._lock = threading.Lock()

    def subscriber(self, topic: str | Sequence[str], group: str, **options: Any) -> Callable[[Any], Any]:
        """See `Client.subscriber`. What is wrong with the arguments is raised when the client is made."""

        def register(handler: Any) -> Any:
            with self._lock:
                each = _Decorated(topic, group, _with_connections_closed(options), handler)
                self._decorated.append(each)
                if self._client is not None:
                    self._client.subscriber(each.topic, each.group, **each.options)(handler)
            return handler

        return register

    def subscribe(self, topic: str | Sequence[str], group: str, handler: Any, **options: Any) -> Any:
        """See `Client.subscribe`."""
        return self._made().subscribe(topic, group, handler, **_with_connections_closed(options))

    def close(self) -> None:
        """See `Client.close`. The next use makes another client."""
        with self._lock:
            closing, self._client = self._client, None
        if closing is not None:
            closing.close()

    def _made(self) -> Client:
        found = configuration()
        address = url(found.database)
        with self._lock:
            if self._client is None:
                self._url, self._client = address, self._make(found, address)
            elif self._url != address:
                raise ConfigurationError(
                    f"the client of this process was made for {self._url}, and the database is {address} by now: "
                    "close() it, and use it again"
                )
            return self._client

    def _make(self, found: Configuration, address: str) -> Client:
        options = dict(found.connect)
        if password := connections[found.database].settings_dict["PASSWORD"]:
            options.setdefault("password", password)
        made = lanelog.connect(address, **options)
        for each in self._decorated:
            made.subscriber(each.topic, each.group, **each.options)(each.handler)
        return made


def _with_connections_closed(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "middleware": (close_old_connections, *options.get("middleware", ()))}


client: Any = ProcessClient()
