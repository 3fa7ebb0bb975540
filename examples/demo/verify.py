"""The judgement at the end: is every file as git has it, and was every job applied exactly once and in order?

Only reads: git's own tree of HEAD on one side, the tables on the other. Nothing that it compares comes from the
workers' own reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from attrs import frozen

from demo.git import Repository, fields_of
from demo.tables import Tables


@frozen(kw_only=True)
class Comparison:
    """A rebuilt tree, compared with git's own."""

    files: int
    bytes: int
    differences: tuple[str, ...]


@frozen(kw_only=True)
class Count:
    """Applied jobs, compared with the published ones."""

    missing: int
    twice: int
    out_of_order: int
    redeliveries: int


@frozen(kw_only=True)
class Entry:
    """A path of git's tree."""

    mode: str
    oid: str
    path: bytes


def tree(repository: Repository) -> Iterator[Entry]:
    """Yield every path of HEAD, with directories resolved. Raises GitError."""
    with repository.output("ls-tree", "-r", "-z", "--full-tree", repository.head) as stream:
        for line in fields_of(stream):
            head, _, path = line.partition(b"\t")
            mode, _, oid = head.decode("ascii").split(" ")
            yield Entry(mode=mode, oid=oid, path=path)


def compare(connection: Any, tables: Tables, repository: Repository) -> Comparison:
    """Compare path by path, mode by mode, byte by byte. Raises GitError."""
    differences = []
    seen = set()
    files = size = 0
    with repository.blobs() as blobs:
        for entry in tree(repository):
            seen.add(entry.path)
            rebuilt = tables.file(connection, repository.label, entry.path)
            modes = {mode for mode, _ in rebuilt}
            different = not rebuilt or modes != {entry.mode}
            for expected, part in zip_longest(blobs.parts(entry.mode, entry.oid), (content for _, content in rebuilt)):
                different |= expected != part
                size += len(expected or b"")
            files += 1
            if different:
                differences.append(f"{_shown(entry.path)}: {_what(entry, modes)}")
    differences += [
        f"{_shown(path)}: not in HEAD" for path in tables.paths(connection, repository.label) if path not in seen
    ]
    where = f"{repository.label}: " if repository.label else ""
    return Comparison(files=files, bytes=size, differences=tuple(where + text for text in differences))


def count(connection: Any, tables: Tables, published: Mapping[str, int]) -> Count:
    """Compare the applied jobs with the number of jobs published in each lane."""
    applied = tables.applied(connection)
    return Count(
        missing=sum(max(0, jobs - (applied[lane].jobs if lane in applied else 0)) for lane, jobs in published.items()),
        twice=sum(row.rows - row.jobs for row in applied.values()),
        out_of_order=tables.out_of_order(connection),
        redeliveries=sum(row.redeliveries for row in applied.values()),
    )


def _what(entry: Entry, modes: set[str]) -> str:
    if not modes:
        return "missing"
    if modes != {entry.mode}:
        return f"mode {', '.join(sorted(modes))} instead of {entry.mode}"
    return "content differs"


def _shown(path: bytes) -> str:
    return ascii(path.decode("utf-8", "backslashreplace"))
