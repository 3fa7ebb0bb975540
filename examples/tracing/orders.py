"""A web application that publishes an order, and the worker that bills it, in one trace.

The span of the request comes from a middleware of its own here. In production it is that of the package
opentelemetry-instrumentation-fastapi.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from opentelemetry import trace
from opentelemetry.trace import SpanKind, TracerProvider

import lanelog
from lanelog.tracing import Tracing


def connect(url: str, provider: TracerProvider | None = None) -> lanelog.Client:
    """Make a client whose messages carry the current trace, and whose publishes are spans of it."""
    return lanelog.connect(url, middleware=(Tracing(provider, publish_spans=True).publish,))


def application(client: lanelog.Client, provider: TracerProvider | None = None) -> FastAPI:
    """Make the application: each request has a span, and `POST /orders/{number}` publishes."""
    app = FastAPI()
    tracer = trace.get_tracer("orders", tracer_provider=provider)

    @app.middleware("http")
    async def traced(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        with tracer.start_as_current_span(f"{request.method} {request.url.path}", kind=SpanKind.SERVER):
            return await call_next(request)

    @app.post("/orders/{number}", status_code=202)
    def order(number: int) -> dict[str, str]:
        receipt = client.publish("orders", f"order-{number}", {"number": number})
        return {"id": receipt.id}

    return app


def work(
    client: lanelog.Client, bill: Callable[[lanelog.Message], object], provider: TracerProvider | None = None
) -> lanelog.Subscription:
    """Start the worker. `bill` runs in a span, and may start spans of its own."""
    return client.subscribe("orders", "billing", bill, retry=2, middleware=(Tracing(provider).handle,))
