"""Certificates of an authority made for one test run, and a private server that uses them."""

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pymysql
from attrs import define, field
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lanelog.devserver._local import LocalServer
from support.sql import rows

DAY = dt.timedelta(days=1)


class Authority:
    """A self-made certificate authority."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(
            self._name, self._key.public_key(), [x509.BasicConstraints(ca=True, path_length=0)]
        )

    def write(self, path: Path) -> Path:
        """The authority's own certificate, for `ssl_ca`."""
        path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, directory: Path, names: Sequence[str]) -> tuple[Path, Path]:
        """A certificate for hosts and addresses, valid for a day, and its key; as two files."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = self._sign(subject, key.public_key(), [x509.SubjectAlternativeName(alternatives)])
        paths = directory / "certificate.pem", directory / "key.pem"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].touch(mode=0o600)
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extensions: Sequence[x509.ExtensionType]
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())


@define(eq=False, kw_only=True)
class TlsServer(LocalServer):
    """A private server with a certificate, which accepts nothing in the clear but its unix socket."""

    options: list[str] = field(factory=list)

    def secure(self, authority: Authority) -> None:
        """Start again with a certificate of the authority for this machine, which also decides who clients are."""
        authority.write(self.directory / "authority.pem")
        authority.issue(self.directory, ["localhost", "127.0.0.1"])
        inside = self.program.inside
        self.options = [
            f"--ssl-ca={inside(self.directory / 'authority.pem')}",
            f"--ssl-cert={inside(self.directory / 'certificate.pem')}",
            f"--ssl-key={inside(self.directory / 'key.pem')}",
            "--require-secure-transport=ON",
        ]
        self.restart()

    def use(self, authority: Authority, names: Sequence[str]) -> None:
        """Show another certificate from now on, and believe in its authority."""
        authority.write(self.directory / "authority.pem")  # MySQL loads no other certificate
        authority.issue(self.directory, names)
        self.execute("FLUSH SSL" if self.family == "mariadb" else "ALTER INSTANCE RELOAD TLS")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as root, through the socket."""
        raw = pymysql.connect(user="root", password=self.password, unix_socket=str(self.socket), ssl_disabled=True)
        with closing(raw):
            return rows(raw, statement)

    def kill_clients(self) -> None:
        """Break every connection to lanelog's tables."""
        for (number,) in self.execute("SELECT id FROM information_schema.processlist WHERE db = 'lanelog'"):
            with suppress(pymysql.err.OperationalError):  # it has ended by itself
                self.execute(f"KILL {number}")

    def _command(self) -> list[str]:
        return [*LocalServer._command(self), *self.options]


def start(kind: str) -> TlsServer:
    """A server of the family that the tests run on."""
    from lanelog.devserver._programs import find_local, find_mysql

    return TlsServer.start(find_mysql(os.environ) if kind == "mysql-local" else find_local(os.environ))  # type: ignore[return-value]
