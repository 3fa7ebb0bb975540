"""What `ssl`, `ssl_ca` and `ssl_verify` mean for a connection."""

import ssl
from pathlib import Path

import pytest

from lanelog._database.driver import Driver
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError


def context(query: str) -> ssl.SSLContext:
    return Driver(ConnectConfig.from_url(f"mysql://root@db.example/q?{query}"))._context()


def test_tls_verifies_certificate_and_name() -> None:
    """Encryption to somebody unknown protects nobody."""
    found = context("ssl=true")
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_verification_can_be_turned_off() -> None:
    """Only when asked for in as many words."""
    found = context("ssl=true&ssl_verify=false")
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_NONE, False)


def test_a_socket_has_no_name_to_check() -> None:
    """Over a unix socket the certificate is verified, the host name is not."""
    found = context("ssl=true&unix_socket=/run/mysqld.sock")
    assert (found.verify_mode, found.check_hostname) == (ssl.CERT_REQUIRED, False)


@pytest.mark.parametrize("option", ["ssl_ca", "ssl_cert"])
def test_files_that_cannot_be_used_are_named(tmp_path: Path, option: str) -> None:
    """A wrong path or a file that is no certificate is a matter of configuration."""
    wrong = tmp_path / "wrong.pem"
    with pytest.raises(ConfigurationError, match="ssl_ca, ssl_cert or ssl_key"):
        context(f"{option}={wrong}")
    wrong.write_text("no certificate")
    with pytest.raises(ConfigurationError, match="ssl_ca, ssl_cert or ssl_key"):
        context(f"{option}={wrong}")
