"""What all tests share: which server they run on, and that a missing one is a failure."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from lanelog.devserver import DevServer, ServerUnavailable, start

# A test machine is shared: how long one example takes says nothing.
settings.register_profile("lanelog", parent=settings(), deadline=None)
settings.load_profile("lanelog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell, which hands on that Ctrl-C is ignored: programs that tests interrupt would.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MARKED = ("contract", "integration", "spark", "chaos")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        default="auto",
        metavar="KIND",
        help="local, mysql-local, docker:mysql:8.4, docker:mariadb:11.4 or a URL (default: auto)",
    )
    parser.addoption(
        "--allow-missing-server",
        action="store_true",
        help="skip the tests that need a database when there is none; never in CI",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests by their directory, and leave out those that a server of somebody else cannot serve."""
    for item in items:
        if item.path.parent.name in MARKED:
            item.add_marker(item.path.parent.name)
    kind = server_kind(config)
    unfit = [
        item for item in items if (needs_local(item) and not is_local(kind)) or (needs_own(item) and "://" in kind)
    ]
    if unfit:
        config.hook.pytest_deselected(items=unfit)
        items[:] = [item for item in items if item not in unfit]


def server_kind(config: pytest.Config) -> str:
    kind: str = config.getoption("--server")
    return os.environ.get("LANELOG_URL") or kind if kind == "auto" else kind


def is_local(kind: str) -> bool:
    return not kind.startswith("docker:") and "://" not in kind


def needs_local(item: pytest.Item) -> bool:
    return item.get_closest_marker("local_server") is not None


def needs_own(item: pytest.Item) -> bool:
    return "private_server" in getattr(item, "fixturenames", ())


def start_or_fail(config: pytest.Config) -> DevServer:
    try:
        return start(config.getoption("--server"))
    except ServerUnavailable as exc:
        reason = str(exc)
    if config.getoption("--allow-missing-server") and not os.environ.get("CI"):
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)


@pytest.fixture
def local_kind(request: pytest.FixtureRequest) -> str:
    """The kind of local server this run is on, for tests of servers themselves."""
    return "mysql-local" if server_kind(request.config) == "mysql-local" else "local"


@pytest.fixture(scope="session")
def lanelog_server(request: pytest.FixtureRequest) -> Iterator[DevServer]:
    """One server for the whole run. Tests must leave it running; `private_server` may be killed."""
    with start_or_fail(request.config) as server:
        yield server


@pytest.fixture
def private_server(request: pytest.FixtureRequest) -> Iterator[DevServer]:
    """A server of this test alone, of the family the run is on, which it may kill and restart."""
    with start_or_fail(request.config) as server:
        yield server
