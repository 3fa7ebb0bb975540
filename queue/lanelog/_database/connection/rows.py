"""PyMySQL's connection with a faster reader of rows, and a faster writer of arguments: most of what a driver does here.

Never decides what an answer means. It takes ordinary rows out of what has arrived, many at once. It leaves the end of
an answer, errors, rows that have not arrived whole and whatever else it does not expect to PyMySQL. Of arguments, it
writes texts and whole numbers.

The format of a row:
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_row.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pymysql import connections
from pymysql.constants import SERVER_STATUS
from pymysql.converters import escape_string

from lanelog._database.connection.answers import AnsweringConnection

_BUFFER: Final = 65536
"""The most bytes of one receive. Each receive releases the interpreter's lock, and gets it back late."""

_HEADER: Final = 4
"""Bytes before each packet: three of its length, and its number."""

# The first byte of a value is its length, or one of these.
_NULL: Final = 0xFB
_TWO_BYTES: Final = 0xFC
_THREE_BYTES: Final = 0xFD
_EIGHT_BYTES: Final = 0xFE
# In a packet's first byte, this one or a higher one is the end of the answer, an error or a value of 16 MiB.
_NO_ROW: Final = 0xFE

_FROM_BYTES: Final = (int, float)
"""Converters that take the bytes as they are: what they read is ASCII."""

_PLAIN: Final = ("utf8", "ascii")
"""Encodings that `bytes.decode` reads without the name of the encoding, which is quicker."""

Reading = Callable[[bytes], Any] | None
"""What makes a column's value of its bytes. None: they are the value."""


class _Answer(connections.MySQLResult):
    connection: Any
    converters: list[tuple[str | None, Any]]
    _check_packet_is_eof: Any
    _read_row_from_packet: Any

    def _read_rowdata_packet(self) -> None:
        """Read all rows, and the end of the answer."""
        connection = self.connection
        columns = [reading(encoding, how) for encoding, how in self.converters]
        rows: list[tuple[Any, ...]] = []
        while True:
            connection.take_arrived(columns, rows)
            packet = connection._read_packet()  # noqa: SLF001 - there is no public way
            if self._check_packet_is_eof(packet):
                self.connection = None  # as PyMySQL does, so that no circle of references is left
                break
            rows.append(self._read_row_from_packet(packet))
        self.affected_rows = len(rows)
        self.rows = tuple(rows)


class Connection(AnsweringConnection):
    """As PyMySQL's. The attributes that begin with one underscore are its own."""

    _rfile: Any
    _next_seq_id: int
    _result_type = _Answer

    def connect(self, sock: Any = None) -> None:
        """As PyMySQL's, and receive more at once."""
        super().connect(sock)
        narrow, self._rfile = self._rfile, self._sock.makefile("rb", _BUFFER)
        narrow.close()

    def escape(self, obj: Any, mapping: Any = None) -> str:
        """As PyMySQL's, with fewer calls for texts and whole numbers."""
        if type(obj) is int:
            return str(obj)
        if type(obj) is not str or self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
            return super().escape(obj, mapping)
        return f"'{escape_string(obj)}'"

    def take_arrived(self, columns: list[Reading], rows: list[tuple[Any, ...]]) -> None:
        """Append the rows that have arrived, in the middle of an answer. Waits until something has arrived."""
        try:
            arrived = self._rfile.peek()  # at least the end of the answer is still to come
        except OSError:
            return  # PyMySQL reads next, meets the same error, and says so
        size, self._next_seq_id = take_rows(arrived, columns, self._next_seq_id, rows)
        self._rfile.read(size)


def reading(encoding: str | None, how: Callable[[Any], Any] | None) -> Reading:
    """How to read a column for which PyMySQL has this encoding and this converter. None where it has none."""
    if encoding is None or how in _FROM_BYTES:
        return how
    if how is None and encoding in _PLAIN:
        return bytes.decode
    return lambda data: data.decode(encoding) if how is None else how(data.decode(encoding))


def take_rows(data: bytes, columns: list[Reading], number: int, rows: list[tuple[Any, ...]]) -> tuple[int, int]:
    """Append the rows at the start of `data`. Return the bytes that they take, and the number of the next packet.

    `number`: of the first packet. It stops before the first packet that is incomplete, has another number, or is no row
    of these columns.
    """
    at, size = 0, len(data)
    while at + _HEADER < size:
        position = at + _HEADER
        end = position + (data[at] | data[at + 1] << 8 | data[at + 2] << 16)
        if end > size or end == position or data[at + 3] != number or data[position] >= _NO_ROW:
            break
        row: list[Any] = []
        try:
            for read in columns:
                length = data[position]
                position += 1
                if length >= _NULL:
                    if length == _NULL:
                        row.append(None)
                        continue
                    width = 2 if length == _TWO_BYTES else 3 if length == _THREE_BYTES else 8
                    length = int.from_bytes(data[position : position + width], "little")
                    position += width
                begin = position
                position += length
                row.append(data[begin:position] if read is None else read(data[begin:position]))
        except (IndexError, ValueError):
            break
        if position != end:
            break
        rows.append(tuple(row))
        at = end
        number = (number + 1) & 0xFF
    return at, number
