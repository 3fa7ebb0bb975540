"""The demo as a user starts it, and its judgement over tables that somebody meddled with."""

import os
import select
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from demo import verify
from demo.git import Repository
from demo.history import jobs
from demo.tables import Tables
from lanelog import Client
from support.repository import DEMO, Maker
from support.scripts import ran
from support.sql import one, rows

pytestmark = pytest.mark.one_family("mariadb")

LARGE = bytes(range(256)) * 2500  # more than two parts


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A small repository with something of everything."""
    made = Maker(tmp_path / "small")
    made.commit(
        {
            b"README": b"read me\n",
            b"src/pkg/tool": b"#!/bin/sh\n",
            b"src/pkg/moves": b"a text that moves\n" * 9,
            b"doc/guide/large.bin": LARGE,
            b'odd"\n\xff': b"\0\xff",
        }
    )
    (made.path / "src/pkg/tool").chmod(0o755)
    (made.path / "link").symlink_to("README")
    made.git("mv", "src/pkg/moves", "doc/guide/moved")
    made.git("rm", "-q", "README")
    made.commit()
    for number in range(4):
        made.write(b"src/pkg/tool", b"#!/bin/sh\necho %d\n" % number, 0o755)
        made.commit({b"doc/guide/moved": b"%d\n" % number})
    return made.path


def everything_in(raw: Any) -> dict[str, int]:
    return {name: one(raw, f"SELECT COUNT(*) FROM {name}") for (name,) in rows(raw, "SHOW TABLES")}


def test_the_demo_rebuilds_a_repository(place: Path, lanelog_url: str, raw: Any) -> None:
    """A worker dies, the malformed job is buried, the tree is identical, and a given database is left as it was."""
    before = everything_in(raw)
    done = ran(*DEMO, "--url", lanelog_url, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("identical to HEAD: yes\n")
    assert "was killed with SIGKILL at work" in done.stdout
    assert "dead-lettered by group rebuild: malformed job: the header is not JSON" in done.stdout
    assert "by Ann <ann@example.org>: 20 jobs, 16 files written, 2 deleted" in done.stdout
    assert "\x1b" not in done.stdout
    assert lanelog_url not in done.stdout + done.stderr
    assert everything_in(raw) == before


@pytest.mark.thorough
def test_without_a_database_it_is_one_message(place: Path) -> None:
    """An unreachable database is status 2 and no traceback."""
    command = [*DEMO, "--repo", str(place), "--url", "mysql://root:s3cret@127.0.0.1:1/none"]
    done = ran(*command)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stdout + done.stderr


def children_of(pid: int) -> dict[int, bytes]:
    """Command lines of the children by process id; a short-lived one (git) may end at any moment."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
    return found


def handles_of(pids: Iterable[int]) -> list[int]:
    """A descriptor for each process that still exists; it becomes readable when the process ends."""
    found = []
    for pid in pids:
        with suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_no_process_outlives_the_demo(place: Path, lanelog_url: str, how: signal.Signals, status: int) -> None:
    """Stopped in the middle, by Ctrl-C or by what nobody can catch, it takes its workers and its git along."""
    command = [*DEMO, "--repo", str(place), "--url", lanelog_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "lanes owned by worker" not in (line := process.stdout.readline()):
                assert line, process.communicate()[1]
            children = handles_of(children_of(process.pid))
            process.send_signal(how)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == status
    assert len(children) >= 3
    for child in children:
        assert select.select([child], [], [], 30)[0], "a child outlived it"
        os.close(child)


@pytest.mark.thorough
def test_a_worker_that_ends_by_itself_is_a_failure(place: Path, lanelog_url: str) -> None:
    """Only the announced kill is part of the show: any other end is named, with status 1, and nothing is left."""
    command = [*DEMO, "--repo", str(place), "--url", lanelog_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "published" not in (line := process.stdout.readline()):
                assert line, process.communicate()[1]
            children = children_of(process.pid)
            os.kill(next(pid for pid, arguments in children.items() if b"worker-2" in arguments), signal.SIGKILL)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert errors.startswith("failed: worker-2 ended with status -9")
    assert "__main__.py" not in errors  # no traceback of the demo; the log of the worker that was killed may have one


WRONG_FILES = {
    "UPDATE {} SET content = CONCAT(LEFT(content, 9), 'X', SUBSTR(content, 11)) WHERE part = 2": "content differs",
    "UPDATE {} SET content = CONCAT(content, '\\n') WHERE part = 2": "content differs",
    "DELETE FROM {} WHERE part = 2": "content differs",
    "UPDATE {} SET mode = '100644' WHERE path = 'src/pkg/tool'": "mode 100644 instead of 100755",
    "UPDATE {} SET mode = '100644' WHERE path = 'link'": "mode 100644 instead of 120000",
    "DELETE FROM {} WHERE path = 'link'": "missing",
    "INSERT INTO {} VALUES ('', REPEAT('x', 32), 0, 'x', '100644', '')": "not in HEAD",
}
WRONG_COUNTS = {
    "DELETE FROM {} WHERE lane = 'src/pkg' ORDER BY place DESC LIMIT 1": {"missing": 1},
    "DELETE FROM {} WHERE lane = 'link'": {"missing": 1},
    "INSERT INTO {} (lane, position, attempt, epoch) VALUES ('link', 1, 2, 2)": {
        "twice": 1,
        "out_of_order": 1,
        "redeliveries": 1,
    },
    "UPDATE {} SET position = 5 - position WHERE lane = 'src/pkg' AND position IN (2, 3)": {"out_of_order": 3},
}


class Undone(Exception):
    """Rolls back what was meddled with."""


def test_what_somebody_meddled_with_is_found(place: Path, lanelog_client: Client, raw: Any) -> None:
    """A byte, a part, a mode, a path, a job too many, too few or too early: each is a difference that is named."""
    repository, tables = Repository.find(place), Tables("test")
    published: dict[str, int] = {}
    tables.create(raw)
    with lanelog_client.transaction() as connection:
        for job in jobs(repository):  # each once, by the handlers' own statements
            published[job.lane] = published.get(job.lane, 0) + 1
            tables.apply(connection, job)
            tables.note_applied(connection, job.lane, published[job.lane], 1, 1)
            tables.count(connection, job.lane, job)
    with lanelog_client.transaction() as connection:
        comparison = verify.compare(connection, tables, repository)
        count = verify.count(connection, tables, published)
        (author,) = tables.authors(connection)
    assert (comparison.differences, comparison.files) == ((), 5)
    assert comparison.bytes > len(LARGE)
    assert count == verify.Count(missing=0, twice=0, out_of_order=0, redeliveries=0)
    assert (author.author, author.jobs, author.deletions) == ("Ann <ann@example.org>", sum(published.values()), 2)
    for statement, difference in WRONG_FILES.items():
        with suppress(Undone), lanelog_client.transaction() as connection:
            rows(connection, statement.format("lanelog_demo_test_files"))
            (found,) = verify.compare(connection, tables, repository).differences
            assert found.endswith(f": {difference}"), statement
            raise Undone
    for statement, wrong in WRONG_COUNTS.items():
        with suppress(Undone), lanelog_client.transaction() as connection:
            rows(connection, statement.format("lanelog_demo_test_applied"))
            assert verify.count(connection, tables, published) == evolve(count, **wrong), statement
            raise Undone
