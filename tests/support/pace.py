"""Clients whose loops turn more often, or less often, than they do for a user."""

import math
from typing import Any

from attrs import evolve

from lanelog import Client
from lanelog._engine.engine import Engine, EnginePace
from lanelog._engine.fetching.heads import DigestPace

ALWAYS = DigestPace(most_share=math.inf, again_times=math.inf)
"""Looks ask for digests though lanes are few, where a digest costs as much as the look."""


def paced(client: Client, **pace: Any) -> Client:
    """Give a client an engine of this pace, before it needs one: of each part of `EnginePace`, its fields by name."""
    assert client._engine is None, "its loops have been made"
    client._announcements.engine = Engine(
        client._database,
        client._appender,
        client._notices,
        EnginePace(**{name: _part(name, given) for name, given in pace.items()}),
        meter=client._meter,
        read_endpoints=client._announcements.read_endpoints,
    )
    return client


def _part(name: str, given: Any) -> Any:
    return evolve(getattr(EnginePace(), name), **given) if isinstance(given, dict) else given
