"""What `package.module:name` names on a command line.

Owns the form of such a name, the import of the application's module, and the words for what is wrong with either.
"""

from __future__ import annotations

from importlib import import_module

from lanelog.errors import ConfigurationError


def check_target(target: str, *, kind: str = "client") -> tuple[str, str]:
    """Return module and name. Raise ConfigurationError for another form. Imports nothing.

    `kind`: what it is to name, as the error says.
    """
    module, colon, name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ConfigurationError(f"{target!r} names no {kind}: write package.module:{kind}")
    return module, name


def find(target: str, *, kind: str = "client") -> object:
    """Import the module, and return what has this name in it.

    Raises:
        ConfigurationError: There is no such module, or nothing has this name.
        Exception: What the module itself raises.
    """
    module, path = check_target(target, kind=kind)
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
    return found
