"""What pages are told while somebody looks at them: server-sent events, each a piece of the page.

Owns their form and pace. Renders nothing by itself. A stream ends after half a minute, and the browser asks again: so
the server can be stopped, and a user who may not look any more sees nothing new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic

from attrs import frozen
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

RETRY: float = 1.0
"""Seconds after which a browser asks again."""


@frozen(kw_only=True)
class WebPace:
    """How often things happen, in seconds.

    Args:
        sample: Between two samples for the charts.
        look: Between two looks for a page that somebody watches. All pages share the look at the log.
        stream: The life of one stream of events.
    """

    sample: float = 15.0
    look: float = 5.0
    stream: float = 30.0


@frozen
class Fragment:
    """A piece of a page."""

    html: str
    last: bool = False
    """Whether nothing follows: the page needs no stream any more."""


def stream(make: Callable[[], Fragment], pace: WebPace) -> StreamingResponse:
    """Return the answer that tells a page what has changed, until its life is over."""
    return StreamingResponse(
        _events(make, pace), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )  # nginx would hold events back


async def _events(make: Callable[[], Fragment], pace: WebPace) -> AsyncIterator[bytes]:
    until = monotonic() + pace.stream
    told = ""
    yield f"retry: {RETRY * 1000:.0f}\n\n".encode()
    while True:
        fragment = await run_in_threadpool(make)
        # Without an event for a while, a browser that has gone would not be noticed: a comment is told.
        yield _event("message", fragment.html) if fragment.html != told else b": still here\n\n"
        if fragment.last:
            yield _event("end", "")
        told = fragment.html
        if fragment.last or monotonic() + pace.look > until:
            return
        await asyncio.sleep(pace.look)


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines()) or "data:\n"
    return f"event: {name}\n{lines}\n".encode()
