"""What `ssl`, `ssl_ca` and `ssl_verify` mean for a connection."""

import ssl
from pathlib import Path

import pytest

from lanelog._database.connection.login import Login
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError


def context(query: str) -> ssl.SSLContext:
    return Login(ConnectConfig.from_url(f"mysql://root@db.example/q?{query}"))._context()


@pytest.mark.parametrize(
    ("query", "verify", "name"),
    [
        ("ssl=true", ssl.CERT_REQUIRED, True),
        ("ssl=true&ssl_verify=false", ssl.CERT_NONE, False),
        ("ssl=true&unix_socket=/run/mysqld.sock", ssl.CERT_REQUIRED, False),
    ],
)
def test_tls_verifies_certificate_and_name(query: str, verify: ssl.VerifyMode, name: bool) -> None:
    """Encryption to somebody unknown protects nobody: unless asked for in as many words; a socket has no host name."""
    found = context(query)
    assert (found.verify_mode, found.check_hostname) == (verify, name)


@pytest.mark.parametrize("option", ["ssl_ca", "ssl_cert"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, option: str) -> None:
    """A wrong path or a file that is no certificate is a matter of configuration."""
    wrong = tmp_path / "wrong.pem"
    with pytest.raises(ConfigurationError, match="ssl_ca, ssl_cert or ssl_key"):
        context(f"{option}={wrong}")
    wrong.write_text("no certificate")
    with pytest.raises(ConfigurationError, match="ssl_ca, ssl_cert or ssl_key"):
        context(f"{option}={wrong}")
