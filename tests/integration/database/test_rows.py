"""The faster reader of rows on real servers: values of every kind and size, and answers that break off."""

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.constants import CR, ER

from lanelog._database.connection.rows import Connection
from lanelog.config import ConnectConfig
from support.sql import rows

LENGTHS = (0, 1, 250, 251, 65_535, 65_536, 200_000, 3_000_000)


@pytest.fixture
def connection(lanelog_url: str) -> Iterator[Connection]:
    config = ConnectConfig.from_url(lanelog_url)
    one = Connection(
        host=config.host,
        port=config.port,
        unix_socket=config.unix_socket,
        user=config.user,
        password=config.password,
        database=config.database,
        charset="utf8mb4",
        read_timeout=1,
    )
    yield one
    one._force_close()  # type: ignore[attr-defined] # the farewell would wait for a server that is still busy


@pytest.fixture(autouse=True)
def kinds(raw: Any) -> None:
    rows(
        raw,
        "CREATE TABLE kinds (id INT PRIMARY KEY, t VARCHAR(80) CHARACTER SET utf8mb4, b LONGBLOB, d DECIMAL(20, 5), "
        "f DOUBLE, at DATETIME(6), day DATE, span TIME(3), j JSON, bits BIT(9), big BIGINT UNSIGNED)",
    )
    others = "-1.5, 0.1, '2026-01-02 03:04:05.678901', '2026-01-02', '-01:02:03.456', '{\"a\": \"ü\"}', 300, ~0"
    for number, length in enumerate(LENGTHS):
        rows(raw, f"INSERT INTO kinds VALUES ({number}, %s, REPEAT('x', {length}), {others})", ("ä€😀" * number,))
    rows(raw, "INSERT INTO kinds (id) VALUES (100)")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM kinds ORDER BY id",
        "SELECT * FROM kinds WHERE id = 3",
        "SELECT * FROM kinds LIMIT 0",
        "SELECT a.id, b.t, c.big FROM kinds a, kinds b, kinds c ORDER BY a.id, b.id, c.id",
    ],
)
def test_every_value_is_as_pymysql_reads_it(connection: Connection, raw: Any, sql: str) -> None:
    """Of every kind and length, and NULL, in answers of no row, of one, and of more than arrive at once."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        assert list(cursor.fetchall()) == rows(raw, sql)


def test_an_error_behind_some_rows_is_raised(connection: Connection) -> None:
    """A statement that fails in its midst fails as a whole, and the connection goes on."""
    fails = "(SELECT b.id FROM kinds b WHERE a.id = 5 OR b.id = 0)"
    with connection.cursor() as cursor:
        with pytest.raises(pymysql.err.OperationalError) as error:
            cursor.execute(f"SELECT a.id, REPEAT('x', 60000), {fails} FROM kinds a FORCE INDEX (PRIMARY) ORDER BY a.id")
        assert error.value.args[0] == ER.SUBQUERY_NO_1_ROW
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == ((1,),)


@pytest.mark.thorough
def test_a_server_that_falls_silent_in_the_midst_of_an_answer_is_left(connection: Connection) -> None:
    """The read time-out holds between rows, too: some rows alone are no answer."""
    with connection.cursor() as cursor, pytest.raises(pymysql.err.OperationalError) as error:
        cursor.execute(
            "SELECT id, REPEAT('x', 60000), IF(id = 5, SLEEP(20), 0) FROM kinds FORCE INDEX (PRIMARY) ORDER BY id"
        )
    assert error.value.args[0] == CR.CR_SERVER_LOST
    assert not connection.open
