"""The manifest of an archive: which files it is made of, and how far each lane is archived.

Owns the format, the atomic step from one version to the next, and the removal of files that no version names any more.
Never reads or writes a data file. Talks to neither Spark nor a database.

A version is one file, `_manifest/0000000013.json.gz`. It is written under another name, flushed to the disk and then
linked to its own name. A link fails if the name exists. So if two writers continue from version 12, only one makes
version 13. Old versions are removed, and their names are free again: a writer that is still at 12 when others have made
25 can link a 13. So a writer checks whether its version is the highest, which is never removed. A version that is not
the highest when it is made does not count. A version is never changed: a reader opens the highest one and sees exactly
its files, whatever is written meanwhile.

Data files lie in directories that are named after the version that will name them, their writer and the attempt. So no
directory is written twice. A directory of version 13 or lower that version 13, the highest, does not name was left by a
writer that died: no later version can name it.

If the writer dies before the link, a later sweep removes the unlinked file. If it dies later, the version counts. It
also counts if flushing its name fails; that writer continues from the version before, and learns at its next commit
that this version exists. For two writers at once, see above. If the power fails, file and directory were flushed
before, and the caller flushed the data files before that. A version whose name was not flushed by a dead writer is
flushed by the next writer, before it relies on it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import secrets
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, evolve, field, frozen
from attrs import fields as attrs_fields

from lanelog.errors import ConfigurationError, LeaseLost
from lanelog.spark.archiving.flush import flush_directory, write_flushed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

FORMAT: Final = "lanelog archive"
SCHEMA_VERSION: Final = 1
"""The version of the format of manifest and data files. Another version is refused."""

MESSAGES: Final = "messages"
OUTCOMES: Final = "outcomes"

DIRECTORY: Final = "_manifest"
VERSIONS_KEPT: Final = 10
"""Old versions that stay, for readers that have listed the directory and not opened a version yet."""

SMALL_BYTES: Final = 128 * 1024 * 1024
"""Files of this size or more are not merged again."""
MERGED_AT_ONCE: Final = 8
"""The number of files of one topic, date and size class that are merged into one.

Size classes grow by this factor: a byte is then written again once for each class, and not once for each merge.
"""

_NAME = re.compile(r"([0-9]{10})\.json\.gz")
_SEGMENT = re.compile(r"([0-9]{10})-[0-9a-f]+")
_UNFINISHED = ".unfinished-"
_READS = 5


@frozen(kw_only=True)
class DataFile:
    """One Parquet file. `path` is relative to the archive. Times are epoch milliseconds of its first and last row."""

    table: str
    path: str
    topic: str
    date: str
    rows: int
    bytes: int
    first_ms: int
    last_ms: int


@frozen(kw_only=True)
class Retired:
    """A file that a merge has replaced. It is kept for readers of earlier versions; `at_ms`: replaced then."""

    path: str
    at_ms: int


@frozen(kw_only=True)
class Manifest:
    """One version of an archive. Times are milliseconds.

    `lanes`: the highest archived offset, by topic and key. Of a lane that is missing there, nothing is archived that
    the log may still hold.
    """

    archive: str
    """The archive's identity. An archive that is made anew at the same path has another one."""
    database: int
    """The archived database: when its tables were created."""
    group: str
    version: int = 0
    lanes: Mapping[str, Mapping[str, int]] = field(factory=dict, repr=False)
    outcomes: Mapping[str, int] = field(factory=dict, repr=False)
    """The time before which all finished outcomes are archived, by topic."""
    files: tuple[DataFile, ...] = field(default=(), repr=False)
    retired: tuple[Retired, ...] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """Messages in the archive."""
        return sum(file.rows for file in self.files if file.table == MESSAGES)

    def archived(self, topic: str, key: str) -> int:
        """Return the highest archived offset of a lane; 0: none."""
        return self.lanes.get(topic, {}).get(key, 0)

    def chosen(
        self, table: str, topics: Iterable[str] | None = None, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[DataFile]:
        """Return the files of a table that may hold rows of these topics, from `since_ms` to before `until_ms`."""
        wanted = None if topics is None else set(topics)
        return [
            file
            for file in self.files
            if file.table == table
            and (wanted is None or file.topic in wanted)
            and (since_ms is None or file.last_ms >= since_ms)
            and (until_ms is None or file.first_ms < until_ms)
        ]

    def extended(self, files: Iterable[DataFile], lanes: Mapping[str, Mapping[str, int]]) -> Manifest:
        """Return the next version, with these files of messages, and these lanes archived up to these offsets."""
        merged = {topic: dict(keys) for topic, keys in self.lanes.items()}
        for topic, keys in lanes.items():
            known = merged.setdefault(topic, {})
            for key, through in keys.items():
                known[key] = max(through, known.get(key, 0))
        return evolve(self, version=self.version + 1, files=(*self.files, *files), lanes=merged)

    def with_outcomes(self, files: Iterable[DataFile], before: Mapping[str, int]) -> Manifest:
        """Return the next version, with these files of outcomes.

        `before`, by topic: those that finished earlier are archived.
        """
        merged = {**self.outcomes, **before}
        return evolve(self, version=self.version + 1, files=(*self.files, *files), outcomes=merged)

    def merged(self, old: Iterable[DataFile], new: Iterable[DataFile], at_ms: int) -> Manifest:
        """Return the next version, with `new` instead of `old`; both hold the same rows."""
        gone = {file.path for file in old}
        return evolve(
            self,
            version=self.version + 1,
            files=(*(file for file in self.files if file.path not in gone), *new),
            retired=(*self.retired, *(Retired(path=path, at_ms=at_ms) for path in sorted(gone))),
        )

    def without_purged(self, there: Mapping[str, AbstractSet[str]]) -> Manifest:
        """Return the next version, which forgets lanes whose keys are not in `there`. Their archived messages stay.

        Topics that are not in `there` keep their lanes. The messages of a purged lane are gone from the log. If the
        lane comes back, its offsets continue above them. So no message can be read a second time.
        """
        lanes = {
            topic: {key: through for key, through in keys.items() if topic not in there or key in there[topic]}
            for topic, keys in self.lanes.items()
        }
        return evolve(self, version=self.version + 1, lanes=lanes)

    def naming(self, topics: Iterable[str]) -> Manifest:
        """Return the same version, which also names these topics.

        Of a topic that it did not name, nothing is archived.
        """
        return evolve(self, lanes={**{topic: {} for topic in topics}, **self.lanes})

    def small_files(self) -> list[list[DataFile]]:
        """Return lists of files to merge, each into one: `MERGED_AT_ONCE` or more of one topic, date and size class."""
        classes: dict[tuple[str, str, str, int], list[DataFile]] = {}
        for file in self.files:
            if file.bytes < SMALL_BYTES:
                size = (max(file.bytes, 1).bit_length() - 1) // (MERGED_AT_ONCE.bit_length() - 1)
                classes.setdefault((file.table, file.topic, file.date, size), []).append(file)
        return [files for files in classes.values() if len(files) >= MERGED_AT_ONCE]

    def next_segment(self, writer: str) -> str:
        """Return a new directory for files that the next version will name. `writer` is hexadecimal.

        Each attempt has another one: a failed attempt may have made the version that names its files.
        """
        return f"{self.version + 1:010d}-{writer}{secrets.token_hex(4)}"


class Unsettled(OSError):
    """The disk failed when a version got its name: the version may exist, or may still appear."""


def new_manifest(*, database: int, group: str) -> Manifest:
    """Return the manifest of an archive that holds nothing yet."""
    return Manifest(archive=secrets.token_hex(16), database=database, group=group)


@frozen
class ManifestStore:
    """The versions of the archive at `root`."""

    root: Path

    def latest(self) -> Manifest | None:
        """Return the highest version; None: there is no archive. Raises ConfigurationError if it cannot be read."""
        for _ in range(_READS):
            versions = self._versions()
            if not versions:
                return None
            try:
                data = self._file(versions[-1]).read_bytes()
            except FileNotFoundError:  # many versions were made since the directory was listed, and this one removed
                continue
            except OSError as exc:
                raise ConfigurationError(f"the manifest of {str(self.root)!r} cannot be read: {exc.strerror}") from exc
            return self._decoded(data)
        raise ConfigurationError(f"the manifest of {str(self.root)!r} changes faster than it can be read: try again")

    def required(self) -> Manifest:
        """Return the highest version. Raises ConfigurationError if there is no archive."""
        found = self.latest()
        if found is None:
            raise ConfigurationError(f"there is no archive at {str(self.root)!r}: `lanelog archive` makes one")
        return found

    def refuse_foreign(self) -> None:
        """Raise ConfigurationError if the directory is in use for something else, or cannot be made."""
        try:
            if self.root.exists() and not (self.root / DIRECTORY).is_dir() and any(self.root.iterdir()):
                raise ConfigurationError(
                    f"{str(self.root)!r} is not empty and holds no archive: give the archive a directory of its own"
                )
        except OSError as exc:
            raise ConfigurationError(f"{str(self.root)!r} cannot hold an archive: {exc.strerror}") from exc

    def prepare(self) -> None:
        """Make the directories, and test that a version can be made there. Raises ConfigurationError.

        Call it before relying on `latest`: its writer may not have flushed the version's name. This does.
        """
        directory = self.root / DIRECTORY
        tried = directory / self._unfinished()
        above = {self.root.parent, *(each.parent for each in self.root.parents if not each.exists())}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            tried.touch(exist_ok=False)
            try:
                self._try_link(tried)
            finally:
                tried.unlink(missing_ok=True)
            flush_directory(directory)
            flush_directory(self.root)
            for each in above:  # the directories that hold the names of the archive's own directory and of its parents
                with contextlib.suppress(PermissionError):  # we may not be allowed to open it
                    flush_directory(each)
        except OSError as exc:
            raise ConfigurationError(f"{str(self.root)!r} cannot hold an archive: {exc.strerror}") from exc

    def _try_link(self, tried: Path) -> None:
        linked = tried.with_name(self._unfinished())
        try:
            os.link(tried, linked)
        except FileNotFoundError:  # swept by another job at work here. It makes versions by links, so links work
            return
        except OSError as exc:
            raise ConfigurationError(
                f"the file system of {str(self.root)!r} cannot hold an archive: it has no hard links ({exc.strerror})"
            ) from exc
        linked.unlink(missing_ok=True)

    def commit(self, manifest: Manifest) -> None:
        """Make the version after the highest one. Raises LeaseLost if it exists already.

        Raises OSError if the disk fails, and Unsettled if the version may then exist: it must not be relied upon.
        """
        unfinished = self.root / DIRECTORY / self._unfinished()
        try:
            write_flushed(unfinished, encoded(manifest))
            self._name(unfinished, manifest.version)
        finally:
            with contextlib.suppress(OSError):  # a later sweep removes it; an error here must not hide the outcome
                unfinished.unlink()

    def _name(self, unfinished: Path, version: int) -> None:
        try:
            os.link(unfinished, self._file(version))
            ours = self.highest() == version  # False: the name was free because others have gone far beyond it
            flush_directory(self.root / DIRECTORY)
        except (FileExistsError, FileNotFoundError):  # the version exists, or its writer has swept our file
            ours = False
        except OSError as exc:
            raise Unsettled(str(exc)) from exc
        if not ours:
            raise LeaseLost(
                f"version {version} of the archive at {str(self.root)!r} was made already, by another job or by an "
                "attempt whose disk failed: one job at a time writes an archive; start it again"
            )

    def highest(self) -> int:
        """Return the number of the highest version; 0: there is none."""
        return max(self._versions(), default=0)

    @staticmethod
    def _unfinished() -> str:
        return f"{_UNFINISHED}{secrets.token_hex(8)}"

    def sweep(self, manifest: Manifest, now_ms: int, grace_ms: int) -> Manifest:
        """Remove files that `manifest`, the highest version, does not need.

        Only its writer calls this, right after its commit.

        These are files retired longer ago than the grace, files left by dead writers, and versions before the last few.
        Returns the manifest without the retired files that were removed, for the next commit.
        """
        kept = tuple(each for each in manifest.retired if now_ms - each.at_ms < grace_ms)
        for each in set(manifest.retired).difference(kept):
            (self.root / each.path).unlink(missing_ok=True)
            self._remove_empty((self.root / each.path).parent)
        self._sweep_segments(manifest)
        for version in self._versions()[:-VERSIONS_KEPT]:
            self._file(version).unlink(missing_ok=True)
        for left in (self.root / DIRECTORY).glob(f"{_UNFINISHED}*"):
            left.unlink(missing_ok=True)
        return evolve(manifest, retired=kept)

    def _sweep_segments(self, manifest: Manifest) -> None:
        paths = (*(file.path for file in manifest.files), *(file.path for file in manifest.retired))
        named = {"/".join(Path(path).parts[:2]) for path in paths}
        for table in (MESSAGES, OUTCOMES):
            for directory in self._listed(self.root / table):
                found = _SEGMENT.fullmatch(directory)
                if found and int(found[1]) <= manifest.version and f"{table}/{directory}" not in named:
                    shutil.rmtree(self.root / table / directory, ignore_errors=True)

    def _remove_empty(self, directory: Path) -> None:
        """Remove a segment directory after its last file. The other files that Spark wrote there are not needed."""
        while directory.parent not in (self.root, directory):
            if any(not name.startswith((".", "_")) for name in self._listed(directory)):
                return
            shutil.rmtree(directory, ignore_errors=True)
            directory = directory.parent

    def _versions(self) -> list[int]:
        return sorted(int(found[1]) for name in self._listed(self.root / DIRECTORY) if (found := _NAME.fullmatch(name)))

    def _file(self, version: int) -> Path:
        return self.root / DIRECTORY / f"{version:010d}.json.gz"

    @staticmethod
    def _listed(directory: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _decoded(self, data: bytes) -> Manifest:
        where = f"the archive at {str(self.root)!r}"
        try:
            fields: dict[str, Any] = json.loads(gzip.decompress(data))
            if fields.pop("format") != FORMAT:
                raise ConfigurationError(f"{where} has a manifest of something else")
            if (schema := fields.pop("schema")) != SCHEMA_VERSION:
                raise ConfigurationError(
                    f"{where} is of schema version {schema}, this lanelog reads {SCHEMA_VERSION}: "
                    "use the lanelog that wrote it"
                )
            fields["files"] = tuple(DataFile(**file) for file in fields["files"])
            fields["retired"] = tuple(Retired(**file) for file in fields["retired"])
            return Manifest(**fields)
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as exc:
            raise ConfigurationError(f"{where} has a damaged manifest ({type(exc).__name__}): restore it") from exc


def encoded(manifest: Manifest) -> bytes:
    """Return a version as it is stored."""
    fields: dict[str, Any] = {each.name: getattr(manifest, each.name) for each in attrs_fields(Manifest)}
    fields |= {which: [asdict(file) for file in fields[which]] for which in ("files", "retired")}
    fields = {"format": FORMAT, "schema": SCHEMA_VERSION, **fields}
    return gzip.compress(json.dumps(fields, separators=(",", ":")).encode(), compresslevel=1, mtime=0)
