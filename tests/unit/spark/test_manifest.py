"""The manifest of an archive: versions that follow each other, and what is removed behind them."""

import errno
import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from lanelog.errors import ConfigurationError, LeaseLost
from lanelog.spark.archiving import manifest as _manifest
from lanelog.spark.archiving.manifest import (
    MERGED_AT_ONCE,
    MESSAGES,
    OUTCOMES,
    SMALL_BYTES,
    VERSIONS_KEPT,
    DataFile,
    Manifest,
    ManifestStore,
    Unsettled,
    encoded,
    new_manifest,
)
from lanelog.spark.archiving.path import local_path


def data_file(path: str, **fields: object) -> DataFile:
    known = {"table": MESSAGES, "topic": "t", "date": "2026-01-31", "rows": 1, "bytes": 10, "first_ms": 5, "last_ms": 9}
    return DataFile(path=path, **{**known, **fields})  # type: ignore[arg-type]


def written(store: ManifestStore, manifest: Manifest, name: str = "a.parquet", **fields: object) -> DataFile:
    """A file of the next version, with something in it."""
    path = f"messages/{manifest.next_segment('ab12')}/by_topic=t/by_date=2026-01-31/{name}"
    (store.root / path).parent.mkdir(parents=True, exist_ok=True)
    (store.root / path).write_bytes(b"rows")
    return data_file(path, **fields)


def committed(store: ManifestStore, manifest: Manifest) -> Manifest:
    store.commit(manifest)
    return manifest


def names(store: ManifestStore) -> list[str]:
    """What the directory of versions holds."""
    return sorted(path.name for path in (store.root / "_manifest").iterdir())


def raises(number: int) -> Callable[..., None]:
    """A call of the system that fails with this error."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def store(tmp_path: Path) -> ManifestStore:
    store = ManifestStore(tmp_path / "archive")
    store.prepare()
    return store


@pytest.fixture
def first(store: ManifestStore) -> Manifest:
    return committed(store, evolve(new_manifest(database=7, group="_archive"), version=1))


def test_what_is_committed_is_read(store: ManifestStore, first: Manifest) -> None:
    """Files, lanes with unusual keys, outcomes and retired files come back as they were; the highest version counts."""
    assert store.latest() == first
    second = committed(store, first.extended([written(store, first)], {"t": {"schlüssel 🔑": 3, "k": 1}}))
    third = committed(store, second.with_outcomes([data_file("outcomes/x/y", table=OUTCOMES)], {"t": 99}))
    fourth = committed(store, third.merged([second.files[0]], [data_file("messages/z")], at_ms=5))
    assert (store.latest(), fourth.archived("t", "schlüssel 🔑")) == (fourth, 3)
    assert fourth.archived("t", "unknown") == fourth.archived("unknown", "k") == 0
    assert fourth.rows == 1
    assert [file.path for file in fourth.retired] == [second.files[0].path]


def test_a_lane_never_goes_back(first: Manifest) -> None:
    """A later version holds at least what an earlier one did, key by key; purged lanes are forgotten, topics stay."""
    manifest = first.extended([], {"t": {"a": 5, "b": 2}}).extended([], {"t": {"a": 3, "b": 4}, "u": {"a": 1}})
    assert (manifest.lanes, manifest.version) == ({"t": {"a": 5, "b": 4}, "u": {"a": 1}}, 3)
    pruned = manifest.naming(["t", "v"]).without_purged({"t": {"b", "new"}, "v": set()})  # u was not given
    assert (pruned.lanes, pruned.version) == ({"t": {"b": 4}, "u": {"a": 1}, "v": {}}, 4)


def test_a_version_is_made_once(store: ManifestStore, first: Manifest) -> None:
    """Of many writers that go on from the same version one makes the next; the others fail, and leave nothing."""
    versions = [first.extended([], {"t": {"k": n}}) for n in range(1, 9)]
    begin, outcomes = threading.Barrier(len(versions)), []

    def commit(manifest: Manifest) -> None:
        begin.wait()
        try:
            store.commit(manifest)
        except LeaseLost as error:
            outcomes.append(str(error))
        else:
            outcomes.append("made")

    threads = [threading.Thread(target=commit, args=(manifest,)) for manifest in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("made") == 1
    assert all("was made already, by another job" in outcome for outcome in outcomes if outcome != "made")
    assert store.latest() in versions
    assert names(store) == ["0000000001.json.gz", "0000000002.json.gz"]


def test_a_version_whose_name_was_not_flushed_stands(
    store: ManifestStore, first: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's error is raised, and a second try learns that the version was made; its files stay."""
    second = first.extended([written(store, first)], {"t": {"k": 1}})
    with monkeypatch.context() as patch:
        patch.setattr(_manifest, "flush_directory", raises(errno.ENOSPC))
        with pytest.raises(Unsettled, match="No space"):
            store.commit(second)
    again = first.extended([written(store, first)], {"t": {"k": 2}})
    with pytest.raises(LeaseLost, match="or by an attempt whose disk failed"):
        store.commit(again)
    assert store.latest() == second
    assert again.files[0].path != second.files[0].path
    store.sweep(second, 0, 0)
    assert (store.root / second.files[0].path).exists()
    assert not (store.root / again.files[0].path).exists()


@pytest.mark.parametrize(("step", "unsettled"), [("fsync", False), ("link", True)])
def test_a_disk_that_fails_says_whether_a_version_may_appear(
    store: ManifestStore, first: Manifest, monkeypatch: pytest.MonkeyPatch, step: str, unsettled: bool
) -> None:
    """Before the link it cannot, whatever the disk does later; a link that fails may have been made all the same."""
    with monkeypatch.context() as patch:
        patch.setattr(_manifest.os, step, raises(errno.ENOSPC))
        with pytest.raises(OSError, match="No space") as caught:
            store.commit(first.extended([], {}))
    assert isinstance(caught.value, Unsettled) is unsettled
    assert names(store) == ["0000000001.json.gz"]


def test_a_writer_that_was_swept_is_refused(
    store: ManifestStore, first: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer slept in its commit, and another one has gone on: it lost, and its file system is not to blame."""
    link = os.link

    def link_late(*paths: str | os.PathLike[str]) -> None:
        store.sweep(first, 0, 0)
        link(*paths)

    monkeypatch.setattr(_manifest.os, "link", link_late)
    with pytest.raises(LeaseLost, match="one job at a time"):
        store.commit(first.extended([], {}))
    assert store.latest() == first
    store.prepare()  # a run that starts while another one sweeps


def test_files_of_dead_writers_are_swept(store: ManifestStore, first: Manifest) -> None:
    """Files that no version can name any more go; files for the next version, and foreign ones, stay."""
    unfinished = store.root / "_manifest" / ".unfinished-abc"
    unfinished.write_bytes(encoded(first.extended([], {"t": {"k": 1}}))[:20])
    assert store.latest() == first
    named = written(store, first)
    dead = store.root / written(store, evolve(first, version=0), "dead.parquet").path
    second = committed(store, first.extended([named], {}))
    being_written = store.root / written(store, second, "next.parquet").path
    foreign = store.root / MESSAGES / "notes" / "x.parquet"
    foreign.parent.mkdir()
    foreign.touch()
    store.sweep(second, 0, 0)
    assert all(path.exists() for path in (store.root / named.path, being_written, foreign))
    assert not any(path.exists() for path in (unfinished, dead))


def test_replaced_files_stay_for_the_grace(store: ManifestStore, first: Manifest) -> None:
    """A reader of an earlier version finds its files until the grace is over; then they go, their names as well."""
    old = written(store, first)
    second = committed(store, first.extended([old], {}))
    new = written(store, second, "new.parquet")
    third = committed(store, second.merged([old], [new], at_ms=1_000))
    assert store.sweep(third, 1_999, 1_000) == third
    assert (store.root / old.path).exists()
    swept = store.sweep(third, 2_000, 1_000)
    assert (swept.retired, swept.files) == ((), (new,))
    assert not (store.root / old.path).parents[2].exists()
    assert (store.root / new.path).exists()
    store.sweep(third, 2_000, 1_000)  # who died before the next commit does it again


def test_old_versions_go_and_are_not_made_again(store: ManifestStore, first: Manifest) -> None:
    """Only the last few stay; a writer at an old one, of which the next is gone, learns that it was made."""
    newest = first
    for _ in range(VERSIONS_KEPT + 3):
        newest = committed(store, newest.extended([], {}))
    store.sweep(newest, 0, 0)
    assert len(names(store)) == VERSIONS_KEPT
    late = first.extended([written(store, first)], {"t": {"k": 1}})
    assert f"{late.version:010d}.json.gz" not in names(store)
    with pytest.raises(LeaseLost, match=f"version {late.version} of the archive at .* was made already"):
        store.commit(late)
    assert store.latest() == newest
    store.commit(newest.extended([], {}))


def test_small_files_are_merged_by_size(first: Manifest) -> None:
    """Files of a topic and day are merged when enough of one size are there; large ones never."""
    sizes = [1_000] * (MERGED_AT_ONCE - 1) + [100_000] * MERGED_AT_ONCE + [SMALL_BYTES] * (2 * MERGED_AT_ONCE)
    files = [data_file(f"f{n}", bytes=size) for n, size in enumerate(sizes)]
    files += [data_file(f"g{n}", topic="u", bytes=100_000) for n in range(MERGED_AT_ONCE - 1)]
    (group,) = first.extended(files, {}).small_files()
    assert [file.bytes for file in group] == [100_000] * MERGED_AT_ONCE
    assert {file.topic for file in group} == {"t"}


def test_merging_comes_to_an_end(first: Manifest) -> None:
    """Merged files are of a larger class: a byte is rewritten once per class, however many files come."""
    manifest, rewritten, count = first, 0, 2_000
    for n in range(count):
        manifest = manifest.extended([data_file(f"f{n}", bytes=1_000)], {})
        while groups := manifest.small_files():
            for group in groups:
                total = sum(file.bytes for file in group)
                rewritten += total
                merged = data_file(f"m{manifest.version}", bytes=total, rows=sum(file.rows for file in group))
                manifest = manifest.merged(group, [merged], at_ms=0)
    assert manifest.rows == count
    assert len(manifest.files) < 4 * MERGED_AT_ONCE
    assert rewritten < 5 * count * 1_000


def test_files_are_chosen_by_what_they_hold(first: Manifest) -> None:
    """By table, topic and time; a file that may hold a row of the span is chosen, `until` itself is not in it."""
    manifest = first.extended(
        [
            data_file("a", first_ms=10, last_ms=20),
            data_file("b", first_ms=20, last_ms=30),
            data_file("c", topic="u", first_ms=10, last_ms=30),
            data_file("o", table=OUTCOMES, first_ms=10, last_ms=30),
        ],
        {},
    )

    def chosen(**filters: object) -> list[str]:
        return [file.path for file in manifest.chosen(MESSAGES, **filters)]  # type: ignore[arg-type]

    assert (chosen(), chosen(topics=["t"])) == (["a", "b", "c"], ["a", "b"])
    assert (chosen(since_ms=21), chosen(until_ms=20)) == (["b", "c"], ["a", "c"])
    assert (chosen(topics=["t"], since_ms=20, until_ms=21), chosen(topics=[])) == (["a", "b"], [])


def test_another_schema_version_is_refused(store: ManifestStore, first: Manifest) -> None:
    """An archive of a later lanelog is not guessed at: one line that says what it is."""
    later = json.dumps({**json.loads(gzip.decompress(encoded(first))), "schema": 2}).encode()
    (store.root / "_manifest" / "0000000002.json.gz").write_bytes(gzip.compress(later))
    with pytest.raises(ConfigurationError, match=r"^.*is of schema version 2, this lanelog reads 1.*$"):
        store.latest()


DAMAGED = {
    "empty": b"",
    "no gzip": b"no gzip",
    "no deflate": gzip.compress(b"{}")[:10] + b"\xff" * 20,
    "a list": gzip.compress(b"[]"),
    "no field": gzip.compress(b"{}"),
    "no text": gzip.compress(b"\xff"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_is_refused(store: ManifestStore, first: Manifest, content: bytes) -> None:
    """A damaged manifest is not read as an empty archive, which would be archived over."""
    (store.root / "_manifest" / "0000000002.json.gz").write_bytes(content)
    with pytest.raises(ConfigurationError, match="has a damaged manifest"):
        store.latest()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """An archive is made in a directory that is empty or not there; no archive is said to be none."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigurationError, match="is not empty and holds no archive"):
        ManifestStore(tmp_path).refuse_foreign()
    with pytest.raises(ConfigurationError, match="cannot hold an archive: Not a directory"):
        ManifestStore(tmp_path / "thesis.tex").refuse_foreign()
    with pytest.raises(ConfigurationError, match="there is no archive at"):
        ManifestStore(tmp_path).required()
    ManifestStore(tmp_path / "new").refuse_foreign()


def test_a_path_that_cannot_hold_an_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a file, without permission, without hard links: one line; a path that can is left as it was, but made."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file/x' cannot hold an archive: Not a directory"):
        ManifestStore(tmp_path / "file" / "x").prepare()
    store = ManifestStore(tmp_path / "archive")
    with monkeypatch.context() as patch:
        patch.setattr(_manifest.os, "link", raises(errno.EPERM))
        with pytest.raises(ConfigurationError, match=r"it has no hard links \(Operation not permitted\)"):
            store.prepare()
        patch.setattr(Path, "touch", raises(errno.EPERM))
        with pytest.raises(ConfigurationError, match="cannot hold an archive: Operation not permitted"):
            store.prepare()
    store.prepare()
    store.refuse_foreign()
    assert list(store.root.rglob("*")) == [store.root / "_manifest"]
    assert store.latest() is None


@pytest.mark.parametrize("path", ["s3a://bucket/x", "hdfs://name/x", "gs://b", "", "a\nb", "C:/x"])
def test_only_mounted_file_systems_are_taken(path: str) -> None:
    """An archive needs a file system that makes a version in one step, and refuses a name that exists."""
    with pytest.raises(ConfigurationError, match="directory of a mounted file system"):
        local_path(path)


def test_a_path_with_a_pattern_is_refused(tmp_path: Path) -> None:
    """Spark would read other files than those named."""
    with pytest.raises(ConfigurationError, match="takes for a pattern"):
        local_path(tmp_path / "a[1]")
    assert local_path(f"file://{tmp_path}/x") == tmp_path / "x"
