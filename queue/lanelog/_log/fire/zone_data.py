"""The version of the time zone data that zoneinfo reads in this process.

Owns where the version is found. It only names the difference between two processes. Nothing is decided by it alone, as
it is often unknown.
"""

from __future__ import annotations

import importlib
import re
import zoneinfo
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

UNKNOWN: Final = "unknown"
"""How a version that is not known is logged."""

_VERSION: Final = re.compile(r"\b(\d{4}[a-z]{1,2})\b")
_FILES: Final = ("+VERSION", "tzdata.zi")
"""Files in a directory of zones whose first line has the version: of the BSDs, and of most Linux systems."""


@cache
def version(zone: str) -> str:
    """Return the version of the data of a zone, such as `2026a`. Empty: not known.

    It is read once, as zoneinfo reads a zone once.
    """
    with suppress(OSError, ValueError):
        for directory in map(Path, zoneinfo.TZPATH):
            if directory.joinpath(zone).is_file():
                return _of_directory(directory)
        return str(importlib.import_module("tzdata").IANA_VERSION)
    return ""


def is_older(one: str, other: str) -> bool:
    """Whether both versions are known, and the first is older."""
    return bool(one and other) and one < other


def _of_directory(directory: Path) -> str:
    for name in _FILES:
        with suppress(OSError), directory.joinpath(name).open(encoding="ascii", errors="replace") as file:
            found = _VERSION.search(file.readline(80))
            if found:
                return found[1]
    return ""
