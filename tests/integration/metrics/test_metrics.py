"""`lanelog metrics`: what Prometheus gets from a real server, with a reader's account."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry

import lanelog
from lanelog import Reject, Retry
from lanelog.devserver import DevServer
from lanelog.metrics import LogCollector, alert_rules, board, observe
from support.accounts import account
from support.cli import Command
from support.oncall import Alert, OnCall
from support.prometheus import Series, series_of, serving
from support.situations import Situations
from support.sql import connect as sql_connection
from support.sql import rows
from support.waiting import eventually

KEY = "a-customer's-name"


def handle(message: lanelog.Message) -> None:
    if message.payload == b"reject":
        raise Reject("no such branch")
    if message.payload == b"retry":
        raise Retry(delay=3600)


def scraped(address: str) -> Series:
    with urlopen(address, timeout=20) as answer:  # noqa: S310 - the address that our own process printed
        text = answer.read().decode()
    assert KEY not in text
    return series_of(text)


@pytest.fixture
def log(lanelog_client: lanelog.Client) -> lanelog.Client:
    """Messages that a handler retries, rejects and accepts, a delayed message, and a group that nobody runs."""
    lanelog_client.publish_many("t", [(KEY, b"retry"), ("bad", b"reject"), ("good", b"x")])
    lanelog_client.publish("t", KEY, b"later", delay=3600)
    lanelog_client.subscribe("t", "left", handle).stop()
    return lanelog_client


def test_a_reader_gets_the_figures_of_the_log(log: lanelog.Client, raw: Any, lanelog_url: str) -> None:
    """By topic and group, without keys; what needs PROCESS is absent, and nothing is an error."""
    with account(raw, lanelog_url, {"*": "SELECT"}) as url, log.subscribe("t", "g", handle) as subscription:
        eventually(lambda: (stats := subscription.stats()).dead_lettered == stats.retried == stats.acked == 1)
        eventually(lambda: log.admin.groups("t")[0].lag == 1)
        rows(raw, "UPDATE queue_messages SET created_at = created_at - 3600000 WHERE topic = 't'")
        with serving(url) as address:
            found = scraped(address)
            assert found["lanelog_up",] == 1
            assert found["lanelog_group_lag_messages", "t", "g"] == 1
            assert found["lanelog_group_lag_messages", "t", "left"] == 3
            assert 3600 <= found["lanelog_group_oldest_seconds", "t", "g"] < 3700
            assert (found["lanelog_group_members", "t", "g"], found["lanelog_group_members", "t", "left"]) == (1, 0)
            assert found["lanelog_group_failing_lanes", "t", "g"] == found["lanelog_group_stuck_lanes", "t", "g"] == 1
            assert found["lanelog_group_unowned_lanes", "t", "left"] == found["lanelog_group_lanes", "t", "left"] == 3
            assert found["lanelog_group_unowned_lanes", "t", "g"] == 0
            assert found["lanelog_topic_dead_letters", "t"] == 1
            assert found["lanelog_topic_delayed_messages", "t"] == 1
            assert found["lanelog_table_bytes", "queue_messages"] > 0
            assert ("lanelog_database_oldest_transaction_seconds",) not in found


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics in an expression, and for each the labels that it is asked by."""
    joined = {label for found in re.findall(r"(?:on|by)\s*\(([^)]*)\)", expression) for label in found.split(",")}
    for name, matchers in re.findall(r"(lanelog_\w+)(\{[^}]*\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*=", matchers)) | joined


def test_each_query_of_alerts_and_board_finds_its_series_in_a_scrape(log: lanelog.Client) -> None:
    """The series have the labels that the query asks by, and that its legend and its annotations name."""
    worker = observe(log, CollectorRegistry())
    with log.subscribe("t", "g", handle) as subscription:
        eventually(lambda: subscription.stats().dead_lettered == 1)
        there = {
            sample.name: {*sample.labels}
            for metric in (*LogCollector(log.admin).collect(), *worker.collect())
            for sample in metric.samples
        }
    if not log._database.facts().mariadb:
        there.setdefault("lanelog_head_locked_seconds", set())  # absent where MySQL's performance schema is off
    alerts = [rule for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]]
    shown = json.loads(board())
    targets = [target for panel in shown["panels"] for target in panel["targets"]]
    queries = [(rule["expr"], re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) for rule in alerts]
    queries += [(target["expr"], re.findall(r"\{\{(\w+)", target["legendFormat"])) for target in targets]
    for variable in shown["templating"]["list"][1:]:
        ((expression, label),) = re.findall(r"label_values\((.+), (\w+)\)", variable["query"])
        queries.append((expression, [label]))
    for expression, named in queries:
        found = list(asked(expression))
        assert found, expression
        for name, labels in found:
            assert labels <= there[name], expression
        assert {*named} <= there[found[0][0]], expression  # a join keeps the labels of its first side


@pytest.mark.thorough
def test_an_archive_that_nobody_runs_is_an_alert_as_it_is_a_problem(
    log: lanelog.Client, raw: Any, lanelog_url: str, tmp_path: Path
) -> None:
    """On a real scrape, with the words of `lanelog status` and the front page. Its group deleted, all are quiet."""
    log.admin.delete_group("t", "left", dry_run=False)
    Situations(raw, group="cold").register(delivery_order="archive")
    on_call = OnCall(lanelog_url, tmp_path, clicks=False)
    on_call.fires()
    rows(raw, "UPDATE queue_messages SET created_at = created_at - 90000000 WHERE topic = 't'")
    said = (
        "no process runs cold on t, an archive or a replay, and 3 messages wait for it, the oldest for more than a day"
    )
    alert = Alert("LanelogJobNotRun", "warning", {"topic": "t", "group": "cold"}, said, "lanelog status -- 't'")
    assert on_call.named(alert, "not archived") == "lanelog members t cold"
    log.admin.delete_group("t", "cold", dry_run=False)
    on_call.quiet()


def test_an_account_with_process_sees_the_oldest_transaction(log: lanelog.Client, open_raw: Any) -> None:
    """The account sees how many deleted rows the server keeps for it, too."""
    other = open_raw()
    rows(other, "START TRANSACTION")
    rows(other, "SELECT COUNT(*) FROM queue_messages")
    found = log.admin.figures().server
    assert found.oldest_transaction is not None
    assert found.oldest_transaction >= 0
    assert found.history_list_length is not None
    assert {"queue_messages", "queue_offsets"} <= found.tables.keys()


@pytest.mark.parametrize("zone", ["+05:30", "-05:00"])
def test_the_age_of_a_transaction_is_the_same_in_every_time_zone(private_server: DevServer, zone: str) -> None:
    """The zone that the server gives to its sessions need not be that of its host."""
    url = private_server.create_database("zoned")
    with sql_connection(url) as before:
        rows(before, "SET GLOBAL time_zone = %s", zone)
    with lanelog.connect(url) as client, sql_connection(url, autocommit=False) as other:
        client.migrate()
        client.publish("t", "k", b"x")
        rows(other, "SELECT COUNT(*) FROM queue_messages")
        ages: list[float] = []

        def a_second_old() -> bool:
            ages.append(client.admin.figures().server.oldest_transaction or 0.0)
            return ages[-1] >= 1

        eventually(a_second_old, within=10)
    assert max(ages) < 60


def test_a_paused_group_says_so(log: lanelog.Client) -> None:
    """An alert for lag can leave it out."""
    registry = CollectorRegistry()
    registry.register(LogCollector(log.admin, fresh=0))
    labels = {"topic": "t", "group": "left"}
    assert registry.get_sample_value("lanelog_group_paused", labels) == 0
    log.admin.pause("t", "left", by="ann")
    assert registry.get_sample_value("lanelog_group_paused", labels) == 1


@pytest.mark.parametrize(("fresh", "seen"), [(3600.0, 3), (0.0, 4)])
def test_monitors_that_ask_at_the_same_time_cost_one_read(log: lanelog.Client, fresh: float, seen: int) -> None:
    """The monitors get the answer of the last read while it is fresh."""
    registry = CollectorRegistry()
    registry.register(LogCollector(log.admin, fresh=fresh))
    labels = {"topic": "t", "group": "left"}
    assert registry.get_sample_value("lanelog_group_lag_messages", labels) == 3
    log.publish("t", "good", b"x")
    assert registry.get_sample_value("lanelog_group_lag_messages", labels) == seen


def test_a_database_that_is_away_is_a_figure() -> None:
    """The scrape succeeds, and reports that the database is away."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with lanelog.connect(f"mysql://root@127.0.0.1:{port}/jobs", publish_timeout=0.2) as client:
        (up,) = LogCollector(client.admin).collect()
    assert [(sample.name, sample.value) for sample in up.samples] == [("lanelog_up", 0)]


def test_the_board_and_the_rules_are_printed(command: Command) -> None:
    """Without a database, to be sent to a file; one of them."""
    assert json.loads(command("metrics", "--dashboard").output)["title"] == "lanelog"
    assert "not both" in command.refused("metrics", "--dashboard", "--rules")
    assert command("metrics", "--rules").output == alert_rules()
    assert (
        "https://wiki.example/#lanelogbehind"
        in command("metrics", "--rules", "--runbook", "https://wiki.example/").output
    )


def test_an_address_that_cannot_be_had_is_refused(command: Command) -> None:
    """In one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = command.refused("metrics", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert said.startswith("cannot listen at 127.0.0.1:")
    for wrong in ("9464", "127.0.0.1:", "127.0.0.1:65536", ":9464", "127.0.0.1:http"):
        assert "is no HOST:PORT" in command.refused("metrics", "--listen", wrong)
