"""Handlers and publishers with real ORMs: the examples of docs/howto/orm.md, run as they are."""

import json
import os
import random
from importlib.util import find_spec
from typing import Any

import pytest
from attrs import frozen

from lanelog import Client
from support.processes import Fleet, Program
from support.readme import Example, example
from support.sql import one, rows, sessions, stored, watermark
from support.waiting import eventually

MESSAGES, KILLS = int(os.environ.get("LANELOG_BILLS", "300")), int(os.environ.get("LANELOG_KILLS", "4"))
"""Of one run with processes that are killed. `make proof` has 10,000 and 20."""
DRIVER = pytest.mark.parametrize("driver", ["pymysql", *(["mysqlclient"] if find_spec("MySQLdb") else [])])


@pytest.fixture(autouse=True)
def orders(raw: Any) -> None:
    """A table whose rows note the connection that has written them."""
    columns = "id INT PRIMARY KEY, state VARCHAR(16) NOT NULL, bills INT NOT NULL DEFAULT 0, session BIGINT DEFAULT 0"
    rows(raw, f"CREATE TABLE orders ({columns})")
    rows(raw, "CREATE TRIGGER noted BEFORE UPDATE ON orders FOR EACH ROW SET NEW.session = CONNECTION_ID()")


@frozen
class Orm:
    """An ORM, its example and its settings."""

    program: str
    example: Example
    kept: bool
    """Whether it keeps its connection between messages."""
    checked: bool
    """Whether it replaces a dead connection before its use."""

    def start(self, fleet: Fleet, driver: str, *, middleware: bool) -> Program:
        """Run the example with one worker."""
        head, _, _ = example(self.example).text.rpartition(", middleware=")
        tail = example(self.example).text[len(head) :] if middleware else ")\n"
        code = f"{head}, workers=1, retry=2{tail}"
        code = code if self.checked else code.replace(", pool_pre_ping=True", "")
        settings = {"CONN_MAX_AGE": None if self.kept else 0, "CONN_HEALTH_CHECKS": self.checked}
        running = fleet.start("orm", self.program, code=code, driver=driver, settings=settings)
        running.said("ready")
        return running


SQLALCHEMY, DJANGO = Example.SQLALCHEMY_MIDDLEWARE, Example.DJANGO_MIDDLEWARE
ORMS = {
    "sqlalchemy": Orm("orm_sqlalchemy.py", SQLALCHEMY, kept=True, checked=True),
    "sqlalchemy-unchecked": Orm("orm_sqlalchemy.py", SQLALCHEMY, kept=True, checked=False),
    "django": Orm("orm_django.py", DJANGO, kept=False, checked=False),
    "django-kept": Orm("orm_django.py", DJANGO, kept=True, checked=True),
    "django-unchecked": Orm("orm_django.py", DJANGO, kept=True, checked=False),
}


def handle(client: Client, raw: Any, number: int) -> int:
    """Publish an order and wait until its message is settled; the connection that has billed it, or 0."""
    rows(raw, "INSERT INTO orders (id, state) VALUES (%s, 'new')", number)
    client.publish("orders", f"order-{number}", {"id": number})
    # The row is seen before the answer to its commit has left: a kill may still fail that attempt.
    eventually(lambda: watermark(raw, "billing", "orders", f"order-{number}") == 1, within=30)
    return int(one(raw, "SELECT session FROM orders WHERE id = %s AND state = 'billed'", number) or 0)


def kill(raw: Any, session: int) -> None:
    """End a connection, which is still there, as a restart does."""
    rows(raw, "KILL %s", session)
    eventually(lambda: session not in sessions(raw))


@pytest.mark.thorough
@DRIVER
@pytest.mark.parametrize("name", ORMS)
def test_a_dead_connection_fails_one_attempt_at_most(
    fleet: Fleet, lanelog_client: Client, raw: Any, name: str, driver: str
) -> None:
    """With the middleware it fails one; none where connections are checked before their use or are not kept."""
    orm = ORMS[name]
    running = orm.start(fleet, driver, middleware=True)
    for number in range(1, 5):
        session = handle(lanelog_client, raw, number)
        assert session
        if orm.kept:
            kill(raw, session)
        else:
            eventually(lambda: session not in sessions(raw))  # noqa: B023 - called here
    running.tell("finish")
    assert running.ended() == 0
    assert len(fleet.logged("handler.failed")) == (3 if orm.kept and not orm.checked else 0)
    assert stored(raw, "orders_dlq") == 0


@pytest.mark.thorough
@DRIVER
@pytest.mark.parametrize("name", ["sqlalchemy-unchecked", "django-kept"])
def test_without_the_middleware_a_dead_connection_fails_every_later_message(
    fleet: Fleet, lanelog_client: Client, raw: Any, name: str, driver: str
) -> None:
    """The page says so of a thread whose sessions and connections nothing closes."""
    ORMS[name].start(fleet, driver, middleware=False)
    kill(raw, handle(lanelog_client, raw, 1))
    assert [handle(lanelog_client, raw, number) for number in range(2, 5)] == [0, 0, 0]
    assert stored(raw, "orders_dlq") == 3


@pytest.mark.thorough
@DRIVER
@pytest.mark.parametrize("orm", ["sqlalchemy", "django"])
def test_an_orm_publishes_in_its_own_transaction(fleet: Fleet, raw: Any, orm: str, driver: str) -> None:
    """The page's example publishes with the rows, or not at all. What has no transaction is refused."""
    text = example({"sqlalchemy": Example.SQLALCHEMY_PUBLISH, "django": Example.DJANGO_PUBLISH}[orm]).text
    running = fleet.start("orm", f"orm_{orm}.py", code=text, driver=driver, publishes=True)
    assert running.ended() == 0
    assert [json.loads(payload) for (payload,) in rows(raw, "SELECT payload FROM queue_messages")] == [{"id": 7}]
    assert rows(raw, "SELECT id, state FROM orders") == [(7, "paid")]
    (refused,) = running.said("refused")
    assert {"sqlalchemy": "begin one", "django": "with transaction.atomic()"}[orm] in refused["error"]


ACKS = """
from django.db import connection, transaction
from lanelog.contrib.django import ack, close_old_connections


def refused(message):
    try:
        ack(message)
    except lanelog.ConfigurationError as error:
        return str(error)


def bill(message):
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@wait_timeout")
        patience = cursor.fetchone()[0]
    outside = refused(message)
    with transaction.atomic():
        with transaction.atomic():
            inside = refused(message)
        ack(message)
        say("acked", attempt=message.attempt, patience=patience, outside=outside, inside=inside)
        if message.attempt == 1:
            raise ValueError("after the ack")


client.subscribe("orders", "billing", bill, workers=1, retry=3, lease_duration=7.0, middleware=(close_old_connections,))
"""


@pytest.mark.thorough
@DRIVER
def test_a_kept_connection_of_django_has_its_patience_again(
    fleet: Fleet, lanelog_client: Client, raw: Any, driver: str
) -> None:
    """After a commit and after a rollback. What is no outermost `atomic()` is refused before anything is sent."""
    code = f"import lanelog\n{ACKS}"
    running = fleet.start("orm", "orm_django.py", code=code, driver=driver, settings={"CONN_MAX_AGE": None})
    running.said("ready")
    lanelog_client.publish_many("orders", [("k", {}), ("k", {})])
    acked = running.said("acked", count=4)
    assert [line["attempt"] for line in acked] == [1, 2, 1, 2]
    assert {line["patience"] for line in acked} == {one(raw, "SELECT @@wait_timeout")}
    assert all("no atomic()" in line["outside"] and "inner atomic()" in line["inside"] for line in acked)
    eventually(lambda: watermark(raw, "billing", "orders", "k") == 2)


PUBLISHES = """
from django.db import connection, transaction
from lanelog.contrib.django import publish
from lanelog.contrib.django.testing import PublishedMixin


def paid(number, *topics, fails=False):
    with transaction.atomic():
        Order.objects.create(id=number, state="paid")
        for topic in topics:
            publish(topic, "k", {"id": number}, client=client)
        if fails:
            raise ValueError


def attempt(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return type(error).__name__


raised = [attempt(paid, 1, "b", "a"), attempt(paid, 2, "a", fails=True), attempt(publish, "a", "k", b"", client=client)]
with transaction.atomic():
    attempt(paid, 3, "a", fails=True)
    paid(4, "a")
    seen = [outgoing.payload for outgoing in PublishedMixin().published("a")]
with connection.cursor() as cursor:
    cursor.execute("RENAME TABLE queue_messages TO away")
raised.append(attempt(paid, 5, "a"))
with connection.cursor() as cursor:
    cursor.execute("RENAME TABLE away TO queue_messages")
paid(6)
say("published", raised=raised, seen=seen)
"""


@pytest.mark.thorough
@DRIVER
def test_atomic_publishes_with_its_commit(fleet: Fleet, lanelog_client: Client, raw: Any, driver: str) -> None:
    """Rows and messages are one commit; a rolled-back block leaves none, and so does a publish that fails there."""
    lanelog_client.publish("a", "k", b"0")
    (said,) = fleet.start("orm", "orm_django.py", code=PUBLISHES, driver=driver).said("published")
    assert said["raised"] == [None, "ValueError", "ConfigurationError", "ConfigurationError"]
    assert said["seen"] == [{"id": 4}]
    assert rows(raw, "SELECT id FROM orders ORDER BY id") == [(1,), (4,), (6,)]
    found = rows(raw, "SELECT topic, payload FROM queue_messages ORDER BY topic, `offset`")
    assert found == [("a", b"0"), ("a", b'{"id":1}'), ("a", b'{"id":4}'), ("b", b'{"id":1}')]


@pytest.mark.thorough
@pytest.mark.timeout(900)
@DRIVER
@pytest.mark.parametrize("orm", ["sqlalchemy", "django"])
def test_effects_are_exactly_once_although_processes_are_killed(
    fleet: Fleet, lanelog_client: Client, raw: Any, orm: str, driver: str
) -> None:
    """The page's example bills each order once, in two processes of which one after the other dies at any point."""
    text = example({"sqlalchemy": Example.SQLALCHEMY_ACK, "django": Example.DJANGO_ACK}[orm]).text
    options = "start='earliest', workers=4, lease_duration=2.0, lease_renewal=0.3"
    text = text.replace('"billing", bill', f'"billing", bill, {options}')
    numbers = range(1, MESSAGES + 1)
    values = ",".join(f"({number}, 'new')" for number in numbers)
    rows(raw, f"INSERT INTO orders (id, state) VALUES {values}")
    lanelog_client.publish_many("orders", [(f"customer-{n % 20}", {"id": n}) for n in numbers])

    def start() -> Program:
        return fleet.start("orm", f"orm_{orm}.py", code=text, driver=driver)

    def billed() -> int:
        return int(one(raw, "SELECT COUNT(*) FROM orders WHERE bills > 0"))

    running = [start(), start()]
    for kill_number in range(1, KILLS + 1):
        eventually(lambda: billed() >= MESSAGES * kill_number / (KILLS + 2), within=120)  # noqa: B023 - called here
        dies = running.pop(random.randrange(2))
        dies.kill()
        running.append(start())
    eventually(lambda: billed() == MESSAGES, within=300)
    marks = "SELECT SUM(offset_acked) FROM queue_offsets WHERE consumer_group = 'billing' AND topic = 'orders'"
    eventually(lambda: int(one(raw, marks) or 0) == MESSAGES, within=60)
    assert rows(raw, "SELECT id, bills FROM orders WHERE bills <> 1") == []
    assert stored(raw, "orders_dlq") == 0
