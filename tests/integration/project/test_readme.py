"""Examples and statements of the README and of docs/, executed on a real server.

`admin/test_grants.py` has the grants.
"""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import lanelog
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.readme import Example, example, sql, table
from support.scripts import Script
from support.sql import rows, sessions, watermark
from support.waiting import Gate, eventually, raising

Raw = "pymysql.Connection[Any]"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(lanelog_client: lanelog.Client, lanelog_url: str, monkeypatch: pytest.MonkeyPatch, raw: Raw) -> Run:
    """Executes an example as a reader would, in a new namespace with `lanelog` and `client`; returns the namespace."""
    monkeypatch.setenv("LANELOG_URL", lanelog_url)
    rows(raw, "CREATE TABLE orders (id INT PRIMARY KEY, state VARCHAR(16) NOT NULL)")
    rows(raw, "INSERT INTO orders VALUES (7, 'new')")
    rows(raw, "CREATE TABLE bills (order_id VARCHAR(255) PRIMARY KEY)")

    def execute(which: Example, **more: object) -> dict[str, Any]:
        block = example(which)
        namespace: dict[str, Any] = {"lanelog": lanelog, "client": lanelog_client, "__name__": "readme", **more}
        exec(compile(block.text, block.place, "exec"), namespace)  # noqa: S102 - the pages are ours
        return namespace

    return execute


def messages(raw: Raw, topic: str) -> list[bytes]:
    """The payloads of a topic, in order."""
    statement = "SELECT payload FROM queue_messages WHERE topic = %s ORDER BY partition_key, `offset`"
    return [payload for (payload,) in rows(raw, statement, topic)]


# -- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_first_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The message is written, read and acked; the loop ends when there is no more."""
    run(Example.FIRST)["client"].close()
    assert capsys.readouterr().out == "world {'it': 'works'}\n"


def test_quick_start(lanelog_url: str, tmp_path: Path) -> None:
    """The program publishes and handles; two processes share the four keys; the remaining one gets all of them."""
    path = tmp_path / "quickstart.py"
    shop = example(Example.QUICK_START).text
    path.write_text(shop.replace("time.sleep(1)", "time.sleep(0.1)"))  # the example publishes so often: no wait of ours
    command, environment = [sys.executable, path], {**os.environ, "LANELOG_URL": lanelog_url}
    with Script.start(command, environment, tmp_path) as first, Script.start(command, environment, tmp_path) as second:

        def keys(script: Script, since: int = 0) -> set[str]:
            said = re.findall(
                r"^process (\d+) handles (repo-\d): {'pr': \d+, 'from': (\d+)}$",
                "\n".join(script.lines.items[since:]),
                re.MULTILINE,
            )
            assert {int(pid) for pid, _, _ in said} <= {script.pid}
            assert {int(publisher) for _, _, publisher in said} <= {first.pid, second.pid}
            return {key for _, key, _ in said}

        eventually(lambda: keys(first) and keys(second), within=30)
        first.process.kill()
        first.process.wait()
        since = len(second.lines)
        eventually(lambda: len(keys(second, since)) == 4, within=30)
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(30) == 0


def test_publishing(run: Run, raw: Raw, capsys: pytest.CaptureFixture[str]) -> None:
    """The same id a second time is a duplicate; a batch takes pairs and Outgoing."""
    run(Example.PUBLISH)
    assert capsys.readouterr().out == "1 False\n"
    assert run(Example.PUBLISH)["receipt"].duplicate
    assert messages(raw, "merge") == [b"bytes", b"bytes", b"text", b'{"pr":17}']


def test_publishing_in_a_transaction(run: Run, raw: Raw) -> None:
    """The update and the message are there together."""
    run(Example.TRANSACTION)
    assert rows(raw, "SELECT state FROM orders") == [("paid",)]
    assert messages(raw, "orders") == [b"paid"]


def test_delayed_messages(run: Run, lanelog_client: lanelog.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """One was taken back, the other one waits for its time."""
    run(Example.DELAYED)
    assert capsys.readouterr().out == "True\n"
    (left,) = lanelog_client.admin.scheduled("mail")
    assert (left.key, left.deliver_at.year, left.ttl) == ("bob", 2031, 600.0)


@pytest.mark.thorough
def test_recurring_messages(run: Run, lanelog_client: lanelog.Client, raw: Raw) -> None:
    """Declared, each with its next time, and the one that is every ten seconds comes."""
    run(Example.RECURRING)
    found = {info.name: info for info in lanelog_client.admin.schedules()}
    assert found.keys() == {"nightly", "beat"}
    assert found["nightly"].next_fire_at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") in ("02:30", "03:00")
    eventually(lambda: messages(raw, "beats") == [b""], within=15)
    run(Example.RECURRING)
    assert len(lanelog_client.admin.schedules()) == 2


def test_handler(run: Run, lanelog_client: lanelog.Client, raw: Raw, capsys: pytest.CaptureFixture[str]) -> None:
    """The handler of the example takes what is good, and rejects what is not."""
    lanelog_client.publish("merge", "repo-42", {"pr": 17})
    lanelog_client.publish("merge", "repo-42", {"issue": 4})
    handle = run(Example.HANDLER)["handle"]
    with lanelog_client.subscribe("merge", "notifiers", handle):
        eventually(lambda: messages(raw, "merge_dlq") == [b'{"issue":4}'])
    assert "merge repo-42 1 " in capsys.readouterr().out


def test_batch(run: Run, lanelog_client: lanelog.Client, raw: Raw) -> None:
    """The handler of the example indexes the pages of two keys with one statement."""
    rows(raw, "CREATE TABLE indexed (id VARCHAR(255) PRIMARY KEY, topic_key VARCHAR(255), body BLOB)")
    lanelog_client.publish_many("pages", [("a", b"1"), ("b", b"2"), ("a", b"3")])
    run(Example.BATCH)
    eventually(lambda: watermark(raw, "index", "pages", "a") == 2)
    assert sorted(rows(raw, "SELECT topic_key, body FROM indexed")) == [("a", b"1"), ("a", b"3"), ("b", b"2")]


def test_retry_policy(run: Run) -> None:
    """A policy of tenacity's objects is taken as it is."""
    subscription = run(Example.RETRY)["subscription"]
    assert subscription.state == "running"
    assert 1 <= subscription.config.retry.decide(attempt=9, since_first=60.0, error=ValueError()) <= 3
    assert subscription.config.retry.decide(attempt=9, since_first=3600.0, error=ValueError()) is None


def test_exactly_once_effects(run: Run, lanelog_client: lanelog.Client, raw: Raw) -> None:
    """The bill, the mail and the ack are one transaction: a second bill for the order takes its mail back with it."""
    run(Example.EXACTLY_ONCE)
    lanelog_client.publish("orders", "order-7", b"paid")
    lanelog_client.start()
    eventually(lambda: messages(raw, "mail") == [b"your bill"])
    lanelog_client.publish("orders", "order-7", b"paid again")
    eventually(lambda: rows(raw, "SELECT 1 FROM queue_delivery_state WHERE retry_count > 0 AND lease_epoch = 0"))
    assert rows(raw, "SELECT order_id FROM bills") == [("order-7",)]
    assert messages(raw, "mail") == [b"your bill"]


def test_dead_letters(run: Run, lanelog_client: lanelog.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """A message without attempts left arrives at the handler of dead letters."""
    run(Example.DEAD_LETTERS)
    lanelog_client.publish("merge", "repo-42", b"pr 17")
    lanelog_client.subscribe("merge", "builders", raising(lanelog.Reject, "no such branch"))
    lanelog_client.start()
    printed: list[str] = []

    def arrived() -> bool:
        printed.append(capsys.readouterr().out)
        return bool("".join(printed))

    eventually(arrived)
    assert "".join(printed) == "merge builders no such branch b'pr 17'\n"


@pytest.mark.thorough
def test_pulling(run: Run, lanelog_client: lanelog.Client, capsys: pytest.CaptureFixture[str], raw: Raw) -> None:
    """The loop takes what is there, acks it, and ends."""
    lanelog_client.publish_many("merge", [("repo-1", b"a"), ("repo-1", b"b")])
    run(Example.PULL)
    assert capsys.readouterr().out == "b'a'\nb'b'\n"
    assert rows(raw, "SELECT offset_acked FROM queue_offsets WHERE consumer_group = 'scripts'") == [(2,)]


def test_middleware(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The middleware is called around the handler, and prints the key and the seconds."""
    found = run(Example.MIDDLEWARE)
    found["client"].publish("merge", "repo-42", b"x")
    eventually(lambda: found["subscription"].stats().acked == 1)
    assert re.search(r"^repo-42 [\d.e-]+$", capsys.readouterr().out, re.MULTILINE)


def test_flask(run: Run, raw: Raw) -> None:
    """Two identical requests are one message."""
    browser = run(Example.FLASK)["app"].test_client()
    assert browser.post("/merge/repo-42/17").json == {"offset": 1, "duplicate": False}
    assert browser.post("/merge/repo-42/17").json == {"offset": 1, "duplicate": True}
    assert messages(raw, "merge") == [b'{"pr":17}']


def test_fastapi(run: Run, raw: Raw) -> None:
    """The plain endpoint and the asynchronous one publish."""
    found = run(Example.FASTAPI)
    assert {"/merge/{repo}/{pr}", "/async/{repo}/{pr}"} <= {getattr(route, "path", "") for route in found["app"].routes}
    assert found["merge"]("repo-42", 17) == {"offset": 1}
    assert asyncio.run(found["merge_async"]("repo-42", 18)) == {"offset": 2}
    assert messages(raw, "merge") == [b'{"pr":17}', b'{"pr":18}']


def test_outbox(run: Run, raw: Raw, lanelog_url: str) -> None:
    """A connection of the application's own carries the row and the message."""
    config = ConnectConfig.from_url(lanelog_url)
    settings = {name: getattr(config, name) for name in ("host", "port", "unix_socket", "user", "password", "database")}
    with run(Example.OUTBOX, settings=settings)["connection"]:
        assert rows(raw, "SELECT state FROM orders WHERE id = 8") == [("new",)]
        assert messages(raw, "orders") == [b"new"]


@pytest.mark.thorough
def test_tests_of_handlers(pytester: pytest.Pytester, lanelog_server: DevServer) -> None:
    """The example of a user's test passes."""
    pytester.makepyfile(example(Example.PYTEST).text)
    result = pytester.runpytest_subprocess("-W", "error", "--lanelog-server", lanelog_server.url)
    result.assert_outcomes(passed=1)


def test_the_statement_for_the_lag(lanelog_client: lanelog.Client, raw: Raw) -> None:
    """The statement knows lanes that the group has not reached as well."""
    lanelog_client.publish_many("merge", [("a", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"1")])
    with lanelog_client.deliveries("merge", "builders", timeout=20.0) as deliveries:
        message = next(delivery for delivery in deliveries if delivery.key == "a")
        message.ack()
    assert rows(raw, sql("AS behind")) == [("a", 2), ("b", 1)]


def test_the_states_of_a_message(lanelog_client: lanelog.Client, raw: Raw) -> None:
    """Each state shows in the database as the documentation says."""
    gate = Gate()

    def handle(message: lanelog.Message) -> None:
        match message.key:
            case "processing":
                gate()
            case "retryable":
                raise lanelog.Retry(delay=60)
            case "postponed":
                raise lanelog.Postpone(60)
            case "failed":
                raise lanelog.Reject("no")

    def keys(where: str) -> set[str]:
        tables = "queue_offsets o LEFT JOIN queue_delivery_state d USING (consumer_group, topic, partition_key)"
        mine = f"consumer_group = 'g' AND topic = 'jobs' AND {where}"
        return {str(key) for (key,) in rows(raw, f"SELECT partition_key FROM {tables} WHERE {mine}")}

    for key in ("processing", "retryable", "postponed", "failed", "completed"):
        lanelog_client.publish("jobs", key, b"1")
    with lanelog_client.subscribe("jobs", "g", handle) as subscription, gate:
        gate.reached()
        lanelog_client.publish("jobs", "processing", b"2")  # pending behind the first
        done = "(o.offset_acked >= 1 OR d.acked = 1)"
        eventually(lambda: keys(done) == {"failed", "completed"}, what="completed")
        waiting = "d.lease_epoch = 0 AND d.invisible_until > UNIX_TIMESTAMP() * 1000"
        eventually(lambda: keys(f"{waiting} AND d.retry_count > 0") == {"retryable"}, what="retryable")
        eventually(
            lambda: keys(f"{waiting} AND d.postponed > 0 AND d.retry_count = 0") == {"postponed"}, what="postponed"
        )
        in_flight = "(o.offset_acked < 1 AND o.marked_through = 1 AND d.acked IS NULL OR d.lease_epoch > 0)"
        assert keys(in_flight) == {"processing"}
        failed = "SELECT failed_group, failure_count, last_error FROM queue_messages WHERE topic = 'jobs_dlq'"
        assert rows(raw, failed) == [("g", 1, "no")]
        gate.open()
        eventually(lambda: subscription.stats().acked == 3)


# -- operation ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_connection_budget(lanelog_url: str, raw: Raw) -> None:
    """However many threads publish and handle, a client has no more connections than the documentation says."""
    budget = {row[0].partition(" ")[0]: row[1] for row in table("Client", "Connections")}
    most = {name: int(cell.rpartition("+")[2]) + 3 for name, cell in budget.items()}
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            seen.append(len(sessions(raw)))

    def publish(client: lanelog.Client, number: int) -> None:
        for turn in range(10):
            client.publish("jobs", f"key-{number}-{turn}", b"x")

    def handle(message: lanelog.Message) -> None:
        with message.transaction() as connection:
            connection.cursor().execute("SELECT SLEEP(0.01)")

    looker = threading.Thread(target=look)
    looker.start()
    try:
        with lanelog.connect(lanelog_url, pool_size=3) as client, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: publish(client, number), range(8)))
            assert max(seen) <= most["publishes"]
            with (
                client.subscribe("jobs", "a", handle) as first,
                client.subscribe(["jobs", "others"], "b", handle) as second,
            ):
                list(pool.map(lambda number: publish(client, number), range(8, 16)))
                eventually(lambda: first.stats().acked == second.stats().acked == 160, within=60)
    finally:
        over.set()
        looker.join()
    assert most["publishes"] < max(seen) <= most["subscribes"]
