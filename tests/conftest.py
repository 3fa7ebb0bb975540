"""What all tests share: which server they run on, and that a missing one is a failure."""

import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.devserver import TEST_URL_VARIABLE, DevServer, ServerUnavailable, start
from support.costs import Costs, Meter
from support.databases import Databases

# A test machine is shared: how long one example takes says nothing.
settings.register_profile("lanelog", parent=settings(), deadline=None)
settings.load_profile("lanelog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell, which hands on that Ctrl-C is ignored: programs that tests interrupt would.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MARKED = ("acceptance", "contract", "integration", "spark", "chaos")
LEFT_OUT: Counter[Path] = Counter()
"""Thorough tests that this run leaves out, by directory."""
METER = pytest.StashKey[Meter]()
"""What measures the tests of this process, with --costs."""
COSTS = Costs()
"""In the process that reports: the costs of all tests."""
SPARK_TIMEOUT = 300
"""Seconds for a test of Spark: on a busy machine a JVM alone takes half a minute to start."""


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
    parser.addoption(
        "--part",
        metavar="K/N",
        help="of the thorough tests, part K of N; and of what is the same on both families, that on one of them",
    )
    parser.addoption("--costs", metavar="FILE", help="measure what each test costs, and write it there")


def tier_of(item: pytest.Item) -> Path:
    """The folder of its tier: tests/unit, tests/contract, tests/integration, tests/spark."""
    return Path(*item.path.relative_to(item.config.rootpath).parts[:2])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests by their directory, and leave out those that a server of somebody else cannot serve."""
    for item in items:
        tier = tier_of(item).name
        if tier in MARKED:
            item.add_marker(tier)
        if tier == "spark" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))
    kind = server_kind(config)
    part = config.getoption("--part")
    unfit = [
        item
        for item in items
        if (needs_local(item) and not is_local(kind))
        or (needs_own(item) and "://" in kind)
        or (part and is_for_another_run(item, part, kind))
    ]
    if unfit:
        config.hook.pytest_deselected(items=unfit)
        items[:] = [item for item in items if item not in unfit]


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count what this run leaves out as thorough."""
    LEFT_OUT.update(
        tier_of(item) for item in items if is_thorough(item) and "not thorough" in item.config.getoption("markexpr")
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure what the test costs, its fixtures included."""
    if not item.config.getoption("costs"):
        return (yield)
    meter = item.config.stash.setdefault(METER, Meter())
    meter.begin()
    try:
        return (yield)
    finally:
        meter.end(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand counts and costs over to the process that reports."""
    meter = session.config.stash.get(METER, Meter())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = {str(place): count for place, count in LEFT_OUT.items()}
        session.config.workeroutput["costs"] = meter.finish().as_values()
    elif meter.costs.tests:
        COSTS.add(meter.finish().as_values())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over counts and costs of a worker."""
    for place, count in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        LEFT_OUT[Path(place)] = count
    if "costs" in (told := getattr(node, "workeroutput", {})):
        COSTS.add(told["costs"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the tests cost, what was left out, and how that is run."""
    if config.getoption("costs"):
        file = Path(config.getoption("costs"))
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(COSTS.as_values()))
        terminalreporter.write_line(
            f"costs: {COSTS.processor_seconds:.0f} processor seconds, children and servers included; "
            f"{COSTS.waited_seconds:.0f} s of waits (wall less processor, test by test)"
        )
    if LEFT_OUT:
        places = ", ".join(f"{count} of {place}" for place, count in sorted(LEFT_OUT.items()))
        terminalreporter.write_line(f"left out as thorough: {places}; `make test-all` runs everything")


def is_for_another_run(item: pytest.Item, part: str, kind: str) -> bool:
    """Whether a run of a part leaves this test to the other family, or to a later commit."""
    family = item.get_closest_marker("one_family")
    mysql = kind == "mysql-local" or kind.startswith("docker:mysql")
    if family is not None and mysql is not (family.args[0] == "mysql"):
        return True
    number, count = map(int, part.split("/"))
    divided = tier_of(item).name != "unit" and is_thorough(item)
    return divided and crc32(item.nodeid.encode()) % count != number


def is_thorough(item: pytest.Item) -> bool:
    return item.get_closest_marker("thorough") is not None


def server_kind(config: pytest.Config) -> str:
    kind: str = config.getoption("--server")
    return os.environ.get(TEST_URL_VARIABLE) or kind if kind == "auto" else kind


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


@pytest.fixture(scope="session")
def databases(lanelog_server: DevServer) -> Iterator[Databases]:
    """Databases with lanelog's tables, on the server of the run."""
    databases = Databases(lanelog_server)
    yield databases
    databases.close()


@pytest.fixture
def lanelog_url(databases: Databases, lanelog_server: DevServer) -> Iterator[str]:
    """The URL of a database with lanelog's tables, which are empty."""
    name = databases.take()
    yield lanelog_server.root_url(name)
    databases.give_back(name)


@pytest.fixture
def empty_url(lanelog_server: DevServer) -> Iterator[str]:
    """The URL of a database without tables."""
    name = f"lanelog_test_{secrets.token_hex(6)}"
    yield lanelog_server.create_database(name)
    lanelog_server.drop_database(name)


@pytest.fixture
def database(lanelog_url: str) -> Iterator[Database]:
    """The test's database, closed after the test."""
    with closing(Database(ConnectConfig.from_url(lanelog_url, publish_timeout=20.0))) as database:
        yield database


@pytest.fixture
def private_server(request: pytest.FixtureRequest) -> Iterator[DevServer]:
    """A server of this test alone, of the family the run is on, which it may kill and restart."""
    with start_or_fail(request.config) as server:
        yield server
