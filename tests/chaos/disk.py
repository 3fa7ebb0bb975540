"""A small disk for the data of a private server, which the nemesis can fill up.

Owns the file system, mounted where nobody but this process and its children sees it; it is gone with them. The runner
asks for it before anything is started; without the right to mount there is none, and no fault of this kind.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from attrs import define, field

from lanelog.devserver import DevServer

CLONE_NEWNS: Final = 0x0002_0000
MS_REC_PRIVATE: Final = 0x4000 | 0x40000
MEGABYTE: Final = 1024 * 1024
BLOCK: Final = 4096
FILLER: Final = "chaos-filler"


def isolate() -> str | None:
    """Give this process mounts of its own; what is in the way, or None. Only before it starts threads."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0:
        return "only root may mount"
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        return f"no mounts of our own: {os.strerror(ctypes.get_errno())}"
    return None


@define(eq=False)
class SmallDisk:
    """The file system under a server's data."""

    path: Path
    kind: str
    _fillers: list[Path] = field(factory=list, init=False)

    @classmethod
    def under(cls, server: DevServer, megabytes: int) -> SmallDisk | str:
        """Move a server's data to a disk of this size; the reason if it cannot be had. The server is restarted."""
        directory: Path | None = getattr(server, "directory", None)
        if directory is None:
            return "the server's files are not here"
        data, aside = directory / "data", directory / "aside"
        server.kill()
        data.rename(aside)
        data.mkdir()
        kind, reason = _mount(directory / "disk", data, megabytes)
        if kind is None:
            data.rmdir()
            aside.rename(data)
            server.restart()
            return reason
        subprocess.run(["cp", "-a", "--sparse=always", f"{aside}/.", str(data)], check=True)
        shutil.rmtree(aside)
        server.restart()
        return cls(data, kind)

    def fill(self) -> None:
        """Take every block that is free; call it again when the server has freed some."""
        size = 1024 * MEGABYTE
        while size >= BLOCK:
            path = self.path / f"{FILLER}-{len(self._fillers)}"
            self._fillers.append(path)
            try:
                with path.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2  # what was taken of it stays taken

    def free(self) -> None:
        """Give all of it back."""
        while self._fillers:
            self._fillers.pop().unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; the server has ended."""
        self.free()
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


def _mount(image: Path, where: Path, megabytes: int) -> tuple[str | None, str]:
    """Mount a real file system if loop devices are there, whose fsync takes its time; else one in memory."""
    with image.open("wb") as file:
        file.truncate(megabytes * MEGABYTE)
    if shutil.which("mkfs.ext4") and not _fails("mkfs.ext4", "-q", "-m", "0", str(image)):
        reason = _fails("mount", "-o", "loop", str(image), str(where))
        if not reason:
            shutil.rmtree(where / "lost+found", ignore_errors=True)
            return "ext4", ""
    image.unlink()
    reason = _fails("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(where))
    return (None, reason) if reason else ("tmpfs", "")


def _fails(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"{command[0]} failed")
