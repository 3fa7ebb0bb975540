"""Analyses of a real log and its archive: every message once, up to one instant, whatever moves meanwhile."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import lanelog
from lanelog._base.places import GroupTopic
from lanelog._database import NOW_MS
from lanelog._log.register import register
from lanelog.cli._main import cli
from lanelog.client import Client
from lanelog.config import SubscriptionConfig
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.spark.analysing import analysis
from lanelog.spark.analysing.analysis import Analysis
from lanelog.spark.analyze import Analyzed, AnalyzeOptions, _shown, run
from lanelog.spark.report.columns import SHOWN
from support.archives import Archive, settled
from support.reports import facts
from support.sql import rows
from support.waiting import accept, eventually

Analyze = Callable[..., Analyzed]
ODD = "ключ 🦊"
pytestmark = pytest.mark.thorough


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the results go."""
    return tmp_path / "results"


@pytest.fixture
def analyze(spark: SparkSession, lanelog_url: str, output: Path) -> Analyze:
    """Analyses the live log, and what else the options name."""

    def run_(**options: Any) -> Analyzed:
        return run(AnalyzeOptions(**{"output": str(output), "url": lanelog_url, **options}), spark)

    return run_


@pytest.fixture
def collect(client: Client, archive: Archive, raw: Any) -> Callable[[str], None]:
    """Handles a topic's messages in group `readers`, archives them, and has the log collected."""

    def run_(topic: str) -> None:
        with client.subscribe(topic, "readers", accept, retention=0, history=True):
            settled(client, topic, "readers")
        archive()
        rows(raw, "UPDATE queue_groups SET retention_ms = 0")
        client.admin.maintain()

    return run_


def table(output: Path, name: str) -> list[dict[str, Any]]:
    """A table that was written."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(output / f"{name}.parquet").to_pylist()
    return rows


def publish(client: Client, topic: str, first: int, last: int, keys: tuple[str, ...] = ("a", ODD)) -> None:
    """Messages of ten bytes, as many under each key."""
    client.publish_many(
        topic, [lanelog.Outgoing(key, b"x" * 10, id=f"m{n}") for n in range(first, last + 1) for key in keys]
    )


def test_archive_and_live_log_are_counted_once(
    client: Client, analyze: Analyze, collect: Callable[[str], None], path: str, output: Path
) -> None:
    """What only the archive has, what both have, and what only the log has: together what was published.

    The groups of archives and of replays are behind, and are no readers whose lanes stall.
    """
    publish(client, "t", 1, 20)
    collect("t")  # only in the archive
    assert client.admin.topics()[0].messages == 0
    with client.subscribe("t", "late", accept, start="latest") as late:
        late.pause()
    publish(client, "t", 21, 30)
    collect("t")  # collection waits for `late`: in both
    publish(client, "t", 31, 33)  # only in the log
    register(client._database, GroupTopic(topic="t", group="_replay-x"), SubscriptionConfig(), order="replay")
    done = analyze(path=path, stalled_after=0.001)
    assert (done.messages, done.lanes, list(done.topics)) == (66, 2, ["t"])
    assert sum(row["messages"] for row in table(output, "throughput")) == 66
    assert sum(row["bytes"] for row in table(output, "throughput")) == 660
    assert [(row["key"], row["messages"]) for row in table(output, "hot_lanes")] == [("a", 33), (ODD, 33)]
    assert [(row["gini"], row["lanes"]) for row in table(output, "skew")] == [(0.0, 2)]
    assert [(row["attempts"], row["outcome"], row["messages"]) for row in table(output, "attempts")] == [
        (1, "success", 60)
    ]
    latency = {row["consumer_group"]: (row["samples"], row["keeps_history"]) for row in table(output, "latency")}
    assert latency == {"readers": (60, True), "late": (0, False)}
    lags = {row["consumer_group"]: (row["lag"], row["lanes"], row["role"]) for row in table(output, "lag")}
    assert lags == {
        "readers": (6, 2, "consumer"),
        "late": (26, 2, "consumer"),
        "_archive": (6, 2, "archive"),
        "_replay-x": (26, 2, "replay"),
    }
    assert {row["consumer_group"] for row in table(output, "stalled_lanes")} == {"readers", "late"}
    assert analyze(path=path, live=False).messages == 60
    assert table(output, "lag") == []  # in the log alone
    assert "Only the archive was read" in (output / "report.html").read_text()
    assert analyze().messages == 26


def test_what_is_archived_and_collected_while_the_log_is_read_is_not_lost(
    client: Client, analyze: Analyze, collect: Callable[[str], None], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read of the log and the read of the archive everything moves from the one into the other."""
    publish(client, "t", 1, 5)
    collect("t")
    publish(client, "t", 6, 9)
    real, moved = analysis.read_archive, []

    def late(*args: Any, **options: Any) -> Any:
        if not moved:
            moved.append(True)
            publish(client, "t", 10, 12)  # beyond the cut-off
            collect("t")
            assert client.admin.topics()[0].messages == 0
        return real(*args, **options)

    monkeypatch.setattr(analysis, "read_archive", late)
    assert analyze(path=path).messages == 18
    assert moved


def test_a_cut_off_in_the_past_gives_the_same_result_whenever_it_is_asked_for(
    client: Client, analyze: Analyze, collect: Callable[[str], None], path: str, output: Path, raw: Any
) -> None:
    """Byte for byte, whether the messages are in the log or in the archive; what came later is in neither."""

    def tables_until(cutoff: datetime, **options: Any) -> list[bytes]:
        done = analyze(until=cutoff, format="csv", **options)
        assert (done.messages, done.cutoff) == (14, cutoff)
        names = ("throughput", "hot_lanes", "skew", "lane_sizes", "dead_letters")
        return [(output / f"{name}.csv").read_bytes() for name in names]

    publish(client, "t", 1, 7)
    cutoff = datetime.fromtimestamp(rows(raw, "SELECT MAX(created_at) FROM queue_messages")[0][0] / 1000, UTC)
    eventually(lambda: rows(raw, f"SELECT {NOW_MS}")[0][0] > cutoff.timestamp() * 1000)
    publish(client, "t", 8, 9)
    in_the_log = tables_until(cutoff)
    collect("t")
    assert client.admin.topics()[0].messages == 0
    assert tables_until(cutoff, path=path) == in_the_log


def test_what_spark_cannot_read_is_one_line(
    client: Client, analyze: Analyze, collect: Callable[[str], None], path: str, output: Path, raw: Any
) -> None:
    """A table that is gone, a file of the archive that is none: what it is, and not where in Spark it was."""
    publish(client, "t", 1, 1)
    collect("t")

    def failed() -> str:
        with pytest.raises(LanelogError, match="the analysis failed: ") as caught:
            analyze(path=path)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert not output.exists()
        return str(caught.value).lower()

    rows(raw, "ALTER TABLE queue_messages RENAME COLUMN payload TO elsewhere")
    assert "payload" in failed()
    rows(raw, "ALTER TABLE queue_messages RENAME COLUMN elsewhere TO payload")
    for file in Path(path).rglob("*.parquet"):
        file.write_bytes(b"nonsense" * 100)
    assert "parquet" in failed()


def test_what_cannot_be_done_is_one_line_and_writes_nothing(
    spark: SparkSession, lanelog_url: str, output: Path
) -> None:
    """Exit status 2, no file."""
    for arguments, said in (
        (["--topics", "missing"], "topic 'missing' is neither in the archive nor in the live log"),
        (["--until", "soon"], "'soon' is no time"),
        (["--until", "2026-06-01T10:00:00"], "has no time zone"),
        (["--path", "/nonexistent/archive"], "there is no archive at"),
        (["--no-live"], "nothing to read: give the path of an archive"),
        (["--url", "mysql://root@127.0.0.1:1/jobs"], "127.0.0.1"),
    ):
        source = [] if "--no-live" in arguments else ["--url", lanelog_url]
        ran = CliRunner().invoke(cli, ["analyze", *source, "--output", str(output), *arguments])
        assert (ran.exit_code, len(ran.stderr.strip().splitlines())) == (2, 1)
        assert said in ran.stderr
        assert not output.exists()


def test_a_directory_of_something_else_is_left_alone(spark: SparkSession, analyze: Analyze, output: Path) -> None:
    """Only an empty directory, or one with a report, is written into."""
    output.mkdir()
    (output / "lag.parquet").write_text("precious")
    with pytest.raises(ConfigurationError, match="is not empty and holds no earlier report"):
        analyze()
    assert [path.name for path in output.iterdir()] == ["lag.parquet"]


def test_an_archive_of_another_database_is_refused(
    client: Client, analyze: Analyze, collect: Callable[[str], None], path: str, raw: Any
) -> None:
    """Offsets of two databases are not offsets of one log."""
    publish(client, "t", 1, 1)
    collect("t")
    with raw.cursor() as cursor:
        cursor.execute("UPDATE queue_schema SET applied_at = applied_at + 1")
    with pytest.raises(ConfigurationError, match="is one of another database"):
        analyze(path=path)


def test_the_page_is_given_the_rows_that_it_shows() -> None:
    """The first of those that are long, lanes of the busiest topics, no topics by hours; the files have the rest."""
    topics = [f"t{n:03}" for n in range(1000)]
    page = dict.fromkeys(("dead_letters", "stalled_lanes", "topics"), pa.table({"topic": topics}))
    tables = dict.fromkeys(analysis.ORDER, pa.table({"topic": topics[::-1]}))
    shown = _shown(Analysis(facts=facts(), tables=tables, page=page))
    assert "throughput" not in shown
    few = ("dead_letters", "stalled_lanes", "hot_lanes", "lane_sizes")
    assert [sorted(row["topic"] for row in shown.pop(name)) for name in few] == [topics[:SHOWN]] * len(few)
    assert {len(rows) for rows in shown.values()} == {1000}


def test_tables_of_the_other_format_do_not_stay_beside_a_newer_report(analyze: Analyze, output: Path) -> None:
    """Old tables are removed by their names; nothing else is."""
    analyze()
    (output / "notes.parquet").write_text("precious")
    analyze(format="csv")
    names = [path.name for path in output.iterdir()]
    assert sorted(names) == sorted(["notes.parquet", "report.html", *(f"{name}.csv" for name in analysis.ORDER)])


@pytest.mark.parametrize(
    ("span", "step_ms"),
    [
        (timedelta(0), 100),
        (timedelta(seconds=7.2), 100),
        (timedelta(seconds=72), 1000),
        (timedelta(seconds=73), 5000),
        (timedelta(days=3), 3_600_000),
        (timedelta(days=365 * 3), 2_592_000_000),
    ],
)
def test_plots_have_as_many_bars_as_can_be_distinguished(span: timedelta, step_ms: int) -> None:
    """From seconds to months; hours where there is nothing."""
    first = datetime(2026, 6, 1, tzinfo=UTC)
    assert (analysis.step_for(first, first + span), analysis.step_for(None, None)) == (step_ms, 3_600_000)
