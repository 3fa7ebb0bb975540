"""A primary and a replica that lacks its tail, at one address: a proxy that sends everybody to the one or the other.

Owns the two servers, started in the same second, and the copy of the one's tables into the other; never what a test
does with them. The copy is a replica's state: whole transactions, up to a moment. It is made by reading, not by
replication, so that the test chooses the moment; replication itself is the long run's (`chaos`).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from attrs import define, evolve

import lanelog
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.proxy import Proxy
from support.sql import connect, rows

USER = "lanelog_everywhere"
PASSWORD = "the same on both"
TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'"
)


@define(eq=False)
class Pair:
    """The servers, and the address at which everybody looks for them."""

    primary: DevServer
    replica: DevServer
    proxy: Proxy

    @property
    def url(self) -> str:
        """Where the library connects."""
        return self.proxy.url

    def copy(self, source: DevServer | None = None, target: DevServer | None = None) -> None:
        """Let the replica have what the primary has now, but for what is under way."""
        with closing(_root(source or self.primary)) as one, closing(_root(target or self.replica)) as other:
            rows(one, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            rows(one, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            for (table,) in rows(one, TABLES):
                found = rows(one, f"SELECT * FROM `{table}`")
                rows(other, f"DELETE FROM `{table}`")
                with other.cursor() as cursor:
                    marks = ", ".join(["%s"] * len(found[0])) if found else ""
                    cursor.executemany(f"INSERT INTO `{table}` VALUES ({marks})", found)

    def promote(self) -> None:
        """The primary dies, and the replica is at its address: every connection ends, as it is when a host dies."""
        self.primary.kill()
        self.proxy.target = _target(self.replica)
        self.proxy.cut_all()

    def target(self, server: DevServer) -> ConnectConfig:
        """How everybody logs in to one of them."""
        return _target(server)

    def open(self, server: DevServer) -> Any:
        """A connection past the library and the proxy, with autocommit on."""
        return _root(server)


@contextmanager
def pair_of(start: Callable[[], DevServer]) -> Iterator[Pair]:
    """Two servers with the same empty tables, started in the same second."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: start(), range(2))
    with first, second:
        for server in (first, second):
            with closing(_root(server)) as raw:
                rows(raw, f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
                rows(raw, f"GRANT ALL ON *.* TO '{USER}'@'%'")
            with lanelog.connect(server.url) as client:
                client.migrate()
        with closing(Proxy(_target(first))) as proxy:
            yield Pair(first, second, proxy)


def _target(server: DevServer) -> ConnectConfig:
    return evolve(ConnectConfig.from_url(server.url), user=USER, password=PASSWORD)


def _root(server: DevServer) -> Any:
    return connect(server.url, autocommit=True)
