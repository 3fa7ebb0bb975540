"""What the extras of this package need, as a command that installs it.

Owns that command, made of the package's own metadata. Never installs or imports anything.
"""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires

# One requirement of the metadata: `click>=8.1; extra == 'cli'`.
_OF_EXTRA = re.compile(r"^(?P<needed>[^;]+?) *; *extra *== *['\"](?P<extra>[\w-]+)['\"]$")


def install(extra: str) -> str:
    """Return the pip command that installs what an extra needs.

    It does not name lanelog: pip would search an index for that, where it need not be this package.
    """
    try:
        lines = requires("lanelog") or []
    except PackageNotFoundError:  # a source tree in PYTHONPATH, nothing is installed
        lines = []
    found = [match["needed"] for line in lines if (match := _OF_EXTRA.match(line)) and match["extra"] == extra]
    return shlex.join(["pip", "install", *found]) if found else f"install the packages of lanelog's extra {extra!r}"
