"""Every statement of publishers, explained by the server: exact rows by the index it names, never a scan."""

from collections.abc import Iterator
from typing import Any

import pytest

from lanelog._database import Database
from lanelog._stores import messages, partitions
from lanelog._stores.messages import Messages, NewMessage
from lanelog._stores.partitions import Partitions
from lanelog.config import ConnectConfig

KEYS = "%s,%s,%s"
POINTS = "(%s,%s),(%s,%s),(%s,%s)"
EXACT = " UNION ALL ".join(["SELECT %s AS k, %s AS o"] * 3)
THREE = ("t", "k0005", "k0100", "k0900")
IDS = ("t", "k0005", "i1", "k0100", "i2", "k0900", "i3")

# Statement, its arguments, the index it must use, and the most rows it may look at.
READING = {
    "EXISTING": (partitions.EXISTING.format(keys=KEYS), THREE, "PRIMARY", 3),
    "LOCK_HEADS": (partitions.LOCK_HEADS.format(keys=KEYS), THREE, "PRIMARY", 3),
    "TRY_LOCK_HEADS": (partitions.TRY_LOCK_HEADS.format(keys=KEYS), THREE, "PRIMARY", 3),
    "ADVANCE": (partitions.ADVANCE.format(keys=KEYS), (1, *THREE), "PRIMARY", 3),
    "TOPIC_EXISTS": (partitions.TOPIC_EXISTS, ("t",), "PRIMARY", 1),
    "SHARE_TOPIC": (partitions.SHARE_TOPIC, ("t",), "PRIMARY", 1),
    "FIND_IN_LOG": (messages.FIND_IN_LOG.format(points=POINTS), IDS, "by_id", 3),
    "FIND_IDS": (
        messages.FIND_IDS.format(points=POINTS, exact=EXACT),
        (*IDS, *IDS[1:], "t"),
        ("by_id", "PRIMARY"),
        3,
    ),
    "FIND_IDS_SHARED": (messages.FIND_IDS_SHARED.format(points=POINTS), IDS, "by_id", 3),
}
WRITING = {
    "CREATE_TOPIC",
    "CREATE_FLOORS",
    "FLOOR",
    "CREATE_HEADS",
    "HEAD",
    "INSERT",
    "ROW",
    "EXPIRING_ROW",
    "TARGETED_ROW",
}


@pytest.fixture
def filled(lanelog_url: str) -> Iterator[Database]:
    """A thousand lanes with two messages each."""
    database = Database(ConnectConfig.from_url(lanelog_url))
    keys = [f"k{number:04}" for number in range(1000)]
    with database.transaction() as cx:
        Partitions().create_topic(cx, "t")
        Partitions().create_floors(cx, "t", keys, 0)
        Partitions().create_heads(cx, "t", keys, 2)
        rows = [NewMessage(key, offset, f"i{offset}", b"x", None) for key in keys for offset in (1, 2)]
        Messages().insert(cx, "t", rows, cx.max_packet)
    with database.autocommit() as cx:
        for table in ("queue_partitions", "queue_messages"):
            cx.query(f"ANALYZE TABLE {table}")
    yield database
    database.close()


def test_every_statement_is_listed_here() -> None:
    """A new statement needs its line above."""
    constants = {
        name
        for module in (partitions, messages)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and name != "NOW_MS"
    }
    assert constants == READING.keys() | WRITING


@pytest.mark.parametrize("name", READING)
def test_a_statement_reads_exact_rows(filled: Database, name: str) -> None:
    """By the index named in its comment, with as many rows as keys were given."""
    statement, args, index, most = READING[name]
    read = [step for step in explained(filled, statement, args) if is_table(step["table"])]
    assert [step["key"] for step in read] == ([index] if isinstance(index, str) else list(index))
    for step in read:
        assert step["type"] in {"const", "range", "eq_ref"}
        assert int(step["rows"]) <= most


@pytest.mark.parametrize("lanes", [1, 2, 5, 1000])
def test_heads_are_locked_one_by_one_in_a_table_of_any_size(filled: Database, lanes: int) -> None:
    """No optimiser finds a scan cheaper, which would wait for the lanes of others: seen by what is locked."""
    with filled.transaction() as cx:
        cx.execute("DELETE FROM queue_partitions WHERE partition_key >= %s", (f"k{lanes:04}",))
    keys = [f"k{number:04}" for number in range(0, lanes, 2)]
    with filled.transaction() as mine, filled.transaction() as others:
        assert Partitions().lock_heads(mine, "t", keys, wait=False) == dict.fromkeys(keys, 2)
        rest = [f"k{number:04}" for number in range(1, lanes, 2)]
        assert Partitions().lock_heads(others, "t", rest, wait=False) == dict.fromkeys(rest, 2)
        assert Partitions().lock_heads(others, "t", keys, wait=False) == {}
        assert Partitions().advance(mine, "t", dict.fromkeys(keys, 3)) == len(keys)


def is_table(name: str | None) -> bool:
    """Not rows that the statement itself brings along."""
    return name is not None and not name.startswith("<")


def explained(database: Database, statement: str, args: tuple[object, ...]) -> list[dict[str, Any]]:
    columns: tuple[str, ...] = (
        "id",
        "select_type",
        "table",
        "type",
        "possible_keys",
        "key",
        "key_len",
        "ref",
        "rows",
        "extra",
    )
    if not database.facts().mariadb:
        columns = (*columns[:3], "partitions", *columns[3:9], "filtered", "extra")
    style = "" if database.facts().mariadb else "FORMAT=TRADITIONAL "
    with database.autocommit() as cx:
        return [dict(zip(columns, row, strict=True)) for row in cx.query(f"EXPLAIN {style}{statement}", args)]
