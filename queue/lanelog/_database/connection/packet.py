"""Several statements and their COMMIT in one packet: one round trip for a whole transaction.

Never decides which statements may be sent that way, and never sends one twice. The server runs the statements in order
and stops at the first that fails. So the COMMIT at the end runs only if all of them succeeded.

Servers refuse such packets unless the session has permitted them. User code gets no connection that permits them: there
a carelessly built text could inject a second statement.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import field, frozen

from lanelog._database import codes
from lanelog._database.connection import savepoint
from lanelog._database.connection.driver import LOCK_WAIT_SECONDS
from lanelog.errors import DatabaseError, LanelogError

COMMIT: Final = "COMMIT"

# PyMySQL has no name for this command. Its argument is the option.
_COM_SET_OPTION: Final = 0x1B

_PERMITTED: Final = 0
_REFUSED: Final = 1

_PAUSE: Final = LOCK_WAIT_SECONDS + 1.2
"""Seconds between two answers to one packet, at most: a lock wait, which MySQL ends up to a second late."""


@frozen
class Statement:
    """A statement with `%s` parameters, and its arguments."""

    sql: str
    args: Sequence[object] = field(repr=False)


def permit(raw: Any, *, several: bool) -> None:
    """Let the server take several statements in a packet, or only one. Raises the driver's errors."""
    option = _PERMITTED if several else _REFUSED
    if hasattr(raw, "set_server_option"):  # mysqlclient's
        raw.set_server_option(option)
        return
    raw.command(_COM_SET_OPTION, struct.pack("<H", option))


def run(
    cursor: Any,
    before: Sequence[str],
    sql: str,
    args: Sequence[object],
    *,
    several: bool,
    begun: Callable[[], None],
) -> None:
    """Run a statement behind others, and leave its answer in the cursor. Raises the driver's errors.

    `several`: in one packet, otherwise one by one. `begun` is called after the first answer to a packet.
    """
    if not several:
        for text in before:
            cursor.execute(text)
        before = ()
    cursor.execute(";\n".join([*before, sql]) if before else sql, args or None)
    if before:
        begun()
    for _ in before:
        if not cursor.nextset():
            raise DatabaseError("the server has left out a part of its answer", code=None, retriable=True)


def send(cursor: Any, statements: Sequence[Statement], insert_ids: list[int], begun: Callable[[], None]) -> None:
    """Send the statements and a COMMIT. Append the LAST_INSERT_ID of each answer to `insert_ids`.

    COMMIT's is the last. `begun` is called after the first answer. After an error, the length of `insert_ids` is the
    number of statements that were run before. Raises the driver's errors.
    """
    sql = ";\n".join([*(statement.sql for statement in statements), COMMIT])
    cursor.execute(sql, [value for statement in statements for value in statement.args])
    insert_ids.append(int(cursor.lastrowid or 0))
    begun()
    while cursor.nextset():
        insert_ids.append(int(cursor.lastrowid or 0))


def patience(read_timeout: float, statements: Sequence[Statement]) -> float:
    """Seconds to wait for the next answer to the packet of these statements and a COMMIT.

    The server may have stopped between two statements: `stopped_packets`. Where no thread asks it, the connection is
    dropped soon, if the driver can. If the server was only slow, the outcome is unknown. Without statements there is
    hardly a moment for that, and a COMMIT may be slow.
    """
    return min(_PAUSE, read_timeout) if statements else read_timeout


def commit_singly(cursor: Any, insert_ids: list[int], *, mariadb: bool) -> None:
    """Release the savepoint and commit, where the server takes one statement at a time. Raises the driver's errors.

    MySQL's release is noted in `insert_ids`. An error behind it leaves the outcome unknown.
    """
    if mariadb:
        cursor.execute(savepoint.COMMITTED_IN_A_BLOCK)
        return
    cursor.execute(savepoint.NOTE_STATE)
    [state] = cursor.fetchone()
    cursor.execute(savepoint.RELEASE)
    insert_ids.append(0)
    cursor.execute(savepoint.COMMIT_IN_STATE, (state,))
    cursor.execute(COMMIT)  # if somebody in between answers every SET himself


def explained(error: LanelogError, *, several: bool, opening: bool = False) -> LanelogError:
    """Return the error to raise for the first answer to a packet, if there were `several` statements in it.

    `opening`: autocommit was to be off.
    If it was not understood, packets were permitted in a session that a proxy has replaced. If autocommit is on, the
    session was reset, or replaced, too. Nothing was run.
    """
    not_understood = several and isinstance(error, DatabaseError) and error.code == codes.NOT_UNDERSTOOD
    if not (not_understood or (opening and savepoint.is_another_session(error))):
        return error
    kind = "takes one statement in a packet" if not_understood else "commits each statement"
    return DatabaseError(
        f"another session answers, which {kind} ({error})",
        code=codes.CLOSED_BEFORE,
        retriable=True,
    )


def was_not_run(error: LanelogError) -> bool:
    """Whether nothing of the packet was run: the driver has not sent it, or another session has not understood it."""
    return isinstance(error, DatabaseError) and error.code in codes.NOT_RUN


def hung_up(raw: Any) -> bool:
    """Whether this machine knows that the connection was closed, by the server or here. Asks without a round trip.

    False where the system does not report it, or where eventlet has taken `poll` away.
    """
    if not (hasattr(select, "poll") and hasattr(select, "POLLRDHUP")):
        return False
    asked = select.poll()
    try:
        asked.register(raw._sock if hasattr(raw, "_sock") else raw, select.POLLRDHUP)  # noqa: SLF001 - there is no public way
    except Exception:  # noqa: BLE001 - each driver has its own for a connection that was closed
        return True
    return bool(asked.poll(0))
