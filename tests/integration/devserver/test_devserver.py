"""The development server, really started: it answers, survives what it is built for, and never outlives its owner."""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import lanelog
from lanelog.devserver import DevServer, _programs, start
from lanelog.devserver._local import LocalServer
from support.sql import connect, rows

GONE_MS = 15_000

# Starts a server in a thread that ends at once, then reports it; the process ends when it is killed.
OWNER = """
import sys, threading
from lanelog.devserver import start
servers = []
thread = threading.Thread(target=lambda: servers.append(start(sys.argv[1])))
thread.start(); thread.join()
print(servers[0].pid, servers[0]._process.pid, servers[0].directory, servers[0].url, flush=True)
threading.Event().wait()
"""


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """What the last of these statements gives."""
    with connect(url) as connection:
        return [rows(connection, statement) for statement in statements][-1]


def wait_until_gone(pid_descriptor: int) -> None:
    poll = select.poll()
    poll.register(pid_descriptor, select.POLLIN)
    assert poll.poll(GONE_MS), "the process is still there"


@pytest.fixture
def owner(local_kind: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", OWNER, local_kind], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_server_answers_under_its_url(private_server: DevServer) -> None:
    """The URL leads to an existing database, and the server is what it says it is."""
    ((database, version),) = run(private_server.url, "SELECT DATABASE(), VERSION()")
    assert database == urlsplit(private_server.url).path.strip("/")
    assert str(private_server.version) in str(version)
    assert (private_server.family == "mariadb") == ("MariaDB" in str(version))


def test_databases_come_and_go(lanelog_server: DevServer) -> None:
    """A database is created under its own URL, dropped, and dropping it again does no harm."""
    url = lanelog_server.create_database("lanelog_come_and_go")
    try:
        assert run(url, "SELECT DATABASE()") == [("lanelog_come_and_go",)]
    finally:
        lanelog_server.drop_database("lanelog_come_and_go")
        lanelog_server.drop_database("lanelog_come_and_go")
    assert run(lanelog_server.url, "SHOW DATABASES LIKE 'lanelog_come_and_go'") == []


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [True, False])
def test_a_server_that_comes_back_keeps_what_was_committed(private_server: DevServer, killed: bool) -> None:
    """After SIGKILL, or shut down in order by `restart` itself: the same URL has the same data."""
    run(private_server.url, "CREATE TABLE kept (a INT PRIMARY KEY)", "INSERT INTO kept VALUES (42)")
    if killed:
        private_server.kill()
    private_server.restart()
    assert run(private_server.url, "SELECT a FROM kept") == [(42,)]


@pytest.mark.local_server
def test_stopping_removes_everything(local_kind: str) -> None:
    """After `stop`, which may be repeated, neither the process nor its directory is left."""
    server = start(local_kind)
    assert isinstance(server, LocalServer)
    descriptor = os.pidfd_open(server.pid)
    try:
        server.stop()
        server.stop()
        wait_until_gone(descriptor)
    finally:
        os.close(descriptor)
    assert not server.directory.exists()


@pytest.mark.thorough
@pytest.mark.local_server
def test_only_its_own_account_gets_in(local_kind: str) -> None:
    """Other users of the machine can reach the port, so the password is needed; the data is closed to them."""
    with start(local_kind) as server:
        assert isinstance(server, LocalServer)
        parts = urlsplit(server.url)
        with pytest.raises(Exception, match="1045"):
            run(f"mysql://root@127.0.0.1:{parts.port}/lanelog", "SELECT 1")
        assert server.directory.stat().st_mode & 0o077 == 0


@pytest.mark.thorough
@pytest.mark.local_server
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_dies_with_its_owner(owner: subprocess.Popen[str], how: signal.Signals) -> None:
    """The server outlives the thread that started it, and ends with the process, also after SIGKILL."""
    server, guard, directory, url = owner.stdout.readline().split()
    descriptors = [os.pidfd_open(int(pid)) for pid in (server, guard)]
    try:
        assert run(url, "SELECT 1") == [(1,)]
        owner.send_signal(how)
        for descriptor in descriptors:
            wait_until_gone(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", urlsplit(url).port))
    assert not Path(directory).exists()


@pytest.mark.thorough
@pytest.mark.local_server
def test_the_server_dies_with_its_guard(private_server: DevServer) -> None:
    """When the watching process is the one that is killed, the server goes at once, by the kernel's hand."""
    assert isinstance(private_server, LocalServer)
    descriptor = os.pidfd_open(private_server.pid)
    try:
        private_server._process.kill()
        wait_until_gone(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.thorough
@pytest.mark.local_server
def test_the_template_is_made_once(local_kind: str, tmp_path: Path) -> None:
    """Several starts on a machine that has no template yet share one, and nobody sees it half made."""
    find = _programs.find_mysql if local_kind == "mysql-local" else _programs.find_local
    program = find(os.environ)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(3) as pool:
        made = {future.result() for future in [pool.submit(_programs.template, program, environ) for _ in range(3)]}
    assert len(made) == 1
    assert (made.pop() / "mysql").is_dir()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.fixture
def container_runtime() -> None:
    """A Docker engine that answers. Where there is none, the tests say so in one line."""
    from docker import from_env
    from docker.errors import DockerException

    runtime = None
    with suppress(DockerException):
        runtime = from_env(timeout=10)
    if runtime is None:
        gc.collect()  # the client has left a socket open
        pytest.skip("no container runtime answers: MariaDB and MySQL were not started through testcontainers")
    runtime.ping()
    runtime.close()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of a Docker client that finds no engine
@pytest.mark.timeout(600)  # an image may have to be fetched
@pytest.mark.parametrize("image", ["mariadb:11.8", "mysql:8.4"])
def test_a_server_in_a_container_is_as_any_other(container_runtime: None, image: str) -> None:
    """Through testcontainers: tables, a message, and after a crash what was committed."""
    with start(f"docker:{image}") as server:
        assert server.family == image.partition(":")[0]
        with lanelog.connect(server.create_database("shop")) as client:
            client.migrate()
            client.publish("orders", "order-7", b"paid")
            server.kill()
            server.restart()
            (message,) = client.admin.messages("orders", "order-7")
            assert message.payload == b"paid"
