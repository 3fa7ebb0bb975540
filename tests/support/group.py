"""Three servers of one group of MySQL's Group Replication: one primary, and two that take its place.

Owns the processes and their membership. A test decides which one dies. MariaDB has no such groups.
"""

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import tenacity
from attrs import define, field

from lanelog.devserver._local import LocalServer, free_port
from lanelog.devserver._programs import find_mysql
from lanelog.devserver._server import DATABASE
from support.sql import connect, rows

NAME: Final = "6b1f9d62-4b1f-4c8e-9a60-0f2f6a1f7a11"
RECOVERY: Final = ("lanelog_recovery", "of the group alone")
"""Account and password by which a member that joins copies what it lacks."""
_RECOVERS: Final = "REPLICATION SLAVE, BACKUP_ADMIN, CONNECTION_ADMIN, GROUP_REPLICATION_STREAM"
USER, PASSWORD = "lanelog_app", "the same on all"
NUMBERS: Final = itertools.count(1)
_STATE: Final = (
    "SELECT MEMBER_PORT, MEMBER_ROLE FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"
)


@define(eq=False, kw_only=True)
class Member(LocalServer):
    """A server that can join the group."""

    number: int = field(factory=partial(next, NUMBERS))
    group_port: int = field(factory=free_port)

    def tell(self, *statements: str) -> None:
        """Execute statements as the administrator."""
        with closing(self.open()) as raw:
            for statement in statements:
                rows(raw, statement)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """What one statement gives the administrator."""
        with closing(self.open()) as raw:
            return rows(raw, sql)

    def open(self) -> Any:
        """A connection of the administrator, with autocommit on."""
        return connect(self.url, autocommit=True)

    def _command(self) -> list[str]:
        return [
            *super()._command(),
            "--performance-schema=ON",
            "--plugin-load-add=group_replication.so",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--log-bin=binlog",
            "--relay-log=relay",
            f"--server-id={self.number}",
            "--report-host=127.0.0.1",
            f"--report-port={self.port}",
            f"--loose-group_replication_group_name={NAME}",
            "--loose-group_replication_start_on_boot=OFF",
            f"--loose-group_replication_local_address=127.0.0.1:{self.group_port}",
            "--loose-group_replication_recovery_get_public_key=ON",
        ]

    def _write_first_statements(self) -> None:
        (self.directory / "data/auto.cnf").unlink(missing_ok=True)  # the installer's server_uuid: nobody shares it
        LocalServer._write_first_statements(self)
        path = self.directory / "first.sql"
        path.write_text("SET SESSION sql_log_bin = 0;\n" + path.read_text())  # of this server alone


@define(eq=False)
class Group:
    """The members, in the order of a URL."""

    members: list[Member]

    @property
    def url(self) -> str:
        """A URL that names all of them."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"mysql://{USER}:{quote(PASSWORD)}@{hosts}/{DATABASE}"

    def primary(self) -> Member:
        """The member that is the primary, as one that is online knows it. Waits for an election."""
        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda found: found is None),
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(60),
        )
        found: Member = waiting(self._primary)
        return found

    def join(self, member: Member) -> None:
        """Let a member that runs join the others, and wait until it is online."""
        member.tell(f"SET GLOBAL group_replication_group_seeds = '{self._seeds()}'", "START GROUP_REPLICATION")
        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda online: not online),
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(60),
        )
        waiting(lambda: any(port == member.port for port, _ in member.ask(_STATE)))

    def _primary(self) -> Member | None:
        for asked in self.members:
            if not asked.pid:
                continue
            for port, role in asked.ask(_STATE):
                for member in self.members:
                    if member.pid and member.port == port and role == "PRIMARY":
                        return member
        return None

    def _seeds(self) -> str:
        return ",".join(f"127.0.0.1:{member.group_port}" for member in self.members)

    def begin(self) -> None:
        """Form the group."""
        user, password = RECOVERY
        first, *others = self.members
        for member in self.members:
            member.tell(
                "SET SESSION sql_log_bin = 0",
                f"CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'",
                f"GRANT {_RECOVERS} ON *.* TO '{user}'@'%'",
                f"CHANGE REPLICATION SOURCE TO SOURCE_USER = '{user}', SOURCE_PASSWORD = '{password}' "
                "FOR CHANNEL 'group_replication_recovery'",
            )
        first.tell(
            f"SET GLOBAL group_replication_group_seeds = '{self._seeds()}'",
            "SET GLOBAL group_replication_bootstrap_group = ON",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = OFF",
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON `{DATABASE}`.* TO '{USER}'@'%'",
        )
        for member in others:
            member.tell("RESET BINARY LOGS AND GTIDS")
            self.join(member)


@contextmanager
def group_of(count: int = 3) -> Iterator[Group]:
    """A group of new servers."""
    program = find_mysql(os.environ)
    with ThreadPoolExecutor(count) as pool:
        members = list(pool.map(lambda _: Member.start(program), range(count)))
    try:
        group = Group(members)
        group.begin()
        yield group
    finally:
        for member in members:
            member.stop()
