"""The demo with archive, report and replay behind it, as a user starts it."""

import os
import re
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from lanelog.spark import read_archive
from support.repository import DEMO, Maker

pytestmark = pytest.mark.thorough


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository of ten commits, each of two files."""
    made = Maker(tmp_path / "small")
    for number in range(10):
        made.commit(dict.fromkeys((b"src/one", b"doc/two"), b"%d\n" % number))
    return made.path


@pytest.mark.local_server
def test_the_demo_is_archived_reported_on_and_replayed(
    spark: SparkSession, repository: Path, tmp_path: Path, local_kind: str
) -> None:
    """Everything that was published is in the archive and in the report; the busiest lane comes again, complete."""
    output = tmp_path / "out"
    environ = {name: value for name, value in os.environ.items() if name != "LANELOG_URL"}
    ran = subprocess.run(
        [*DEMO, "--repo", str(repository), "--archive", str(output)],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "identical to HEAD: yes" in ran.stdout
    assert "archive, report and replay are complete: yes" in ran.stdout
    assert read_archive(spark, output / "archive").count() == 22  # twenty changes, one malformed job, its dead letter
    attempts = pyarrow.parquet.read_table(output / "report" / "attempts.parquet").to_pylist()
    assert {row["consumer_group"] for row in attempts} == {"rebuild", "stats"}
    assert (output / "report" / "report.html").is_file()
    said = ran.stdout.splitlines()
    steps = said[said.index("starting Spark") + 1 :]
    jobs = "20 jobs, one more that is malformed on purpose, and its dead letter"
    expected = (
        rf"archiving {jobs} …",
        r"archived 22 messages and 42 outcomes in \S+ s",
        r"analysing archive and live log …",
        r"analysed 22 messages in \d+ lanes, one of them the dead letter's, in \S+ s",
        r"replaying lane \S+, the busiest, into a topic of its own …",
        r"replayed 1\d messages of lane \S+ in \S+ s",
        r"archive, report and replay are complete: yes",
        re.escape(f"report: {(output / 'report' / 'report.html').as_uri()}"),
    )
    for line, pattern in zip(steps, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
    assert [line for line in ran.stderr.splitlines() if not line.startswith("WARNING: Using incubator modules")] == []


def test_a_directory_in_use_is_refused_before_the_demo_begins(tmp_path: Path) -> None:
    """One line, status 2, nothing touched."""
    (tmp_path / "mine").write_text("precious")
    ran = subprocess.run([*DEMO, "--archive", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "is not empty: give a directory for this run alone" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
