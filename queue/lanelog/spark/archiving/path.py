"""Where an archive may lie: the path that a user gives becomes a directory of a mounted file system.

Owns the refusal of other paths. Never checks whether anything is there (`manifest` does).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lanelog.errors import ConfigurationError

_GLOB = re.compile(r"[*?\[\]{}\\]")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the directory of an archive. Raises ConfigurationError for a path that is not on a mounted file system.

    Making a version needs a link that fails if the name exists. Object stores and HDFS are refused: there, renaming is
    either not one step, or replaces an existing file.
    """
    text = os.fspath(path)
    if text.startswith("file:"):
        text = re.sub(r"^file:(//)?(?=/)", "", text)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) or not text.isprintable() or not text:
        raise ConfigurationError(
            f"an archive lies in a directory of a mounted file system that driver and executors share: {text!r} is none"
        )
    found = Path(text).absolute()
    if _GLOB.search(str(found)):
        raise ConfigurationError(f"{str(found)!r} holds characters that Spark takes for a pattern: choose another path")
    return found
