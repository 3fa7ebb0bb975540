"""Which server is chosen, and what is said when there is none; no server is started here."""

import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lanelog import devserver
from lanelog.devserver import ServerUnavailable, _choice, _programs
from lanelog.devserver._container import PORT, build
from lanelog.devserver._given import GivenServer
from lanelog.devserver._local import PORTS, free_port
from lanelog.devserver._server import check_database, family_and_version, greeting
from lanelog.errors import ConfigurationError

# A Docker client that finds no daemon drops its socket unclosed; `no_programs` lets it go within the test.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

URL = "mysql://root@db.example/jobs"
API_VERSION = "1.44"  # given, a Docker client does not ask its daemon


class Chosen(Exception):
    """Raised in place of a start, with what would have been started."""


@pytest.mark.parametrize(
    ("kinds", "environment", "local", "chosen"),
    [
        ([], URL, True, URL),
        ([], None, True, "local"),
        ([], None, False, "docker"),
        (["local"], URL, True, "local"),
        (["mariadb://u@h/d"], None, True, "mariadb://u@h/d"),
    ],
)
def test_which_server_is_chosen(
    monkeypatch: pytest.MonkeyPatch, kinds: list[str], environment: str | None, local: bool, chosen: str
) -> None:
    """LANELOG_TEST_URL, a program of this machine, Docker, in this order; a kind or URL that is asked for is taken.

    LANELOG_URL, the database of an application, is never read.
    """

    def way(outcome: Exception) -> Callable[[], None]:
        def start() -> None:
            raise outcome

        return start

    def given(url: str) -> None:
        raise Chosen(url)

    monkeypatch.setenv("LANELOG_URL", "mysql://precious@production/orders")
    monkeypatch.delenv("LANELOG_TEST_URL", raising=False)
    if environment:
        monkeypatch.setenv("LANELOG_TEST_URL", environment)
    monkeypatch.setattr(_choice, "_local", way(Chosen("local") if local else ServerUnavailable("none")))
    monkeypatch.setattr(_choice, "_docker", way(Chosen("docker")))
    monkeypatch.setattr(GivenServer, "at", given)
    with pytest.raises(Chosen) as caught:
        devserver.start(*kinds)
    assert str(caught.value) == chosen


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without any server program, without a Docker daemon, and without LANELOG_TEST_URL."""
    monkeypatch.delenv("LANELOG_TEST_URL", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_programs, "SEARCHED", ())
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    yield
    gc.collect()


@pytest.mark.parametrize("kind", ["", "sqlite", "postgres://h/d", "docker"])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    """A kind that does not exist is an error that lists the kinds."""
    with pytest.raises(ConfigurationError, match="use auto, local, mysql-local, docker:IMAGE"):
        devserver.start(kind)


@pytest.mark.usefixtures("no_programs")
def test_without_any_server_the_message_names_the_three_ways() -> None:
    """No URL, no program, a Docker client without a daemon: the error says what would help and what was tried."""
    with pytest.raises(ServerUnavailable) as caught:
        devserver.start()
    for expected in (
        *("LANELOG_TEST_URL", "apt-get install mariadb-server-core", "start Docker"),
        *("local: there is no mariadbd", "docker: Docker cannot run mysql:8.4"),
    ):
        assert expected in str(caught.value)


@pytest.mark.usefixtures("no_programs")
def test_mysql_is_not_mistaken_for_mariadb(tmp_path: Path) -> None:
    """`mysqld` is often a link to MariaDB; asking for MySQL does not take it."""
    program = tmp_path / "mysqld"
    program.write_text("#!/bin/sh\necho 'mysqld  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64'\n")
    program.chmod(0o755)
    with pytest.raises(ServerUnavailable, match="no MySQL server on this machine"):
        devserver.start("mysql-local")


@pytest.mark.parametrize("image", ["mysql:8.4", "mariadb:11.4"])
def test_a_container_gets_its_arguments(image: str) -> None:
    """Image, account and database are set; the port is published on the loopback interface, fixed over restarts."""
    container = build(image, "secret", version=API_VERSION)
    try:
        container._configure()
        assert container.image == image
        assert container.env == {"MYSQL_ROOT_PASSWORD": "secret", "MYSQL_DATABASE": "lanelog"}
        assert list(container.ports) == [f"{PORT}/tcp"]
        address, port = container.ports[f"{PORT}/tcp"]
        assert address == "127.0.0.1"
        assert port in PORTS
    finally:
        container.get_docker_client().client.close()


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    """The port stays ours while the server is down: no outgoing connection is given it."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert free_port() < first


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.5.5-10.11.19-MariaDB-0+deb12u1", ("mariadb", "10.11.19")),
        ("11.8.2-MariaDB-log", ("mariadb", "11.8.2")),
        ("9.7.4-2", ("mysql", "9.7.4")),
        ("8.0.43", ("mysql", "8.0.43")),
    ],
)
def test_family_and_version(text: str, expected: tuple[str, str]) -> None:
    """The version text names the family; MariaDB's prefix for old replicas is not a version."""
    assert family_and_version(text) == expected


@pytest.mark.parametrize(
    ("packet", "ready"),
    [(b"\x5a\0\0\0\x0a9.7.4\0rest", True), (b"", False), (b"\x17\0\0\0\xff\x10\x04Too many connections", False)],
)
def test_a_server_that_is_ready_greets(packet: bytes, ready: bool) -> None:
    """The first packet of protocol 10 has the version; a closed connection or an error packet means: ask again."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(packet)
        if ready:
            assert greeting(ours) == ("mysql", "9.7.4")
        else:
            with pytest.raises(ConnectionError, match="not ready"):
                greeting(ours)


@pytest.mark.parametrize("name", ["", "a`b", "a b", "a/b", "x" * 65, "ä"])
def test_database_names_are_plain(name: str) -> None:
    """A name that would need quoting is refused before it reaches a statement."""
    with pytest.raises(ConfigurationError, match="a database name has"):
        check_database(name)


def test_a_given_server_is_left_alone() -> None:
    """A server started elsewhere is not ended here; another database is another path; no repr has the password."""
    with GivenServer(url="mysql://u:p%40@h:1/a?ssl_ca=/ca.pem", version="9.7.4", family="mysql") as server:
        with pytest.raises(ConfigurationError, match="cannot be killed"):
            server.kill()
        with pytest.raises(ConfigurationError, match="cannot be restarted"):
            server.restart()
        assert server.root_url("b") == "mysql://u:p%40@h:1/b?ssl_ca=/ca.pem"
        assert "p%40" not in repr(server)
