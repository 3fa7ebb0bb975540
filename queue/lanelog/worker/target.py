"""The client that `package.module:name` names.

Owns the import of the application's module, and the words for what is wrong with the name.
"""

from __future__ import annotations

from importlib import import_module

from lanelog.client import Client
from lanelog.errors import ConfigurationError


def check_target(target: str) -> tuple[str, str]:
    """Return module and name. Raise ConfigurationError for another form. Imports nothing."""
    module, colon, name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ConfigurationError(f"{target!r} names no client: write package.module:client")
    return module, name


def find(target: str) -> Client:
    """Import the module, and return its client.

    Raises:
        ConfigurationError: There is no such module, or what has this name is no client.
        Exception: What the module itself raises.
    """
    module, path = check_target(target)
    try:
        found: object = import_module(module)
    except ModuleNotFoundError as exc:
        # The name that is missing may be one that the module itself imports. Then its own error says more.
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise
        raise ConfigurationError(
            f"there is no module {exc.name!r} in the current directory or the path of modules"
        ) from exc
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"module {module!r} has no {path!r}")
        found = getattr(found, name)
    if not isinstance(found, Client):
        raise ConfigurationError(f"{target} is a {type(found).__name__}, not a client that lanelog.connect() made")
    return found
