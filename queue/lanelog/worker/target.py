"""The client that a worker's processes serve."""

from __future__ import annotations

from lanelog._process import target as _target
from lanelog.client import Client
from lanelog.errors import ConfigurationError


def find(target: str) -> Client:
    """Import the module of `package.module:name`, and return its client.

    Raises:
        ConfigurationError: There is no such module, or what has this name is no client.
        Exception: What the module itself raises.
    """
    found = _target.find(target)
    if not isinstance(found, Client):
        raise ConfigurationError(f"{target} is a {type(found).__name__}, not a client that lanelog.connect() made")
    return found
