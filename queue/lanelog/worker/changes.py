"""Whether the application's source has changed, for `--reload`.

Owns which files count: those that end in .py, below one directory. For development: it reads each of them every
half second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS: Final = {"node_modules", "site-packages", "__pycache__"}


@define(eq=False)
class Changes:
    """The files of a directory, as they were at the last poll."""

    _root: Path = field(factory=Path.cwd)
    _seen: dict[str, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._seen = dict(self._files())

    def poll(self) -> bool:
        """Return whether a file was written, added or removed since the last poll."""
        before, self._seen = self._seen, dict(self._files())
        return before != self._seen

    def _files(self) -> Iterator[tuple[str, int]]:
        """Yield each file with the time of its last change."""
        for folder, below, names in os.walk(self._root):
            below[:] = [
                name
                for name in below
                if not name.startswith(".")
                and name not in _OTHERS
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - as os.walk
            ]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - as os.walk
                    try:
                        yield path, os.stat(path).st_mtime_ns  # noqa: PTH116 - as os.walk
                    except OSError:  # it was removed in this moment
                        continue
