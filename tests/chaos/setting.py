"""The server of a chaos run, and what can be done with it: a plain one, or a pair behind an address.

Owns the choice between the two and the account of workers and publishers; it never breaks anything. The stage asks it.
"""

import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import pymysql
from attrs import frozen

import lanelog
from chaos import database
from chaos.disk import SmallDisk
from chaos.history import FaultKind
from chaos.nemesis import CREATE_PROBE
from chaos.node import Node, program
from chaos.pair import Pair
from chaos.schedule import SERVERS
from lanelog.admin.operate.grants import grants
from lanelog.devserver import DevServer, start

PATIENCE: Final = 5.0
ACCOUNT: Final = "chaos"


@frozen(eq=False, kw_only=True)
class Setting:
    """What a run plays on. `account` is the URL for workers and publishers; `connect` goes past every proxy."""

    server: DevServer | Pair
    account: str
    connect: Callable[[], pymysql.Connection]
    disk: Callable[[], SmallDisk | None]

    @property
    def port(self) -> int:
        """Where the server itself listens just now."""
        server = self.server
        return server.primary.port if isinstance(server, Pair) else urlsplit(server.url).port or 3306


@contextmanager
def setting(kind: str, megabytes: int, servers: Collection[FaultKind], impossible: dict[str, str]) -> Iterator[Setting]:
    """A server with the run's tables; what is not possible of the `servers` faults goes to `impossible`."""
    possible = set(servers)
    if possible and program(kind) is None:
        impossible |= dict.fromkeys(possible & SERVERS, "the server's files are not here")
        possible.clear()
    if "step" in possible and shutil.which("cc") is None:
        impossible["step"] = "a C compiler is missing"
        possible.remove("step")
    small = partial(_small_disk, megabytes=megabytes, impossible=impossible)
    with ExitStack() as stack:
        if possible:
            pair = stack.enter_context(_pair(kind, small, steps="step" in possible))
            _make_tables(pair.url)
            yield Setting(
                server=pair,
                account=_least(pair),
                connect=lambda: database.connect(pair.primary.url, PATIENCE),
                disk=lambda: pair.disk,
            )
            return
        server = stack.enter_context(start(kind))
        disk = small(server)
        if disk is not None:
            stack.callback(disk.close)
            stack.callback(server.kill)
        _make_tables(server.url)
        yield Setting(
            server=server,
            account=server.url,
            connect=partial(database.connect, server.url, PATIENCE),
            disk=lambda: disk,
        )


def _make_tables(url: str) -> None:
    with lanelog.connect(url) as client:
        client.migrate()
    for statement in (database.CREATE, CREATE_PROBE):
        database.rows(url, statement)


@contextmanager
def _pair(kind: str, small: Callable[[Node], SmallDisk | None], *, steps: bool) -> Iterator[Pair]:
    found = program(kind)
    assert found is not None
    node = Node.start(found)
    with ExitStack() as stack:
        stack.callback(node.stop)
        if steps:
            node.steps = True
            node.restart()
        yield stack.enter_context(Pair(primary=node, give_disk=small))


def _small_disk(server: DevServer, megabytes: int, impossible: dict[str, str]) -> SmallDisk | None:
    """A disk of that size under the server; else the reason is noted."""
    if not megabytes:
        return None
    made = SmallDisk.under(server, megabytes)
    if isinstance(made, SmallDisk):
        return made
    impossible["disk"] = made
    return None


def _least(pair: Pair) -> str:
    """The URL of an account with no more rights than a worker has to have, by way of the address."""
    parts, password = urlsplit(pair.url), secrets.token_hex(16)
    name = parts.path.strip("/")
    statements = [f"CREATE USER '{ACCOUNT}'@'%' IDENTIFIED BY '{password}'"]
    statements += [line for line in grants("janitor", database=name, user=ACCOUNT).splitlines() if line[:2] != "--"]
    statements.append(f"GRANT INSERT ON {name}.effects TO '{ACCOUNT}'@'%'")
    statements.append(f"GRANT INSERT, DELETE ON {name}.chaos_probe TO '{ACCOUNT}'@'%'")
    pair.primary.tell(*statements)
    return urlunsplit(parts._replace(netloc=f"{ACCOUNT}:{password}@127.0.0.1:{pair.address.port}"))
