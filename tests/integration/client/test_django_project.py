"""A project of Django's with `lanelog.contrib.django` installed: its commands, its jobs, its checks."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lanelog import Client
from lanelog.config import ConnectConfig
from support.readme import Example, example
from support.settling import create_effects
from support.sql import rows, stored
from support.waiting import eventually

pytestmark = pytest.mark.one_family("mariadb")

SETTINGS = """
from importlib.util import find_spec

import pymysql

pymysql.install_as_MySQLdb()
MORE = ["django_tasks"] if find_spec("django_tasks") else []
INSTALLED_APPS = ["lanelog.contrib.django", "shop", *MORE]
USE_TZ = True
DATABASES = {{
    "default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "shop": {{
        "ENGINE": "django.db.backends.mysql",
        "NAME": {database!r},
        "USER": {user!r},
        "PASSWORD": {password!r},
        "HOST": {host!r},
        "PORT": {port!r},
        "OPTIONS": {{"charset": "utf8mb4"}},
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "TEST": {{"DEPENDENCIES": []}},
    }},
}}
LANELOG = {lanelog!r}
TASKS = {tasks!r}
EMAIL_BACKEND, EMAIL_FILE_PATH = "django.core.mail.backends.filebased.EmailBackend", "mails"
"""
TESTS = """
import lanelog
from django.db import transaction
from django.test import TestCase
from lanelog.contrib.django import publish
from lanelog.contrib.django.testing import PublishedMixin


class OrderTest(PublishedMixin, TestCase):
    databases = {"shop"}

    def test_what_is_published_is_seen(self):
        with transaction.atomic(using="shop"):
            publish("orders", "k", {"id": 1})
        (message,) = self.published("orders")
        self.assertEqual(message.payload, {"id": 1})

    def test_the_transaction_of_the_test_is_none_of_the_code(self):
        with self.assertRaises(lanelog.ConfigurationError):
            publish("orders", "k", b"")
"""

MODULE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
TASKS = f"""{example(Example.DJANGO_TASKS).text.replace("django_tasks", MODULE)}


@task(takes_context=True)
async def flaky(context, key):
    with open("attempts", "a") as file:
        print(key, context.attempt, context.task_result.id, file=file)
    if context.attempt == 1:
        raise ValueError(key)
"""
ENQUEUE = f"""
from datetime import timedelta
from django.db import transaction
from django.utils import timezone
from {MODULE}.exceptions import InvalidTaskError
from shop.tasks import flaky, remind

with transaction.atomic(using="shop"):
    remind.enqueue("ann@example.com", "first")
    try:
        with transaction.atomic(using="shop"):
            remind.enqueue("ann@example.com", "never")
            raise KeyError
    except KeyError:
        pass
remind.enqueue("ann@example.com", "second")
remind.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("ann@example.com", "much later")
flaky.using(backend="rest", queue_name="rest").enqueue("carl")
print("enqueued", flaky.enqueue("bob").id)
try:
    remind.using(priority=1)
except InvalidTaskError as error:
    print(error)
"""


def tasks(**options: object) -> dict[str, Any]:
    """The setting of the page, with other options."""
    options = {"key": "shop.tasks.key_of", **options}
    backend = {"BACKEND": "lanelog.contrib.django.tasks.LanelogBackend"}
    return {
        "default": {**backend, "QUEUES": ["default", "mails"], "OPTIONS": options},
        "rest": {**backend, "QUEUES": ["rest"]},
    }


@pytest.fixture
def project(tmp_path: Path, lanelog_url: str) -> Callable[..., "subprocess.Popen[str]"]:
    """Runs a command in a project with an application, "shop", whose jobs are the page's example."""
    config = ConnectConfig.from_url(lanelog_url)
    named = {"database": config.database, "user": config.user, "password": config.password or ""}
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/jobs.py").write_text(example(Example.DJANGO_JOBS).text)
    (tmp_path / "shop/tasks.py").write_text(TASKS)
    (tmp_path / "shop/tests.py").write_text(f"from shop import jobs{TESTS}")

    def run(*command: str, backend: object = None, **lanelog: object) -> "subprocess.Popen[str]":
        server = {**named, "host": config.host, "port": config.port}
        settings = SETTINGS.format(**server, lanelog={"database": "shop", **lanelog}, tasks=backend or tasks())
        (tmp_path / "settings.py").write_text(settings)
        return subprocess.Popen(
            [sys.executable, "-m", "django", *command],
            cwd=tmp_path,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


def said(process: "subprocess.Popen[str]", status: int = 0) -> str:
    """What a command printed, after it has ended with this status."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status, output
    return output


def lines(file: Path) -> list[str]:
    """What a task has written."""
    return file.read_text().splitlines()


@pytest.mark.thorough
def test_a_project_runs_its_jobs(project: Callable[..., Any], lanelog_client: Client, raw: Any) -> None:
    """The worker bills each order once and publishes its mail, and drains at SIGTERM. Status finds nothing wrong."""
    create_effects(raw)
    rows(raw, "CREATE TABLE bills (order_id INT PRIMARY KEY)")
    assert "up to date" in said(project("lanelog_migrate"))
    worker = project("lanelog_worker", "--workers", "2")
    try:
        groups = "SELECT 1 FROM queue_groups WHERE consumer_group = 'billing'"
        eventually(lambda: rows(raw, groups), within=30)
        lanelog_client.publish_many("orders", [(f"order-{number % 3}", {"id": number}) for number in range(9)])
        eventually(lambda: stored(raw, "mails") == 9, within=30)
    finally:
        worker.send_signal(signal.SIGTERM)
    said(worker)
    assert rows(raw, "SELECT order_id FROM bills ORDER BY order_id") == [(number,) for number in range(9)]
    assert "no problem" in said(project("lanelog_status"))


@pytest.mark.thorough
def test_a_project_runs_its_tasks(
    project: Callable[..., Any], lanelog_client: Client, raw: Any, tmp_path: Path
) -> None:
    """Tasks are published with the commit of `atomic()`, in order per key, later if told so, and retried."""
    del lanelog_client  # it has made the tables
    out = said(project("shell", "-v", "0", "-c", ENQUEUE))
    assert "Backend does not support setting priority of tasks" in out
    name = out.split("enqueued ")[1].split()[0]
    worker = project("lanelog_worker")
    try:
        eventually(lambda: (tmp_path / "attempts").exists() and len(lines(tmp_path / "attempts")) == 4, within=30)
        eventually(lambda: len(list((tmp_path / "mails").glob("*"))) == 2, within=30)
    finally:
        worker.send_signal(signal.SIGTERM)
    said(worker)
    assert [line for line in lines(tmp_path / "attempts") if line.startswith("bob")] == [
        f"bob 1 {name}",
        f"bob 2 {name}",
    ]
    mails = [
        each.read_text() for each in sorted((tmp_path / "mails").glob("*"), key=lambda file: file.stat().st_mtime_ns)
    ]
    assert ["first" in mails[0], "second" in mails[1]] == [True, True]
    assert rows(raw, "SELECT topic, partition_key FROM queue_scheduled") == [("tasks.mails", "ann@example.com")]


@pytest.mark.thorough
def test_a_testcase_sees_what_would_be_published(project: Callable[..., Any]) -> None:
    """A module of tests may import handlers before the database of the test is there, and nothing is sent."""
    assert "OK" in said(project("test", "shop"))


@pytest.mark.thorough
def test_wrong_settings_are_found_by_the_check(project: Callable[..., Any]) -> None:
    """Each by one sentence, also where a command meets them; right ones pass."""
    assert "no issues" in said(project("check"))
    assert "did you mean 'database'" in said(project("check", databse="shop"), 1)
    assert "did you mean 'workers'" in said(project("check", backend=tasks(worker=2)), 1)
    assert "names no QUEUES" in said(project("check", backend={"default": {**tasks()["default"], "QUEUES": []}}), 1)
    assert "have a queue in common" in said(project("check", backend={**tasks(), "third": tasks()["default"]}), 1)
    assert "does not define" in said(project("check", backend=tasks(key="shop.tasks.none")), 1)
    assert "one of sqlite" in said(project("lanelog_worker", "--skip-checks", database="default"), 1)
