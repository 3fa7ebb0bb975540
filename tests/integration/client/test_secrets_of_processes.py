"""What processes show of passwords: the output of commands, their command lines, and the files of a private server."""

import stat
import traceback
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from lanelog import ConfigurationError
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from lanelog.devserver._local import LocalServer
from support.cli import Command
from support.secrecy import PARTS, PASSWORD, error_of, found_in, url_of


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_command_line_does_not_repeat_a_password(lanelog_url: str, account: str, way: str) -> None:
    """`lanelog migrate` that fails: one message, in which the URL is not."""
    config = ConnectConfig.from_url(lanelog_url)
    for url in (
        url_of(config, "nobody_of_this_name"),
        account.replace(f"/{config.database}", "/nowhere_of_this_name"),
        url_of(config, "me", port=1),
        url_of(config, "me", ssl_ca="/nowhere/ca.pem"),
        account.replace("mysql://", "postgres://"),
        account.replace("@", "/", 1),
    ):
        said = (
            Command(url).refused("migrate") if way == "environment" else Command(None).refused("migrate", "--url", url)
        )
        assert found_in(said, *PARTS) == []


@pytest.mark.parametrize("scheme", ["mysql", "MYSQL", "postgres"])
def test_a_dev_server_that_is_none_does_not_repeat_its_url(scheme: str) -> None:
    """`--server` takes a URL as well; what is wrong with it is said without it."""
    url = f"{scheme}://me:{quote(PASSWORD, safe='')}@127.0.0.1:1/x"
    assert found_in(Command(None).refused("dev-server", "--server", url), *PARTS) == []


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
