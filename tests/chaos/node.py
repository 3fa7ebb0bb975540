"""One database server of a chaos run: it can be copied as it stands, stand still, and have another clock.

Owns one process, its files and its clock; it never decides who writes where. `pair` has two of them.
"""

import itertools
import os
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pymysql
from attrs import define, field

from chaos import database
from lanelog.devserver._local import LocalServer, free_port
from lanelog.devserver._programs import Program, find_local, find_mysql
from lanelog.devserver._server import DATABASE

NUMBERS: Final = itertools.count(1)
SHARED: Final = ("--log-bin=binlog", "--relay-log=relay", "--skip-slave-start")
OPTIONS: Final = {
    "mariadb": (*SHARED, "--binlog-format=ROW", "--log-slave-updates"),
    "mysql": (*SHARED[:2], "--skip-replica-start", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"),
}
CLOCK: Final = Path(__file__).with_name("clock.c")
"""Under libfaketime a MySQL takes sixty times as long for each commit, and does not see a step before a second."""

PATIENCE: Final = 30.0


def program(kind: str) -> Program | None:
    """The server program of a kind; None: the server would not be a process of this machine."""
    return (
        {"local": find_local, "mysql-local": find_mysql}[kind](os.environ) if kind in {"local", "mysql-local"} else None
    )


@define(eq=False, kw_only=True)
class Node(LocalServer):
    """A server with a binary log, and a number that no other of this run has."""

    number: int = field(factory=partial(next, NUMBERS))
    steps: bool = False
    """Whether its clock can be set; that needs a C compiler."""

    def copied(self) -> Self:
        """A server of its own on a copy of this one's data, as they are now; it has the same accounts."""
        directory = Path(tempfile.mkdtemp(prefix="lanelog-", dir=self.program.temporary()))
        port = free_port()
        other = type(self)(
            url=f"mysql://root:{self.password}@127.0.0.1:{port}/{DATABASE}",
            version=self.version,
            family=self.family,
            program=self.program,
            directory=directory,
            port=port,
            password=self.password,
            steps=self.steps,
        )
        try:
            self.copy_to(directory / "data")
            (directory / "data/auto.cnf").unlink(missing_ok=True)  # MySQL's server_uuid: nobody shares it
            other._write_first_statements()
            other.restart()
        except BaseException:
            other.stop()
            raise
        return other

    def copy_to(self, target: Path) -> None:
        """Copy the files as a snapshot of the machine would: nothing is written meanwhile, nothing is notified."""
        with self.standing_still() if self._running() else _nothing():
            _copy(self.directory / "data", target)

    def set_back(self, source: Path) -> None:
        """Put the files back as they were copied; the server has ended. The directory itself may be a disk."""
        data = self.directory / "data"
        for path in data.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        _copy(source, data)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The process stops, as with its machine, and goes on."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if self._running():
                os.kill(self.pid, signal.SIGCONT)

    def set_clock(self, seconds: int) -> None:
        """Let the wall clock be wrong by so much, at once."""
        with (self.directory / "clock").open("r+b") as file:
            file.write(struct.pack("=q", seconds))

    def ask(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """What one statement gives, by a connection of its own."""
        return database.rows(self.url, sql, *args)

    def tell(self, *statements: str) -> None:
        """Execute them on one connection."""
        with database.connect(self.url, PATIENCE) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def row(self, sql: str) -> dict[str, Any]:
        """The first row, by the names of its columns; empty: there is none."""
        with (
            database.connect(self.url, PATIENCE) as connection,
            connection.cursor(pymysql.cursors.DictCursor) as cursor,
        ):
            cursor.execute(sql)
            return dict(cursor.fetchone() or {})

    def _command(self) -> list[str]:
        command = super()._command()
        if self.steps:
            at = command.index(self.program.path)
            command[at:at] = ["/usr/bin/env", *self._clock()]
        return [*command, *OPTIONS[self.family], f"--server-id={self.number}"]

    def _clock(self) -> list[str]:
        library, clock = self.directory / "clock.so", self.directory / "clock"  # where the server sees them
        if not library.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK)], check=True)
            clock.write_bytes(bytes(8))
        inside = self.program.inside
        return [f"LD_PRELOAD={inside(library)}", f"CHAOS_CLOCK={inside(clock)}"]

    def _write_first_statements(self) -> None:
        LocalServer._write_first_statements(self)
        path = self.directory / "first.sql"
        path.write_text("SET SESSION sql_log_bin = 0;\n" + path.read_text())  # of this server alone


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{source}/.", str(target)], check=True)
