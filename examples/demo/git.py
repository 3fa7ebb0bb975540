"""A git repository as the demo reads it: directory, HEAD, and objects, through one process for each question.

Never writes to a repository. No setting of the user changes what it reads.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from attrs import define, evolve, field, frozen

from demo.job import PART_BYTES

GITLINK: Final = "160000"

_CHUNK = 64 * 1024


class GitError(Exception):
    """Git could not read what it was asked for."""


class NoHistory(GitError):
    """There is no git history to rebuild."""


def environment() -> dict[str, str]:
    """Return the environment without the variables that point git to another repository or replace objects."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


@frozen(kw_only=True)
class Repository:
    """One repository at the commit that is rebuilt.

    `label` distinguishes several repositories of one run. It is empty if there is one.
    """

    directory: Path
    name: str
    head: str
    label: str = ""

    @classmethod
    def find(cls, place: str | os.PathLike[str]) -> Repository:
        """Return the repository that contains `place`. Raises NoHistory."""
        directory = _ask(place, "rev-parse", "--absolute-git-dir")
        root = Path(_ask(place, "rev-parse", "--show-toplevel", missing="") or directory)
        try:
            head = _ask(place, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        except NoHistory as exc:
            raise NoHistory(f"no git history in {os.fspath(place)}: it has no commits") from exc
        return cls(directory=Path(directory), name=root.name.removesuffix(".git") or "repository", head=head)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a git process for this repository."""
        return ["git", f"--git-dir={self.directory}", *arguments]

    @contextmanager
    def output(self, *arguments: str) -> Iterator[IO[bytes]]:
        """Give the output of a git command while it is written. Raises GitError at the end if the command failed."""
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(  # noqa: S603 - git, with arguments of our own
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.directory,
                env=environment(),
            ) as process,
        ):
            assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
            try:
                yield process.stdout
            except BaseException:
                process.kill()  # the rest of its output is not read
                raise
            process.stdout.read()
            if process.wait():
                errors.seek(0)
                raise GitError(f"git {arguments[0]} failed in {self.directory}: {_first_line(errors.read())}")

    def blobs(self) -> Blobs:
        """Return a reader of objects."""
        return Blobs(self)


def find_all(places: list[str]) -> list[Repository]:
    """Return each repository once, with labels if there are several. Raises NoHistory."""
    found = {repository.directory: repository for repository in map(Repository.find, places)}
    repositories = list(found.values())
    if len(repositories) == 1:
        return repositories
    labels: set[str] = set()
    labelled = []
    for repository in repositories:
        label, number = repository.name, 1
        while label in labels:
            number += 1
            label = f"{repository.name}-{number}"
        labels.add(label)
        labelled.append(evolve(repository, label=label))
    return labelled


def fields_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the fields of an output that ends each of them with NUL."""
    rest = b""
    while chunk := stream.read(_CHUNK):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
    if rest:
        yield rest


@define(eq=False)
class Blobs:
    """One `git cat-file` process that answers one object after the other. A context manager."""

    repository: Repository
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _left: int = field(default=0, init=False)  # unread bytes of the last answer

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - git, with arguments of our own
            self.repository.command("cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.repository.directory,
            env=environment(),
        )
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def parts(self, mode: str, oid: str) -> Iterator[bytes]:
        """Yield the content of a tree's entry in parts of PART_BYTES, at least one. Raises GitError."""
        if mode == GITLINK:
            yield oid.encode()  # a submodule: the commit is in another repository, so only its id is known
            return
        size = self._ask(oid)
        yield self._take(min(size, PART_BYTES))
        while self._left > 1:  # the newline behind the content
            yield self._take(min(self._left - 1, PART_BYTES))

    def _ask(self, oid: str) -> int:
        process = self._process
        assert process is not None  # noqa: S101 - for mypy: entered
        assert process.stdin is not None  # noqa: S101 - for mypy: it is a pipe
        assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        while self._left:
            self._take(min(self._left, PART_BYTES))
        try:
            process.stdin.write(oid.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as exc:
            raise GitError(f"git cat-file ended in {self.repository.directory}") from exc
        answer = process.stdout.readline().split()
        if len(answer) != 3 or answer[1] != b"blob":  # noqa: PLR2004 - id, kind, size
            raise GitError(f"object {oid} cannot be read in {self.repository.directory}: {b' '.join(answer).decode()}")
        self._left = int(answer[2]) + 1
        return int(answer[2])

    def _take(self, size: int) -> bytes:
        assert self._process is not None  # noqa: S101 - for mypy: asked
        assert self._process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        taken = self._process.stdout.read(size)
        if len(taken) != size:
            raise GitError(f"git cat-file ended in {self.repository.directory}")
        self._left -= size
        return taken


def _ask(place: str | os.PathLike[str], *arguments: str, missing: str | None = None) -> str:
    """Return the one line that git answers. `missing`: returned instead of an error."""
    try:
        done = subprocess.run(  # noqa: S603 - git, with arguments of our own
            ["git", "-C", os.fspath(place), *arguments],  # noqa: S607 - the user's git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=environment(),
        )
    except OSError as exc:
        raise NoHistory(f"no git history in {os.fspath(place)}: git cannot be started ({exc.strerror})") from exc
    if done.returncode and missing is None:
        raise NoHistory(f"no git history in {os.fspath(place)}: {_first_line(done.stderr)}")
    if done.returncode:
        return missing or ""
    return os.fsdecode(done.stdout.removesuffix(b"\n"))


def _first_line(errors: bytes) -> str:
    lines = errors.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else "git said nothing"
