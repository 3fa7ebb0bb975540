"""The settings: `LANELOG`, and what `DATABASES` says of its database. Connects nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote, urlencode

from attrs import field, frozen
from django.conf import settings
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections

from lanelog.errors import ConfigurationError

_NOT_TAKEN: Final = frozenset({"read_default_file", "read_default_group", "unix_socket", "ssl_mode", "ssl_disabled"})
"""Options of drivers that say how to connect, and that are not part of a URL."""
_NAMES: Final = ("database", "jobs", "connect")


@frozen(kw_only=True)
class Configuration:
    """What `LANELOG` says."""

    database: str = DEFAULT_DB_ALIAS
    """The alias in `DATABASES` of the database that has lanelog's tables."""
    jobs: str = "jobs"
    """The name of the modules of applications that have handlers."""
    connect: Mapping[str, Any] = field(factory=dict)
    """Options of `lanelog.connect`."""


def configuration() -> Configuration:
    """Return the settings. Raises ConfigurationError if they are not valid."""
    found = getattr(settings, "LANELOG", {})
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"LANELOG must be a dict, not {type(found).__name__}")
    for name in found:
        if name not in _NAMES:
            near = get_close_matches(str(name), _NAMES, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_NAMES)}"
            raise ConfigurationError(f"LANELOG has no setting {name!r}: {meant}")
    made = Configuration(**found)
    if made.database not in connections:
        raise ConfigurationError(f"LANELOG names the database {made.database!r}, which is not in DATABASES")
    if connections[made.database].vendor != "mysql":
        raise ConfigurationError(
            f"LANELOG names the database {made.database!r}, which is one of {connections[made.database].vendor}: "
            "lanelog works in MySQL and MariaDB"
        )
    return made


def url(alias: str) -> str:
    """Return the URL of a database, without its password. In a test it is that of the test's database."""
    found = connections[alias].settings_dict
    host, more = found["HOST"] or "localhost", {}
    if host.startswith("/"):
        host, more = "localhost", {"unix_socket": host}
    tls = found["OPTIONS"].get("ssl")
    if isinstance(tls, Mapping):
        more |= {f"ssl_{name}": str(value) for name, value in tls.items() if name in ("ca", "cert", "key")}
    port = f":{found['PORT']}" if found["PORT"] else ""
    address = f"{quote(found['USER'], safe='')}@{host}{port}/{quote(str(found['NAME']), safe='')}"
    return f"mysql://{address}{'?' if more else ''}{urlencode(more)}"


def check(app_configs: Sequence[Any] | None, **_: object) -> list[checks.CheckMessage]:
    """Return what is wrong with the settings, as a system check."""
    del app_configs
    try:
        alias = configuration().database
    except ConfigurationError as error:
        return [checks.Error(str(error), id="lanelog.E001")]
    found = connections[alias].settings_dict
    if left := _NOT_TAKEN.intersection(found["OPTIONS"]):
        return [
            checks.Warning(
                f"lanelog connects to {alias!r} without {', '.join(sorted(left))} of its OPTIONS",
                hint="Give what it needs to LANELOG['connect'], or set HOST, USER and PASSWORD.",
                id="lanelog.W002",
            )
        ]
    if found["CONN_MAX_AGE"] != 0 and not found["CONN_HEALTH_CHECKS"]:
        return [
            checks.Warning(
                f"connections of {alias!r} are kept and not checked before their use",
                hint="Set CONN_HEALTH_CHECKS: without it one attempt fails for each connection that the server ended.",
                id="lanelog.W001",
            )
        ]
    return []
