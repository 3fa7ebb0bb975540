"""Values of messages as columns: cut where their numbers say, whatever bytes they hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog.errors import DatabaseError
from lanelog.spark.source.columns import Columns
from lanelog.spark.source.splits import LaneRange

Row = tuple[Any, ...]

NUMBER = st.integers(0, 2**53)
TEXT = st.text(min_size=1, max_size=20)
LARGEST = 20
MAYBE = st.none() | TEXT
ROW = st.tuples(st.integers(0, 3), NUMBER, TEXT, st.binary(max_size=30), MAYBE, NUMBER, st.none() | NUMBER, MAYBE)


def value_of(row: Row) -> bytes:
    """As the server writes a message."""
    lane, offset, name, payload, metadata, published, written, dead = row
    texts = [None if text is None else text.encode() for text in (name, metadata, dead)]
    lengths = ["" if text is None else len(text) for text in texts]
    numbers = [lane, offset, len(payload), published, "" if written is None else written, *lengths]
    parts = [text or b"" for text in texts] + [payload if len(payload) <= LARGEST else b""]
    return ",".join(map(str, numbers)).encode() + b"\n" + b"".join(parts)


def row_of(row: Row) -> Row:
    """As the columns have it."""
    lane, offset, name, payload, metadata, published, written, dead = row
    kept = payload if len(payload) <= LARGEST else None
    return (lane, offset, name, kept, len(payload), metadata, published, written, dead)


@pytest.mark.thorough
@given(st.lists(ROW, min_size=1, max_size=12))
def test_columns_are_what_the_values_hold(rows: list[Row]) -> None:
    """Any bytes and texts, nothing where there is nothing, no payload that was left out; the same by way of rows."""
    columns = Columns.of_values([value_of(row) for row in rows], LARGEST)
    wanted = [row_of(row) for row in rows]
    assert (columns.rows(), Columns.of_rows(wanted)) == (wanted, columns)
    for array in (columns.id, columns.payload, columns.metadata, columns.dead):
        array.validate(full=True)


PAGE = [LaneRange("t", "a", 5, 7), LaneRange("t", "b", 0, 2)]
OFFSETS = [(0, 6), (0, 7), (1, 1), (1, 2)]


def at(offsets: list[tuple[int, int]]) -> Columns:
    rows = [(lane, offset, "id", b"", None, 0, None, None) for lane, offset in offsets]
    return Columns.of_values([value_of(row) for row in rows], LARGEST)


def test_a_page_is_whole_when_all_of_it_is_there_in_order() -> None:
    """A page is not whole when a message is missing, or when lanes or messages of a lane are in another order."""
    assert at(OFFSETS).are(PAGE)
    assert at(OFFSETS[:1]).are([LaneRange("t", "a", 5, 6)])
    for offsets in (OFFSETS[1:], OFFSETS[:-1], OFFSETS[2:] + OFFSETS[:2], [OFFSETS[1], OFFSETS[0], *OFFSETS[2:]]):
        assert not at(offsets).are(PAGE)


def test_a_value_that_the_server_refused_is_an_error() -> None:
    """The server gives NULL for a value that is larger than a packet."""
    values = [value_of((0, 1, "id", b"", None, 0, None, None)), None]
    with pytest.raises(DatabaseError, match="max_allowed_packet") as raised:
        Columns.of_values(values, LARGEST)
    assert not raised.value.retriable
