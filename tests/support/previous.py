"""The version of the library before this one, whose processes run beside this one's."""

import os
import subprocess
import sys
from pathlib import Path

from attrs import define, field

ROOT = Path(__file__).parents[2]


def _unpacked() -> Path:
    commit = (ROOT / ".ci/previous-commit").read_text().strip()
    path = ROOT / ".previous" / commit
    assert path.is_dir(), "the wheel of the version before is not there: run .ci/setup-previous"
    return path


@define
class Previous:
    """Its wheel, unpacked."""

    path: Path = field(factory=_unpacked)

    @property
    def environment(self) -> dict[str, str]:
        """In which a program finds it instead of this version."""
        return {"PYTHONPATH": str(self.path)}

    def lanelog(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Its command line."""
        return self._run("-m", "lanelog", *arguments)

    def script(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A few lines of an application."""
        return self._run("-c", code, *arguments)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )
