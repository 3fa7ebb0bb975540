"""Clients whose loops turn more often, or less often, than they do for a user."""

import math
from typing import Any

from lanelog import Client
from lanelog._engine.engine import Engine, EnginePace
from lanelog._engine.fetching.heads import DigestPace

ALWAYS = DigestPace(most_share=math.inf, again_times=math.inf)
"""Looks ask for digests though lanes are few, where a digest costs as much as the look."""


def paced(client: Client, **pace: Any) -> Client:
    """Give a client an engine of this pace, before it needs one; for the parts see `EnginePace`."""
    assert client._engine is None, "its loops have been made"
    client._announcements.engine = Engine(
        client._database,
        client._appender,
        client._notices,
        EnginePace(**pace),
        meter=client._meter,
        read_endpoints=client._announcements.read_endpoints,
    )
    return client
