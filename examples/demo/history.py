"""A repository's history as a stream of jobs. Their order within each lane is enough to rebuild HEAD.

Owns the walk from the root to HEAD along first parents. A merge is its difference to the first parent, so that a linear
list of changes leads to HEAD exactly. Never holds more than one part of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from attrs import frozen

from demo.git import Blobs, GitError, Repository, fields_of
from demo.job import Job, lane_of

# Each option fixes what a setting of the user could change. Renames are detected. Copies are not: they are additions.
LOG = (
    "-c",
    "log.showRoot=true",
    "log",
    "--first-parent",
    "--diff-merges=first-parent",
    "--topo-order",
    "--reverse",
    "--raw",
    "-z",
    "--no-abbrev",
    "--find-renames",
    "--ignore-submodules=none",
    "--no-color",
    "--no-show-signature",
    "--no-mailmap",
    "--encoding=UTF-8",
    "--format=>%H %an <%ae>",
)


@frozen(kw_only=True)
class Change:
    """What a commit did to a path. `mode` is empty for a deletion; `source` is None except for a rename."""

    commit: str
    author: str
    path: bytes
    mode: str
    oid: str
    source: bytes | None


def changes(repository: Repository) -> Iterator[Change]:
    """Yield every changed path of every commit, oldest first. Raises GitError."""
    commit = author = ""
    with repository.output(*LOG, repository.head, "--") as stream:
        fields = fields_of(stream)
        for field in fields:
            head = field.removeprefix(b"\n")
            if head.startswith(b">"):
                commit, _, author = head[1:].decode("utf-8", "backslashreplace").partition(" ")
            elif head.startswith(b":"):
                _, mode, _, oid, status = head[1:].decode("ascii").split(" ")
                source = next(fields) if status[0] == "R" else None
                yield Change(
                    commit=commit,
                    author=author,
                    path=next(fields),
                    mode="" if status == "D" else mode,
                    oid=oid,
                    source=source,
                )
            elif head:
                raise GitError(f"git log wrote what was not expected: {head[:80]!r}")


def split_by_lane(repo: str, change: Change) -> Iterator[Change]:
    """Split a rename between two lanes into a deletion in one and an addition in the other, which need no common order.

    Git pairs a rename from a path that the commit removes with a path that it adds, and no path is in two pairs. So the
    changes of one commit may be applied in any order.
    """
    if change.source is None or lane_of(repo, change.source) == lane_of(repo, change.path):
        yield change
        return
    yield Change(commit=change.commit, author=change.author, path=change.source, mode="", oid=change.oid, source=None)
    yield Change(
        commit=change.commit, author=change.author, path=change.path, mode=change.mode, oid=change.oid, source=None
    )


def jobs(repository: Repository) -> Iterator[Job]:
    """Yield the jobs of the whole history, with contents. Raises GitError."""
    repo = repository.label
    with repository.blobs() as blobs:
        for whole in changes(repository):
            for change in split_by_lane(repo, whole):
                yield from _parts(repo, change, blobs)


def _parts(repo: str, change: Change, blobs: Blobs) -> Iterator[Job]:
    contents = blobs.parts(change.mode, change.oid) if change.mode else iter([b""])
    for part, content in enumerate(contents):
        yield Job(
            repo=repo,
            commit=change.commit,
            author=change.author,
            path=change.path,
            mode=change.mode,
            source=change.source if part == 0 else None,
            part=part,
            content=content,
        )


def count_changes(repositories: Sequence[Repository], limit: int) -> int:
    """Return the number of changed paths, counted up to `limit`. Reads no contents."""
    return sum(1 for _ in islice((c for repository in repositories for c in changes(repository)), limit))
