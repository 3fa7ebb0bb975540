"""What open pages receive: server-sent events, each a piece of the page.

Owns their form and pace. Renders nothing by itself. A stream ends after half a minute, and the browser asks again: so
the server can be stopped, and a user who may not read any more sees nothing new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Final

from anyio import CapacityLimiter, to_thread
from attrs import define, field, frozen
from starlette.responses import StreamingResponse

from lanelog.errors import ConfigurationError

RETRY: Final = 1.0
"""Seconds after which a browser asks again."""
SAMPLE_MAX: Final = 60.0
"""Seconds between samples at the most: charts take three minutes without one for a gap."""
AT_ONCE: Final = 4
"""Streams that poll at the same time. While the database is unavailable, each keeps a thread for as long as its
time-out; the threads of the application that mounts the dashboard are not theirs to take."""


@frozen(kw_only=True)
class WebPace:
    """How often things happen, in seconds.

    Args:
        sample: Between two samples for the charts.
        look: Between two polls of an open page. All pages share the read of the log.
        stream: The life of one stream of events.
    """

    sample: float = 15.0
    look: float = 5.0
    stream: float = 30.0

    def __attrs_post_init__(self) -> None:
        if not 0 < self.sample <= SAMPLE_MAX:
            raise ConfigurationError(f"sample must be above 0 and at most {SAMPLE_MAX:g} seconds, not {self.sample!r}")
        if self.look <= 0 or self.stream < 0:
            raise ConfigurationError("look must be above 0 seconds, and stream 0 or more")


@frozen
class Fragment:
    """A piece of a page."""

    html: str
    last: bool = False
    """Whether nothing follows: the page needs no stream any more."""


@define(eq=False)
class Streams:
    """All streams of one dashboard."""

    _pace: WebPace
    _limiter: CapacityLimiter = field(init=False, factory=lambda: CapacityLimiter(AT_ONCE))

    def answer(self, make: Callable[[], Fragment], *, look: float | None = None) -> StreamingResponse:
        """Return the answer that sends a page what has changed, until its life is over.

        Args:
            make: Returns the piece of the page. It may wait: it runs in a thread.
            look: Seconds between two calls of it, if that is less than usual.
        """
        every = self._pace.look if look is None else min(look, self._pace.look)
        # nginx would hold events back
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(make, every), media_type="text/event-stream", headers=headers)

    async def _events(self, make: Callable[[], Fragment], every: float) -> AsyncIterator[bytes]:
        until = monotonic() + self._pace.stream
        sent = ""
        yield f"retry: {RETRY * 1000:.0f}\n\n".encode()
        while True:
            fragment = await to_thread.run_sync(make, limiter=self._limiter)
            # Without an event for a while, a browser that has gone would not be noticed: a comment is sent.
            yield _event("message", fragment.html) if fragment.html != sent else b": still here\n\n"
            if fragment.last:
                yield _event("end", "")
            sent = fragment.html
            if fragment.last or monotonic() + every > until:
                return
            await asyncio.sleep(every)


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines()) or "data:\n"
    return f"event: {name}\n{lines}\n".encode()
