"""TLS to the server: verified by an authority that the test makes, and refused for whatever is not right about it.

With PyMySQL. The server takes nothing in the clear over TCP, so whatever works is encrypted in every connection.
"""

import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog

import lanelog
from lanelog import Client, DatabaseError
from support import tls
from support.clocks import clock, libfaketime
from support.drivers import DRIVERS
from support.proxy import listening
from support.scripts import ran
from support.tls import Authority, TlsServer
from support.waiting import Record, accept

pytestmark = pytest.mark.local_server

CLIENT_SSL = 0x0800
HEADER = 4


@pytest.fixture(scope="module")
def authority() -> Authority:
    """The one that the server's certificates come from."""
    return Authority("lanelog test authority")


@pytest.fixture(scope="module")
def secure_server(request: pytest.FixtureRequest, authority: Authority) -> Iterator[TlsServer]:
    """One server for all tests of this file, with lanelog's tables."""
    kind = "mysql-local" if request.config.getoption("--server") == "mysql-local" else "local"
    with tls.start(kind) as server:
        with lanelog.connect(server.url) as client:
            client.migrate()
        server.secure(authority)
        yield server


@pytest.fixture
def server(secure_server: TlsServer, authority: Authority) -> Iterator[TlsServer]:
    """The server, with a certificate that is right."""
    yield secure_server
    secure_server.use(authority, ["localhost", "127.0.0.1"])


@pytest.fixture
def ca(authority: Authority, tmp_path: Path) -> Path:
    """The right authority's certificate."""
    return authority.write(tmp_path / "ca.pem")


def url(server: TlsServer, host: str = "127.0.0.1", port: int = 0, **parameters: object) -> str:
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items())
    return f"mysql://root:{server.password}@{host}:{port or server.port}/lanelog{f'?{query}' if query else ''}"


def cipher(client: Client) -> str:
    """With which cipher a connection of the client is encrypted; empty: not at all."""
    with client.transaction() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return str(cursor.fetchone()[1])


def refusal(where: str, password: str) -> DatabaseError:
    """The error of every way to begin with this URL; it does not invite to try again, nor show the password."""
    found: list[DatabaseError] = []
    with lanelog.connect(where, publish_timeout=60.0) as client:
        calls: list[Callable[[], object]] = [
            client.ping,
            lambda: client.publish("t", "k", b"x"),
            lambda: client.subscribe("t", "g", accept),
        ]
        for call in calls:
            with pytest.raises(DatabaseError) as raised:
                call()
            found.append(raised.value)
            assert not raised.value.retriable
            assert password not in "".join(traceback.format_exception(raised.value))
    assert len({str(error) for error in found}) == 1
    return found[0]


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_everything_works_encrypted(server: TlsServer, ca: Path, host: str) -> None:
    """With the authority's file, publish, transactions and every loop of subscribe work, by name and by address."""
    record = Record()
    topic = f"merge-{host}"
    with lanelog.connect(url(server, host, ssl_ca=ca)) as client:
        client.ping()
        assert cipher(client)
        client.publish(topic, "k", b"1")
        with client.transaction() as connection:
            client.publish(topic, "k", b"2", connection=connection)

        def handle(message: lanelog.Message) -> None:
            with message.transaction() as connection:
                connection.cursor().execute("SELECT 1")
            record(message.payload)

        with client.subscribe(topic, "g", handle):
            assert record.wait(2, within=30) == [b"1", b"2"]


def test_a_broken_connection_is_encrypted_again(server: TlsServer, ca: Path) -> None:
    """A later connection is verified like the first one."""
    with lanelog.connect(url(server, ssl_ca=ca)) as client:
        client.publish("again", "k", b"1")
        server.kill_clients()
        client.publish("again", "k", b"2")
        assert cipher(client)


def test_another_authority_is_refused(server: TlsServer, tmp_path: Path) -> None:
    """A certificate that somebody else signed, or that the system's authorities do not know: check ssl_ca."""
    other = Authority("lanelog test authority").write(tmp_path / "other.pem")  # of the same name, with another key
    for parameters in ({"ssl_ca": other}, {"ssl": "true"}):
        error = refusal(url(server, **parameters), server.password)
        assert "certificate was refused: check ssl_ca" in str(error)


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (["db.example"], "127.0.0.1"),
        (["db.example"], "localhost"),
        (["localhost"], "127.0.0.1"),
        (["127.0.0.1"], "localhost"),
        (["*.localhost"], "localhost"),
    ],
)
def test_a_wrong_host_name_is_refused(
    server: TlsServer, authority: Authority, ca: Path, names: list[str], host: str
) -> None:
    """The authority is right, and the certificate is somebody else's."""
    server.use(authority, names)
    error = refusal(url(server, host, ssl_ca=ca), server.password)
    assert "certificate was refused: check ssl_ca and the host" in str(error)
    assert "mismatch" in str(error)


@pytest.mark.thorough
@pytest.mark.parametrize(("offset", "why"), [("+36h", "expired"), ("-36h", "not yet valid")])
def test_a_certificate_out_of_its_time_is_refused(server: TlsServer, ca: Path, offset: str, why: str) -> None:
    """By whose clock it is over, or has not begun; the error says which."""
    # The client's clock is what is wrong here, because MySQL refuses to load a certificate that is out of its time.
    environment = os.environ | clock(libfaketime(), offset) | {"LANELOG_URL": url(server, ssl_ca=ca)}
    done = ran(sys.executable, "-m", "lanelog", "migrate", env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: the server's certificate was refused: check ssl_ca")
    assert why in done.stderr
    assert server.password not in done.stderr


def test_a_certificate_that_changes_for_the_worse_is_refused_later(
    server: TlsServer, authority: Authority, ca: Path
) -> None:
    """A client that was connected does not go on with whoever answers now, nor repeat it for publish_timeout."""
    with lanelog.connect(url(server, ssl_ca=ca), publish_timeout=60.0) as client:
        client.publish("worse", "k", b"1")
        server.use(authority, ["db.example"])
        server.kill_clients()
        with pytest.raises(DatabaseError, match="certificate was refused") as raised:
            client.publish("worse", "k", b"2")
        assert not raised.value.retriable


def test_in_the_clear_is_refused_by_the_server(server: TlsServer) -> None:
    """A URL without TLS, and a server that insists on it: the error says what to add. A socket counts as secure."""
    error = refusal(url(server), server.password)
    assert "insists on TLS" in str(error)
    assert "add ssl=true to the URL" in str(error)
    with lanelog.connect(url(server, unix_socket=server.socket)) as client:
        client.ping()


def test_verification_can_be_switched_off_in_as_many_words(server: TlsServer) -> None:
    """ssl_verify=false takes any certificate; it is still encrypted."""
    server.use(Authority("another"), ["db.example"])
    with lanelog.connect(url(server, ssl="true", ssl_verify="false")) as client:
        client.ping()
        assert cipher(client)


def test_the_server_can_ask_who_the_client_is(
    server: TlsServer, authority: Authority, ca: Path, tmp_path: Path
) -> None:
    """ssl_cert and ssl_key: with them a user that REQUIREs X509 gets in, without them it does not."""
    certificate, key = authority.issue(tmp_path, ["worker"])
    server.execute("DROP USER IF EXISTS certified")
    server.execute(f"CREATE USER certified IDENTIFIED BY '{server.password}' REQUIRE X509")
    server.execute("GRANT ALL ON lanelog.* TO certified")
    where = url(server, ssl_ca=ca).replace("//root:", "//certified:")
    with lanelog.connect(f"{where}&ssl_cert={quote(str(certificate))}&ssl_key={quote(str(key))}") as client:
        client.ping()
    assert "1045" in str(refusal(where, server.password))


@pytest.mark.parametrize("driver", DRIVERS)
def test_tokens_are_asked_for_at_each_login(server: TlsServer, ca: Path, driver: str) -> None:
    """The one who makes them is told the host, the port and the user of the login, also of a lent connection's."""
    asked = Record()

    class Tokens:
        def token(self, host: str, port: int, user: str) -> str:
            asked((host, port, user))
            return server.password

    where = url(server, ssl_ca=ca).replace(f":{server.password}", "").replace("@127.0.0.1", "@127.0.0.1:1,127.0.0.1")
    with lanelog.connect(where, password=Tokens(), driver=driver) as client:
        for _ in range(2):
            assert cipher(client)
    assert set(asked.items) == {("127.0.0.1", 1, "root"), ("127.0.0.1", server.port, "root")}


def test_a_password_that_is_sent_encrypted_is_in_no_local(server: TlsServer, ca: Path) -> None:
    """Over TLS MySQL is sent the password itself; when it refuses it, no frame of the error shows it, cut or whole."""
    wrong = "wr0ng-s3cret" * 20
    where = url(server, ssl_ca=ca).replace(server.password, wrong)
    with lanelog.connect(where) as client:
        with pytest.raises(DatabaseError, match="password") as raised:
            client.ping()
        transform = structlog.tracebacks.ExceptionDictTransformer(show_locals=True)
        error = raised.value
        shown = repr(transform((type(error), error, error.__traceback__.tb_next)))
    assert "_read_packet" in shown  # the driver's frames are among them
    assert "wr0ng" not in shown


@pytest.mark.parametrize("verify", ["true", "false"])
def test_who_strips_tls_from_the_greeting_gets_nothing(server: TlsServer, ca: Path, verify: str) -> None:
    """Somebody on the way says that the server offers no TLS: refused before anything is sent, a password above all."""
    greeted, heard = threading.Event(), Record()

    def strip(client: socket.socket) -> None:
        """Forward the greeting without the flag that offers TLS, and keep what the client answers."""
        with socket.create_connection(("127.0.0.1", server.port)) as behind:
            client.sendall(without_tls(behind.recv(4096)))
            greeted.set()
            client.settimeout(30)
            while data := client.recv(4096):
                heard(data)

    with listening(strip) as port:
        where = url(server, port=port, ssl_ca=ca, ssl_verify=verify)
        error = refusal(where, server.password)
        assert "check ssl" in str(error)
        assert greeted.is_set()
        assert not heard.items


def without_tls(greeting: bytes) -> bytes:
    """The first packet of the protocol, with one flag taken out."""
    flags = greeting.index(b"\0", HEADER + 1) + 1 + 4 + 8 + 1  # behind version, connection id, salt and a zero
    (value,) = struct.unpack_from("<H", greeting, flags)
    assert value & CLIENT_SSL
    return greeting[:flags] + struct.pack("<H", value & ~CLIENT_SSL) + greeting[flags + 2 :]
