"""Every statement of the stores is explained by the server it runs on: no scan where its comment promises an index."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import lanelog
from lanelog import _stores
from lanelog._connect import ConnectConfig
from lanelog._database import Database
from lanelog.devserver import DevServer
from support.waiting import eventually

LANES, MESSAGES = 60, 20
REPEATED = re.compile(r"\{(\w+)\}")
INTEGER = re.compile(
    r"(LIMIT|THEN|[-+]|`offset`\s*[<>]?=?|(message_offset|head_offset|lease_epoch|payload_bytes|created_at|updated_at|heartbeat_at)\s*[<>]?=|"
    r"GREATEST\(\w+,)\s*$"
)
READS = re.compile(r"[\s(]*(SELECT|UPDATE|DELETE|INSERT\b(?=.*\bSELECT\b))", re.DOTALL)


def statements() -> Iterator[tuple[str, str]]:
    """What reads: an INSERT of values has no plan."""
    for found in pkgutil.iter_modules(_stores.__path__):
        module: ModuleType = importlib.import_module(f"{_stores.__name__}.{found.name}")
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, str) and READS.match(value):
                yield f"{found.name}.{name}", value


def filled(sql: str) -> tuple[str, list[object]]:
    """The statement with two of everything repeated, and an argument of the right type for each placeholder."""
    for name in REPEATED.findall(sql):
        pair = {"points": "(%s, %s),(%s, %s)", "lanes": "(%s, %s),(%s, %s)", "cases": "WHEN %s THEN %s WHEN %s THEN %s"}
        sql = sql.replace("{" + name + "}", pair.get(name, "%s,%s"))
    args: list[object] = []
    at = 0
    for match in re.finditer("%s", sql):
        before = sql[at : match.start()]
        second_of_point = before == ", " and sql[:at].endswith("(%s")
        args.append(1 if INTEGER.search(before) or second_of_point else "lane-00001")
        at = match.end()
    return sql, args


@pytest.fixture(scope="module")
def database(lanelog_server: DevServer) -> Iterator[Database]:
    """Tables with enough rows that the optimizer prefers an index where it can use one."""
    url = lanelog_server.create_database("lanelog_plans")
    with lanelog.connect(url) as client:
        client.migrate()
        for group in ("lane-00001", "other"):
            client.subscribe("lane-00001", group, lambda _message: None).stop()
        keys = [f"lane-{n:05d}" for n in range(LANES)]
        client.publish_many("lane-00001", [(key, b"x") for key in keys for _ in range(MESSAGES)])
        client.publish_many("other", [(key, b"x") for key in keys])
        with client.subscribe("lane-00001", "lane-00001", lambda _message: None) as subscription:
            eventually(lambda: subscription.stats().acked >= LANES * MESSAGES, within=30)
    database = Database(ConnectConfig.from_url(url))
    with database.autocommit() as cx:
        for table in ("messages", "offsets", "partitions", "partition_leases", "delivery_state", "groups"):
            cx.query(f"ANALYZE TABLE queue_{table}")
    yield database
    database.close()


@pytest.mark.parametrize(("name", "sql"), [pytest.param(n, s, id=n) for n, s in statements()])
def test_no_statement_scans_a_table(name: str, sql: str, database: Database) -> None:
    """EXPLAIN of every statement names a key for every table that grows, on this server."""
    text, args = filled(sql)
    mariadb = database.facts().mariadb
    explain = "EXPLAIN" if mariadb else "EXPLAIN FORMAT=TRADITIONAL"
    with database.transaction() as cx:
        rows = cx.query(f"{explain} {text}", args)
    assert rows
    for row in rows:
        access = row[3 if mariadb else 4]
        target = row[1] == "INSERT"  # MySQL lists the table that is written to as well
        assert target or access != "ALL", f"{name}: {row}"


def test_every_statement_says_what_it_is_for() -> None:
    """Above each constant stands a comment with its intent and its index."""
    for path in Path(_stores.__path__[0]).glob("*.py"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if re.match(r"^[A-Z][A-Z_]+ = (f?\"\"\"|\"(SELECT|DELETE|UPDATE|INSERT))", line):
                above = [lines[n] for n in range(max(0, number - 4), number)]
                assert any(text.startswith("# ") for text in above), f"{path.name}: {line}"
