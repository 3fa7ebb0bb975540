"""Bad input of archive and replay: one clear line, and nothing written."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lanelog
from lanelog.client import Client
from lanelog.errors import ConfigurationError, DatabaseError, SchemaError
from lanelog.spark import read_archive
from support.archives import Archive
from support.cli import Command, everything
from support.scripts import ran

Refused = Callable[..., str]


pytestmark = pytest.mark.thorough


@pytest.fixture
def refused(archive: Archive, client: Client, path: str, raw: Any) -> Refused:
    """The line with which a run is refused, after which database and path are as before."""

    def run_it(*, error: type[Exception] = ConfigurationError, **options: Any) -> str:
        before = everything(raw)
        with pytest.raises(error) as caught:
            archive(**options)
        assert everything(raw) == before
        assert not Path(path).exists()
        line = str(caught.value)
        assert "\n" not in line
        return line

    return run_it


def test_options_that_cannot_be(refused: Refused, tmp_path: str, client: Client) -> None:
    """Topics that are not there, no topic at all, expressions that are none, paths that cannot be."""
    assert refused() == "no topic matches '.*': `lanelog topics` lists those there are"
    client.publish("merge", "k", b"x")
    assert refused(topics=("merg",)).startswith("no topic 'merg': did you mean 'merge'?")
    assert "is no regular expression" in refused(pattern="[")
    assert "is none" in refused(path="s3a://bucket/archive")
    assert "max_messages must be 1 to" in refused(max_messages=0)
    assert "interval must be" in refused(interval=-1.0)
    assert "between the batches of a job that goes on" in refused(interval=1.0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty and holds no archive" in refused(path=str(tmp_path / "full"))
    below = refused(path=str(tmp_path / "full" / "file" / "archive"))
    assert below.endswith("file/archive' cannot hold an archive: Not a directory")


def test_a_database_that_does_not_answer(refused: Refused, empty_url: str) -> None:
    """Neither an unreachable one nor one without tables is waited for."""
    refused(url="mysql://root@127.0.0.1:1/jobs", error=DatabaseError)
    assert "migrate" in refused(url=empty_url, error=SchemaError)


def test_an_archive_of_something_else(
    spark: SparkSession, client: Client, archive: Archive, empty_url: str, path: str
) -> None:
    """Another database, another group: each would leave something out of it."""
    client.publish("merge", "k", b"x")
    archive()
    with pytest.raises(ConfigurationError, match="is of group '_archive': give that one, or another path"):
        archive(group="_other")
    with lanelog.connect(empty_url) as other:
        other.migrate()
        other.publish("merge", "k", b"x")
    with pytest.raises(ConfigurationError, match="is of another database"):
        archive(url=empty_url)
    with pytest.raises(ConfigurationError, match="an archive has the tables messages, outcomes, not 'leases'"):
        read_archive(spark, path, "leases")


def test_on_the_command_line(lanelog_url: str, client: Client, path: str, tmp_path: str) -> None:
    """One line and status 2, before Spark is started."""
    lanelog_command = Command(lanelog_url)
    client.publish("merge", "k", b"x")
    assert lanelog_command.refused("archive", "--path", path, "--topics", "merg").startswith("no topic 'merg'")
    both = lanelog_command.refused("archive", "--path", path, "--topics", "merge", "--pattern", "x")
    assert both == "give --topics or --pattern, not both"
    assert "there is no archive at" in lanelog_command.refused("replay", "--path", path, "--topic", "merge")
    when = lanelog_command.refused("replay", "--path", path, "--topic", "merge", "--since", "lately")
    assert when == "--since 'lately' is no time: write 2026-01-31T12:00:00Z, 2026-01-31, yesterday or -1h"
    assert not Path(path).exists()


def test_without_java_or_spark(
    lanelog_url: str, client: Client, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: str
) -> None:
    """The line says what to install."""
    client.publish("merge", "k", b"x")
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path))
        line = Command(lanelog_url).refused("archive", "--path", path)
    assert line.startswith("JAVA_HOME is")
    assert "apt-get install openjdk-17-jre-headless" in line
    with monkeypatch.context() as patch:
        patch.setattr("lanelog.cli.command.verbs.find_spec", lambda _: None)
        line = Command(lanelog_url).refused("replay", "--path", path, "--topic", "merge")
    assert line.startswith("this command needs pyspark and pyarrow: pip install 'jinja2>=3.1' 'matplotlib")
    assert "'pyspark<5,>=4.2', and Java 17" in line
    assert not Path(path).exists()


def test_events_come_to_standard_error() -> None:
    """Also of a run that ends by itself: what is missing from the archive, though the status is 0."""
    program = """if True:
        import logging
        from lanelog._facts import spark as facts
        from lanelog.spark import archive

        archive.log_events(logging.WARNING)
        facts.archive_hole(topic="t", key="k", group="g", offset=1, through=2)
        facts.archive_batch(version=1, messages=1, files=1)
    """
    done = ran(sys.executable, "-c", program, check=True)
    assert [line.split(" ", 2)[2] for line in done.stderr.splitlines()] == [
        "ERROR archive.hole topic=t key=k group=g offset=1 through=2"
    ]


def test_as_a_program(lanelog_url: str, path: str) -> None:
    """`python -m lanelog.spark.archive`, as spark-submit runs it: one line, status 2."""
    command = (sys.executable, "-m", "lanelog.spark.archive", "--path", path, "--topics", "none")
    done = ran(*command, env={**os.environ, "LANELOG_URL": lanelog_url})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("Error: no topic 'none': there is none")
    assert not Path(path).exists()
