"""A git repository made commit by commit, and the command that starts the demo."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from demo.git import Repository

EXAMPLES = Path(__file__).parents[2] / "examples"
PATHS = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
DEMO = ["env", f"PYTHONPATH={PATHS}", sys.executable, "-P", "-m", "demo"]
"""As `make demo` starts it, from wherever."""
ENVIRONMENT = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class Maker:
    """An empty repository in a directory of the test, which is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Ann")
        self.git("config", "user.email", "ann@example.org")

    def git(self, *arguments: str | bytes) -> bytes:
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT).stdout

    def write(self, name: bytes, content: bytes, mode: int = 0o644) -> None:
        path = self.path / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)

    def commit(self, files: Mapping[bytes, bytes] = MappingProxyType({})) -> None:
        """Write these files, and commit everything that was changed."""
        for name, content in files.items():
            self.write(name, content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")

    def repository(self) -> Repository:
        return Repository.find(self.path)
