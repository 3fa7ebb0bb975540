"""What every measurement stands on: a database of its own, a client, a plain connection, and a payload.

It never measures anything. `__main__` makes one for each step of the plan, so that no step sees another's rows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
from attrs import frozen

import lanelog

if TYPE_CHECKING:
    from lanelog.devserver import DevServer

PAYLOAD = os.urandom(200)
TOPIC = "bench"


@frozen(kw_only=True)
class Bench:
    """One fresh database with lanelog's tables, and `scale`, a factor on the number of messages."""

    url: str
    client: lanelog.Client
    scale: float
    pid: int | None
    """The server's process, if it was started for the run."""
    _stack: ExitStack

    @classmethod
    @contextmanager
    def on(cls, server: DevServer, scale: float) -> Iterator[Bench]:
        """Create the database, and drop it afterwards."""
        name = f"bench_{secrets.token_hex(6)}"
        url = server.create_database(name)
        try:
            with ExitStack() as stack, lanelog.connect(url) as client:
                client.migrate()
                yield cls(url=url, client=client, scale=scale, pid=getattr(server, "pid", None), stack=stack)
        finally:
            server.drop_database(name)

    def messages(self, count: int) -> int:
        """So many messages, scaled, and a multiple of 1,000."""
        return max(1000, round(count * self.scale / 1000) * 1000)

    def other_client(self, *, wake: bool = True) -> lanelog.Client:
        """A client that knows nothing of the first one, as in another process; closed at the end of the step."""
        return self._stack.enter_context(lanelog.connect(self.url, wake=wake))

    @contextmanager
    def raw(self, *, client_flag: int = 0) -> Iterator[pymysql.Connection[Any]]:
        """A plain connection of the driver's own."""
        config = self.client.config
        connection = pymysql.connect(
            host=config.host,
            port=config.port,
            unix_socket=config.unix_socket,
            user=config.user,
            password=config.login_password(),
            database=config.database,
            charset="utf8mb4",
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            autocommit=True,
            client_flag=client_flag,
            ssl_disabled=bool(config.unix_socket),
        )
        try:
            yield connection
        finally:
            connection.close()

    def server_seconds(self) -> float:
        """How much processor time (seconds) the server has taken since it started. 0: it is not one of our own."""
        if self.pid is None:
            return 0.0
        fields = Path("/proc", str(self.pid), "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def statements(self) -> int:
        """How many statements the server has been sent by all clients since it started."""
        with self.raw() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            row = cursor.fetchone()
        return int(row[1]) if row else 0

    def backlog(self, messages: int, lanes: int) -> None:
        """Publish `messages` evenly over `lanes`, 1,000 a transaction; over the open lanes if that is 0."""
        for start in range(0, messages, 1000):
            items = [(f"key-{n % lanes:05d}" if lanes else None, PAYLOAD) for n in range(start, start + 1000)]
            self.client.publish_many(TOPIC, items)
