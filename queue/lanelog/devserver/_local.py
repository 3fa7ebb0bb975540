"""A server process of our own: a private data directory, a unix socket, a loopback port, a password of its own.

Never uses or touches a server, a data directory or an option file that is already on the machine.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import tenacity
from attrs import define, field

from lanelog._base.backoff import RANDOM
from lanelog.devserver import _guard
from lanelog.devserver._programs import Program, copy, template
from lanelog.devserver._server import DATABASE, DevServer, ServerUnavailable, greeting

START_SECONDS = 60.0
STOP_SECONDS = 30.0
PORTS = range(20_000, 32_000)  # below the range of outgoing connections, which could take it while the server is down
ROOTS = ("localhost", "127.0.0.1", "::1")  # MySQL has the first one only, MariaDB all

# Durability stays as in production. The options that are switched off only cost time at every start.
OPTIONS = {
    "mariadb": (
        "--innodb-buffer-pool-load-at-startup=OFF",
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
        "--skip-name-resolve",  # so that no client matches the installer's root@<machine>, which has no password
    ),
    "mysql": (
        "--innodb-buffer-pool-load-at-startup=OFF",
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
        "--mysqlx=OFF",
        "--secure-file-priv=NULL",
        "--performance-schema=OFF",
    ),
}


@define(eq=False, kw_only=True)
class LocalServer(DevServer):
    """A database server that lives and dies with this process."""

    program: Program
    directory: Path
    port: int
    password: str = field(repr=False)
    _process: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)
    _pid: int = field(default=0, init=False, repr=False)

    @classmethod
    def start(cls, program: Program) -> "LocalServer":
        """Copy the template of this version, and start a server on it."""
        try:
            source = template(program, os.environ)
            directory = Path(tempfile.mkdtemp(prefix="lanelog-", dir=program.temporary()))
        except OSError as exc:
            raise ServerUnavailable(f"no data directory for {program.path}: {exc}") from exc
        port = free_port()
        password = secrets.token_hex(16)
        server = cls(
            url=f"mysql://root:{password}@127.0.0.1:{port}/{DATABASE}",
            version=program.version,
            family=program.family,
            program=program,
            directory=directory,
            port=port,
            password=password,
        )
        try:
            copy(source, directory / "data")
            server._write_first_statements()
            server.restart()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def socket(self) -> Path:
        """The unix socket."""
        return self.directory / "sock"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._pid

    def kill(self) -> None:
        """End the server as a crash would, by SIGKILL: nothing is flushed, and no client is notified."""
        if self._running():
            os.kill(self._pid, signal.SIGKILL)
        self._reap()

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same data, socket and port."""
        if self._process is not None:
            self._process.terminate()
            self._reap()
        log = self.directory / "log"
        with log.open("a") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,  # Ctrl-C in a terminal must only reach this process, which stops the server
            )
        assert self._process.stdout is not None  # noqa: S101  # for mypy: it is a pipe
        self._pid = int(self._process.stdout.readline() or 0)
        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OSError),
            wait=tenacity.wait_fixed(0.02),
            stop=tenacity.stop_after_delay(START_SECONDS),
            reraise=True,
        )
        try:
            waiting(self._check_ready)
        except OSError as exc:
            raise self._unavailable(f"it does not answer after {START_SECONDS:g} s") from exc

    def stop(self) -> None:
        """End the server and remove its data. Idempotent."""
        self.kill()  # the data is deleted, so a clean shutdown is not needed
        shutil.rmtree(self.directory, ignore_errors=True)

    def _command(self) -> list[str]:
        inside = self.program.inside
        return [
            *(sys.executable, "-I", "-S", _guard.__file__, str(os.getpid()), str(self.directory)),
            *self.program.command(
                f"--datadir={inside(self.directory / 'data')}",
                f"--socket={inside(self.socket)}",
                f"--pid-file={inside(self.directory / 'pid')}",
                # Not /tmp: a MariaDB that starts removes every temporary table there, also those of other servers.
                f"--tmpdir={inside(self.directory)}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--init-file={inside(self.directory / 'first.sql')}",
                *OPTIONS[self.program.family],
            ),
        ]

    def _write_first_statements(self) -> None:
        # The installers leave root without a password: on a loopback port every user of the machine could log in.
        statements = [f"CREATE DATABASE IF NOT EXISTS `{DATABASE}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;"]
        statements += [f"ALTER USER IF EXISTS root@'{host}' IDENTIFIED BY '{self.password}';" for host in ROOTS]
        path = self.directory / "first.sql"
        path.touch(mode=0o600)
        path.write_text("\n".join(statements) + "\n")

    def _check_ready(self) -> None:
        if not self._running():
            raise self._unavailable("it ended at once")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(str(self.socket))
            greeting(connection)

    def _unavailable(self, what: str) -> ServerUnavailable:
        log = self.directory / "log"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        return ServerUnavailable(f"{self.program.path} did not start: {what}. The end of its log:\n{tail}")

    def _running(self) -> bool:
        return self._process is not None and self._pid > 0 and self._process.poll() is None

    def _reap(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the guard: the server dies with it
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        self._pid = 0


def free_port() -> int:
    """Return a loopback port that is free."""
    for port in RANDOM.sample(PORTS, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerUnavailable(f"no free port between {PORTS.start} and {PORTS.stop}")
