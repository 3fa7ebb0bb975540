"""Flushing files and their names to the disk, so that they survive a power failure.

Never decides what must survive.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def flush_directory(directory: Path) -> None:
    """Make the names in a directory survive a power failure."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a new file, and make its content survive a power failure. `flush_directory` does that for its name."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_files(root: Path, paths: Iterable[str]) -> None:
    """Make files, and every directory from there up to `root`, survive a power failure."""
    directories = {root}
    for path in paths:
        with (root / path).open("rb") as file:
            os.fsync(file.fileno())
        directories.update(parent for parent in (root / path).parents if root in parent.parents)
    for directory in sorted(directories, key=lambda each: -len(each.parts)):
        flush_directory(directory)
