"""The series of a scrape: how many there are, and what becomes `other`."""

import json
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from attrs import evolve, frozen
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from lanelog._facts import measured
from lanelog._process.probes import AT_ONCE, BoundedThreads, serving
from lanelog.admin import Figures, GroupFigures, GroupInfo, ServerFigures, TableSize, TopicInfo
from lanelog.cli.run.metrics import serving_metrics
from lanelog.metrics import alert_rules, board
from lanelog.metrics.log import GROUPS_MAX, metrics_of
from lanelog.migrations.declared import declared_tables
from support.prometheus import check_rules
from support.readme import ROOT

THEN = datetime(2026, 1, 31, tzinfo=UTC)
SERIES_MAX = 1000
IN_TIME = 15.0

GROUP = GroupInfo(
    topic="t", group="g", order="strict", start="earliest", retention=0.0, created_at=THEN, paused_at=None,
    paused_by="", pause_reason="", members=1, members_unchanged=100.0, lanes=2, owned_lanes=2, stale_lanes=0,
    paused_lanes=0, lagging_lanes=1, head=10, lag=10, oldest_age=1.0, oldest_age_exact=True, waiting=0, in_flight=0,
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
    found = tuple(GroupFigures(info=info, stuck_lanes=0, failing_lanes=0) for info in groups)
    there = tuple(evolve(TOPIC, topic=name) for name in topics)
    return Figures(topics=there, groups=found, delayed={}, contradictions=0, held_head=0.0, server=server)


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
    assert (len(lags), sum(lags.values())) == (GROUPS_MAX, 9000)
    assert lags["other", "other"] == 10 * (901 - GROUPS_MAX)
    assert values(found, "lanelog_group_oldest_seconds")["other", "other"] == 7.0
    assert sum(values(found, "lanelog_topic_dead_letters").values()) == 300


def served_at(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2].removesuffix("/metrics").removesuffix("/livez"))


@contextmanager
def serving_probes() -> Iterator[str]:
    with serving("127.0.0.1:0", list, list) as url:
        yield f"{url}/livez"


SERVED = pytest.mark.parametrize(
    "served",
    [lambda: serving_metrics("--listen", "127.0.0.1:0", CollectorRegistry()), serving_probes],
    ids=["metrics", "probes"],
)
Served = Callable[[], AbstractContextManager[str]]


@pytest.mark.thorough
@SERVED
def test_slow_peers_keep_nobody_out(served: Served) -> None:
    """Slow peers may hold all threads. A new peer is answered, and the oldest of them is closed."""
    with served() as url, ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(served_at(url), timeout=IN_TIME)) for _ in range(AT_ONCE)]
        for each in slow:
            each.sendall(b"G")
        with urlopen(url, timeout=IN_TIME) as answer:  # noqa: S310 - our own server
            assert answer.status == 200
        assert slow[0].recv(1) == b""
        slow[-1].sendall(b"ET / HTTP/1.0\r\n\r\n")
        assert slow[-1].recv(4) == b"HTTP"


def test_a_request_that_is_cut_off_is_not_worked_on() -> None:
    """The end of its connection is not the end of its headers: otherwise sixteen of them would cost sixteen scrapes."""
    asked: list[str] = []

    def live() -> list[str]:
        asked.append("live")
        return []

    with serving("127.0.0.1:0", live, list) as url, ExitStack() as opened:
        for _ in range(AT_ONCE):
            slow = opened.enter_context(socket.create_connection(served_at(url), timeout=IN_TIME))
            slow.sendall(b"GET /livez HTTP/1.0\r\nX: 1\r\n")
        with urlopen(f"{url}/livez", timeout=IN_TIME) as answer:  # noqa: S310 - our own server
            assert answer.status == 200  # in the place of one that has ended
        assert asked == ["live"]


@pytest.mark.thorough
@SERVED
def test_a_request_has_a_deadline_however_slowly_it_comes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no connection open."""
    monkeypatch.setattr(BoundedThreads, "patience", 0.3)
    with served() as url, socket.create_connection(served_at(url), timeout=0.05) as slow:
        until = time.monotonic() + IN_TIME
        closed = False
        while not closed and time.monotonic() < until:
            try:
                slow.sendall(b"G")
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
        assert closed


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


def test_a_scrape_counts_what_it_leaves_out() -> None:
    """Topics and groups beyond the first 1,000, and topics that were not searched for contradictions."""
    found = evolve(figures(["t"], GROUP), topics_left_out=7, groups_left_out=99_000, topics_not_compared=3)
    scraped = list(metrics_of(found))
    left = {name: values(scraped, f"lanelog_{name}") for name in ("topics_left_out", "groups_left_out")}
    assert left == {"topics_left_out": {(): 7.0}, "groups_left_out": {(): 99_000.0}}
    assert values(scraped, "lanelog_topics_not_compared") == {(): 3.0}


def test_what_the_account_may_not_see_is_absent() -> None:
    """The figure is not 0, which would say that all is well."""
    unseen = ServerFigures(oldest_transaction=None, history_list_length=None, tables={})
    names = {metric.name for metric in metrics_of(figures(["t"], GROUP, server=unseen)) if metric.samples}
    assert not {name for name in names if name.startswith(("lanelog_database", "lanelog_table"))}
    assert "lanelog_group_lag_messages" in names


def test_an_archive_has_no_lanes_without_owner() -> None:
    """An archive takes no lanes."""
    found = list(metrics_of(figures(["t"], evolve(GROUP, order="archive", owned_lanes=0))))
    assert values(found, "lanelog_group_unowned_lanes") == {("t", "g"): 0}
    found = list(metrics_of(figures(["t"], evolve(GROUP, owned_lanes=0))))
    assert values(found, "lanelog_group_unowned_lanes") == {("t", "g"): 2}


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    """The alert's annotation links to the entry, and there is no entry without an alert."""
    rules = alert_rules("https://wiki.example/runbook")
    alerts = re.findall(r"- alert: (\w+)", rules)
    anchors = [each.lower() for each in alerts]
    assert re.findall(r"runbook_url: https://wiki.example/runbook#(\w+)", rules) == anchors
    page = (Path(__file__).parents[3] / "docs/operations/runbook.md").read_text()
    entries = re.findall(r'^\| <a id="(\w+)"></a>`(Lanelog\w+)` \|', page, re.MULTILINE)
    assert entries == list(zip(anchors, alerts, strict=True))


@pytest.fixture
def prometheus(tmp_path: Path) -> Callable[[str, str], None]:
    """Prometheus' own checker, where it is installed: it takes a file of rules, or the tests of the alerts."""
    return partial(check_rules, tmp_path)


def test_prometheus_takes_the_alerts_and_the_queries_of_the_board(prometheus: Callable[[str, str], None]) -> None:
    """Prometheus's own checker reads both."""
    prometheus("check", alert_rules())
    asked = [
        target["expr"].replace("$topic", ".*").replace("$group", ".*")
        for panel in json.loads(board())["panels"]
        for target in panel["targets"]
    ]
    rules = [{"record": f"asked:{number}", "expr": expression} for number, expression in enumerate(asked)]
    prometheus("check", json.dumps({"groups": [{"name": "board", "rules": rules}]}))


def test_no_two_panels_of_the_board_lie_on_each_other() -> None:
    """Each has a place of its own, within the width."""
    taken = set()
    for panel in json.loads(board())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


TOPIC_NAME = "it's; rm -rf *"
GROUP_NAME = "-g $HOME"


@frozen
class Staged:
    """An alert, the series that make it fire, what else they say, its summary, and the words of its command."""

    alert: str
    series: dict[str, float]
    summary: str
    command: list[str]
    after: str = "10m"
    severity: str = "warning"


AT = f"{GROUP_NAME} on {TOPIC_NAME}"
STATUS = ["lanelog", "status", "--", TOPIC_NAME]
STAGED = [
    Staged(
        "LanelogDatabaseAway", {"lanelog_up": 0}, "lanelog's database does not answer", ["lanelog", "doctor"],
        severity="critical",
    ),
    Staged(
        "LanelogMembersUnknown", {"lanelog_members_known": 0},
        "lanelog's database takes no writes, or the exporter looks at a replica, so that nothing is known of members",
        ["lanelog", "status"], "20m",
    ),
    Staged(
        "LanelogNobodyConsumes",
        {"lanelog_group_lag_messages": 7, "lanelog_group_members": 0, "lanelog_group_unowned_lanes": 2,
         "lanelog_group_paused": 0},
        f"{AT} has no living member, and 7 messages wait", STATUS, severity="critical",
    ),
    Staged(
        "LanelogJobNotRun",
        {"lanelog_group_lag_messages": 7, "lanelog_group_oldest_seconds": 90_000, "lanelog_group_members": 0,
         "lanelog_group_unowned_lanes": 0, "lanelog_group_paused": 0},
        f"no process runs {AT}, an archive or a replay, and 7 messages wait for it, the oldest for more than a day",
        STATUS, "2h",
    ),
    Staged(
        "LanelogLanesFailing", {"lanelog_group_failing_lanes": 3},
        f"3 lanes of {AT} wait behind a message that fails", STATUS,
    ),
    Staged(
        "LanelogLanesStuck", {"lanelog_group_stuck_lanes": 3, "lanelog_group_failing_lanes": 1},
        f"2 lanes of {AT} are slow, or nobody alive has them", STATUS, "4m", "critical",
    ),
    Staged(
        "LanelogHung", {"lanelog_group_hung_members": 2},
        f"2 members of {AT} hang: all their workers are busy, and none ends", STATUS, severity="critical",
    ),
    Staged(
        "LanelogBehind",
        {"lanelog_group_oldest_seconds": 360, "lanelog_group_members": 1, "lanelog_group_paused": 0},
        f"{AT} is 6m 0s behind", ["lanelog", "lanes", "--by", "lag", "--", TOPIC_NAME, GROUP_NAME],
    ),
    Staged(
        "LanelogPaused", {"lanelog_group_paused_lanes": 1},
        f"{AT}, or a lane of it, has been paused for an hour", STATUS, "2h",
    ),
    Staged(
        "LanelogDeadLetters", {"lanelog_topic_dead_letters": 2}, f"{TOPIC_NAME} has 2 dead letters", STATUS,
    ),
    Staged(
        "LanelogContradiction", {"lanelog_contradictions": 1}, "lanelog's tables contradict each other",
        ["lanelog", "doctor"], severity="critical",
    ),
    Staged(
        "LanelogHeadLocked", {"lanelog_head_locked_seconds": 90},
        "publishers wait for a transaction that has been open for 1m 30s", ["lanelog", "status"], severity="critical",
    ),
    Staged(
        "LanelogOldTransaction", {"lanelog_database_oldest_transaction_seconds": 600},
        "a transaction has been open for 10m 0s: deleted rows stay in every index", ["lanelog", "doctor"],
    ),
]  # fmt: skip


def staged(case: Staged) -> dict[str, Any]:
    """A test of Prometheus: on these series the alert fires, with a command that a shell reads as it was meant."""
    labels: dict[str, str] = {}
    if any("_group_" in name for name in case.series):
        labels = {"topic": TOPIC_NAME, "group": GROUP_NAME}
    elif any("_topic_" in name for name in case.series):
        labels = {"topic": TOPIC_NAME}
    written = ",".join(f'{name}="{value}"' for name, value in labels.items())
    quoted = [f"'{word}'".replace("it's", "it'\\''s") if word in labels.values() else word for word in case.command]
    assert shlex.split(" ".join(quoted)) == case.command
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"{name}{{{written}}}", "values": f"{value}x200"} for name, value in case.series.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": case.after,
                "alertname": case.alert,
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": case.severity, **labels},
                        "exp_annotations": {
                            "summary": case.summary,
                            "command": " ".join(quoted),
                            "runbook_url": f"operations/runbook.html#{case.alert.lower()}",
                        },
                    }
                ],
            }
        ],
    }


@pytest.mark.thorough
def test_each_alert_fires_on_its_incident_with_a_command_for_a_shell(prometheus: Callable[[str, str], None]) -> None:
    """Topics and groups may have any name: a command that is pasted names them, and does nothing else."""
    assert [case.alert for case in STAGED] == re.findall(r"- alert: (\w+)", alert_rules())
    prometheus("test", json.dumps({"rule_files": ["rules.yaml"], "tests": [staged(case) for case in STAGED]}))


@pytest.mark.parametrize(
    "rests",
    [{"lanelog_group_oldest_seconds": 80_000}, {"lanelog_group_members": 1}, {"lanelog_group_paused": 1},
     {"lanelog_group_unowned_lanes": 2}, {"lanelog_group_lag_messages": 0}],
)  # fmt: skip
def test_an_archive_that_runs_or_rests_for_a_day_is_no_alert(
    prometheus: Callable[[str, str], None], rests: dict[str, float]
) -> None:
    """An archive that an operator has paused is none either. A group that takes lanes has another alert."""
    (case,) = (each for each in STAGED if each.alert == "LanelogJobNotRun")
    test = staged(evolve(case, series={**case.series, **rests}))
    test["alert_rule_test"][0]["exp_alerts"] = []
    prometheus("test", json.dumps({"rule_files": ["rules.yaml"], "tests": [test]}))


def test_rules_without_a_runbook_say_how_to_set_it() -> None:
    """The place in the documentation is no link for Alertmanager. With an address there is nothing to say."""
    assert re.match(r"(#.*\n)*# .*--runbook URL", alert_rules())
    assert "--runbook" not in alert_rules("https://wiki.example/runbook")


def test_the_documentation_names_each_metric() -> None:
    """The documentation names no other metric. A name after the first of its row may be short."""
    found = set()
    for row in (ROOT / "docs/howto/monitoring.md").read_text().splitlines():
        names = re.findall(r"`((?:lanelog|…)_[a-z_]+)`", row.split("|")[1] if row.startswith("| `lanelog_") else "")
        for name in names:
            stem = "_".join(names[0].split("_")[:2])
            found.add(name.replace("…", stem, 1).removesuffix("_total"))
    rooms = [ROOT / "queue/lanelog/metrics" / f"{room}.py" for room in ("client", "log")]
    declared = {name for room in rooms for name in re.findall(r'"(lanelog_[a-z_]+)"', room.read_text())}
    for each in vars(measured).values():
        numbers = each if isinstance(each, tuple) else (each,)
        declared |= {one.prometheus for one in numbers if isinstance(one, measured.Number | measured.Distribution)}
    assert found == declared
