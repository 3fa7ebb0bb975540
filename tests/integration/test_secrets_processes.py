"""What processes show of passwords: the output of commands, their command lines, and the files of a private server."""

import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lanelog import ConfigurationError
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from lanelog.devserver._local import LocalServer
from support.secrecy import PARTS, PASSWORD, error_of, found_in, secret_account, url_of


@pytest.fixture
def account(raw: Any, lanelog_url: str) -> Iterator[str]:
    """The URL of a user with the secret password."""
    with secret_account(raw, lanelog_url) as url:
        yield url


@pytest.mark.parametrize(
    ("how", "way"),
    [
        ("password", "option"),
        ("password", "environment"),
        ("database", "environment"),
        ("port", "option"),
        ("tls", "environment"),
        ("scheme", "option"),
        ("garbled", "environment"),
    ],
)
def test_the_command_line_does_not_repeat_a_password(lanelog_url: str, account: str, how: str, way: str) -> None:
    """`lanelog migrate` that fails: one message, in which the URL is not."""
    config = ConnectConfig.from_url(lanelog_url)
    wheres = {
        "password": url_of(config, "nobody_of_this_name"),
        "database": account.replace(f"/{config.database}", "/nowhere_of_this_name"),
        "port": url_of(config, "me", port=1),
        "tls": url_of(config, "me", ssl_ca="/nowhere/ca.pem"),
        "scheme": account.replace("mysql://", "postgres://"),
        "garbled": account.replace("@", "/", 1),
    }
    done = lanelog_command("migrate", wheres[how], way)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert found_in(done.stdout + done.stderr, *PARTS) == []


@pytest.mark.parametrize("scheme", ["mysql", "MYSQL", "postgres"])
def test_a_dev_server_that_is_none_does_not_repeat_its_url(scheme: str) -> None:
    """`--server` takes a URL as well; what is wrong with it is said without it."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lanelog",
            "dev-server",
            "--server",
            f"{scheme}://me:{quote(PASSWORD, safe='')}@127.0.0.1:1/x",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert found_in(done.stdout + done.stderr, *PARTS) == []


def lanelog_command(command: str, url: str, way: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "LANELOG_URL"}
    if way == "environment":
        environ["LANELOG_URL"] = url
    options = ["--url", url] if way == "option" else []
    return subprocess.run(
        [sys.executable, "-m", "lanelog", command, *options],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=60,
    )


@pytest.mark.local_server
def test_a_private_servers_password_is_for_its_owner(private_server: DevServer) -> None:
    """In no command line that `ps` shows, no file that others may read, no log of the server, no repr, no error."""
    assert isinstance(private_server, LocalServer)
    password = private_server.password
    assert found_in(repr(private_server), password) == []
    lines = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines.append((directory / "cmdline").read_bytes().decode(errors="replace"))
    assert any(str(private_server.directory) in line for line in lines)
    assert found_in("\n".join(lines), password) == []
    holding = [
        path
        for path in private_server.directory.iterdir()
        if path.is_file() and password in path.read_text(errors="replace")
    ]
    assert [path.name for path in holding] == ["first.sql"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(private_server.directory.stat().st_mode) == 0o700
    private_server.kill()
    error = error_of(lambda: private_server.create_database("nothing"))
    assert found_in("".join(traceback.format_exception(error)), password) == []
    with pytest.raises(ConfigurationError) as raised:
        private_server.root_url("no name")
    assert found_in(str(raised.value), password) == []
