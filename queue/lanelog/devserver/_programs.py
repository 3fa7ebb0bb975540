"""Finds the server programs of this machine, and prepares an empty data directory for each, once for each version.

Never starts a server that a client connects to.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen

from lanelog.devserver._server import ServerUnavailable

SEARCHED = ("/usr/local/sbin", "/usr/sbin", "/usr/libexec")  # Debian's and Fedora's folders, not in every PATH
AS_ROOT = ("--user=root",)  # without it, a server started by root refuses to run
# --force: the installer refuses a machine whose host name cannot be resolved. Our servers resolve no names.
MARIADB_INSTALL = ("--force", "--auth-root-authentication-method=normal", "--skip-test-db")
MYSQL_INSTALL = ("--initialize-insecure",)


@frozen(kw_only=True)
class Program:
    """A server program: its path, family and version, and the directory that it sees as its root."""

    path: str
    family: str
    version: str
    root: Path | None = None  # a chroot directory, see tests/servers/mysql

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of the server, without any option file of the machine."""
        return [*_prefix(self.root), self.path, "--no-defaults", *as_user(), *arguments]

    def inside(self, path: Path) -> str:
        """Return the path as the server sees it."""
        return str(path if self.root is None else Path("/") / path.relative_to(self.root))

    def temporary(self) -> str | None:
        """Return where a data directory must be for this server. None: in the usual folder of temporary files."""
        return None if self.root is None else str(self.root / "tmp")


def as_user() -> tuple[str, ...]:
    """Return the option that lets root run a server."""
    return AS_ROOT if os.geteuid() == 0 else ()


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of templates, and of the MySQL that tests/servers/mysql installs."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "lanelog"


def find_local(environ: Mapping[str, str]) -> Program:
    """Return MariaDB's server, else MySQL's, from the PATH."""
    for name in ("mariadbd", "mysqld"):
        found = _which(name, environ)
        if found is not None:
            return describe(found)
    raise ServerUnavailable("there is no mariadbd and no mysqld on this machine")


def find_mysql(environ: Mapping[str, str]) -> Program:
    """Return the MySQL that tests/servers/mysql installed, else a mysqld from the PATH that is not MariaDB's."""
    root = cache_directory(environ) / "mysql"
    if (root / "usr/sbin/mysqld").exists():
        if os.geteuid() != 0:
            raise ServerUnavailable(f"the MySQL in {root} needs root, for chroot")
        return describe("/usr/sbin/mysqld", root)
    found = _which("mysqld", environ)
    if found is not None:
        program = describe(found)
        if program.family == "mysql":
            return program
    raise ServerUnavailable("there is no MySQL server on this machine; tests/servers/mysql installs one")


def describe(path: str, root: Path | None = None) -> Program:
    """Ask a server program for its version."""
    text = _run([*_prefix(root), path, "--no-defaults", "--version"])
    match = re.search(r"Ver (\d+\.\d+\.\d+)", text)
    if match is None:
        raise ServerUnavailable(f"{path} does not say its version: {text.strip()!r}")
    return Program(path=path, family="mariadb" if "MariaDB" in text else "mysql", version=match[1], root=root)


def template(program: Program, environ: Mapping[str, str]) -> Path:
    """Return a data directory as the server's own installer makes it. It is made once for each version."""
    options = MARIADB_INSTALL if program.family == "mariadb" else MYSQL_INSTALL
    digest = hashlib.sha256(" ".join((program.path, str(program.root), *options)).encode()).hexdigest()[:8]
    cache = cache_directory(environ)
    cache.mkdir(parents=True, exist_ok=True)
    finished = cache / f"{program.family}-{program.version}-{digest}"
    with _locked(finished.with_name(finished.name + ".lock")):
        if not finished.exists():
            _install(program, finished)
    return finished


def copy(source: Path, target: Path) -> None:
    """Copy a data directory. Its logs are mostly zeros, which this command copies as holes."""
    _run(["cp", "-a", "--sparse=always", "--reflink=auto", str(source), str(target)])


def _install(program: Program, finished: Path) -> None:
    partial = finished.with_name(finished.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with TemporaryDirectory(prefix="lanelog-", dir=program.temporary()) as directory:
        made = Path(directory) / "data"
        _install_into(program, f"--datadir={program.inside(made)}")
        shutil.move(made, partial)
    partial.rename(finished)


def _install_into(program: Program, datadir: str) -> None:
    if program.family == "mariadb":
        installer = _which("mariadb-install-db", os.environ) or _which("mysql_install_db", os.environ)
        if installer is None:
            raise ServerUnavailable("mariadb-install-db is missing (on Debian: the package mariadb-server-core)")
        _run([installer, "--no-defaults", datadir, *MARIADB_INSTALL, *as_user()])
    else:
        _run(program.command(*MYSQL_INSTALL, datadir))


def _prefix(root: Path | None) -> list[str]:
    return [] if root is None else ["chroot", str(root)]


def _which(name: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=os.pathsep.join((environ.get("PATH", os.defpath), *SEARCHED)))


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603  # the command is our own
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise ServerUnavailable(f"{' '.join(command)} failed with {done.returncode}: {done.stdout[-2000:].strip()}")
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
