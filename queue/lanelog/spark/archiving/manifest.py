"""The manifest of an archive: which files it is made of, and how far each lane is archived.

Owns the format, the atomic step from one version to the next, and the removal of files that no version names any more;
never reads or writes a data file, and talks to neither Spark nor a database. Called by the archive job and its readers.

A version is one file, `_manifest/0000000013.json.gz`, written beside, flushed to the disk and then linked to its name.
Linking refuses a name that is taken, so that of two writers who both go on from version 12 one alone makes version 13.
Old versions are removed, which frees their names: who is still at 12 when others have made 25 can link a 13 again.
So a writer looks whether its version is the highest, which is never removed; one that is not stands for nothing.
A version is never changed. A reader opens the highest and sees exactly its files, whatever is written meanwhile.

Data files lie in directories that are named after the version that will name them first, their writer and the attempt:
no directory is written twice. What is found in a directory of version 13 or lower, while 13 is the highest, and is not
named by it, was left by a writer that died: no later version can name it.

Dies before the link: a file without a name, removed by a later sweep. After it: the version stands, and so it does
when flushing its name fails; that writer goes on from the version before, and is told that its next one was made
already. Two at once: see above. The power fails: file and directory were flushed before, and data files are flushed by
the caller before that. What a writer that died has not flushed, the next one flushes before it relies on it.
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
from lanelog.spark.archiving.flush import flush_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

FORMAT: Final = "lanelog archive"
SCHEMA_VERSION: Final = 1
"""Of manifest and data files together; another one is refused."""

MESSAGES: Final = "messages"
OUTCOMES: Final = "outcomes"

DIRECTORY: Final = "_manifest"
VERSIONS_KEPT: Final = 10
"""Old versions that stay, for readers that have listed the directory and not opened a version yet."""

SMALL_BYTES: Final = 128 * 1024 * 1024
"""Files from this size on are never merged again."""
MERGED_AT_ONCE: Final = 8
"""So many files of one topic, date and size class are merged into one; size classes grow by this factor, so that a
byte is rewritten once per class and not once per merge."""

_NAME = re.compile(r"([0-9]{10})\.json\.gz")
_SEGMENT = re.compile(r"([0-9]{10})-[0-9a-f]+")
_GLOB = re.compile(r"[*?\[\]{}\\]")
_UNFINISHED = ".unfinished-"
_LOOKS = 5


@frozen(kw_only=True)
class DataFile:
    """One Parquet file; `path` is relative to the archive, times are epoch milliseconds of what it holds."""

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
    """A file that a merge has replaced, kept for readers of earlier versions; `at_ms`: when."""

    path: str
    at_ms: int


@frozen(kw_only=True)
class Manifest:
    """One version of an archive. Times are milliseconds.

    `lanes`: the highest offset archived, by topic and key; a key that is not there has none that may be in the log.
    """

    archive: str
    """Its identity: whoever makes an archive anew at the same path makes another one."""
    database: int
    """Which database it is the archive of: when the tables there were created."""
    group: str
    version: int = 0
    lanes: Mapping[str, Mapping[str, int]] = field(factory=dict, repr=False)
    outcomes: Mapping[str, int] = field(factory=dict, repr=False)
    """By topic: outcomes that finished before are archived."""
    files: tuple[DataFile, ...] = field(default=(), repr=False)
    retired: tuple[Retired, ...] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """Messages in the archive."""
        return sum(file.rows for file in self.files if file.table == MESSAGES)

    def archived(self, topic: str, key: str) -> int:
        """The highest offset of a lane that is archived; 0: none."""
        return self.lanes.get(topic, {}).get(key, 0)

    def chosen(
        self, table: str, topics: Iterable[str] | None = None, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[DataFile]:
        """Files of a table that may hold rows of these topics from `since_ms` to before `until_ms`."""
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
        """The next version, with these files of messages and with these lanes archived further."""
        merged = {topic: dict(keys) for topic, keys in self.lanes.items()}
        for topic, keys in lanes.items():
            known = merged.setdefault(topic, {})
            for key, through in keys.items():
                known[key] = max(through, known.get(key, 0))
        return evolve(self, version=self.version + 1, files=(*self.files, *files), lanes=merged)

    def with_outcomes(self, files: Iterable[DataFile], before: Mapping[str, int]) -> Manifest:
        """The next version, with these files of outcomes; of each topic those that finished before are archived."""
        merged = {**self.outcomes, **before}
        return evolve(self, version=self.version + 1, files=(*self.files, *files), outcomes=merged)

    def merged(self, old: Iterable[DataFile], new: Iterable[DataFile], at_ms: int) -> Manifest:
        """The next version, with `new` in the place of `old`, which holds the same rows."""
        gone = {file.path for file in old}
        return evolve(
            self,
            version=self.version + 1,
            files=(*(file for file in self.files if file.path not in gone), *new),
            retired=(*self.retired, *(Retired(path=path, at_ms=at_ms) for path in sorted(gone))),
        )

    def without_purged(self, there: Mapping[str, AbstractSet[str]]) -> Manifest:
        """The next version, that forgets lanes of the topics in `there` whose keys are not: what they held stays.

        Their messages are gone from the log, and a lane that comes back continues above them: nothing of it can be read
        a second time.
        """
        lanes = {
            topic: {key: through for key, through in keys.items() if topic not in there or key in there[topic]}
            for topic, keys in self.lanes.items()
        }
        return evolve(self, version=self.version + 1, lanes=lanes)

    def naming(self, topics: Iterable[str]) -> Manifest:
        """The same version, that names these topics: of those it did not name, nothing is archived."""
        return evolve(self, lanes={**{topic: {} for topic in topics}, **self.lanes})

    def small_files(self) -> list[list[DataFile]]:
        """Files to be merged, each list into one: `MERGED_AT_ONCE` or more of one topic, date and size class."""
        classes: dict[tuple[str, str, str, int], list[DataFile]] = {}
        for file in self.files:
            if file.bytes < SMALL_BYTES:
                size = (max(file.bytes, 1).bit_length() - 1) // (MERGED_AT_ONCE.bit_length() - 1)
                classes.setdefault((file.table, file.topic, file.date, size), []).append(file)
        return [files for files in classes.values() if len(files) >= MERGED_AT_ONCE]

    def next_segment(self, writer: str) -> str:
        """A new directory for files that the next version will name, written by `writer` (hexadecimal).

        Another one for each attempt: what failed may have failed when the version that names its files was made.
        """
        return f"{self.version + 1:010d}-{writer}{secrets.token_hex(4)}"


class Unsettled(OSError):
    """The disk failed when a version was given its name: it may stand, or appear yet."""


def new_manifest(*, database: int, group: str) -> Manifest:
    """The manifest of an archive that holds nothing yet."""
    return Manifest(archive=secrets.token_hex(16), database=database, group=group)


def local_path(path: str | os.PathLike[str]) -> Path:
    """The directory of an archive. Raises ConfigurationError for what is no path of a mounted file system.

    A version is made by a link that refuses a name that is taken. Object stores and HDFS are refused, because renaming
    there either is no single step or replaces what is there.
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


@frozen
class ManifestStore:
    """The versions of the archive at `root`."""

    root: Path

    def latest(self) -> Manifest | None:
        """The highest version; None: there is no archive. Raises ConfigurationError for one that cannot be read."""
        for _ in range(_LOOKS):
            versions = self._versions()
            if not versions:
                return None
            try:
                data = self._file(versions[-1]).read_bytes()
            except FileNotFoundError:  # so many versions were made since the directory was listed
                continue
            except OSError as exc:
                raise ConfigurationError(f"the manifest of {str(self.root)!r} cannot be read: {exc.strerror}") from exc
            return self._decoded(data)
        raise ConfigurationError(f"the manifest of {str(self.root)!r} changes faster than it can be read: try again")

    def required(self) -> Manifest:
        """The highest version; ConfigurationError where there is no archive."""
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
        """Make the directories, and see that a version can be made there. Raises ConfigurationError.

        Before anything is done about what `latest` has told: its name may not have been flushed by who made it.
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
            for each in above:  # where the archive's own directory, and what leads there, got its name
                with contextlib.suppress(PermissionError):  # it may be closed to us
                    flush_directory(each)
        except OSError as exc:
            raise ConfigurationError(f"{str(self.root)!r} cannot hold an archive: {exc.strerror}") from exc

    def _try_link(self, tried: Path) -> None:
        linked = tried.with_name(self._unfinished())
        try:
            os.link(tried, linked)
        except FileNotFoundError:  # swept: another job is at work here, which has made its versions by links
            return
        except OSError as exc:
            raise ConfigurationError(
                f"the file system of {str(self.root)!r} cannot hold an archive: it has no hard links ({exc.strerror})"
            ) from exc
        linked.unlink(missing_ok=True)

    def commit(self, manifest: Manifest) -> None:
        """Make a version that follows the highest one; LeaseLost if that was made already.

        Raises OSError where the disk fails, which is Unsettled where the version may stand: it must not be relied upon.
        """
        unfinished = self.root / DIRECTORY / self._unfinished()
        try:
            with unfinished.open("xb") as file:
                file.write(encoded(manifest))
                file.flush()
                os.fsync(file.fileno())
            self._name(unfinished, manifest.version)
        finally:
            with contextlib.suppress(OSError):  # left to a later sweep: what is known of the version counts
                unfinished.unlink()

    def _name(self, unfinished: Path, version: int) -> None:
        try:
            os.link(unfinished, self._file(version))
            ours = self.highest() == version  # or the name was free because others have gone far beyond it
            flush_directory(self.root / DIRECTORY)
        except (FileExistsError, FileNotFoundError):  # it is there, or whoever made it has swept ours
            ours = False
        except OSError as exc:
            raise Unsettled(str(exc)) from exc
        if not ours:
            raise LeaseLost(
                f"version {version} of the archive at {str(self.root)!r} was made already, by another job or by an "
                "attempt whose disk failed: one job at a time writes an archive; start it again"
            )

    def highest(self) -> int:
        """The highest version's number; 0: there is none."""
        return max(self._versions(), default=0)

    @staticmethod
    def _unfinished() -> str:
        return f"{_UNFINISHED}{secrets.token_hex(8)}"

    def sweep(self, manifest: Manifest, now_ms: int, grace_ms: int) -> Manifest:
        """Remove what `manifest`, the highest version, does not need: for its writer alone, right after its commit.

        That is: files retired longer ago than the grace, files left by writers that died, and versions before the last
        few. Returns the manifest without the retired files that are gone, for the next commit.
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
        """A segment directory goes with its last file; what Spark wrote beside the data is not missed."""
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
    """A version as it is stored."""
    fields: dict[str, Any] = {each.name: getattr(manifest, each.name) for each in attrs_fields(Manifest)}
    fields |= {which: [asdict(file) for file in fields[which]] for which in ("files", "retired")}
    fields = {"format": FORMAT, "schema": SCHEMA_VERSION, **fields}
    return gzip.compress(json.dumps(fields, separators=(",", ":")).encode(), compresslevel=1, mtime=0)
