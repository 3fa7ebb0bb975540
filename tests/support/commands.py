"""What this process says to its servers, heard at the driver.

The server's own counters also move for what other connections do, and it hears of the end of one some time afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymysql.connections import Connection


@contextmanager
def commands_sent() -> Iterator[list[str]]:
    """Every command of every connection within the block, of any thread: statements, COMMIT, a ping; and `connect`."""
    sent: list[str] = []
    execute, connect = Connection._execute_command, Connection.connect

    def executed(connection: Any, command: int, sql: Any) -> Any:
        sent.append(f"{command}: {sql}")
        return execute(connection, command, sql)

    def connected(connection: Any, *args: Any, **options: Any) -> Any:
        sent.append("connect")
        return connect(connection, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_execute_command", executed)
        patch.setattr(Connection, "connect", connected)
        yield sent
