"""Rows taken out of what a server has sent, against PyMySQL's own reading of them."""

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pymysql.connections import Connection as PyMySQLs
from pymysql.connections import MySQLResult
from pymysql.constants import SERVER_STATUS
from pymysql.converters import encoders
from pymysql.protocol import MysqlPacket

from lanelog._database.connection.rows import Connection, reading, take_rows

NUMBER = st.integers(-(2**63), 2**64 - 1).map(lambda n: str(n).encode())
BYTES = st.one_of(st.binary(max_size=5), st.integers(245, 260).map(bytes), st.integers(65533, 65540).map(bytes))
TEXT = st.text(max_size=8).map(str.encode)
Column = tuple[str | None, Any]

KINDS: list[tuple[Column, Any]] = [
    ((None, int), NUMBER),
    ((None, None), BYTES),
    (("utf8", None), TEXT),
    (("latin1", None), BYTES),
    (("utf8", len), TEXT),
]


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Column], list[list[bytes | None]]]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    row = st.tuples(*(st.none() | values for _, values in kinds)).map(list)
    return [column for column, _ in kinds], draw(st.lists(row, max_size=5))


def value(data: bytes | None) -> bytes:
    if data is None:
        return b"\xfb"
    if len(data) < 251:
        return bytes([len(data)]) + data
    return (
        b"\xfc" + struct.pack("<H", len(data)) if len(data) < 65536 else b"\xfd" + struct.pack("<I", len(data))[:3]
    ) + data


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number & 0xFF]) + body


def as_pymysql(columns: list[Column], body: bytes) -> tuple[Any, ...]:
    answer = MySQLResult(None)
    answer.converters = columns
    return answer._read_row_from_packet(MysqlPacket(body, "utf8"))


@given(
    answer=answers(),
    number=st.integers(0, 255),
    cut=st.integers(0, 400),
    end=st.sampled_from([b"\xfe\0\0\2\0", b"\xff\x15\x04#"]),
)
def test_the_rows_that_have_arrived_are_taken_as_pymysql_reads_them(
    answer: tuple[list[Column], list[list[bytes | None]]], number: int, cut: int, end: bytes
) -> None:
    """Wherever the answer is cut, and whatever ends it: each whole row is taken, the same as PyMySQL's, and no more."""
    columns, values = answer
    bodies = [b"".join(map(value, row)) for row in values]
    packets = [packet(number + at, body) for at, body in enumerate([*bodies, end])]
    sent = b"".join(packets)
    arrived = sent[: len(sent) - cut] if cut < len(sent) else b""
    whole = [body for at, body in enumerate(bodies) if len(b"".join(packets[: at + 1])) <= len(arrived)]
    rows: list[tuple[Any, ...]] = []
    size, following = take_rows(arrived, [reading(*column) for column in columns], number, rows)
    assert rows == [as_pymysql(columns, body) for body in whole]
    assert size == len(b"".join(packets[: len(whole)]))
    assert following == (number + len(whole)) & 0xFF


@given(answer=answers(), at=st.integers(0, 4), harm=st.sampled_from(["number", "longer", "shorter", "no digits"]))
def test_what_is_not_expected_is_left_to_pymysql(
    answer: tuple[list[Column], list[list[bytes | None]]], at: int, harm: str
) -> None:
    """A packet with another number, another length, or no digits where they must be stays where it is."""
    columns, values = answer
    columns, values = [(None, int), *columns], [[b"1", *row] for row in values]
    bodies = [b"".join(map(value, row)) for row in values]
    if at >= len(bodies):
        return
    if harm == "longer":
        bodies[at] += b"\1x"
    elif harm == "shorter":
        bodies[at] = bodies[at][:-1]
    elif harm == "no digits":
        bodies[at] = b"\1x" + bodies[at][2:]
    packets = [packet(place + (harm == "number" and place == at), body) for place, body in enumerate(bodies)]
    rows: list[tuple[Any, ...]] = []
    size, following = take_rows(b"".join(packets), [reading(*column) for column in columns], 0, rows)
    assert (len(rows), following, size) == (at, at, len(b"".join(packets[:at])))


class Text(str):
    """A text of another type, which PyMySQL writes as a text."""

    __slots__ = ()


ARGUMENT = st.one_of(
    st.text(), st.text("\0\\\n\r\x1a\"'%"), st.text().map(Text), st.integers(), st.none(), st.booleans(), st.binary(),
    st.floats(allow_nan=False, allow_infinity=False), st.datetimes(), st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip


@given(argument=ARGUMENT, status=st.sampled_from([0, SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES]))
def test_an_argument_is_written_as_pymysql_writes_it(argument: object, status: int) -> None:
    """Of whatever type it is, and whether or not the server takes backslashes for escapes."""
    connection = Connection.__new__(Connection)
    connection.server_status, connection.encoders, connection.encoding = status, encoders, "utf8"
    assert connection.escape(argument) == PyMySQLs.escape(connection, argument)
