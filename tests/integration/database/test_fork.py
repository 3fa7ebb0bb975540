"""A fork with a live client: multiprocessing, and gunicorn with --preload."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from support.processes import PROGRAMS, Fleet
from support.sql import one, rows, watermark
from support.unseen import DRIVERS
from support.waiting import eventually

CHILDREN = 10
DRIVER = pytest.mark.parametrize("driver", DRIVERS)


@DRIVER
def test_a_fork_leaves_the_parent_undisturbed_and_the_child_with_connections_of_its_own(
    fleet: Fleet, driver: str
) -> None:
    """The child publishes and subscribes anew; inherited subscriptions raise ClosedError; the parent misses nothing."""
    forking = fleet.start("forking", "forking.py", children=CHILDREN, driver=driver)
    forking.said("joined", count=CHILDREN, within=60)
    children = [line.fields for line in fleet.heard("child")]
    assert [line["status"] for line in fleet.heard("joined")] == [0] * CHILDREN
    for child in children:
        assert child["refused"] == [["start", True], ["pause", True], ["resume", True], ["stop", True], ["stats", True]]
        assert child["receipts"] == [1, 2, 3, 4, 5, 6]
        assert child["own"] == 6
        assert child["state"] == "running"
        assert child["closed"]
    forking.tell("finish")
    parent = forking.said("parent")[0].fields
    assert parent["published"] > 0
    assert parent == {
        "published": parent["published"],
        "handled": parent["published"],
        "in_order": True,
        "attempts": [1],
        "state": "running",
    }
    assert forking.said("closed")[0]["closed"]
    assert forking.ended() == 0
    assert fleet.heard("log") == []


@DRIVER
def test_a_fork_beside_a_thread_that_waits_for_an_answer(
    fleet: Fleet, raw: Any, driver: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The child gets connections of its own, also where a driver refuses to describe one that is in use."""
    rows(raw, "SELECT GET_LOCK('held by the test', 0)")
    forking = fleet.start("forking", "forking_beside.py", driver=driver)
    eventually(lambda: any("GET_LOCK" in str(row) for row in rows(raw, "SHOW PROCESSLIST")), within=30)
    forking.tell("fork")
    assert forking.said("child")[0].fields == {"receipts": [1, 2, 3], "closed": True}
    assert forking.said("joined")[0]["status"] == 0
    rows(raw, "SELECT RELEASE_LOCK('held by the test')")
    assert forking.said("parent")[0].fields == {"offset": 3, "closed": True}
    assert forking.ended() == 0
    assert fleet.heard("log") == []
    assert capfd.readouterr().err == ""


@pytest.fixture
def gunicorn(lanelog_url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A gunicorn with two workers that loads the application before it forks, and its port."""
    log = tmp_path / "gunicorn.log"
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as output:  # handed over: nobody else's
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
        process = subprocess.Popen(
            [*command, "--bind", f"fd://{listening.fileno()}", "--worker-tmp-dir", str(tmp_path), "wsgi:application"],
            pass_fds=[listening.fileno()],
            cwd=PROGRAMS,
            env={**os.environ, "LANELOG_URL": lanelog_url},
            stdout=output,
            stderr=output,
        )
    try:
        yield process, port
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def ask(port: int, path: str) -> dict[str, Any]:
    """The application's answer; the first one waits in the socket's queue until gunicorn has started."""
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=40) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


@pytest.mark.thorough
def test_gunicorn_with_preload(gunicorn: tuple[subprocess.Popen[bytes], int], raw: Any) -> None:
    """Workers publish through the client that the master made, and the master's own subscription sees it all."""
    process, port = gunicorn
    published: dict[int, int] = {}

    def both_have_answered() -> bool:
        answer = ask(port, "/publish")
        assert answer["master"] == process.pid
        assert answer["pid"] != process.pid
        published[answer["pid"]] = max(answer["offset"], published.get(answer["pid"], 0))
        return len(published) == 2 and sum(published.values()) >= 20

    eventually(both_have_answered, within=40, what="both workers publishing")
    assert "fork" in ask(port, "/stop")["refused"]
    for pid, offset in published.items():
        sql = "SELECT head_offset FROM queue_partitions WHERE topic = 'web' AND partition_key = %s"
        assert one(raw, sql, f"worker-{pid}") == offset
    keys = [f"worker-{pid}" for pid in published]
    eventually(lambda: all(watermark(raw, "masters", "web", key) == published[int(key[7:])] for key in keys))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
