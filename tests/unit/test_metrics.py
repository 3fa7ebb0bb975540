"""The series of a scrape: how many there are, and what becomes `other`."""

import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import evolve
from prometheus_client.metrics_core import Metric

from lanelog.admin import Figures, GroupFigures, GroupInfo, ServerFigures, TableSize, TopicInfo
from lanelog.metrics import alert_rules
from lanelog.metrics.log import GROUPS_MAX, metrics_of
from lanelog.migrations.declared import declared_tables

THEN = datetime(2026, 1, 31, tzinfo=UTC)
SERIES_MAX = 1000

GROUP = GroupInfo(
    topic="t", group="g", order="strict", start="earliest", retention=0.0, created_at=THEN, paused_at=None,
    paused_by="", pause_reason="", members=1, members_unchanged=100.0, lanes=2, owned_lanes=2, stale_lanes=0,
    paused_lanes=0, lagging_lanes=1, lag=10, oldest_age=1.0, oldest_age_exact=True, waiting=0, in_flight=0,
)  # fmt: skip
TOPIC = TopicInfo(
    topic="t", lanes=2, messages=10, head=10, floor=0, dead_letters=1, groups=(), dead_letter_topics=(),
    holds_dead_letters=False, newest_lane_at=THEN,
)  # fmt: skip
SERVER = ServerFigures(
    oldest_transaction=0.0,
    history_list_length=1,
    tables={table: TableSize(rows=1, bytes=1) for table in declared_tables()},
)


def figures(topics: list[str], *groups: GroupInfo, server: ServerFigures = SERVER) -> Figures:
    return Figures(
        topics=tuple(evolve(TOPIC, topic=name) for name in topics),
        groups=tuple(GroupFigures(info=info, stuck_lanes=0, failing_lanes=0) for info in groups),
        delayed={},
        contradictions=0,
        server=server,
    )


def values(found: list[Metric], name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in found
        if metric.name == name
        for sample in metric.samples
    }


def test_a_scrape_has_at_most_1000_series_and_adds_up_the_rest() -> None:
    """The sums over all labels are those of the log, and the age of what was added up is that of its oldest."""
    names = [f"topic-{number:03d}" for number in range(300)]
    groups = [evolve(GROUP, topic=name, group=f"g{n}", oldest_age=7.0) for name in names for n in range(3)]
    found = list(metrics_of(figures(names, *groups)))
    assert sum(len(metric.samples) for metric in found) <= SERIES_MAX - 2  # two are of the look itself
    lags = values(found, "lanelog_group_lag_messages")
    assert len(lags) == GROUPS_MAX
    assert sum(lags.values()) == 9000
    assert lags["other", "other"] == 10 * (901 - GROUPS_MAX)
    assert values(found, "lanelog_group_oldest_seconds")["other", "other"] == 7.0
    assert sum(values(found, "lanelog_topic_dead_letters").values()) == 300


def test_the_worst_groups_keep_their_names() -> None:
    """One that nobody consumes, then the oldest, before hundreds whose lag is greater."""
    many = [evolve(GROUP, group=f"g{n:03d}", lag=1000) for n in range(200)]
    nobody = evolve(GROUP, group="left", members=0, oldest_age=0.1, lag=1)
    old = evolve(GROUP, group="old", oldest_age=900.0, lag=1)
    lags = values(list(metrics_of(figures(["t"], *many, nobody, old))), "lanelog_group_lag_messages")
    assert lags["t", "left"] == lags["t", "old"] == 1


def test_a_group_named_other_is_no_second_series() -> None:
    """Prometheus refuses a scrape in which a series is there twice."""
    many = [evolve(GROUP, group=f"g{n:03d}") for n in range(200)]
    found = list(metrics_of(figures(["t"], evolve(GROUP, topic="other", group="other", oldest_age=99.0), *many)))
    for metric in found:
        places = [tuple(sample.labels.items()) for sample in metric.samples]
        assert len(places) == len(set(places))
    assert sum(values(found, "lanelog_group_lag_messages").values()) == 2010


def test_what_the_account_may_not_see_is_absent() -> None:
    """Not 0, which would say that all is well."""
    unseen = ServerFigures(oldest_transaction=None, history_list_length=None, tables={})
    names = {metric.name for metric in metrics_of(figures(["t"], GROUP, server=unseen)) if metric.samples}
    assert not {name for name in names if name.startswith(("lanelog_database", "lanelog_table"))}
    assert "lanelog_group_lag_messages" in names


def test_an_archive_has_no_lanes_without_owner() -> None:
    """It takes none."""
    found = list(metrics_of(figures(["t"], evolve(GROUP, order="archive", owned_lanes=0))))
    assert values(found, "lanelog_group_unowned_lanes") == {("t", "g"): 0}
    found = list(metrics_of(figures(["t"], evolve(GROUP, owned_lanes=0))))
    assert values(found, "lanelog_group_unowned_lanes") == {("t", "g"): 2}


def test_the_alerts_ask_for_metrics_that_there_are() -> None:
    """With labels that they have. `lanelog_up` belongs to the look itself."""
    there = {metric.name for metric in metrics_of(figures(["t"], GROUP))} | {"lanelog_up"}
    expressions = re.findall(r"expr: (?:>-\n)?((?:.+\n)+?) +(?:for|labels):", alert_rules())
    asked = {name for each in expressions for name in re.findall(r"lanelog_\w+", each)}
    assert len(expressions) == alert_rules().count("- alert:")
    assert asked
    assert asked <= there


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    """Its annotation names the entry, and there is no entry without an alert."""
    alerts = re.findall(r"- alert: (\w+)", alert_rules())
    assert re.findall(r"runbook: operations/runbook, (\w+)", alert_rules()) == alerts
    page = (Path(__file__).parents[2] / "docs/operations/runbook.md").read_text()
    assert re.findall(r"^\| `(Lanelog\w+)` \|", page, re.MULTILINE) == alerts


def test_prometheus_takes_the_alerts(tmp_path: Path) -> None:
    """Its own checker reads them, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    path = tmp_path / "rules.yaml"
    path.write_text(alert_rules())
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
