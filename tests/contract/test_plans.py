"""Every statement of the library, explained by the server it runs on: it uses the index that its comment names.

The statements are found, not listed: each constant that reads or writes a table of lanelog, in any module, and in every
mode of locking. One that is written anywhere else than in such a constant is a failure, and so is one whose comment
names no index.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from attrs import field, frozen

import lanelog
from lanelog._base.connection_options import ConnectConfig
from lanelog._database import SERVER_MARK, Database
from lanelog.devserver import DevServer
from support.pauses import rendered
from support.waiting import accept, eventually

LANES, MESSAGES = 60, 20
OTHERS = 20
NAME = "lane-00001"
"""Topic, group, key, owner and id at once: whatever a placeholder is compared with, there is such a row."""

VERB = re.compile(r"[\s(]*(SELECT|INSERT|UPDATE|DELETE|REPLACE)\b")
OURS = re.compile(r"(?<!['`])\bqueue_(?!lanelog)[a-z_]+\b")  # a name in quotes is a value
WHOLE_ROWS = re.compile(r"\s*INSERT\b[^(]*\(([^)]*)\)\s*VALUES\s*(.*)", re.DOTALL)
INTEGER = re.compile(
    r"(LIMIT|THEN|[-+]|`offset`\s*[<>]?=?|"
    r"(message_offset|head_offset|lease_epoch|payload_bytes|created_at|updated_at|heartbeat_at|finished_at|"
    r"offset_acked|marked_through|version)\s*[<>]?=|"
    r"(acted_at|part)\s*=|"
    r"GREATEST\(\w+,)\s*$"
)
REPEATED = {
    "keys": f"'{NAME}','lane-00002'",
    "names": f"'{NAME}','other'",
    "groups": f"'{NAME}','other'",
    "owners": f"'','{NAME}'",
    "here": f"'{NAME}'",
    "topics": f"'{NAME}','other'",
    "ids": f"'{NAME}','b'",
    "offsets": "1,2",
    "ranges": " OR ".join(f"(partition_key = '{key}' AND `offset` BETWEEN 1 AND 9)" for key in (NAME, "b")),
    "like": "NOT LIKE",
    "wall": "next_local, fired_local, fired_again, tzdata",
    "within": f"BETWEEN '{NAME}' AND 'lane-00009'",
    "lanes": f"('{NAME}',1),('lane-00002',2)",
    "cases": f"WHEN '{NAME}' THEN 1 WHEN 'lane-00002' THEN 2",
    "moved": f"SELECT '{NAME}' AS k, '{NAME}' AS i, 1 AS o UNION ALL SELECT 'lane-00002', 'b', 1",
}
EXACT = {"system", "const", "eq_ref", "ref", "range"}
"""How rows are found by an index; "index" reads all of it, "ALL" all of the table."""

PUBLISHING = {"_stores.log.partitions", "_stores.log.messages"}
"""Statements of publishers look at no more rows than they were given keys or ids."""

LOOKING = {f"_stores.log.partitions.{name}" for name in ("OWNED_HEADS", "DIGEST", "PART_DIGESTS", "NEW_LANES", "PAGE")}
"""Who consumes sends these of them, and asks for lanes that it does not know."""

PIECES = {
    "_stores._points.BEYOND": "the end of a range of names",
    "_stores._redriven.CAP": "a name in METADATA",
    "_stores._redriven.ID": "a column of both REDRIVE",
    "_stores._redriven.METADATA": "the same",
    "_stores.consumers.deliveries._DUE": "a value in LOAD",
    "_stores.consumers.deliveries._ROW": "one row of UPSERT",
    "_stores.consumers.deliveries._SETTLED": "one row of SETTLE_UNSETTLED",
    "_stores.consumers.deliveries._LETTER": "one row of SETTLE_LETTERS",
    "_stores.consumers.history._ROW": "one row of UPSERT",
    "_stores.log.fetches._COLUMNS": "the columns of NEXT and EXACT",
    "_stores.log.fetches.RANGE": "one lane of NEXT",
    "_stores.log.lane_columns._END": "what a column of HEADS and OFFSETS has behind each value",
    "_stores.log.messages._TIMES": "two columns of a row of INSERT",
    "_stores.log.messages._NOTED_TIMES": "the same of a row behind partitions.NOTE_TIME",
    "_stores.log.messages.NEXT_ROW": "one row of INSERT",
    "_stores.log.messages.EXPIRING_NEXT_ROW": "the same",
    "_stores.later.scheduled.ROW": "one row of INSERT",
    "_stores.later.schedules._COLUMNS": "the columns of GET, LIST and TRY_LOCK",
    "_stores.later.schedules._SAME_TIMES": "a condition in DECLARE and DECLARE_WALL",
    "_stores.later.schedules._KEEPS_NEXT": "the same",
    "_stores.later.schedules._DECLARED": "the assignments of both",
    "_stores.later.schedules._WALL": "what stands for `{wall}`",
    "_stores.later.schedules._NO_WALL": "the same, for older tables",
    "_stores.consumers.offsets._FLOOR": "a value in BEGINNING",
    "_stores.consumers.offsets._BEGIN": "the same",
    "_stores.consumers.offsets.FLOOR": "one row of CREATE_FLOORS",
    "_stores._counted.NEXT_EPOCH": "a value in leases.TAKE and others: the epoch after the row's",
    "_stores.members._heartbeat_rows.FOUND_DEAD": "the beginning of a value in both DEREGISTER",
    "_stores.members._heartbeat_rows.LOCK_FREE": "a column of most statements that read heartbeats",
    "_stores.members.heartbeats._LEFT": "a value in both DEREGISTER",
    "_stores.members.member_rows._IN_SHORT": "a column of AT_WORK",
    "_stores.members.member_rows._WITHOUT_HANDLERS": "the end of its text",
    "_stores.consumers.flushes._COLUMNS": "the columns of FLUSH and FLUSH_FENCED",
    "_stores.consumers.flushes._SAME": "a condition in FLUSH_FENCED",
    "_stores.log.partitions.NEW_HEAD": "one row of CREATE_HEADS",
    "_stores.log.partitions.NOTE_TIME": "the clock and the count of the statement before: no table",
    "_stores.log.partitions.KEEP_TIME": "the same",
    "_stores.log.partitions.NOTED_OFFSET": "a variable of the session: no table",
}
NOT_EXPLAINED = {
    "migrations.catalogue.VERSION": "answered from the index's end, which EXPLAIN shows as no table at all",
    "admin.operate.repair.KEY_BETWEEN": "a range between two names, of which there is none here",
    "admin.operate.repair.TOPIC_BETWEEN": "the same",
}


@frozen
class Statement:
    """A constant, and the comment above it."""

    module: str
    name: str
    sql: str = field(repr=False)
    comment: str = field(repr=False)

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def tables(self) -> set[str]:
        return set(OURS.findall(self.sql))


def modules() -> Iterator[tuple[str, ModuleType]]:
    """Every module of the library, by its name below `lanelog`."""
    for found in pkgutil.walk_packages(lanelog.__path__, "lanelog."):
        if not found.name.endswith("__main__"):
            yield found.name.removeprefix("lanelog."), importlib.import_module(found.name)


def constants(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Name, value and comment of the text constants that a module makes itself."""
    path = Path(str(module.__file__))
    lines = path.read_text().splitlines()
    for node in ast.parse(path.read_text()).body:
        for target in targets(node):
            if isinstance(getattr(module, target, None), str):
                yield target, getattr(module, target), above(lines, node.lineno - 1)


def targets(node: ast.stmt) -> list[str]:
    """The names that a statement of a module assigns to."""
    names = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for name in names if isinstance(name, ast.Name)]


def above(lines: list[str], at: int) -> str:
    """The comment that ends in the line before `at`."""
    begin = at
    while begin > 0 and lines[begin - 1].startswith("#"):
        begin -= 1
    return " ".join(line.removeprefix("#").strip() for line in lines[begin:at])


def statements() -> list[Statement]:
    return [
        Statement(name, rendering, sql, comment)
        for name, module in modules()
        for constant, value, comment in constants(module)
        if VERB.match(value) and OURS.search(value)
        for rendering, sql in rendered(constant, value)
    ]


ALL = statements()


def filled(sql: str) -> tuple[str, list[object]]:
    """The statement with two of everything repeated, and an argument of the right type for each placeholder."""
    values = WHOLE_ROWS.match(sql)
    if values and (values[2] in ("", "%s") or "{rows}" in values[2]):
        row = f"({','.join(['1'] * len(values[1].split(',')))})"
        return (sql.replace("{rows}", row) if "{rows}" in sql else sql + row), []
    by_id = "(partition_key, id)" in sql
    one, two = (f"'{NAME}'", "'b'") if by_id else (1, 2)
    given = {
        "points": f"('{NAME}',{one}),('lane-00002',{two})",
        "exact": f"SELECT '{NAME}' AS k, {one} AS o UNION ALL SELECT 'lane-00002', {two}",
    }
    sql = sql.replace(f"{SERVER_MARK} = %s", f"{SERVER_MARK} = {SERVER_MARK}")
    for name, text in {**REPEATED, **given}.items():
        sql = sql.replace("{" + name + "}", text)
    args: list[object] = []
    at = 0
    for match in re.finditer("%s", sql):
        before = sql[at : match.start()]
        before = before.rstrip()  # MySQL takes a derived table with LIMIT 1 for a constant
        number = MESSAGES if before.endswith("<=") else 2 if before.endswith("LIMIT") else 1
        args.append(number if INTEGER.search(before) else NAME)
        at = match.end()
    return sql, args


@pytest.fixture(scope="module")
def database(lanelog_server: DevServer) -> Iterator[Database]:
    """Tables with enough rows that the optimizer prefers an index where it can use one, and with the rows asked for."""
    url = lanelog_server.create_database("lanelog_plans")
    with lanelog.connect(url) as client:
        client.migrate()
        for group in (NAME, "other"):
            client.subscribe(NAME, group, accept).stop()
        keys = [f"lane-{n:05d}" for n in range(LANES)]
        client.publish(NAME, NAME, b"x", id=NAME)
        client.publish_many(NAME, [(key, b"x") for key in keys for _ in range(MESSAGES)])
        for topic in ["other", *(f"topic-{n}" for n in range(OTHERS))]:
            client.publish_many(topic, [(key, b"x") for key in keys])
        with client.subscribe(NAME, NAME, accept) as subscription:
            eventually(lambda: subscription.stats().acked > LANES * MESSAGES, within=30)
    database = Database(ConnectConfig.from_url(url))
    with database.transaction() as cx:
        populate(cx, keys)
    with database.autocommit() as cx:
        for (table,) in cx.query("SHOW TABLES"):
            cx.query(f"ANALYZE TABLE {table}")
    yield database
    database.close()
    lanelog_server.drop_database("lanelog_plans")


@pytest.fixture(scope="module")
def indexes(database: Database) -> dict[str, set[str]]:
    """The indexes of each table, as the migrations made them."""
    found: dict[str, set[str]] = {}
    with database.autocommit() as cx:
        for table, index in cx.query(
            "SELECT table_name AS t, index_name AS i FROM information_schema.statistics WHERE table_schema = DATABASE()"
        ):
            found.setdefault(table, set()).add(index)
    return found


def populate(cx: Any, keys: list[str]) -> None:
    """Rows as other groups, owners and failures leave them, in every table that a statement may look into."""
    waiting = ",".join(
        f"('{topic}','{key}','{message_id}','x',1,{deliver_at})"
        for topic in (NAME, "other")
        for key in keys
        for message_id, deliver_at in ((NAME, 1), ("b", 1), *((f"later-{n}", 1 << 42) for n in range(20)))
    )
    columns = "topic, partition_key, id, payload, payload_bytes, deliver_at"
    cx.execute(f"INSERT INTO queue_scheduled ({columns}) VALUES {waiting}")
    fires = ",".join(f"('{name}','* * * * *','UTC','{NAME}','{NAME}','x',1,'all',{n},0)" for n, name in enumerate(keys))
    columns = "name, expression, timezone, topic, partition_key, payload, payload_bytes, catch_up, next_fire_at"
    cx.execute(f"INSERT INTO queue_schedules ({columns}, expression_at) VALUES {fires}")
    cx.execute("UPDATE queue_schedules SET next_fire_at = 1 << 42 WHERE name > 'lane-00010'")
    cx.execute("UPDATE queue_groups SET history_ms = 1")
    cx.execute(
        "UPDATE queue_partition_leases SET leased_by = %s, lease_epoch = 1 WHERE partition_key < %s", (NAME, keys[10])
    )
    acts = ",".join(f"({at},'{at}',0,'skip')" for at in [*range(OTHERS), *range(1 << 42, (1 << 42) + 500)])
    cx.execute(f"INSERT INTO queue_audit (acted_at, id, part, verb) VALUES {acts}")
    for group in [NAME, "other", *(f"group-{n}" for n in range(OTHERS))]:
        owners = ",".join(f"('{group}','{topic}','{NAME}')" for topic in (NAME, "other"))
        cx.execute(f"INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name) VALUES {owners}")
        rows = ",".join(f"('{group}','{NAME}','{key}',{offset},{offset})" for key in keys for offset in range(1, 6))
        cx.execute(
            "INSERT INTO queue_delivery_state (consumer_group, topic, partition_key, message_offset, through_offset)"
            f" VALUES {rows}"
        )
        left = ",".join(
            f"('{group}','{NAME}','{key}',{offset},'{offset}','success')" for key in keys for offset in (1, 2)
        )
        columns = "consumer_group, topic, partition_key, message_offset, id, outcome"
        cx.execute(f"INSERT INTO queue_history ({columns}) VALUES {left}")
        lanes = ",".join(f"('{group}','{NAME}','{key}')" for key in keys)
        cx.execute(f"INSERT IGNORE INTO queue_offsets (consumer_group, topic, partition_key) VALUES {lanes}")
        leases = lanes.replace(")", ",'somebody')")
        columns = "consumer_group, topic, partition_key, leased_by"
        cx.execute(f"INSERT IGNORE INTO queue_partition_leases ({columns}) VALUES {leases}")
        cx.execute(
            "INSERT IGNORE INTO queue_groups (consumer_group, topic, delivery_order, start_at) VALUES"
            f" ('{group}','{NAME}','strict','earliest'), ('{group}','other','strict','earliest')"
        )


def plan(database: Database, sql: str, args: list[object]) -> list[dict[str, Any]]:
    """What the server would do, step by step."""
    mariadb = database.facts().mariadb
    columns = ["id", "select_type", "table", "type", "possible_keys", "key", "key_len", "ref", "rows", "extra"]
    if not mariadb:
        columns = [*columns[:3], "partitions", *columns[3:9], "filtered", "extra"]
    with database.transaction() as cx:
        rows = cx.query(f"EXPLAIN {'' if mariadb else 'FORMAT=TRADITIONAL '}{sql}", args)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def of_no_table(step: dict[str, Any]) -> bool:
    """Whether a step reads rows that the statement itself brings along: a derived table of constants."""
    return (
        step["table"].startswith(("<derived", "<union")) if step["table"] else "No tables used" in (step["extra"] or "")
    )


@pytest.mark.parametrize("statement", [pytest.param(each, id=each.qualified) for each in ALL])
def test_a_statement_uses_the_indexes_that_its_comment_names(
    statement: Statement, database: Database, indexes: dict[str, set[str]]
) -> None:
    """EXPLAIN names exactly those, for every table that is read, and finds rows by them instead of reading all."""
    assert statement.tables <= indexes.keys()
    named = set(re.findall(r"\w+", statement.comment)) & set().union(*(indexes[table] for table in statement.tables))
    assert named, f"{statement.qualified}: its comment names no index of its tables: {statement.comment!r}"
    if statement.qualified in NOT_EXPLAINED:
        return
    sql, args = filled(statement.sql)
    steps = plan(database, sql, args)
    # Rows given by value are not looked for: the comment names the key that finds a duplicate. MySQL shows the table
    # that an INSERT … SELECT writes to as a step of its own.
    reading = [step for step in steps if step["select_type"] != "INSERT" and not of_no_table(step)]
    assert reading or re.match(r"\s*INSERT\b", statement.sql)
    assert {step["type"] for step in reading} <= EXACT, f"{statement.qualified}: {reading}"
    assert not reading or {step["key"] for step in reading} == named, f"{statement.qualified}: {reading}"
    if statement.module in PUBLISHING and statement.qualified not in LOOKING:
        assert max((int(step["rows"]) for step in reading), default=0) <= 2, f"{statement.qualified}: {reading}"


def test_no_statement_is_written_anywhere_else() -> None:
    """What touches our tables stands in a constant of its module, where the test above finds it."""
    found = {statement.qualified for statement in ALL}
    for name, module in modules():
        tree = ast.parse(Path(str(module.__file__)).read_text())
        known = {
            part
            for node in tree.body
            for target in targets(node)
            if f"{name}.{target}" in found
            for part in ast.walk(node)
        }
        known |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in known:
                assert not (VERB.match(node.value) and OURS.search(node.value)), f"{name}:{node.lineno}"


def test_every_text_constant_of_stores_and_publisher_is_a_statement_or_a_known_piece_of_one() -> None:
    """Nothing escapes the tests above by not looking like a statement."""
    texts = {
        f"{name}.{constant}"
        for name, module in modules()
        if name.startswith(("_stores", "publisher", "_log.append"))
        for constant, _, _ in constants(module)
    }
    assert texts - {statement.qualified for statement in ALL} == PIECES.keys()


def test_the_search_finds_the_stores() -> None:
    """Each of them has statements, and what is exempt is there."""
    found = {name for name, module in modules() if name.startswith("_stores.") and not hasattr(module, "__path__")}
    stores = {name for name in found if not name.rpartition(".")[2].startswith("_")}
    assert {statement.module for statement in ALL} >= stores
    assert NOT_EXPLAINED.keys() <= {statement.qualified for statement in ALL}
