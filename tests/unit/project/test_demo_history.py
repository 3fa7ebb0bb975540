"""The demo's reading of git: every odd repository becomes jobs that rebuild its HEAD, lane by lane."""

import random
import subprocess
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo import main, verify
from demo.git import NoHistory, Repository, find_all
from demo.history import count_changes, jobs
from demo.job import MALFORMED_LANE, PART_BYTES, Job, MalformedJob, lane_of
from demo.publish import BATCH, batches
from lanelog.config import check_name
from support.repository import Maker

Files = dict[bytes, tuple[str, bytes]]

SUBMODULE = "5" * 40


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """An empty repository."""
    return Maker(tmp_path / "made")


def apply_all(applied: Iterable[Job]) -> Files:
    """The files after some jobs, by the rules that the handler follows in SQL."""
    files: Files = {}
    for job in applied:
        if job.source is not None:
            files.pop(job.source, None)
        if job.part == 0:
            files.pop(job.path, None)
        if job.mode:
            before = files[job.path][1] if job.part else b""
            files[job.path] = (job.mode, before + job.content)
    return files


def interleaved(found: Iterable[Job], seed: int) -> list[Job]:
    """The same jobs in an order that keeps only the order within lanes, after a journey through their encoding."""
    lanes: dict[str, deque[Job]] = defaultdict(deque)
    for job in found:
        lanes[job.lane].append(job)
    chance = random.Random(seed)
    order = []
    while lanes:
        lane = chance.choice(sorted(lanes))
        order.append(Job.decode(lanes[lane].popleft().encode()))
        if not lanes[lane]:
            del lanes[lane]
    return order


def head_of(path: Path) -> Files:
    """What git says is in HEAD, asked object by object."""
    listing = subprocess.run(["git", "-C", path, "ls-tree", "-rz", "HEAD"], check=True, capture_output=True).stdout
    files = {}
    for line in filter(None, listing.split(b"\0")):
        head, _, name = line.partition(b"\t")
        mode, kind, oid = head.decode().split()
        command = ["git", "-C", path, "cat-file", "blob", oid]
        content = oid.encode() if kind == "commit" else subprocess.run(command, check=True, capture_output=True).stdout
        files[name] = (mode, content)
    return files


def assert_rebuilt(path: Path) -> list[Job]:
    """Any order that respects the lanes leads to HEAD; returns the jobs."""
    found = list(jobs(Repository.find(path)))
    expected = head_of(path)
    for seed in range(3):
        assert apply_all(interleaved(found, seed)) == expected
    assert len({(job.lane, job.id) for job in found}) == len(found)
    assert {entry.path for entry in verify.tree(Repository.find(path))} == set(expected)
    return found


def test_names_of_any_bytes(made: Maker) -> None:
    """A path is bytes: whatever git stores comes back, and its lane is a valid key."""
    names = [b"a b/ c /d", b'quo"te/\\back\\slash/x', b"line\nfeed/\ttab/x", b"\xff\xfe/not utf-8/\x80", b" ", b"%41/b"]
    names += [b"malformed", b"%malformed", "größe/日本/x".encode(), b":/c", b"-rf", b"e\xcc\x81\xc2\xa0"]
    names += [b"l" * 200 + b"/" + b"m" * 200 + b"/x"]
    made.commit(dict.fromkeys(names, b"content of an odd name\n"))
    found = assert_rebuilt(made.path)
    assert {job.path for job in found} == set(names)
    for job in found:
        assert check_name("key", job.lane) == job.lane != MALFORMED_LANE


def test_a_rename_is_one_job_within_a_lane(made: Maker) -> None:
    """The source goes and the path comes together, also when the content changed a little; between lanes it is two."""
    text = b"".join(b"line %d\n" % number for number in range(50))
    made.commit({b"a/b/old": text})
    made.git("mv", "a/b/old", "a/b/new")
    made.commit({b"a/b/new": text + b"one more\n"})
    renamed = assert_rebuilt(made.path)[-1]
    assert (renamed.source, renamed.path, renamed.content) == (b"a/b/old", b"a/b/new", text + b"one more\n")
    (made.path / "c/d").mkdir(parents=True)
    made.git("mv", "a/b/new", "c/d/new")
    made.commit()
    moved = [(job.lane, job.path, job.mode, job.source) for job in assert_rebuilt(made.path)[-2:]]
    assert moved == [("a/b", b"a/b/new", "", None), ("c/d", b"c/d/new", "100644", None)]


def test_a_merge_is_one_step(made: Maker) -> None:
    """Changes of the other side arrive with the merge, by its author, and so do changes of the merge alone."""
    made.commit({b"a/b/one": b"1\n"})
    made.git("checkout", "-qb", "side")
    made.commit({b"a/b/side": b"s\n"})
    made.commit({b"a/b/side": b"ss\n"})
    made.git("checkout", "-q", "main")
    made.commit({b"a/b/main": b"m\n"})
    made.git("merge", "-q", "--no-ff", "--no-commit", "side")
    made.commit({b"a/b/evil": b"only in the merge\n"})
    found = assert_rebuilt(made.path)
    assert [job.path for job in found] == [b"a/b/one", b"a/b/main", b"a/b/evil", b"a/b/side"]


def test_a_shallow_clone_begins_where_it_is_cut(made: Maker, tmp_path: Path) -> None:
    """The oldest commit that is there counts as adding everything in it."""
    for number in range(4):
        made.commit({b"f/%d/x" % number: b"%d\n" % number})
    subprocess.run(["git", "clone", "-q", "--depth=2", f"file://{made.path}", tmp_path / "shallow"], check=True)
    found = assert_rebuilt(tmp_path / "shallow")
    assert (len({job.commit for job in found}), len(found)) == (2, 4)


def test_a_large_file_travels_in_parts(made: Maker) -> None:
    """More than PART_BYTES become several jobs of the same lane; exactly as many are one."""
    large = random.Random(1).randbytes(2 * PART_BYTES + 5)
    made.commit({b"a/b/large": large, b"a/b/exact": large[:PART_BYTES]})
    made.commit({b"a/b/large": large[: PART_BYTES + 1]})
    found = assert_rebuilt(made.path)
    assert [(job.path, job.part, len(job.content)) for job in found] == [
        (b"a/b/exact", 0, PART_BYTES),
        (b"a/b/large", 0, PART_BYTES),
        (b"a/b/large", 1, PART_BYTES),
        (b"a/b/large", 2, 5),
        (b"a/b/large", 0, PART_BYTES),
        (b"a/b/large", 1, 1),
    ]


def test_settings_of_the_user_change_nothing(made: Maker) -> None:
    """Colours, relative paths, ignored submodules, an order of files and another kind of merge are overridden."""
    settings = "color.ui=always diff.renames=copies diff.ignoreSubmodules=all diff.relative=true log.showRoot=false"
    settings += " log.diffMerges=off log.showSignature=true core.quotePath=true format.pretty=fuller"
    for setting in settings.split():
        made.git("config", *setting.split("="))
    made.git("update-index", "--add", "--cacheinfo", f"160000,{SUBMODULE},lib/sub/module")
    made.git("commit", "-qm", "submodule")
    made.write("a/b/\u00e4".encode(), b"x\n" * 20)
    made.git("add", "a")
    made.git("commit", "-qm", "file")
    made.write(b"a/b/copy", b"x\n" * 20)
    made.git("add", "a")
    made.git("commit", "-qm", "copy")
    assert len(assert_rebuilt(made.path)) == 3
    assert {job.path for job in jobs(Repository.find(made.path / "a/b"))} == set(head_of(made.path))


def test_bare_repositories_and_empty_commits(made: Maker, tmp_path: Path) -> None:
    """No work tree is needed, and a commit without changes is no job."""
    made.commit()
    made.commit({b"file": b"x\n"})
    made.commit()
    subprocess.run(["git", "clone", "-q", "--bare", made.path, tmp_path / "bare.git"], check=True)
    assert len(assert_rebuilt(tmp_path / "bare.git")) == 1
    assert Repository.find(tmp_path / "bare.git").name == "bare"


def test_the_authors_are_taken_along(made: Maker) -> None:
    """Name and address, in UTF-8 whatever the commit's encoding was."""
    made.git("config", "i18n.commitEncoding", "ISO-8859-1")
    made.write(b"file", b"x\n")
    made.git("add", "-A")
    made.git("commit", "-qm", "x", b"--author=J\xf6rg <j@example.org>")
    assert [job.author for job in jobs(made.repository())] == ["Jörg <j@example.org>"]


def test_without_history_there_is_one_line(made: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started; the line says what is missing, and the status is 2; empty commits are nothing to rebuild."""
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "empty", made.path):
        with pytest.raises(NoHistory):
            Repository.find(place)
        assert main([str(place)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("no git history in ")
    made.commit()
    assert count_changes([made.repository()], 10) == 0
    assert main([str(made.path)]) == 2
    assert capsys.readouterr().err == "no git history: no commit has changed a file\n"


def test_several_repositories_have_lanes_of_their_own(tmp_path: Path) -> None:
    """The repositories' names precede the lanes, numbered if they are equal; one given twice is taken once."""
    places = []
    for parent in ("one", "two"):
        maker = Maker(tmp_path / parent / "same: name")
        maker.commit({b"a/b/c": parent.encode()})
        places.append(str(maker.path))
    found = find_all([*places, places[0]])
    assert [repository.label for repository in found] == ["same: name", "same: name-2"]
    lanes = [job.lane for repository in found for job in jobs(repository)]
    assert lanes == ["same%3A name:a/b", "same%3A name-2:a/b"]
    assert [repository.label for repository in find_all(places[:1])] == [""]


PATHS = (b"a", b"a/b", b"a/b/c", b"a/b/d", b"x/y/1", b"x/y/2", b"x/z/1", b'o"dd\n\xff/\t/x')
CONTENTS = (b"", b"short\n", b"common line\n" * 40, b"common line\n" * 40 + b"last\n", bytes(range(256)))

operation = st.tuples(
    st.sampled_from(PATHS),
    st.sampled_from(["100644", "100755", "120000", "160000", "delete"]),
    st.sampled_from(CONTENTS),
)
step = st.tuples(st.sampled_from(["main", "main", "side", "merge"]), st.lists(operation, max_size=5))


def quoted(path: bytes) -> bytes:
    """A path as fast-import wants it."""
    return b'"' + b"".join(b"\\%03o" % byte for byte in path) + b'"'


def fast_import(place: str, steps: Sequence[tuple[str, list[tuple[bytes, str, bytes]]]]) -> None:
    """Write a history in one go; `merge` brings what `side` has to `main`, with changes of its own."""
    subprocess.run(["git", "init", "-q", "-b", "main", place], check=True)
    stream = []
    seen: set[str] = set()
    for number, (kind, operations) in enumerate([("main", [(PATHS[1], "100644", CONTENTS[2])]), *steps]):
        branch = "side" if kind == "side" else "main"
        stream.append(b"commit refs/heads/%s\ncommitter A <a@b> %d +0000\ndata 1\nx\n" % (branch.encode(), number))
        if branch not in seen and seen:
            stream.append(b"from refs/heads/main\n")
        if kind == "merge" and "side" in seen:
            stream.append(b"merge refs/heads/side\n")
        seen.add(branch)
        for path, mode, content in operations:
            if mode == "delete":
                stream.append(b"D %s\n" % quoted(path))
            elif mode == "160000":
                stream.append(b"M 160000 %s %s\n" % (SUBMODULE.encode(), quoted(path)))
            else:
                target = content.partition(b"\0")[0] or b"target" if mode == "120000" else content
                stream.append(b"M %s inline %s\ndata %d\n%s\n" % (mode.encode(), quoted(path), len(target), target))
    command = ["git", "-C", place, "fast-import", "--quiet"]
    subprocess.run(command, input=b"".join(stream), check=True, stdout=subprocess.DEVNULL)


@pytest.mark.thorough
@given(st.lists(step, min_size=1, max_size=8))
@settings(max_examples=25)
def test_any_history_is_rebuilt(steps: list[tuple[str, list[tuple[bytes, str, bytes]]]]) -> None:
    """Files, directories, links and submodules take each other's places, on branches and in merges."""
    with tempfile.TemporaryDirectory() as place:
        fast_import(place, steps)
        assert_rebuilt(Path(place))


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        (b"README.md", "README.md"),
        (b"queue/lanelog", "queue/lanelog"),
        (b"queue/lanelog/a/b", "queue/lanelog"),
        (b"100%/a b/c", "100%25/a b"),
        (b" a / b /c", "%20a / b%20"),
        (b"\xff/\n/x", "%FF/%0A"),
    ],
)
def test_the_lane_is_the_second_level_path(path: bytes, lane: str) -> None:
    """The first two components, readable, with what a key may not contain percent-encoded."""
    assert lane_of("", path) == lane


@pytest.mark.parametrize(
    "payload", [b"", b"no header line", b"\xff\n", b"{}\n", b"[]\n", b"null\n", b'{"source": 1}\n', b"{\n"]
)
def test_a_payload_that_is_no_job_is_refused(payload: bytes) -> None:
    """Any other payload is refused with a reason, never taken for a job."""
    with pytest.raises(MalformedJob, match="header"):
        Job.decode(payload)


@given(st.lists(st.integers(0, PART_BYTES), max_size=BATCH * 2))
@settings(max_examples=20)
def test_batches_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    """Every job is in one batch, in order; a batch ends at a count or behind the job that fills it."""
    content = bytes(PART_BYTES)
    all_jobs = [
        Job(repo="", commit=str(n), author="", path=b"p", content=content[:size]) for n, size in enumerate(sizes)
    ]
    found = list(batches(all_jobs))
    assert [job for batch in found for job in batch] == all_jobs
    assert all(0 < len(batch) <= BATCH for batch in found)
    assert all(sum(len(job.content) for job in batch[:-1]) < 4 * PART_BYTES for batch in found)
