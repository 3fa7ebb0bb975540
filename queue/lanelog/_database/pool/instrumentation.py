"""The connection that user code gets, as the application's instrumentors would have made it.

OpenTelemetry's and ddtrace's instrumentors replace the driver's `connect` by a wrapper that adds a proxy to the
connection. Our own connections bypass it: an idle process would make dozens of empty traces a second. The
statements of user code belong in the trace of its handler or request, so the connection that it gets has the proxies.

Never imports an instrumentor, and never raises.
"""

from __future__ import annotations

import sys
from typing import Any

from lanelog._facts import database as facts


def instrumented(raw: Any) -> Any:
    """Return the connection with the proxies of the driver's instrumentors, or itself if there are none."""
    module = sys.modules.get("pymysql" if hasattr(raw, "_sock") else "MySQLdb")
    layers = []
    connect = getattr(module, "connect", None)
    while callable(wrapper := getattr(connect, "_self_wrapper", None)):  # wrapt's name in a function that it wraps
        layers.append(wrapper)
        connect = getattr(connect, "__wrapped__", None)
    made = raw
    try:
        for wrapper in reversed(layers):
            made = wrapper(_returns(made), None, (), {})
    except Exception:  # noqa: BLE001 - it is logged with its traceback
        facts.instrumentation_failed(exc_info=True)
        return raw
    return made


def _returns(made: Any) -> Any:
    return lambda *_, **__: made
